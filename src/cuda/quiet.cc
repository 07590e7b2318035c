#include "cuda/quiet.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include "base/log.h"

namespace penstock::cuda {

namespace {

constexpr auto between_looks = std::chrono::milliseconds(1);

}  // namespace

Quiet& Quiet::of_process() {
  // Never destroyed, and not of the heap: destructors come here.
  alignas(Quiet) static std::byte place[sizeof(Quiet)];
  static auto* const quiet = new (place) Quiet;
  return *quiet;
}

Quiet::~Quiet() {
  {
    const std::scoped_lock lock(deferred_mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  while (first_) first_ = std::move(first_->next_);
}

bool Quiet::begin_wait() {
  {
    const std::unique_lock lock(mutex_, longest_call_);
    if (!lock) return false;
    waits_.fetch_add(1);  // from here on no call begins
  }
  std::unique_lock lock(deferred_mutex_);
  const TimePoint until = running_since_ + longest_call_;
  if (changed_.wait_until(lock, until, [this] { return !is_running_; })) return true;
  end_wait();
  return false;
}

bool Quiet::run(const std::function<void()>& call) {
  const std::shared_lock lock(mutex_);
  if (streams_wait()) return false;
  call();
  return true;
}

void Quiet::list(std::shared_ptr<Deferred> work) {
  if (std::exchange(work->is_listed_, true)) return;
  Deferred* const added = work.get();
  (last_ != nullptr ? last_->next_ : first_) = std::move(work);
  last_ = added;
}

void Quiet::defer(std::shared_ptr<Deferred> work) {
  if (is_in_child()) return;
  const std::scoped_lock lock(deferred_mutex_);
  list(std::move(work));
  start_thread();
  changed_.notify_all();
}

void Quiet::get_ready() {
  if (is_in_child()) return;
  const std::scoped_lock lock(deferred_mutex_);
  start_thread();
}

bool Quiet::start_thread() {
  if (is_ending_ || thread_.joinable()) return thread_.joinable();
  try {
    if (!made_guard_) guard_.store(&made_guard_.emplace(), std::memory_order_release);
    thread_ = std::thread([this] { work(); });
  } catch (const std::exception&) {  // no thread, or no memory for it; the next call tries again
    log(LogLevel::warning, "no thread to free GPU memory later");
    return false;
  }
  // Before the driver goes, which was there before us.
  if (this == &of_process()) std::atexit([] { of_process().end_with_process(); });
  return true;
}

void Quiet::work() {
  std::unique_lock lock(deferred_mutex_);
  while (!is_ending_) {
    if (!first_) {
      changed_.wait(lock);
    } else if (streams_wait()) {
      changed_.wait_for(lock, between_looks);
    } else {
      std::shared_ptr<Deferred> next = std::move(first_);
      first_ = std::move(next->next_);
      if (!first_) last_ = nullptr;
      next->is_listed_ = false;
      is_running_ = true;
      running_since_ = Clock::now();
      lock.unlock();
      const bool has_more = next->run();
      if (!has_more) next.reset();  // what it owns may come here again
      lock.lock();
      is_running_ = false;
      if (has_more) list(std::move(next));
      changed_.notify_all();
    }
  }
}

void Quiet::catch_up(std::chrono::milliseconds at_most) {
  if (is_in_child()) return;
  const TimePoint until = Clock::now() + at_most;
  std::unique_lock lock(deferred_mutex_);
  while ((first_ || is_running_) && !is_ending_ && !streams_wait() && start_thread()) {
    const TimePoint now = Clock::now();
    if (now >= until || (is_running_ && now >= running_since_ + at_most)) return;
    changed_.wait_until(lock, is_running_ ? std::min(until, running_since_ + at_most) : until);
  }
}

// A call that takes long is left to itself.
void Quiet::end_with_process() {
  catch_up();
  if (is_in_child()) return;
  std::thread ending;
  {
    const std::scoped_lock lock(deferred_mutex_);
    is_ending_ = true;
    changed_.notify_all();
    ending.swap(thread_);
    if (is_running_ && ending.joinable()) ending.detach();
  }
  if (ending.joinable()) ending.join();
}

Quiet::Unfreed Quiet::unfreed() const {
  return {unfreed_calls_.load(std::memory_order_relaxed), unfreed_pinned_bytes_.load(std::memory_order_relaxed),
          unfreed_device_bytes_.load(std::memory_order_relaxed)};
}

void Quiet::note_unfreed(Kind kind, std::uint64_t bytes) {
  unfreed_calls_.fetch_add(1, std::memory_order_relaxed);
  bytes_of(kind).fetch_add(bytes, std::memory_order_relaxed);
}

void Quiet::note_freed(Kind kind, std::uint64_t bytes) {
  unfreed_calls_.fetch_sub(1, std::memory_order_relaxed);
  bytes_of(kind).fetch_sub(bytes, std::memory_order_relaxed);
}

Error streams_wait_error(const std::string& what) {
  return {Code::would_deadlock, 0,
          what + ": streams wait for requests, or frees are held back, and the driver might wait for the GPU first",
          "prepare the GPU before the first request in stream order, or try again when those requests have ended"};
}

std::string describe_unfreed(Quiet::Kind kind) {
  const Quiet::Unfreed unfreed = Quiet::of_process().unfreed();
  const bool is_pinned = kind == Quiet::Kind::pinned;
  const std::uint64_t bytes = is_pinned ? unfreed.pinned_bytes : unfreed.device_bytes;
  if (bytes == 0) return {};
  return "; " + std::to_string(bytes) + " bytes of " + (is_pinned ? "pinned" : "GPU") +
         " memory can't be freed before a GPU has finished its work";
}

}  // namespace penstock::cuda
