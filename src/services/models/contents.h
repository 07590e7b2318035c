// Contents: what the header of one file says is in it. Both parsers make it; they are pure functions of bytes.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/models.h"

namespace penstock::models {

// The most that is read of a file to learn what is in it.
inline constexpr std::uint64_t header_limit_bytes = 100'000'000;
// As many dimensions as anyone computes with; a header can't make us keep more.
inline constexpr std::size_t dimension_limit = 64;
// More values of metadata than any file has; each costs many times what it takes in a header.
inline constexpr std::size_t metadata_limit = 1 << 18;

struct Contents {
  std::uint64_t data_offset = 0;
  std::map<std::string, MetadataValue> metadata;
  std::vector<TensorInfo> tensors;  // by offset; `file` is not set
};

// A rule of a format that does not hold. The caller knows the file, and puts its name in front.
Error broken(std::string message);
// A file that ends before its header says.
Error ends_early(std::string message);
Error in_file(const std::string& path, Error error);
std::string in_quotes(std::string_view name);  // cut where it is longer than anyone reads

// Fails where the product overflows, of dimensions of 0 apart, or bits are left over.
Result<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::uint64_t> shape);

}  // namespace penstock::models
