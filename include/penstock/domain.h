// Domain: where memory lives, as a value: `host`, `pinned` or `cuda:N`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/result.h"

namespace penstock {

class PENSTOCK_EXPORT Domain {
 public:
  enum class Kind : std::uint8_t { host, pinned, cuda };

  static constexpr Domain host() { return Domain(Kind::host, 0); }
  static constexpr Domain pinned() { return Domain(Kind::pinned, 0); }
  static constexpr Domain cuda(std::uint16_t device) { return Domain(Kind::cuda, device); }
  // Reads "host", "pinned", "cuda" (device 0) or "cuda:N".
  static Result<Domain> parse(std::string_view text);

  constexpr Domain() = default;
  constexpr Kind kind() const { return kind_; }
  // The device number of a cuda domain; 0 otherwise.
  constexpr std::uint16_t device() const { return device_; }
  // Whether the CPU may load and store there.
  constexpr bool host_accessible() const { return kind_ != Kind::cuda; }
  std::string name() const;

  friend constexpr bool operator==(Domain, Domain) = default;

 private:
  constexpr Domain(Kind kind, std::uint16_t device) : kind_(kind), device_(device) {}
  Kind kind_ = Kind::host;
  std::uint16_t device_ = 0;
};

}  // namespace penstock
