#include "services/models/parts.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "services/models/contents.h"
#include "services/models/ggml_types.h"

namespace penstock {

namespace models {
namespace {

Error wrong_part(const TensorInfo& tensor, std::string what, std::string hint) {
  return {.code = Code::invalid_argument,
          .message = "tensor " + in_quotes(tensor.name) + ": " + std::move(what),
          .hint = std::move(hint)};
}

std::string text_of(const Interval& interval) {
  return "the interval from " + std::to_string(interval.begin) + " to " + std::to_string(interval.end);
}

Status check_interval(const TensorInfo& tensor, std::uint32_t dimension, const Interval& interval) {
  const std::uint64_t length = tensor.shape[dimension];
  if (interval.begin > interval.end) {
    return wrong_part(tensor, text_of(interval) + " ends before it begins", "give the first and one past the last");
  }
  if (interval.end > length) {
    return Error{.code = Code::out_of_range,
                 .message = "tensor " + in_quotes(tensor.name) + ": " + text_of(interval) +
                            " reaches past the end of dimension " + std::to_string(dimension) + " at " +
                            std::to_string(length),
                 .hint = "ask for what is there"};
  }
  const GgmlType* const type = find_ggml_type(tensor.quantization);
  const bool in_block = type != nullptr && dimension + 1 == tensor.shape.size();
  if (in_block && (interval.begin % type->block_bytes != 0 || interval.end % type->block_bytes != 0)) {
    return wrong_part(tensor, text_of(interval) + " cuts through a block of " + std::string(type->name),
                      "give multiples of " + std::to_string(type->block_bytes) + " bytes");
  }
  return {};
}

Status check_part(const TensorInfo& tensor, std::uint32_t dimension, std::span<const Interval> intervals) {
  if (intervals.empty()) return {};
  if (dimension >= tensor.shape.size()) {
    return wrong_part(tensor,
                      "it has " + std::to_string(tensor.shape.size()) + " dimensions, none of them number " +
                          std::to_string(dimension),
                      "they are counted from 0");
  }
  for (const Interval& interval : intervals) {
    if (Status status = check_interval(tensor, dimension, interval); !status) return status;
  }
  return {};
}

// Neighbours become one, and rows that are wanted as a whole become one row.
void simplify(Layout& layout) {
  std::vector<Layout::Piece> pieces;
  for (const Layout::Piece& piece : layout.pieces) {
    if (piece.length == 0) continue;
    if (!pieces.empty() && pieces.back().begin + pieces.back().length == piece.begin) {
      pieces.back().length += piece.length;
    } else {
      pieces.push_back(piece);
    }
  }
  layout.pieces = std::move(pieces);
  const bool is_whole = layout.pieces.size() == 1 && layout.pieces[0].length == layout.row_bytes;
  if (!is_whole) return;
  layout.row_bytes *= layout.rows;
  layout.rows = 1;
  layout.pieces[0].length = layout.row_bytes;
}

bool holds(const Region& region, const std::byte* data, std::size_t size_bytes) {
  return data >= region.data && size_bytes <= region.size_bytes &&
         static_cast<std::size_t>(data - region.data) <= region.size_bytes - size_bytes;
}

}  // namespace

std::uint64_t Layout::wanted_row_bytes() const {
  std::uint64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.length;
  return sum;
}

Layout::Piece Layout::bounds() const {
  std::uint64_t begin = UINT64_MAX, end = 0;
  for (const Piece& piece : pieces) {
    begin = std::min(begin, piece.begin);
    end = std::max(end, piece.begin + piece.length);
  }
  return pieces.empty() ? Piece{} : Piece{begin, end - begin};
}

Result<Layout> lay_out(const TensorInfo& tensor, std::uint32_t dimension, std::span<const Interval> intervals) {
  if (Status status = check_part(tensor, dimension, intervals); !status) return std::move(status).error();
  Layout layout{.rows = 1, .row_bytes = tensor.size_bytes, .pieces = {}};
  if (tensor.size_bytes == 0) return layout;
  if (intervals.empty()) {
    layout.pieces.push_back({0, tensor.size_bytes});
    return layout;
  }
  // No product here is larger than the tensor, whose size is known to fit.
  std::uint64_t element_bits = dtype_bits(tensor.dtype);
  for (std::size_t i = dimension + 1; i < tensor.shape.size(); ++i) element_bits *= tensor.shape[i];
  for (std::size_t i = 0; i < dimension; ++i) layout.rows *= tensor.shape[i];
  const std::uint64_t row_bits = element_bits * tensor.shape[dimension];
  for (const Interval& interval : intervals) {
    const std::uint64_t begin = interval.begin * element_bits, end = interval.end * element_bits;
    const bool cuts = begin % 8 != 0 || end % 8 != 0 || (layout.rows > 1 && row_bits % 8 != 0);
    if (cuts && begin != end) {
      return wrong_part(tensor, text_of(interval) + " cuts through a byte of " + std::string(dtype_name(tensor.dtype)),
                        "give one that begins and ends between bytes");
    }
    layout.pieces.push_back({begin / 8, (end - begin) / 8});
  }
  layout.row_bytes = tensor.size_bytes / layout.rows;
  simplify(layout);
  return layout;
}

// Where its chunks lie: what is read is sorted by that.
FilePiece piece_of(const TensorPlace& tensor, std::uint64_t begin, Region memory) {
  if (!tensor.packed) return {tensor.file, tensor.offset + begin, memory, {}};
  const std::uint64_t chunk = tensor.packed->index().offset(begin / tensor.packed->chunk_bytes());
  return {tensor.file, tensor.offset + chunk, memory, {tensor.packed, begin}};
}

void append_pieces(const TensorPlace& tensor, const Layout& layout, Region memory, std::vector<FilePiece>& pieces) {
  std::uint64_t place = 0;
  for (std::uint64_t row = 0; row < layout.rows; ++row) {
    const std::uint64_t begin = row * layout.row_bytes;
    for (const Layout::Piece& piece : layout.pieces) {
      pieces.push_back(piece_of(tensor, begin + piece.begin, memory.part(place, piece.length)));
      place += piece.length;
    }
  }
}

void sort_and_merge(std::vector<FilePiece>& pieces, FindAllocation find_allocation) {
  std::ranges::sort(pieces, [](const FilePiece& a, const FilePiece& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  Region allocation;  // the last that was found: there may be many pieces in it
  const auto are_of_one_allocation = [&](const Region& memory, std::size_t size_bytes) {
    if (memory.domain.host_accessible()) return true;
    if (holds(allocation, memory.data, size_bytes)) return true;
    const Result<Region> found = find_allocation(memory.data, size_bytes);
    if (found) allocation = *found;
    return found.ok();
  };
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const FilePiece& piece = pieces[i];
    FilePiece* const last = kept == 0 ? nullptr : &pieces[kept - 1];
    const bool continues = last != nullptr && !last->packed.tensor && !piece.packed.tensor &&
                           last->file == piece.file && last->offset + last->memory.size_bytes == piece.offset &&
                           last->memory.domain == piece.memory.domain &&
                           last->memory.data + last->memory.size_bytes == piece.memory.data &&
                           are_of_one_allocation(last->memory, last->memory.size_bytes + piece.memory.size_bytes);
    if (continues) {
      last->memory.size_bytes += piece.memory.size_bytes;
    } else {
      pieces[kept++] = piece;
    }
  }
  pieces.resize(kept);
}

ColumnFacts column_facts(const Layout& layout, bool cached) {
  return {.piece_bytes = layout.wanted_row_bytes() / std::max<std::size_t>(1, layout.pieces.size()),
          .pieces = layout.pieces.size(),
          .bounds_bytes = layout.bounds().length,
          .row_bytes = layout.row_bytes,
          .rows = layout.rows,
          .cached = cached};
}

Columns choose_columns(const ColumnFacts& facts) {
  // What an operation costs beside its bytes, as bytes that could be moved in that time: measured with 16 cores, from
  // memory at 30 GB/s and from a disk of 3 GB/s.
  constexpr double cached_operation_bytes = 12 << 10;
  constexpr double direct_operation_bytes = 12 << 10;
  constexpr double block_bytes = 4096;  // half of one is read in vain at both ends
  const auto wanted = static_cast<double>(facts.piece_bytes * facts.pieces);
  const auto pieces = static_cast<double>(facts.pieces);
  // Past the last wanted byte of the last row nothing is read.
  const double whole_rows = static_cast<double>(facts.rows - 1) / static_cast<double>(facts.rows);
  const double read =
      static_cast<double>(facts.row_bytes) * whole_rows + static_cast<double>(facts.bounds_bytes) * (1 - whole_rows);
  // Copying the wanted bytes out is done while more is read; from memory that takes long enough to count.
  const double as_whole = facts.cached ? read + wanted / 2 : read;
  const double as_pieces =
      wanted + pieces * (facts.cached ? cached_operation_bytes : direct_operation_bytes + block_bytes);
  return as_pieces <= as_whole ? Columns::pieces : Columns::whole;
}

}  // namespace models

Result<std::vector<std::uint64_t>> part_shape(const TensorInfo& tensor, std::uint32_t dimension,
                                              std::span<const Interval> intervals) {
  const Result<models::Layout> layout = models::lay_out(tensor, dimension, intervals);
  if (!layout) return layout.error();
  std::vector<std::uint64_t> shape = tensor.shape;
  if (intervals.empty()) return shape;
  shape[dimension] = 0;
  for (const Interval& interval : intervals) {
    if (__builtin_add_overflow(shape[dimension], interval.end - interval.begin, &shape[dimension])) {
      return models::wrong_part(tensor, "its intervals are too long together", "ask for less");
    }
  }
  return shape;
}

Result<std::uint64_t> part_bytes(const TensorInfo& tensor, std::uint32_t dimension,
                                 std::span<const Interval> intervals) {
  const Result<models::Layout> layout = models::lay_out(tensor, dimension, intervals);
  if (!layout) return layout.error();
  std::uint64_t sum = 0;
  for (const models::Layout::Piece& piece : layout->pieces) {
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(piece.length, layout->rows, &bytes) || __builtin_add_overflow(sum, bytes, &sum)) {
      return models::wrong_part(tensor, "its intervals are too long together", "ask for less");
    }
  }
  return sum;
}

Placement place(const Model& model) {
  std::vector<std::uint32_t> all(model.tensors().size());
  std::iota(all.begin(), all.end(), 0U);
  return place(model, all);
}

Placement place(const Model& model, std::span<const std::uint32_t> tensors) {
  constexpr std::uint64_t alignment = 256;
  Placement placement;
  for (const std::uint32_t tensor : tensors) {
    placement.offsets.push_back(placement.size_bytes);
    placement.size_bytes += (model.tensors()[tensor].size_bytes + alignment - 1) / alignment * alignment;
  }
  return placement;
}

}  // namespace penstock
