// Queue and Store of the made engine. Bytes are made inside submit, by the thread that uses the Queue.
//
// Thread safety and lifetime: as engine::Queue and engine::Store.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/queue.h"
#include "engine/store.h"
#include "penstock/recipe.h"

namespace penstock::made {

class Store : public engine::Store {
 public:
  Store(StoreInfo info, decltype(Recipe::make) make) : engine::Store(std::move(info)), make_(std::move(make)) {}

  Status make(std::uint64_t offset, std::span<std::byte> memory) const;
  Result<engine::State> state() const override { return engine::State{info_.identity, info_.size_bytes}; }

 private:
  const decltype(Recipe::make) make_;
};

class Queue : public engine::Queue {
 public:
  explicit Queue(std::size_t depth) : ended_(depth) {}

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  void wake() override;
  // Everything that was submitted has ended.
  void cancel(std::uint64_t) override {}

 private:
  struct Ended {
    engine::Done done;
    Error cause;  // of a failure, until the place is used again
  };

  std::vector<Ended> ended_;  // a ring
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable woken_changed_;
  bool woken_ = false;
};

}  // namespace penstock::made
