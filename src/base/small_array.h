// SmallArray: a fixed number of elements, known when made; a single one needs no allocation.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace penstock {

template <typename T>
class SmallArray {
 public:
  SmallArray() = default;
  SmallArray(const SmallArray&) = delete;
  SmallArray& operator=(const SmallArray&) = delete;

  // REQUIRES: called once, before any element is looked at.
  void resize(std::size_t size) {
    if (size > 1) many_ = std::make_unique<T[]>(size);
    size_ = size;
  }
  // REQUIRES: size <= size()
  void shrink(std::size_t size) { size_ = size; }
  std::size_t size() const { return size_; }
  T* data() { return many_ ? many_.get() : &one_; }
  const T* data() const { return many_ ? many_.get() : &one_; }
  T& operator[](std::size_t index) { return data()[index]; }
  const T& operator[](std::size_t index) const { return data()[index]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  std::size_t size_ = 0;
  T one_{};
  std::unique_ptr<T[]> many_;
};

}  // namespace penstock
