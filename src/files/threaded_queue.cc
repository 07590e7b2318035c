#include "files/threaded_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/log.h"
#include "engine/store.h"
#include "files/transfer.h"

namespace penstock::files {
namespace {

// So many copies are made before a poll looks for what the threads have done.
constexpr std::size_t copies_per_poll = 4;

// What a server is asked about a file before its cached bytes are read may never be answered.
bool is_copy(const engine::Op& op) {
  return op.path == engine::Path::cached && !is_remote(op.store->info().locality);
}

}  // namespace

engine::Done Worker::run_or_fail(const engine::Op& op) {
  try {
    return run(op);
  } catch (const std::bad_alloc&) {
    return finish(op, -ENOMEM);
  }
}

ThreadedQueue::ThreadedQueue(const engine::QueueOptions& options, MakeWorker make_worker)
    : depth_(options.depth),
      shares_(options.sharers != 0),
      max_threads_(std::max<std::size_t>(std::clamp(options.threads, 1U, options.depth), options.sharers)),
      make_worker_(std::move(make_worker)),
      own_worker_(make_worker_()),
      cached_(depth_),
      pending_(depth_),
      done_(depth_) {
  threads_.reserve(max_threads_);
  if (shares_) shared_.reserve(depth_);
}

ThreadedQueue::~ThreadedQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::size_t ThreadedQueue::submit(std::span<const engine::Op> ops) {
  const std::size_t taken = std::min(ops.size(), depth_ - in_flight_);
  std::size_t handed_over = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const engine::Op& op : ops.first(taken)) {
      if (op.is_shared && shares_) {
        shared_.emplace_back(op);
        handed_over += shared_.back().stretches_left();
      } else if (is_copy(op)) {
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

std::size_t ThreadedQueue::poll(std::span<engine::Done> done, TimePoint deadline) {
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

std::size_t ThreadedQueue::collect(std::span<engine::Done> done) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  while (count < done.size() && !done_.empty()) done[count++] = done_.pop();
  return count;
}

std::size_t ThreadedQueue::copy_cached(std::span<engine::Done> done) {
  const std::size_t count = std::min({copies_per_poll, done.size(), cached_.size()});
  for (engine::Done& copied : done.first(count)) copied = own_worker_->run_or_fail(cached_.pop());
  return count;
}

void ThreadedQueue::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  poll_ends_.notify_one();
}

void ThreadedQueue::cancel(std::uint64_t cookie) {
  const auto is_meant = [cookie](const engine::Op& op) { return op.cookie == cookie; };
  const std::lock_guard lock(mutex_);
  const auto shared = std::ranges::find(shared_, cookie, &SharedRead::cookie);
  if (shared != shared_.end()) {
    shared->cancel();
    end_if_over(shared);
    return;
  }
  engine::Op op;
  if (!pending_.take(is_meant, op) && !cached_.take(is_meant, op)) return;
  done_.push(finish(op, -ECANCELED));
  tell_of_end();
}

int ThreadedQueue::event() {
  if (!cached_.empty()) return -1;  // poll does these itself
  const std::lock_guard lock(mutex_);
  if (!event_) event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) return -1;
  std::uint64_t told = 0;
  [[maybe_unused]] const ssize_t read = ::read(event_.get(), &told, sizeof told);
  event_wanted_ = true;
  if (!done_.empty()) tell_of_end();
  return event_.get();
}

// REQUIRES: the lock.
void ThreadedQueue::tell_of_end() {
  poll_ends_.notify_one();
  if (!std::exchange(event_wanted_, false)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void ThreadedQueue::complete(const engine::Done& done) {
  const std::lock_guard lock(mutex_);
  done_.push(done);
  tell_of_end();
}

void ThreadedQueue::start_threads() {
  std::size_t wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    wanted = work_left() - std::min(work_left(), idle_threads_);
  }
  for (; wanted > 0 && threads_.size() < max_threads_; --wanted) {
    try {
      threads_.emplace_back([this, worker = make_worker_()] { work(*worker); });
    } catch (const std::exception&) {  // no thread, or no memory for it
      if (!threads_.empty()) return;   // fewer threads are slower, not wrong
      log(LogLevel::warning, "no thread can be started; work is done while polling");
      const std::lock_guard lock(mutex_);
      while (!pending_.empty()) do_without_thread(pending_.pop());
      for (const SharedRead& read : shared_) cached_.push(read.op());
      shared_.clear();
      return;
    }
  }
}

// REQUIRES: the lock. Who polls must not wait for a server.
void ThreadedQueue::do_without_thread(const engine::Op& op) {
  if (op.kind == engine::OpKind::call) {
    done_.push({.cookie = op.cookie, .code = Code::out_of_memory});
  } else {
    cached_.push(op);
  }
}

// REQUIRES: the lock.
std::vector<SharedRead>::iterator ThreadedQueue::unfinished_read() {
  return std::ranges::find_if(shared_, &SharedRead::has_more);
}

// REQUIRES: the lock.
void ThreadedQueue::end_if_over(std::vector<SharedRead>::iterator read) {
  if (!read->is_over()) return;
  done_.push(read->done());
  shared_.erase(read);
  tell_of_end();
}

// For so many threads. REQUIRES: the lock.
std::size_t ThreadedQueue::work_left() const {
  std::size_t count = pending_.size();
  for (const SharedRead& read : shared_) count += read.stretches_left();
  return count;
}

// REQUIRES: the lock, and something pending. Leaves their share to threads that have nothing to do.
std::size_t ThreadedQueue::take_group(const Worker& worker, std::span<engine::Op> group) {
  const std::size_t share = std::min(group.size(), pending_.size() / (idle_threads_ + 1));
  std::size_t count = 0;
  group[count++] = pending_.pop();
  if (!worker.joins_group(group.front())) return count;
  while (count < share && worker.joins_group(pending_.front())) group[count++] = pending_.pop();
  return count;
}

void ThreadedQueue::work(Worker& worker) {
  std::array<engine::Op, max_group> group;
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_threads_;
    work_arrived_.wait(lock, [this] { return stopping_ || work_left() != 0; });
    --idle_threads_;
    if (stopping_) return;
    if (pending_.empty()) {
      const engine::Op stretch = unfinished_read()->take();
      lock.unlock();
      const engine::Done done = worker.run_or_fail(stretch);
      lock.lock();
      const auto read = std::ranges::find(shared_, stretch.cookie, &SharedRead::cookie);
      read->put(stretch, done);
      end_if_over(read);
      continue;
    }
    const std::size_t count = take_group(worker, group);
    lock.unlock();
    if (count > 1) {
      worker.run_group(std::span(group).first(count), *this);
      lock.lock();
      continue;
    }
    const engine::Done done = worker.run_or_fail(group.front());
    lock.lock();
    done_.push(done);
    tell_of_end();
  }
}

}  // namespace penstock::files
