// The beginning of a safetensors file whose tensors lie in a given order.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "penstock/models.h"

namespace penstock::models {

// Uses the same options as safetensors_head. At least `least_bytes` long, filled up with spaces. Of the memory of
// tensors only the size is used.
Result<std::string> head_in_order(std::span<const TensorToSave> tensors, std::span<const std::uint32_t> order,
                                  const SaveOptions& options, std::uint64_t least_bytes = 0);
// That of safetensors itself: larger types first, so that every tensor begins at a multiple of the size of its
// elements.
std::vector<std::uint32_t> usual_order(std::span<const TensorToSave> tensors);

}  // namespace penstock::models
