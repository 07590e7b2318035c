// Batch: cuFile's calls for many small transfers at once, over one of its batch handles.
//
// cuFile's batches can stall when its own buffers are spent. So a batch that brings nothing home for a while is
// cancelled, its operations come back as EAGAIN for core to try again one by one, and no batch is made any more. What
// does not even come home cancelled never comes back: core abandons it by its own deadline.
//
// Thread safety: none of its own; one thread makes and uses a Batch. BatchSwitch: any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <span>

#include "base/clock.h"
#include "engine/op.h"
#include "engines/cufile/library.h"
#include "files/threaded_queue.h"

namespace penstock::cufile {

inline constexpr std::size_t max_batch = files::ThreadedQueue::max_group;

// Whether batches are used at all; shared by the queues of an engine.
struct BatchSwitch {
  std::atomic<bool> on{true};
  Duration patience = std::chrono::seconds(5);  // with a batch of which nothing comes home
};

// One transfer of a batch: what core asked for and what cuFile is told.
struct Transfer {
  engine::Op op;
  CfHandle handle = nullptr;
  void* base = nullptr;
  off_t memory_offset = 0;
  Route route = Route::cufile_unknown;
};

class Batch {
 public:
  Batch(const Library& library, BatchSwitch& batches) : library_(library), batches_(batches) {}
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Says whether the transfers were started; if not, nothing has happened to them.
  // REQUIRES: at most max_batch transfers.
  bool run(std::span<const Transfer> transfers, files::Completions& completions);

 private:
  struct Progress;
  bool set_up();
  bool collect(Progress& progress, Duration timeout);
  void give_up(Progress& progress);

  const Library& library_;
  BatchSwitch& batches_;
  CfBatch handle_ = nullptr;
};

// What cuFile returned for an operation (bytes, -1 for errno, or minus a number of its own) as the operation's end.
engine::Done finish(const engine::Op& op, std::int64_t returned, int error_number, Route route);

}  // namespace penstock::cufile
