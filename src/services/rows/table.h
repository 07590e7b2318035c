// Table: the rows of one store or several, one behind the other.
//
// Thread safety: any thread. Lifetime: the Context must outlive it; what a fill needs (Layout) may outlive both.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fork_guard.h"
#include "penstock/rows.h"
#include "services/rows/guard.h"
#include "services/rows/residency.h"

namespace penstock::rows {

// Rows within a store.
struct Place {
  std::uint64_t offset = 0;  // of the first
  std::uint64_t stride_bytes = 0;
  std::uint64_t rows = 0;
  bool growing = false;  // others write elsewhere in the store
};

// A store with rows; joined tables share it.
class Shard {
 public:
  // REQUIRES: the rows lie in the store.
  static Result<std::shared_ptr<const Shard>> open(const Context& context, Store store, const Place& place,
                                                   std::uint64_t row_bytes, const RowsOptions& options);
  Shard(Store store, const Place& place) : store_(std::move(store)), place_(place) {}

  const Store& store() const { return store_; }
  const Place& place() const { return place_; }
  // Null where the store is not mapped.
  const std::shared_ptr<const View>& view() const { return view_; }
  Residency* residency() const { return residency_.get(); }
  // Code::changed, or truncated, if it is not as it was when it was opened.
  Status check_unchanged() const;

 private:
  Store store_;
  Place place_;
  std::shared_ptr<const View> view_;  // shared with fills
  std::unique_ptr<Residency> residency_;
};

// What a fill needs to find rows: nothing of the Context's.
struct Layout {
  struct Part {
    std::uint64_t first_row = 0;
    std::uint64_t offset = 0;
    std::uint64_t stride_bytes = 0;
    const std::byte* data = nullptr;  // of the first row; null where it is not mapped

    // In the store. REQUIRES: the row is of this part.
    std::uint64_t offset_of(std::uint64_t row) const { return offset + (row - first_row) * stride_bytes; }
  };
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 0;
  std::vector<Part> parts;                         // ascending; of those without rows none
  std::vector<std::shared_ptr<const View>> views;  // that keep the data
  std::vector<Mapped> mappings;                    // all of them, for the guard
  std::string name;                                // for messages

  // REQUIRES: the row is in the table.
  std::size_t part_of(std::uint64_t row) const;
};

class Table {
 public:
  Table(const Context& context, TableInfo info, std::vector<std::shared_ptr<const Shard>> shards, RowsOptions options);

  const Context& context() const { return context_; }
  const TableInfo& info() const { return info_; }
  const RowsOptions& options() const { return options_; }
  const std::vector<std::shared_ptr<const Shard>>& shards() const { return shards_; }
  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  // The one that a part of the layout is of.
  const Shard& shard(std::size_t part) const { return *shards_[shard_of_part_[part]]; }
  bool in_child() const { return fork_guard_.in_child(); }
  Status check_unchanged() const;

  // Memory for cold rows, and for numbers that were on a GPU. Up to RowsOptions::scratch_bytes are kept for the next
  // gather.
  Result<Buffer> take_scratch(std::uint64_t bytes, Domain domain) const;
  Result<Buffer> take_numbers(std::uint64_t bytes) const;
  void give_scratch(Buffer scratch) const;

 private:
  const Context context_;
  TableInfo info_;
  RowsOptions options_;
  std::vector<std::shared_ptr<const Shard>> shards_;  // shared with tables that were joined
  std::vector<std::size_t> shard_of_part_;
  std::shared_ptr<const Layout> layout_;  // shared with fills
  ForkGuard fork_guard_;
  mutable std::mutex scratch_mutex_;
  mutable std::vector<Buffer> idle_scratch_;  // the oldest first
  mutable std::uint64_t idle_scratch_bytes_ = 0;
};

Result<std::shared_ptr<const Table>> open_tensor(const Context& context, const std::string& name,
                                                 std::string_view tensor, const RowsOptions& options);
Result<std::shared_ptr<const Table>> open_npy(const Context& context, const std::string& name,
                                              const RowsOptions& options);
Result<std::shared_ptr<const Table>> open_raw(const Context& context, const std::string& name, const RawRows& raw,
                                              const RowsOptions& options);

}  // namespace penstock::rows
