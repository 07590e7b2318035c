// Fill: the function that writes the rows of a gather to memory. Lanes call it, with any part of the whole.
//
// Thread safety: const calls from any thread. Lifetime: owns what it needs but the numbers, which are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "services/rows/table.h"

namespace penstock::rows {

// Of numbers that were checked before.
Error numbers_changed();

class Fill {
 public:
  // All rows are mapped, and in the table.
  Fill(std::shared_ptr<const Layout> layout, RowNumbers numbers);
  // Each row lies where its pointer says: in a mapping or in the scratch; null is a row of zeros.
  Fill(std::shared_ptr<const Layout> layout, std::vector<const std::byte*> sources);

  // Code::truncated where a mapped row is gone, and numbers_changed.
  Status make(std::uint64_t offset, std::span<std::byte> memory) const;

 private:
  struct Batch;
  void copy(const Batch& batch) const;

  std::shared_ptr<const Layout> layout_;  // shared by the gathers of a table
  RowNumbers numbers_;
  std::vector<const std::byte*> sources_;  // where there are no numbers
};

}  // namespace penstock::rows
