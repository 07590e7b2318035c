// Ring: a first-in first-out buffer of fixed capacity; allocates once, when made.
//
// Thread safety: none of its own.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <vector>

namespace penstock::files {

template <typename T>
class Ring {
 public:
  explicit Ring(std::size_t capacity) : items_(capacity) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == items_.size(); }
  std::size_t capacity() const { return items_.size(); }

  // REQUIRES: !full()
  void push(const T& item) {
    if (full()) std::abort();
    at(size_++) = item;
  }
  // REQUIRES: !empty()
  const T& front() const { return items_[first_]; }
  // REQUIRES: !empty()
  T pop() {
    if (empty()) std::abort();
    const T item = at(0);
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }
  // Takes the first item that fits out of the middle, into `found`; says whether there was one.
  template <typename Predicate>
  bool take(Predicate fits, T& found) {
    std::size_t i = 0;
    while (i < size_ && !fits(at(i))) ++i;
    if (i == size_) return false;
    found = at(i);
    for (; i + 1 < size_; ++i) at(i) = at(i + 1);
    --size_;
    return true;
  }

 private:
  T& at(std::size_t index) { return items_[(first_ + index) % items_.size()]; }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace penstock::files
