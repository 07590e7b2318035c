// The fuzz targets under libFuzzer; the environment variable PENSTOCK_FUZZ_TARGET names the one to run.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fuzz/targets.h"

namespace {

const penstock::fuzz::Target& chosen_target() {
  const char* const name = std::getenv("PENSTOCK_FUZZ_TARGET");
  const auto* const found = std::ranges::find(penstock::fuzz::targets, name ? name : "", &penstock::fuzz::Target::name);
  if (found != std::end(penstock::fuzz::targets)) return *found;
  std::fprintf(stderr, "PENSTOCK_FUZZ_TARGET names none of");
  for (const auto& target : penstock::fuzz::targets) std::fprintf(stderr, " %s", target.name.data());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const penstock::fuzz::Target& target = chosen_target();
  const std::string problem = target.run(std::string_view(reinterpret_cast<const char*>(data), size));
  if (problem.empty()) return 0;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}
