// The header of a .npy file (NumPy Enhancement Proposal 1): a literal of Python's that has the type, the order and the
// shape of one array.
//
// Thread safety: functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/result.h"

namespace penstock::rows {

// What comes before the length of the header, with it.
inline constexpr std::uint64_t npy_front_bytes = 12;

struct NpyArray {
  std::string dtype;  // "<f4"
  std::vector<std::uint64_t> shape;
  std::uint64_t element_bytes = 0;
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
};

bool begins_as_npy(std::string_view front);
// How long the header is, with what comes before it. `front` is what the file begins with, npy_front_bytes or all.
Result<std::uint64_t> npy_header_bytes(std::string_view front, std::uint64_t file_bytes);
// `header` is so much of the file. Fortran's order is refused, but for what is the same in both.
Result<NpyArray> parse_npy(std::string_view header, std::uint64_t file_bytes);

}  // namespace penstock::rows
