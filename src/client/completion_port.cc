#include "client/completion_port.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/futex.h"
#include "client/backend.h"

namespace penstock::client {

CompletionPort::CompletionPort(std::size_t capacity) : places_(capacity), completions_(capacity) {
  for (std::size_t i = 0; i < capacity; ++i) places_[i].next_free = static_cast<std::uint32_t>(i + 1);
}

CompletionPort::~CompletionPort() = default;

Result<std::uint32_t> CompletionPort::reserve(std::uint64_t user_data) {
  const std::scoped_lock lock(mutex_);
  if (is_closed_) return Error{Code::closed, 0, "this CompletionQueue was closed", "create another one"};
  if (in_flight_ + count_ == completions_.size()) {
    return Error{Code::would_block, 0, "the CompletionQueue is full",
                 "collect completions first, or create it with a larger capacity"};
  }
  const std::uint32_t place = first_free_;
  first_free_ = places_[place].next_free;
  places_[place].user_data = user_data;
  ++in_flight_;
  return place;
}

// The request is destroyed by the caller, without the lock.
std::shared_ptr<PendingRequest> CompletionPort::free(std::uint32_t place) noexcept {
  Place& freed = places_[place];
  if (std::exchange(freed.is_elsewhere, false)) elsewhere_.fetch_sub(1, std::memory_order_relaxed);
  freed.next_free = std::exchange(first_free_, place);
  --in_flight_;
  return std::move(freed.request);
}

void CompletionPort::release(std::uint32_t place) noexcept {
  std::shared_ptr<PendingRequest> request;
  const std::scoped_lock lock(mutex_);
  request = free(place);
}

void CompletionPort::attach(std::uint32_t place, std::shared_ptr<PendingRequest> request) noexcept {
  const std::scoped_lock lock(mutex_);
  places_[place].request = std::move(request);
}

void CompletionPort::runs_elsewhere(std::uint32_t place) noexcept {
  const std::scoped_lock lock(mutex_);
  places_[place].is_elsewhere = true;
  elsewhere_.fetch_add(1, std::memory_order_relaxed);
}

void CompletionPort::complete(std::uint32_t place, Code code, std::uint64_t bytes) noexcept {
  std::shared_ptr<PendingRequest> request;
  {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t user_data = places_[place].user_data;
    request = free(place);
    std::size_t end = begin_ + count_;
    if (end >= completions_.size()) end -= completions_.size();
    completions_[end] = {user_data, code, bytes};
    if (count_++ == 0 && descriptor_) ::eventfd_write(descriptor_.get(), 1);
  }
  news_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(news_);
}

std::size_t CompletionPort::take(std::span<Completion> completions) noexcept {
  if (completions.empty()) return 0;
  const std::scoped_lock lock(mutex_);
  const std::size_t taken = std::min(completions.size(), count_);
  for (std::size_t i = 0; i < taken; ++i) {
    completions[i] = completions_[begin_];
    if (++begin_ == completions_.size()) begin_ = 0;
  }
  count_ -= taken;
  if (taken != 0 && count_ == 0 && descriptor_) {
    eventfd_t value = 0;
    ::eventfd_read(descriptor_.get(), &value);
  }
  return taken;
}

void CompletionPort::sleep_until(TimePoint time) noexcept {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const std::uint32_t seen = news_.load(std::memory_order_seq_cst);
    {
      const std::scoped_lock lock(mutex_);
      if (count_ != 0 || in_flight_ == 0) break;
    }
    if (Clock::now() >= time) break;
    futex_wait_until(news_, seen, time);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

int CompletionPort::descriptor() {
  const std::scoped_lock lock(mutex_);
  if (!descriptor_) {
    descriptor_ = UniqueFd(::eventfd(count_ != 0 ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
    has_descriptor_.store(bool(descriptor_), std::memory_order_relaxed);
  }
  return descriptor_.get();
}

std::size_t CompletionPort::size() const noexcept {
  const std::scoped_lock lock(mutex_);
  return in_flight_ + count_;
}

std::size_t CompletionPort::in_flight() const noexcept {
  const std::scoped_lock lock(mutex_);
  return in_flight_;
}

void CompletionPort::close() {
  std::size_t next = 0;
  while (true) {
    std::shared_ptr<PendingRequest> request;
    {
      const std::scoped_lock lock(mutex_);
      is_closed_ = true;
      while (next < places_.size() && !places_[next].request) ++next;
      if (next == places_.size()) return;
      request = places_[next++].request;
    }
    request->request_cancel();
  }
}

}  // namespace penstock::client
