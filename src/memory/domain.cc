#include "penstock/domain.h"

#include <charconv>

namespace penstock {

Result<Domain> Domain::parse(std::string_view text) {
  if (text == "host") return host();
  if (text == "pinned") return pinned();
  if (text == "cuda") return cuda(0);
  constexpr std::string_view prefix = "cuda:";
  if (text.starts_with(prefix)) {
    std::uint16_t device = 0;
    const char* end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data() + prefix.size(), end, device);
    if (problem == std::errc() && stop == end) return cuda(device);
  }
  return Error{Code::invalid_argument, 0, "\"" + std::string(text) + "\" is not a memory domain",
               "use host, pinned, cuda or cuda:N with N from 0 to 65535"};
}

std::string Domain::name() const {
  switch (kind_) {
    case Kind::host:
      return "host";
    case Kind::pinned:
      return "pinned";
    case Kind::cuda:
      break;
  }
  return "cuda:" + std::to_string(device_);
}

}  // namespace penstock
