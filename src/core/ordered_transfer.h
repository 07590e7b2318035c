// OrderedTransfer: an asynchronous request in the order of a stream, whose copies stand on that stream.
//
// The ranges are cut into chunks. At submit the stream gets, for each chunk of a read: a wait, the copies from a slot
// of pinned memory, and a mark. When the stream has come to the request, lanes of their own read the chunks into the
// slots as inner requests to host memory, and each that has ended lets the stream go on to its copies. A slot is used
// again when the stream has marked that it was copied. A write is the same the other way round, with a wait at the end
// for the request.
//
// The GPU's hardware queues are first in, first out. Each operation here depends on calls made earlier, and on storage,
// and on nothing else: so whatever shares a queue, all of it gets done. That would not hold if we copied on streams of
// ours: a copy of the caller's behind the wait could stand in front of ours.
//
// However the request ends, the stream goes on. It may end before the stream has come to its copies: then slots and
// Buffers stay until it has.
//
// Thread safety: look, close and what they call are the watching thread's (OrderedTransfers), or of who submits before
// that has it; inner_ended any thread. Lifetime: shared by the watching thread and the inner requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/ordered_chunks.h"
#include "core/request.h"
#include "core/slot_pool.h"
#include "cuda/stream_steps.h"

namespace penstock::core {

class LaneSet;

class OrderedTransfer : public std::enable_shared_from_this<OrderedTransfer> {
 public:
  // Whether the request's copies may stand on its stream, as far as it is known before.
  static bool is_possible(const Request& request, const cuda::Device& gpu);

  // Null where the chunks don't fit the slots, which go back then.
  static std::shared_ptr<OrderedTransfer> create(std::shared_ptr<Request> request, cuda::Device& gpu,
                                                 std::shared_ptr<LaneSet> lanes, std::shared_ptr<SlotPool> pool,
                                                 SlotPool::Slots slots);
  ~OrderedTransfer();
  OrderedTransfer(const OrderedTransfer&) = delete;
  OrderedTransfer& operator=(const OrderedTransfer&) = delete;

  // Puts the request's place and its first chunks on the stream. Where that fails the request was not begun; but if
  // is_enqueued(), this must be kept until it is over.
  Status begin(void* stream);
  bool is_enqueued() const { return steps_ != nullptr; }
  // The other chunks, if there are more. The driver may wait for room on the stream, so the watching thread has it by
  // now.
  bool has_more() const { return next_to_enqueue_ < size(); }
  void enqueue_rest(const Request& request);

  // Does what can be done now, without waiting; says whether that was something.
  bool look(TimePoint now);
  // Whether the stream has come to it, or never will.
  bool has_begun() const { return step_ != Step::waits || has_ended_; }
  // Whether nothing touches its slots and memory any more.
  bool is_over() const { return has_ended_ && has_passed(); }
  // Ends the request as closed. What the stream has not passed soon is left behind, with the slots.
  static void close(std::shared_ptr<OrderedTransfer> transfer);

 private:
  enum class Step : std::uint8_t { waits, moves, flushes, asks_servers };
  struct State {
    std::shared_ptr<Request> inner;   // from its start until it is counted
    bool has_ended = false;           // guarded by mutex_
    cuda::ControlMemory::Cell table;  // of ScatterEntry; empty: single copies
  };

  OrderedTransfer(std::shared_ptr<Request> request, cuda::Device& gpu, std::shared_ptr<LaneSet> lanes,
                  std::shared_ptr<SlotPool> pool, SlotPool::Slots slots, OrderedChunks chunks);
  bool reads() const { return direction_ == Direction::read; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(chunks_.chunks.size()); }
  bool has_passed() const;
  const StagingArena::Block& slot_of(std::uint32_t chunk) const { return slots_.blocks[chunk % slots_.blocks.size()]; }
  void make_tables();
  cuda::CuResult enqueue_until(const Request& request, std::uint32_t end);
  cuda::CuResult enqueue_chunk(const Request& request, std::uint32_t chunk);
  cuda::CuResult enqueue_copies(const Request& request, std::uint32_t chunk);
  cuda::CuResult break_off();
  cuda::CuResult mark_end();
  Error error_of(cuda::CuResult result) const;

  bool go_on(TimePoint now);
  void ask_stream(TimePoint now);
  bool try_to_begin();
  bool move();
  bool may_start(std::uint32_t passed) const;
  void start(std::uint32_t chunk);
  void start_flush();
  void start_inner(std::uint32_t index, std::span<const Range> ranges, bool durable);
  void inner_ended(std::uint32_t index);
  bool has_ended(std::uint32_t index);
  bool is_inner_running();
  void count(std::uint32_t chunk);
  void count_flush();
  void note_end(const Request& inner);
  void add_up(const Request& inner);
  void next_step(Stage done);
  void stop_if_stalled(TimePoint now);
  bool stop();
  void finish(bool is_whole);
  void give_up();
  void hold_buffers();

  std::shared_ptr<Request> request_;  // until it has ended
  std::shared_ptr<LaneSet> lanes_;    // likewise
  const std::shared_ptr<SlotPool> pool_;
  const SlotPool::Slots slots_;
  const OrderedChunks chunks_;
  cuda::Device& gpu_;
  const Direction direction_;
  std::vector<Store> stores_;   // the request's, until it has ended
  bool is_one_by_one_ = false;  // chunks share blocks of the store
  std::vector<State> states_;   // of the chunks, and of the flush

  void* stream_ = nullptr;
  std::unique_ptr<cuda::StreamSteps> steps_;
  std::uint32_t next_to_enqueue_ = 0;
  std::atomic<std::uint32_t> last_mark_{0};  // set when all is on the stream

  Step step_ = Step::waits;
  std::uint32_t next_ = 0;     // chunk to start
  std::uint32_t counted_ = 0;  // chunks of which all is done
  TimePoint last_progress_;
  TimePoint asked_;  // whether the stream has failed
  std::atomic<bool> is_asking_{false};
  bool has_stopped_ = false;  // and the inner requests know
  bool has_ended_ = false;
  bool is_spoilt_ = false;  // an operation may still touch a slot
  std::vector<HeldMemory::Holder> held_;

  std::mutex mutex_;  // guards what follows
  std::uint32_t ended_in_order_ = 0;
  std::optional<Error> failure_;  // of the stream, or of what was put on it late
};

}  // namespace penstock::core
