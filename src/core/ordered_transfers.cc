#include "core/ordered_transfers.h"

#include <sys/prctl.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "core/environment.h"
#include "core/lane_set.h"
#include "memory/freed_later.h"

namespace penstock::core {

namespace {

constexpr std::size_t ordered_slots_max = 4;
constexpr std::uint64_t ordered_chunk_bytes = 2 << 20;
constexpr std::uint64_t stored_block_bytes = 4096;
constexpr std::uint32_t ordered_lanes_max = 4;
// A stream without work comes to a request within microseconds.
constexpr Duration first_look = std::chrono::microseconds(30);
// How long submit waits for slots of requests before.
constexpr Duration patience_for_slots = std::chrono::seconds(1);
// Between two looks: short at first, and longer the longer nothing happens.
constexpr Duration least_pause = std::chrono::microseconds(10);
constexpr Duration most_pause = std::chrono::microseconds(200);

std::uint64_t longest_made(const Request& request) {
  std::uint64_t longest = 0;
  for (const Span& span : request.spans) {
    if (span.transform != 0) longest = std::max(longest, span.length);
  }
  return longest;
}

// With room for a place in the slot that is congruent with the one in the store.
SlotPool::Wish wish_of(const Request& request) {
  const std::uint64_t made = longest_made(request);
  const std::uint64_t bytes = std::min(std::max(made, ordered_chunk_bytes), request.total_bytes) + stored_block_bytes;
  return {.count = std::min<std::size_t>(ordered_slots_max, request.total_bytes / ordered_chunk_bytes + 1),
          .bytes = bytes,
          .least_bytes = made + stored_block_bytes};
}

std::shared_ptr<LaneSet> make_lanes(const std::shared_ptr<Environment>& environment) {
  const LaneSet::Size size{.lanes = std::min(ordered_lanes_max, environment->options.lanes),
                           .staging_bytes = environment->options.staging_slot_bytes,
                           .has_long_slots = false};
  return std::make_shared<LaneSet>(environment, size);
}

// Leaves room for staging memory of these lanes, and of one of the others.
std::shared_ptr<SlotPool> make_pool(const Environment& environment, const LaneSet& lanes) {
  const Options& options = environment.options;
  const std::uint64_t slots = lanes.size() + options.staging_slots_per_lane;
  return std::make_shared<SlotPool>(environment.pinned, slots * options.staging_slot_bytes);
}

}  // namespace

OrderedTransfers::OrderedTransfers(std::shared_ptr<Environment> environment)
    : environment_(std::move(environment)),
      lanes_(make_lanes(environment_)),
      pool_(make_pool(*environment_, *lanes_)) {}

Result<bool> OrderedTransfers::submit(const std::shared_ptr<Request>& request, cuda::Device& gpu, void* stream) {
  if (!OrderedTransfer::is_possible(*request, gpu)) return false;
  if (auto status = start_thread(); !status) return std::move(status).error();
  auto slots = pool_->take(gpu, wish_of(*request), Clock::now() + patience_for_slots);
  if (slots.empty()) return false;
  if (!lanes_->has_staging()) {
    pool_->give_back(slots);
    return false;
  }
  auto transfer = OrderedTransfer::create(request, gpu, lanes_, pool_, std::move(slots));
  if (transfer == nullptr) return false;
  const Status begun = transfer->begin(stream);
  if (begun && !transfer->has_more()) {
    const TimePoint until = Clock::now() + first_look;
    do {
      transfer->look(Clock::now());
    } while (!transfer->has_begun() && Clock::now() < until);
  }
  if (!begun && !transfer->is_enqueued()) return begun.error();
  const bool has_more = begun && transfer->has_more();
  watch(transfer);
  if (has_more) transfer->enqueue_rest(*request);
  if (!begun) return begun.error();
  return true;
}

Status OrderedTransfers::start_thread() {
  const std::scoped_lock lock(mutex_);
  if (closed_) return Error{Code::closed, 0, "the Context is closing", ""};
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return Error{Code::out_of_memory, error.code().value(),
                 std::string("start the thread that watches copies on streams: ") + error.what(),
                 "raise the limit of threads (`ulimit -u`), or that of the container"};
  }
  return {};
}

void OrderedTransfers::watch(std::shared_ptr<OrderedTransfer> transfer) {
  std::list<std::shared_ptr<OrderedTransfer>> one;
  one.push_back(std::move(transfer));
  {
    const std::scoped_lock lock(mutex_);
    if (!closed_) {
      added_.splice(added_.end(), one);
      changed_.notify_one();
      return;
    }
  }
  OrderedTransfer::close(std::move(one.front()));
}

void OrderedTransfers::run() {
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns: otherwise each pause is 50 µs longer
  std::list<std::shared_ptr<OrderedTransfer>> transfers;
  Duration pause = least_pause;
  std::unique_lock lock(mutex_);
  while (true) {
    if (transfers.empty()) changed_.wait(lock, [this] { return closed_ || !added_.empty(); });
    transfers.splice(transfers.end(), added_);
    if (closed_) break;
    lock.unlock();
    // Memory that it lets go of last is freed elsewhere.
    memory::FreedLater later;
    const TimePoint now = Clock::now();
    bool has_moved = false;
    for (const auto& transfer : transfers) has_moved |= transfer->look(now);
    std::erase_if(transfers, [](const auto& transfer) { return transfer->is_over(); });
    environment_->completions.free_there(later.take());
    pause = has_moved ? least_pause : std::min(most_pause, pause + pause / 4);
    lock.lock();
    if (!transfers.empty()) changed_.wait_for(lock, pause, [this] { return closed_ || !added_.empty(); });
  }
  lock.unlock();
  for (auto& transfer : transfers) OrderedTransfer::close(std::move(transfer));
}

void OrderedTransfers::close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  lanes_->close();
}

}  // namespace penstock::core
