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
      make_worker_(std::move(make_worker)),
      own_worker_(make_worker_()),
      cached_(depth_),
      callers_(std::clamp(options.threads, 1U, options.depth), &ThreadedQueue::call),
      sharers_(options.sharers, &ThreadedQueue::share),
      pending_(depth_),
      done_(depth_) {
  if (sharers_.most != 0) shared_.reserve(depth_);
}

ThreadedQueue::~ThreadedQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (Crew* crew : {&callers_, &sharers_}) {
    crew->work_arrived.notify_all();
    for (std::thread& thread : crew->threads) thread.join();
  }
}

std::size_t ThreadedQueue::submit(std::span<const engine::Op> ops) {
  const std::size_t taken = std::min(ops.size(), depth_ - in_flight_);
  std::size_t calls = 0;
  std::size_t stretches = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const engine::Op& op : ops.first(taken)) {
      if (op.is_shared && sharers_.most != 0) {
        shared_.emplace_back(op);
        stretches += shared_.back().stretches_left();
      } else if (is_copy(op)) {
        cached_.push(op);
      } else {
        pending_.push(op);
        ++calls;
      }
    }
  }
  in_flight_ += taken;
  if (calls > 0 && !start_threads(callers_, calls)) do_without_callers();
  if (stretches > 0 && !start_threads(sharers_, stretches)) do_without_sharers();
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

// As many as have something to do. False: there is not a single one.
bool ThreadedQueue::start_threads(Crew& crew, std::size_t handed_over) {
  for (std::size_t i = 0; i < std::min(handed_over, crew.threads.size()); ++i) crew.work_arrived.notify_one();
  std::size_t wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t left = &crew == &callers_ ? pending_.size() : stretches_left();
    wanted = left - std::min(left, crew.idle);
  }
  for (; wanted > 0 && crew.threads.size() < crew.most; --wanted) {
    try {
      crew.threads.emplace_back([this, &crew, worker = make_worker_()] { (this->*crew.work)(*worker); });
    } catch (const std::exception&) {  // no thread, or no memory for it
      break;                           // fewer threads are slower, not wrong
    }
  }
  if (!crew.threads.empty()) return true;
  if (!std::exchange(has_warned_, true)) {
    log(LogLevel::warning, "no thread can be started; work is done while polling");
  }
  return false;
}

// Who polls must not wait for a server.
void ThreadedQueue::do_without_callers() {
  const std::lock_guard lock(mutex_);
  while (!pending_.empty()) {
    const engine::Op op = pending_.pop();
    if (op.kind == engine::OpKind::call) {
      done_.push({.cookie = op.cookie, .code = Code::out_of_memory});
    } else {
      cached_.push(op);
    }
  }
}

void ThreadedQueue::do_without_sharers() {
  const std::lock_guard lock(mutex_);
  for (const SharedRead& read : shared_) cached_.push(read.op());
  shared_.clear();
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
std::size_t ThreadedQueue::stretches_left() const {
  std::size_t count = 0;
  for (const SharedRead& read : shared_) count += read.stretches_left();
  return count;
}

// REQUIRES: the lock, and something pending. Leaves their share to threads that have nothing to do.
std::size_t ThreadedQueue::take_group(const Worker& worker, std::span<engine::Op> group) {
  const std::size_t share = std::min(group.size(), pending_.size() / (callers_.idle + 1));
  std::size_t count = 0;
  group[count++] = pending_.pop();
  if (!worker.joins_group(group.front())) return count;
  while (count < share && worker.joins_group(pending_.front())) group[count++] = pending_.pop();
  return count;
}

void ThreadedQueue::call(Worker& worker) {
  std::array<engine::Op, max_group> group;
  std::unique_lock lock(mutex_);
  while (true) {
    ++callers_.idle;
    callers_.work_arrived.wait(lock, [this] { return stopping_ || !pending_.empty(); });
    --callers_.idle;
    if (stopping_) return;
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

void ThreadedQueue::share(Worker& worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    ++sharers_.idle;
    sharers_.work_arrived.wait(lock, [this] { return stopping_ || unfinished_read() != shared_.end(); });
    --sharers_.idle;
    if (stopping_) return;
    const engine::Op stretch = unfinished_read()->take();
    lock.unlock();
    const engine::Done done = worker.run_or_fail(stretch);
    lock.lock();
    const auto read = std::ranges::find(shared_, stretch.cookie, &SharedRead::cookie);
    read->put(stretch, done);
    end_if_over(read);
  }
}

}  // namespace penstock::files
