// Where the bytes of a group lie in the files of its model, and where they go in a slot. A pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/layers.h"
#include "services/models/parts.h"

namespace penstock::layers {

// Bytes of a file, or unpacked from some, and where they go in a slot. Their memory has a size, and no address yet.
struct Piece {
  models::FilePiece bytes;
  std::uint64_t place = 0;
};

struct Layout {
  struct Tensor {
    std::uint64_t place = 0;  // in a slot, a multiple of 256
    std::uint64_t bytes = 0;
  };
  std::vector<Tensor> tensors;     // in the order of the group
  std::vector<Piece> pieces;       // in the order of files and offsets; neighbours are one
  std::uint64_t wanted_bytes = 0;  // of all tensors
  std::uint64_t slot_bytes = 0;    // with what lies between them
};

// Code::invalid_argument for tensors and rows that the model does not have. REQUIRES: the indexes of packed tensors
// were read.
Result<Layout> lay_out(const Model& model, const TensorGroup& group);

}  // namespace penstock::layers
