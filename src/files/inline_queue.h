// InlineQueue: runs each operation on the thread that uses the queue: to its end inside submit, or, of a shared read,
// in poll, with the help of a ReadTeam. For synchronous requests that are small, or whose bytes are cached.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/queue.h"
#include "files/read_team.h"
#include "files/ring.h"

namespace penstock::files {

class InlineQueue : public engine::Queue {
 public:
  // `team` may be null.
  explicit InlineQueue(std::size_t depth, std::shared_ptr<ReadTeam> team = nullptr)
      : done_(depth), team_(std::move(team)) {}

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  void wake() override;
  // Only shared reads have not ended.
  void cancel(std::uint64_t cookie) override;

 private:
  static constexpr std::size_t shared_max = 4;

  struct Shared {
    explicit Shared(const engine::Op& op) : read(op) {}
    TeamRead read;
    ReadTeam::Slot* slot = nullptr;  // null: without helpers
  };

  bool begin_shared(const engine::Op& op);
  // Those that are over.
  void end_shared();
  bool work_on_shared();

  Ring<engine::Done> done_;
  const std::shared_ptr<ReadTeam> team_;  // shared by the queues of an engine
  std::array<std::optional<Shared>, shared_max> shared_;
  std::size_t shared_count_ = 0;
  std::mutex mutex_;
  std::condition_variable woken_changed_;
  bool woken_ = false;
};

}  // namespace penstock::files
