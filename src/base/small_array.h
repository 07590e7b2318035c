// SmallArray: a number of elements that is known before the first is made; a single one needs no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace penstock {

template <typename T>
class SmallArray {
 public:
  SmallArray() = default;
  ~SmallArray() {
    if (data_ == &one_) return;
    std::destroy_n(data_, size_);
    ::operator delete(data_);
  }
  SmallArray(const SmallArray&) = delete;
  SmallArray& operator=(const SmallArray&) = delete;

  // So many elements as T() makes them. REQUIRES: called once, and no other does.
  void resize(std::size_t size) {
    reserve(size);
    if (size > 1) std::uninitialized_value_construct_n(data_, size);
    size_ = size;
  }
  // Room for so many. REQUIRES: the same.
  void reserve(std::size_t size) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    if (size <= 1) return;
    if (size > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    data_ = static_cast<T*>(::operator new(size * sizeof(T)));
  }
  // REQUIRES: there is room.
  void add(T element) {
    if (data_ == &one_) {
      one_ = std::move(element);
    } else {
      std::construct_at(data_ + size_, std::move(element));
    }
    ++size_;
  }

  std::size_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::size_t index) { return data_[index]; }
  const T& operator[](std::size_t index) const { return data_[index]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  std::size_t size_ = 0;
  T one_{};
  T* data_ = &one_;
};

}  // namespace penstock
