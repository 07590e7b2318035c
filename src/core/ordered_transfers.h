// OrderedTransfers: the OrderedTransfers of a Context, what they share, and the thread that watches them.
//
// That thread never calls the driver, and never waits for a lock that is held during such a call: the driver may wait
// for a stream that goes on only when this thread has seen that its bytes are there, and let no other call through
// meanwhile.
//
// Thread safety: any thread. Lifetime: ended by close().
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "core/ordered_transfer.h"
#include "core/slot_pool.h"

namespace penstock::core {

class OrderedTransfers {
 public:
  explicit OrderedTransfers(std::shared_ptr<Environment> environment);
  ~OrderedTransfers() { close(); }
  OrderedTransfers(const OrderedTransfers&) = delete;
  OrderedTransfers& operator=(const OrderedTransfers&) = delete;

  // False: its copies can't stand on the stream, or there is no pinned memory for them.
  Result<bool> submit(const std::shared_ptr<Request>& request, cuda::Device& gpu, void* stream);
  void close();

 private:
  Status start_thread();
  void run();
  // Looked at until it is over, or this is closed.
  void watch(std::shared_ptr<OrderedTransfer> transfer);

  const std::shared_ptr<Environment> environment_;
  const std::shared_ptr<LaneSet> lanes_;  // shared by transfers; threads and memory from the first one on
  const std::shared_ptr<SlotPool> pool_;  // likewise
  std::mutex mutex_;                      // guards what follows
  std::condition_variable changed_;
  std::list<std::shared_ptr<OrderedTransfer>> added_;  // since the thread looked
  bool closed_ = false;
  std::thread thread_;  // started by the first request
};

}  // namespace penstock::core
