// FreedLater: while one lives, memory of Buffers of which its thread lets go last is listed there, not freed. To free
// what GPUs and engines know may wait for them, which a lane must not. Who lets go last is known only when it has
// happened: of two requests that end at once, each may still have seen the other.
//
// Memory that only the host knows is freed as ever.
//
// Thread safety: its thread's; a List any thread, one at a time. Lifetime: a scope. They nest; the inner one counts.
#pragma once

#include <memory>
#include <utility>

#include "memory/allocation.h"

namespace penstock::memory {

class FreedLater {
 public:
  // Freed when it goes. It needs no memory of its own.
  class List {
   public:
    List() = default;
    List(List&& other) noexcept : first_(std::move(other.first_)) {}
    List& operator=(List&& other) noexcept {
      clear();
      first_ = std::move(other.first_);
      return *this;
    }
    ~List() { clear(); }

    bool empty() const { return first_ == nullptr; }
    void add(std::unique_ptr<const Allocation> allocation) {
      allocation->next_to_free_ = std::move(first_);
      first_ = std::move(allocation);
    }
    void append(List others) {
      while (others.first_) add(others.take());
    }
    void clear() {
      while (first_) take();
    }

   private:
    std::unique_ptr<const Allocation> take() {
      auto taken = std::move(first_);
      first_ = std::move(taken->next_to_free_);
      return taken;
    }

    std::unique_ptr<const Allocation> first_;
  };

  FreedLater() : outer_(std::exchange(current_, this)) {}
  ~FreedLater() { current_ = outer_; }
  FreedLater(const FreedLater&) = delete;
  FreedLater& operator=(const FreedLater&) = delete;

  List take() { return std::move(list_); }

  // Of the last holder: lists it, if one lives on this thread, or frees it.
  static void end(std::unique_ptr<const Allocation> allocation) {
    if (current_ != nullptr && allocation->region().domain != Domain::host())
      current_->list_.add(std::move(allocation));
  }

 private:
  static constinit inline thread_local FreedLater* current_ = nullptr;

  FreedLater* const outer_;
  List list_;
};

}  // namespace penstock::memory
