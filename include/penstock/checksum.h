// Checksums of bytes in host memory: XXH3, 64 bits, seed 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "penstock/export.h"

namespace penstock {

// Feed it bytes in order; `value` may be called at any time. Moved from, it starts over.
class PENSTOCK_EXPORT Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;
  // Sixteen lower-case hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // null: no bytes yet
};

}  // namespace penstock
