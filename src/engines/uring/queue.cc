#include "engines/uring/queue.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <thread>

#include "base/log.h"
#include "engines/uring/refusal.h"
#include "engines/uring/store.h"
#include "files/transfer.h"

namespace penstock::uring {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;

// Completions that are ours alone. Those of operations have a generation, which is never 0, in the upper half.
constexpr std::uint64_t wake_tag = 1;
constexpr std::uint64_t cancel_tag = 2;
constexpr std::uint64_t threads_tag = 3;
constexpr std::uint64_t writeback_tag = 4;

constexpr std::uint32_t max_depth = 32768;  // the kernel's
// A cold file of 2 GiB through the page cache, in operations of 1 MiB: 1.4 s by the kernel's threads, 6.5 s without.
constexpr std::uint64_t waits_from_bytes = 64 << 10;
// Of memory that may have to be zeroed: shorter operations cost more to hand to another thread.
constexpr std::uint64_t zeroed_bytes = 1 << 20;
constexpr unsigned group_size = 4;  // operations that are handed over together, at the most
// When the kernel is short of memory for requests.
constexpr auto back_off_time = std::chrono::microseconds(100);
// Where the kernel can't be asked to wake us.
constexpr auto look_again_time = std::chrono::milliseconds(1);
constexpr auto longest_wait = std::chrono::hours(1);

Store& store_of(const Op& op) {
  return *static_cast<Store*>(op.store);
}

// io_uring knows no discard of block devices.
bool needs_thread(const Op& op) {
  return op.kind == OpKind::call || (op.kind == OpKind::deallocate && op.store->info().kind == StoreKind::block_device);
}

class ThreadWorker : public files::Worker {
 public:
  Done run(const Op& op) override { return files::transfer(op); }
};

}  // namespace

int open_ring(io_uring& ring, std::uint32_t entries) {
  constexpr std::uint32_t quiet = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL;
  int error = EINVAL;
  for (const std::uint32_t flags : {quiet, 0U}) {
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CLAMP;
    error = -io_uring_queue_init_params(entries, &ring, &params);
    if (error == 0 && (params.features & IORING_FEAT_EXT_ARG) == 0) {
      io_uring_queue_exit(&ring);
      return EOPNOTSUPP;
    }
    if (error != EINVAL) break;
  }
  return error;
}

int try_ring(io_uring& ring) {
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  return std::max(-io_uring_submit_and_wait(&ring, 1), 0);
}

Result<std::unique_ptr<engine::Queue>> Queue::create(const engine::QueueOptions& options, Registry& registry) {
  if (options.depth == 0 || options.depth > max_depth) {
    return Error{Code::invalid_argument, 0, "a queue of depth " + std::to_string(options.depth),
                 "ask for 1 to " + std::to_string(max_depth)};
  }
  UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  if (!event) return system_error(errno, "make an eventfd", "raise the limit on open files (ulimit -n)");
  io_uring ring{};
  if (const int error = open_ring(ring, std::bit_ceil(options.depth)); error != 0) {
    const engine::Probe refusal = explain_refusal(error, io_uring_disabled());
    return Error{Code::engine_unavailable, error, refusal.reason, refusal.remedy};
  }
  std::unique_ptr<io_uring, decltype(&io_uring_queue_exit)> unowned(&ring, &io_uring_queue_exit);
  std::unique_ptr<engine::Queue> queue(new Queue(ring, std::move(event), options, registry));
  static_cast<void>(unowned.release());
  return queue;
}

Queue::Queue(io_uring ring, UniqueFd event, const engine::QueueOptions& options, Registry& registry)
    : ring_(ring),
      sharers_(options.sharers),
      registry_(registry),
      files_(2 * store_slots, io_uring_register_files_sparse(&ring_, 2 * store_slots) == 0),
      buffers_(buffer_slots, io_uring_register_buffers_sparse(&ring_, buffer_slots) == 0),
      event_(std::move(event)),
      in_flight_(options.depth),
      ended_(options.depth),
      to_do_(options.depth) {
  // Operations that can't sleep in the kernel are done by its threads; kernels before 5.15 have their own bound.
  std::array<unsigned, 2> workers{std::max(options.threads, 1U), std::max(options.threads, 1U)};
  io_uring_register_iowq_max_workers(&ring_, workers.data());
  free_.reserve(options.depth);
  for (std::uint32_t index = options.depth; index > 0; --index) free_.push_back(index - 1);
  registry_.join(*this);
}

Queue::~Queue() {
  registry_.leave(*this);
  io_uring_queue_exit(&ring_);
}

void Queue::forget_store(std::uint32_t index) {
  const bool buffered = files_.forget(2 * index);
  const bool direct = files_.forget(2 * index + 1);
  if (!buffered && !direct) return;
  constexpr std::array<int, 2> none{-1, -1};
  io_uring_register_files_update(&ring_, 2 * index, none.data(), none.size());
}

void Queue::forget_buffer(std::uint32_t index) {
  if (!buffers_.forget(index)) return;
  const iovec none{};
  io_uring_register_buffers_update_tag(&ring_, index, &none, nullptr, 1);
}

std::size_t Queue::submit(std::span<const Op> ops) {
  std::size_t taken = 0;
  while (taken < ops.size() && start(ops[taken])) {
    ++taken;
    // The device works on the first while the next are prepared.
    if (!given_up_ && io_uring_sq_ready(&ring_) >= group_size) io_uring_submit(&ring_);
  }
  return taken;
}

// False when the queue is full.
bool Queue::start(const Op& op) {
  // What has ended is still in flight for the caller.
  if (free_.size() <= ended_.size() + threads_have_) return false;
  if (needs_thread(op) || (op.is_shared && sharers_ != 0)) return give_to_threads(op);
  if (files::descriptor_of(op) < 0) {
    ended_.push(files::finish(op, -EINVAL));
    return true;
  }
  io_uring_sqe* entry = given_up_ ? nullptr : io_uring_get_sqe(&ring_);
  if (entry == nullptr && !given_up_) return false;
  const std::uint32_t index = free_.back();
  free_.pop_back();
  InFlight& place = in_flight_[index];
  place.op = op;
  place.generation = std::max(place.generation + 1, 1U);
  place.busy = true;
  place.cancelled = false;
  place.writes_zeros = false;
  if (given_up_) {
    to_do_.push(index);
    return true;
  }
  fill(*entry, op);
  entry->user_data = user_data(index);
  if (op.starts_writeback) link_writeback(*entry, op);
  return true;
}

// Behind the write, by another of the kernel's threads; nobody waits for it. Without an entry for it, or after a short
// write, the sync does that work.
void Queue::link_writeback(io_uring_sqe& write, const Op& op) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  if (entry == nullptr) return;
  const auto length = static_cast<unsigned>(std::min(op.length, files::max_transfer_bytes));
  io_uring_prep_sync_file_range(entry, write.fd, length, op.offset, SYNC_FILE_RANGE_WRITE);
  entry->flags |= write.flags & IOSQE_FIXED_FILE;
  entry->user_data = writeback_tag;
  write.flags |= IOSQE_IO_LINK;
}

bool Queue::give_to_threads(const Op& op) {
  if (!make_threads()) {
    ended_.push(files::finish(op, -ENOMEM));
    return true;
  }
  if (threads_->submit({&op, 1}) == 0) return false;
  ++threads_have_;
  watch_threads();
  return true;
}

bool Queue::make_threads() {
  if (threads_) return true;
  const engine::QueueOptions options{
      .depth = static_cast<std::uint32_t>(in_flight_.size()), .threads = 1, .sharers = sharers_};
  try {
    threads_ = std::make_unique<files::ThreadedQueue>(options, [] { return std::make_unique<ThreadWorker>(); });
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

// So that the ring wakes who sleeps when a thread is done.
void Queue::watch_threads() {
  if (threads_watched_ || threads_have_ == 0 || given_up_) return;
  const int event = threads_->event();
  io_uring_sqe* entry = event >= 0 ? entry_at_once() : nullptr;
  if (entry == nullptr) return;
  io_uring_prep_poll_add(entry, event, POLLIN);
  entry->user_data = threads_tag;
  threads_watched_ = true;
}

std::uint64_t Queue::user_data(std::uint32_t index) const {
  return std::uint64_t{in_flight_[index].generation} << 32 | index;
}

void Queue::fill(io_uring_sqe& entry, const Op& op) {
  store_of(op).make_waiting();
  const int descriptor = files::descriptor_of(op);
  const auto entry_of_file = ensure_file(op, descriptor);
  const int file = entry_of_file ? static_cast<int>(*entry_of_file) : descriptor;
  switch (op.kind) {
    case OpKind::read:
    case OpKind::write:
      fill_transfer(entry, op, file);
      break;
    case OpKind::flush:
      io_uring_prep_fsync(&entry, file, IORING_FSYNC_DATASYNC);
      break;
    case OpKind::zero:
      io_uring_prep_fallocate(&entry, file, FALLOC_FL_ZERO_RANGE, static_cast<off_t>(op.offset),
                              static_cast<off_t>(op.length));
      break;
    case OpKind::deallocate:
      io_uring_prep_fallocate(&entry, file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(op.offset),
                              static_cast<off_t>(op.length));
      break;
    case OpKind::call:  // the threads have it
      break;
  }
  if (entry_of_file) entry.flags |= IOSQE_FIXED_FILE;
  // At once by a thread of the kernel's: where a server does not answer, even handing it over may hang; and of what is
  // not in the page cache, the ring would wait for one page after another.
  const bool waits_for_pages =
      op.kind == OpKind::read && op.path == engine::Path::buffered && op.length >= waits_from_bytes;
  // Memory that was never touched is zeroed while the operation is handed over, which takes as long as the disk does.
  const bool may_zero_memory =
      op.kind == OpKind::read && op.path == engine::Path::direct && op.attached == nullptr && op.length >= zeroed_bytes;
  if (waits_for_pages || may_zero_memory || is_remote(op.store->info().locality)) entry.flags |= IOSQE_ASYNC;
}

void Queue::fill_transfer(io_uring_sqe& entry, const Op& op, int file) {
  const auto length = static_cast<unsigned>(std::min(op.length, files::max_transfer_bytes));
  const auto buffer = ensure_buffer(op, length);
  const bool reads = op.kind == OpKind::read;
  if (buffer && reads) {
    io_uring_prep_read_fixed(&entry, file, op.memory, length, op.offset, static_cast<int>(*buffer));
  } else if (buffer) {
    io_uring_prep_write_fixed(&entry, file, op.memory, length, op.offset, static_cast<int>(*buffer));
  } else if (reads) {
    io_uring_prep_read(&entry, file, op.memory, length, op.offset);
  } else {
    io_uring_prep_write(&entry, file, op.memory, length, op.offset);
  }
}

std::optional<std::uint32_t> Queue::ensure_file(const Op& op, int descriptor) {
  Slot slot = store_of(op).slot();
  const bool direct = moves_bytes(op.kind) && op.path == engine::Path::direct;
  slot.index = 2 * slot.index + (direct ? 1 : 0);
  const bool usable =
      files_.ensure(slot, [&] { return io_uring_register_files_update(&ring_, slot.index, &descriptor, 1) == 1; });
  return usable ? std::optional(slot.index) : std::nullopt;
}

std::optional<std::uint32_t> Queue::ensure_buffer(const Op& op, std::uint64_t length) {
  if (op.attached == nullptr) return std::nullopt;
  const auto piece = static_cast<const AttachedMemory*>(op.attached)->find(op.memory, length);
  if (!piece) return std::nullopt;
  const bool usable = buffers_.ensure(piece->slot, [&] {
    const iovec range{piece->data, piece->size_bytes};
    return io_uring_register_buffers_update_tag(&ring_, piece->slot.index, &range, nullptr, 1) == 1;
  });
  return usable ? std::optional(piece->slot.index) : std::nullopt;
}

std::size_t Queue::poll(std::span<Done> done, TimePoint deadline) {
  if (done.empty()) return 0;
  while (!given_up_) {
    const TimePoint now = deadline != TimePoint::min() ? Clock::now() : deadline;
    bool sleep = now < deadline && ended_.empty() && io_uring_cq_ready(&ring_) == 0;
    const bool woken = sleep && std::exchange(wake_seen_, false);
    sleep = sleep && !woken;
    const bool is_told = threads_have_ == 0 || threads_watched_;
    const int error =
        sleep ? hand_over_and_wait(is_told ? deadline - now : std::min<Duration>(deadline - now, look_again_time))
              : hand_over();
    const bool short_of_memory = error == EBUSY || error == EAGAIN || error == ENOMEM;
    if (error != 0 && !short_of_memory && error != ETIME && error != EINTR) give_up_ring(error);
    const std::size_t count = collect(done);
    if (count > 0 || woken || now >= deadline) return count;
    if (short_of_memory) std::this_thread::sleep_for(std::min<Duration>(back_off_time, deadline - now));
  }
  return poll_without_kernel(done, deadline);
}

// What the kernel has not taken is ours again; what it has still comes back.
void Queue::give_up_ring(int error) {
  try {
    log(LogLevel::warning, explain_refused_use(error).reason + "; operations run one after another instead");
  } catch (const std::bad_alloc&) {
    log(LogLevel::warning, "io_uring is refused; operations run one after another instead");
  }
  given_up_ = true;
  wake_armed_ = false;
  const unsigned taken = std::atomic_ref<unsigned>(*ring_.sq.khead).load(std::memory_order_acquire);
  for (unsigned at = taken; at != ring_.sq.sqe_tail; ++at) {
    const std::uint64_t tag = ring_.sq.sqes[at & *ring_.sq.kring_mask].user_data;
    if (tag > writeback_tag) to_do_.push(static_cast<std::uint32_t>(tag));
  }
}

std::size_t Queue::poll_without_kernel(std::span<Done> done, TimePoint deadline) {
  while (true) {
    std::size_t count = collect(done);
    if (count == 0 && run_next(done[0])) count = 1;
    const TimePoint now = Clock::now();
    const bool woken = wake_written_.exchange(false) || std::exchange(wake_seen_, false);
    if (count > 0 || woken || now >= deadline) return count;
    std::this_thread::sleep_for(std::min<Duration>(look_again_time, deadline - now));
  }
}

bool Queue::run_next(Done& done) {
  if (to_do_.empty()) return false;
  const std::uint32_t index = to_do_.pop();
  InFlight& place = in_flight_[index];
  done = place.cancelled ? files::finish(place.op, -ECANCELED) : files::transfer(place.op);
  place.busy = false;
  free_.push_back(index);
  return true;
}

// Gives the kernel what was submitted. 0 or an error number, as below.
int Queue::hand_over() {
  if (io_uring_sq_ready(&ring_) > 0) return std::max(-io_uring_submit(&ring_), 0);
  const unsigned flags = std::atomic_ref<unsigned>(*ring_.sq.kflags).load(std::memory_order_relaxed);
  if ((flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) == 0) return 0;
  return std::max(-io_uring_get_events(&ring_), 0);
}

int Queue::hand_over_and_wait(Duration time) {
  arm_wake();
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::min<Duration>(time, longest_wait)).count();
  __kernel_timespec limit{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  io_uring_cqe* first = nullptr;
  return std::max(-io_uring_submit_and_wait_timeout(&ring_, &first, 1, &limit, nullptr), 0);
}

void Queue::arm_wake() {
  if (wake_armed_) return;
  io_uring_sqe* entry = entry_at_once();
  if (entry == nullptr) return;
  io_uring_prep_read(entry, event_.get(), &event_value_, sizeof event_value_, 0);
  entry->user_data = wake_tag;
  wake_armed_ = true;
}

// An entry of our own; if all are filled, they are handed over first.
io_uring_sqe* Queue::entry_at_once() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  if (entry != nullptr) return entry;
  io_uring_submit(&ring_);
  return io_uring_get_sqe(&ring_);
}

std::size_t Queue::collect(std::span<Done> done) {
  std::size_t count = 0;
  while (count < done.size() && !ended_.empty()) done[count++] = ended_.pop();
  unsigned head = 0;
  unsigned seen = 0;
  io_uring_cqe* completion = nullptr;
  io_uring_for_each_cqe(&ring_, head, completion) {
    if (count == done.size()) break;
    if (complete(*completion, done[count])) ++count;
    ++seen;
  }
  io_uring_cq_advance(&ring_, seen);
  if (threads_have_ == 0) return count;
  const std::size_t done_by_threads = threads_->poll(done.subspan(count), TimePoint::min());
  threads_have_ -= done_by_threads;
  watch_threads();
  return count + done_by_threads;
}

// False for completions that are ours alone.
bool Queue::complete(const io_uring_cqe& completion, Done& done) {
  if (completion.user_data == wake_tag) {
    wake_armed_ = false;
    if (completion.res > 0) {
      wake_seen_ = true;
      wake_written_.exchange(false);
    }
    return false;
  }
  if (completion.user_data == cancel_tag || completion.user_data == writeback_tag) return false;
  if (completion.user_data == threads_tag) {
    threads_watched_ = false;
    return false;
  }
  const auto index = static_cast<std::uint32_t>(completion.user_data);
  if (index >= in_flight_.size() || !in_flight_[index].busy || user_data(index) != completion.user_data) std::abort();
  InFlight& place = in_flight_[index];
  const int result = completion.res;
  const bool zero_is_refused = place.op.kind == OpKind::zero && !place.writes_zeros && result < 0 &&
                               files::needs_written_zeros(place.op, -result);
  if (zero_is_refused && !place.cancelled && write_zeros(index)) return false;
  place.busy = false;
  free_.push_back(index);
  if (lost_its_thread(place, result) && give_to_threads(place.op)) return false;

  const bool was_cancelled = place.cancelled && (result == -EINTR || result == -EAGAIN || zero_is_refused);
  if (was_cancelled) {
    done = files::finish(place.op, -ECANCELED);
  } else if (zero_is_refused) {
    done = files::finish(place.op, -EAGAIN);  // the ring has no room at the moment
  } else if (engine::moves_bytes(place.op.kind) || place.writes_zeros || result < 0) {
    done = files::finish(place.op, result);
  } else {
    done = files::finish(place.op, static_cast<std::int64_t>(place.op.length));
  }
  return true;
}

// The kernel goes on with a buffered operation, once its pages are there, on the thread that submitted it, and with
// what it gave to its own threads only as long as that one lives. A thread that has ended leaves both to ours, which
// also say whether the memory is bad.
bool Queue::lost_its_thread(const InFlight& place, int result) {
  return !place.cancelled && !place.writes_zeros && engine::moves_bytes(place.op.kind) &&
         (result == -EFAULT || result == -ECANCELED);
}

// In place of an operation that the file system does not have. At most the first part: the caller goes on.
bool Queue::write_zeros(std::uint32_t index) {
  if (given_up_) {
    to_do_.push(index);
    return true;
  }
  io_uring_sqe* entry = entry_at_once();
  if (entry == nullptr) return false;
  InFlight& place = in_flight_[index];
  const std::span<const std::byte> zeros = files::zeros_for(place.op);
  io_uring_prep_write(entry, store_of(place.op).buffered_fd(), zeros.data(), static_cast<unsigned>(zeros.size()),
                      place.op.offset);
  if (is_remote(place.op.store->info().locality)) entry->flags |= IOSQE_ASYNC;
  entry->user_data = user_data(index);
  place.writes_zeros = true;
  return true;
}

// What watches the threads may have been put back into the ring by the poll before.
int Queue::event() {
  if (given_up_) return -1;
  if (::io_uring_sq_ready(&ring_) != 0) ::io_uring_submit(&ring_);
  return ring_.ring_fd;
}

void Queue::wake() {
  if (wake_written_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void Queue::cancel(std::uint64_t cookie) {
  if (threads_have_ != 0) threads_->cancel(cookie);
  for (std::uint32_t index = 0; index < in_flight_.size(); ++index) {
    InFlight& place = in_flight_[index];
    if (!place.busy || place.op.cookie != cookie || place.cancelled) continue;
    place.cancelled = given_up_;
    if (given_up_) return;
    io_uring_sqe* entry = entry_at_once();
    if (entry == nullptr) return;
    io_uring_prep_cancel64(entry, user_data(index), 0);
    entry->user_data = cancel_tag;
    place.cancelled = true;
    return;
  }
}

}  // namespace penstock::uring
