// Where the bytes of a part lie in its tensor, and which ranges of files they are. Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/models.h"
#include "services/packed/unpack.h"

namespace penstock::models {

// The wanted bytes of a part: the same pieces of each of a number of rows. A part that is contiguous is one row.
struct Layout {
  struct Piece {
    std::uint64_t begin = 0;  // in a row
    std::uint64_t length = 0;

    friend bool operator==(const Piece&, const Piece&) = default;
  };
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::vector<Piece> pieces;  // none is empty; neighbours are one

  std::uint64_t wanted_row_bytes() const;
  // From the first wanted byte of a row to the last.
  Piece bounds() const;
  std::uint64_t piece_count() const { return rows * pieces.size(); }
};
Result<Layout> lay_out(const TensorInfo& tensor, std::uint32_t dimension, std::span<const Interval> intervals);

// Bytes of a packed tensor. No tensor: of a file, as they are there.
struct PackedBytes {
  std::shared_ptr<const packed::Unpack> tensor;  // shared with requests
  std::uint64_t begin = 0;                       // in the decoded tensor
};
// A range of a file and the memory for it.
struct FilePiece {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  Region memory;
  PackedBytes packed;
};
// A tensor in its file. `packed` is null if it is stored as it is.
struct TensorPlace {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::shared_ptr<const packed::Unpack> packed;
};
FilePiece piece_of(const TensorPlace& tensor, std::uint64_t begin, Region memory);
// Every piece of every row, in the order of the memory.
void append_pieces(const TensorPlace& tensor, const Layout& layout, Region memory, std::vector<FilePiece>& pieces);
// The whole allocation around memory of a GPU; an error if it does not hold all of that.
using FindAllocation = Result<Region> (*)(const void* data, std::size_t size_bytes);
// In the order of files and offsets; what is adjacent in a file and in memory is one. Adjacent memory of a GPU may be
// of two allocations, which no copy may span.
void sort_and_merge(std::vector<FilePiece>& pieces, FindAllocation find_allocation);

// How intervals of an inner dimension are read, where the caller leaves it open.
struct ColumnFacts {
  std::uint64_t piece_bytes = 0;   // wanted of a row, on the average of its pieces
  std::uint64_t pieces = 1;        // of a row
  std::uint64_t bounds_bytes = 0;  // from the first wanted byte of a row to the last
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  bool cached = false;  // the file is in memory already
};
Columns choose_columns(const ColumnFacts& facts);
ColumnFacts column_facts(const Layout& layout, bool cached);

}  // namespace penstock::models
