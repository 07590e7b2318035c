// Cache: rows of one table that stay in GPU memory, and how much of it they may have. cuda/row_cache.h has the layout.
//
// Thread safety: const calls from any thread; kernels on any streams. Lifetime: must outlive all kernels that use it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/row_cache.h"
#include "services/rows/table.h"

namespace penstock::rows {

class Cache {
 public:
  struct Shape {
    std::uint64_t sets = 0;
    std::uint64_t slot_bytes = 0;

    std::uint64_t rows() const { return sets * cuda::RowCacheLayout::ways; }
    std::uint64_t bytes() const;
  };
  // The largest for a table that has room in so many bytes, and no larger than the table. Without sets where none has.
  static Shape shape_for(const TableInfo& table, std::uint64_t most_bytes);

  // Empty. Waits until the GPU has written that.
  static Result<Cache> make(const Context& context, Domain gpu, const Shape& shape);

  const Shape& shape() const { return shape_; }
  void describe(cuda::RowsEntry& entry) const;

 private:
  Cache(const Shape& shape, Buffer memory) : shape_(shape), memory_(std::move(memory)) {}

  Shape shape_;
  Buffer memory_;
};

// One for each table, of at most so many bytes together. Small tables are kept whole, all others get equal parts of the
// rest. Code::invalid_argument where one gets too little.
Result<std::vector<Cache>> make_caches(Domain gpu, std::span<const std::shared_ptr<const Table>> tables,
                                       std::uint64_t most_bytes);

}  // namespace penstock::rows
