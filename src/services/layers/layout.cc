#include "services/layers/layout.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "base/out_of_memory.h"

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
  Piece piece{.file = tensor.file, .offset = tensor.offset, .bytes = tensor.size_bytes};
  if (!wanted.rows) return piece;
  const Result<std::uint64_t> bytes = part_bytes(tensor, 0, {&*wanted.rows, 1});
  if (!bytes) return bytes.error();
  piece.bytes = *bytes;
  piece.offset += tensor.size_bytes / std::max<std::uint64_t>(tensor.shape.front(), 1) * wanted.rows->begin;
  return piece;
}

std::vector<Piece> merged(std::vector<Piece> pieces) {
  std::ranges::sort(pieces, {}, [](const Piece& piece) { return std::tie(piece.file, piece.offset); });
  std::vector<Piece> result;
  for (const Piece& piece : pieces) {
    Piece* const last = result.empty() ? nullptr : &result.back();
    if (last != nullptr && last->file == piece.file && last->offset + last->bytes == piece.offset &&
        last->place + last->bytes == piece.place) {
      last->bytes += piece.bytes;
    } else {
      result.push_back(piece);
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
    piece->place = layout.slot_bytes;
    layout.tensors.push_back({piece->place, piece->bytes});
    if (piece->bytes > group_most_bytes - layout.slot_bytes) return out_of_memory();
    layout.wanted_bytes += piece->bytes;
    layout.slot_bytes += (piece->bytes + tensor_alignment_bytes - 1) / tensor_alignment_bytes * tensor_alignment_bytes;
    if (piece->bytes != 0) layout.pieces.push_back(*piece);
  }
  layout.pieces = merged(std::move(layout.pieces));
  return layout;
}

}  // namespace penstock::layers
