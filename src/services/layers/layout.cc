#include "services/layers/layout.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "base/out_of_memory.h"
#include "services/models/packed_indexes.h"

namespace penstock::layers {
namespace {

constexpr std::uint64_t tensor_alignment_bytes = 256;
constexpr std::uint64_t group_most_bytes = std::uint64_t{1} << 62;

// The bytes of a tensor, or of its rows, in their file.
Result<Piece> find(const Model& model, const TensorGroup& group, const GroupTensor& wanted) {
  if (wanted.tensor >= model.tensors().size()) {
    return Error{Code::invalid_argument, 0,
                 "group \"" + group.name + "\": tensor number " + std::to_string(wanted.tensor) + " of " +
                     std::to_string(model.tensors().size()),
                 "tensors are counted from 0"};
  }
  const TensorInfo& tensor = model.tensors()[wanted.tensor];
  std::uint64_t begin = 0;
  std::uint64_t size_bytes = tensor.size_bytes;
  if (wanted.rows) {
    const Result<std::uint64_t> bytes = part_bytes(tensor, 0, {&*wanted.rows, 1});
    if (!bytes) return bytes.error();
    size_bytes = *bytes;
    begin = tensor.size_bytes / std::max<std::uint64_t>(tensor.shape.front(), 1) * wanted.rows->begin;
  }
  const Region memory{nullptr, size_bytes, Domain::host()};
  return Piece{.bytes = models::piece_of(models::PackedIndexes::place_of(model, wanted.tensor), begin, memory)};
}

bool follows(const Piece& piece, const Piece& last) {
  const models::FilePiece& bytes = piece.bytes;
  const models::FilePiece& before = last.bytes;
  return !bytes.packed.tensor && !before.packed.tensor && bytes.file == before.file &&
         before.offset + before.memory.size_bytes == bytes.offset &&
         last.place + before.memory.size_bytes == piece.place;
}

std::vector<Piece> merged(std::vector<Piece> pieces) {
  std::ranges::stable_sort(pieces, {},
                           [](const Piece& piece) { return std::tie(piece.bytes.file, piece.bytes.offset); });
  std::vector<Piece> result;
  for (Piece& piece : pieces) {
    if (!result.empty() && follows(piece, result.back())) {
      result.back().bytes.memory.size_bytes += piece.bytes.memory.size_bytes;
    } else {
      result.push_back(std::move(piece));
    }
  }
  return result;
}

}  // namespace

Result<Layout> lay_out(const Model& model, const TensorGroup& group) {
  Layout layout;
  for (const GroupTensor& each : group.tensors) {
    Result<Piece> piece = find(model, group, each);
    if (!piece) return std::move(piece).error();
    const std::uint64_t bytes = piece->bytes.memory.size_bytes;
    if (bytes > group_most_bytes - layout.slot_bytes) return out_of_memory();
    piece->place = layout.slot_bytes;
    layout.tensors.push_back({piece->place, bytes});
    layout.wanted_bytes += bytes;
    layout.slot_bytes += (bytes + tensor_alignment_bytes - 1) / tensor_alignment_bytes * tensor_alignment_bytes;
    if (bytes != 0) layout.pieces.push_back(std::move(*piece));
  }
  layout.pieces = merged(std::move(layout.pieces));
  return layout;
}

}  // namespace penstock::layers
