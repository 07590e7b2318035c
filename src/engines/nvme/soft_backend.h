// StoreBackend: the blocks of a soft controller in a store of another engine, usually a file.
//
// The last block of a store that does not end with one is filled up with zeros, which are not kept.
//
// Thread safety and lifetime: as BlockBackend.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "nvme/block_backend.h"

namespace penstock::nvme {

class StoreBackend : public BlockBackend {
 public:
  static Result<std::unique_ptr<StoreBackend>> create(std::shared_ptr<engine::Engine> engine,
                                                      std::unique_ptr<engine::Store> store);

  engine::Store& store() { return *store_; }

  std::uint64_t size_bytes() const override;
  bool submit(const BlockOp& op) override;
  std::size_t poll(std::span<BlockDone> done, TimePoint deadline) override;
  void wake() override { queue_->wake(); }
  void add_memory(std::byte* data, std::size_t size_bytes) override;
  void remove_memory(std::byte* data, std::size_t size_bytes) override;

 private:
  struct Pending {
    BlockOp op;
    engine::Op rest;
  };
  static constexpr std::uint32_t depth = 128;

  StoreBackend(std::shared_ptr<engine::Engine> engine, std::unique_ptr<engine::Store> store,
               std::unique_ptr<engine::Queue> queue);
  engine::Path path_of(const engine::Op& op) const;
  const engine::Attached* find_attached(const std::byte* memory, std::uint64_t length);
  // Whether it has ended; if not, it goes on.
  bool note(Pending& pending, const engine::Done& done, BlockDone& ended);

  const std::shared_ptr<engine::Engine> engine_;  // shared, since a store that hangs keeps it for as long as that lasts
  const std::unique_ptr<engine::Store> store_;
  const std::unique_ptr<engine::Queue> queue_;
  std::vector<Pending> pending_;
  std::vector<std::uint32_t> free_;
  std::vector<BlockDone> ended_;          // at once
  std::vector<std::uint32_t> to_submit_;  // what the queue did not take yet
  std::vector<engine::Done> done_;

  struct Known {
    std::size_t size_bytes = 0;
    std::unique_ptr<engine::Attached> attached;
  };
  std::mutex memory_mutex_;
  std::map<const std::byte*, Known> memory_;  // to the engine, by its start; guarded by memory_mutex_
};

}  // namespace penstock::nvme
