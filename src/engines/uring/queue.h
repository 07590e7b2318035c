// Queue of the uring engine: one ring.
//
// submit only fills entries; a poll hands them to the kernel and waits for completions in one call. A read of an
// eventfd is kept in the ring, so that wake() ends the wait. What a ring can't do is done by threads, whose event the
// ring looks at. Should the kernel refuse to be entered later on (a process
// may put a security filter on itself at any time), operations that it has not taken are done by poll, one after
// another.
//
// Thread safety and lifetime: as engine::Queue. Nothing is allocated for an operation.
#pragma once

#include <liburing.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "engine/engine.h"
#include "engines/uring/registry.h"
#include "files/ring.h"
#include "files/threaded_queue.h"

namespace penstock::uring {

// Sets up a ring with the best flags that the kernel knows; 0 or an error number. The caller ends it with
// io_uring_queue_exit.
int open_ring(io_uring& ring, std::uint32_t entries);
// Has the ring do nothing, once: a filter may let rings be made, and refuse their use. 0 or an error number.
int try_ring(io_uring& ring);

class Queue : public engine::Queue, private Registered {
 public:
  static Result<std::unique_ptr<engine::Queue>> create(const engine::QueueOptions& options, Registry& registry);
  ~Queue() override;

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  int event() override;
  void wake() override;
  void cancel(std::uint64_t cookie) override;

 private:
  // An operation that the ring has. The generation tells it from others that had the same place before.
  struct InFlight {
    engine::Op op;
    std::uint32_t generation = 0;
    bool busy = false;
    bool cancelled = false;
    bool writes_zeros = false;
  };

  Queue(io_uring ring, UniqueFd event, const engine::QueueOptions& options, Registry& registry);

  void forget_store(std::uint32_t index) override;
  void forget_buffer(std::uint32_t index) override;

  bool start(const engine::Op& op);
  void fill(io_uring_sqe& entry, const engine::Op& op);
  void fill_transfer(io_uring_sqe& entry, const engine::Op& op, int file);
  // The entry of the file table that has the operation's descriptor, if there is one.
  std::optional<std::uint32_t> ensure_file(const engine::Op& op, int descriptor);
  std::optional<std::uint32_t> ensure_buffer(const engine::Op& op, std::uint64_t length);
  std::uint64_t user_data(std::uint32_t index) const;

  std::size_t poll_without_kernel(std::span<engine::Done> done, TimePoint deadline);
  void give_up_ring(int error);
  bool run_next(engine::Done& done);
  int hand_over();
  int hand_over_and_wait(Duration time);
  void arm_wake();
  bool give_to_threads(const engine::Op& op);
  void link_writeback(io_uring_sqe& write, const engine::Op& op);
  // False: there is no memory for them.
  bool make_threads();
  void watch_threads();
  io_uring_sqe* entry_at_once();
  static bool lost_its_thread(const InFlight& place, int result);
  bool write_zeros(std::uint32_t index);
  std::size_t collect(std::span<engine::Done> done);
  bool complete(const io_uring_cqe& completion, engine::Done& done);

  io_uring ring_;
  const std::uint32_t sharers_;
  Registry& registry_;
  FixedTable files_;
  FixedTable buffers_;
  const UniqueFd event_;
  std::uint64_t event_value_ = 0;  // where the ring reads the eventfd to
  bool wake_armed_ = false;
  bool wake_seen_ = false;                         // the next poll that would sleep must not
  std::atomic<bool> wake_written_{false};          // spares the call when a wake is on its way already
  std::unique_ptr<files::ThreadedQueue> threads_;  // made when there is something for it
  std::size_t threads_have_ = 0;                   // operations
  bool threads_watched_ = false;
  std::vector<InFlight> in_flight_;
  std::vector<std::uint32_t> free_;
  files::Ring<engine::Done> ended_;   // without the kernel
  bool given_up_ = false;             // the kernel refuses to be entered
  files::Ring<std::uint32_t> to_do_;  // places of operations, from then on
};

}  // namespace penstock::uring
