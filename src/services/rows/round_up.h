// The next multiple of a number.
#pragma once

#include <cstdint>

namespace penstock::rows {

inline std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace penstock::rows
