#include "engines/posix/queue.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/log.h"
#include "files/transfer.h"

namespace penstock::posix {
namespace {

// So many copies are made before a poll looks for what the threads have done.
constexpr std::size_t copies_per_poll = 4;

}  // namespace

Queue::Queue(const engine::QueueOptions& options)
    : depth_(options.depth),
      max_threads_(std::clamp<std::size_t>(options.threads, 1, options.depth)),
      cached_(depth_),
      pending_(depth_),
      done_(depth_) {
  threads_.reserve(max_threads_);
}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::size_t Queue::submit(std::span<const engine::Op> ops) {
  const std::size_t taken = std::min(ops.size(), depth_ - in_flight_);
  std::size_t handed_over = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const engine::Op& op : ops.first(taken)) {
      if (op.path == engine::Path::cached) {
        cached_.push(op);
      } else {
        pending_.push(op);
        ++handed_over;
      }
    }
  }
  in_flight_ += taken;
  for (std::size_t i = 0; i < std::min(handed_over, threads_.size()); ++i) work_arrived_.notify_one();
  if (handed_over > 0) start_threads();
  return taken;
}

std::size_t Queue::poll(std::span<engine::Done> done, TimePoint deadline) {
  if (done.empty()) return 0;
  std::size_t count = collect(done);
  count += copy_cached(done.subspan(count));
  if (count == 0) {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return !done_.empty() || woken_; };
    if (Clock::now() < deadline && poll_ends_.wait_until(lock, deadline, ended) && done_.empty()) woken_ = false;
    lock.unlock();
    count = collect(done);
  }
  in_flight_ -= count;
  return count;
}

std::size_t Queue::collect(std::span<engine::Done> done) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  while (count < done.size() && !done_.empty()) done[count++] = done_.pop();
  return count;
}

std::size_t Queue::copy_cached(std::span<engine::Done> done) {
  const std::size_t count = std::min({copies_per_poll, done.size(), cached_.size()});
  for (engine::Done& copied : done.first(count)) copied = files::transfer(cached_.pop());
  return count;
}

void Queue::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  poll_ends_.notify_one();
}

void Queue::cancel(std::uint64_t cookie) {
  const auto is_meant = [cookie](const engine::Op& op) { return op.cookie == cookie; };
  const std::lock_guard lock(mutex_);
  engine::Op op;
  if (pending_.take(is_meant, op) || cached_.take(is_meant, op)) done_.push(files::finish(op, -ECANCELED));
}

void Queue::start_threads() {
  std::size_t wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    wanted = pending_.size() - std::min(pending_.size(), idle_threads_);
  }
  for (; wanted > 0 && threads_.size() < max_threads_; --wanted) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      if (!threads_.empty()) return;  // fewer threads are slower, not wrong
      log(LogLevel::warning, std::string("no thread can be started, work is done while polling: ") + error.what());
      const std::lock_guard lock(mutex_);
      while (!pending_.empty()) cached_.push(pending_.pop());
      return;
    }
  }
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_threads_;
    work_arrived_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
    --idle_threads_;
    if (stopping_) return;
    const engine::Op op = pending_.pop();
    lock.unlock();
    const engine::Done done = files::transfer(op);
    lock.lock();
    done_.push(done);
    poll_ends_.notify_one();
  }
}

}  // namespace penstock::posix
