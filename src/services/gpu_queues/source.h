// Source: a store of a set, or host memory in place of one: its window, and which of its bytes are at hand.
//
// Bytes at hand can be copied at once: those of host memory, and those of a mapping that are in the page cache, as far
// as somebody looked (services/rows/residency.h). All others take a request.
//
// Thread safety: any thread. Lifetime: the Context outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/gpu_queues.h"
#include "services/rows/table.h"

namespace penstock::gpu_queues {

class Source;

// One command, found to be in order.
struct Transfer {
  const Source* source = nullptr;
  std::byte* place = nullptr;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint16_t cid = 0;
  bool writes = false;
  bool at_hand = false;
  bool ok = true;
};

class Source {
 public:
  static Result<std::unique_ptr<Source>> open(const Context& context, const GpuStore& store);

  const device::StoreWindow& window() const { return window_; }
  const Store& store() const { return store_; }
  // Of bytes at hand.
  std::byte* data(std::uint64_t offset) const { return data_ + offset; }
  // Where a load may find that a file was truncated; empty where it can't.
  rows::Mapped mapping() const { return shard_ ? shard_->view()->bytes() : rows::Mapped{}; }

  // Marks those of these that are this source's and at hand. `due` is a list to use again.
  void find_at_hand(std::span<Transfer> transfers, std::vector<std::size_t>& due) const;

 private:
  void mark(std::span<Transfer> transfers, std::vector<std::size_t>* due) const;

  Store store_;
  device::StoreWindow window_;
  std::byte* data_ = nullptr;  // null: nothing is ever at hand
  std::shared_ptr<const rows::Shard> shard_;
};

}  // namespace penstock::gpu_queues
