// Tally: bytes by kind, of which most requests have only one: that needs no memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock::core {

template <std::size_t count>
class Tally {
 public:
  using Bytes = std::array<std::uint64_t, count>;

  // Throws std::bad_alloc, and counts nothing, where there is no memory for another kind.
  void add(std::size_t kind, std::uint64_t bytes) {
    if (!all_ && bytes_ != 0 && kind != kind_ && bytes != 0) {
      auto all = std::make_unique<Bytes>();
      (*all)[kind_] = bytes_;
      all_ = std::move(all);
    }
    if (all_) {
      (*all_)[kind] += bytes;
    } else if (bytes != 0) {
      kind_ = kind;
      bytes_ += bytes;
    }
  }
  void add_to(Bytes& sums) const {
    if (!all_) {
      sums[kind_] += bytes_;
      return;
    }
    for (std::size_t i = 0; i < count; ++i) sums[i] += (*all_)[i];
  }

 private:
  std::uint64_t bytes_ = 0;  // of the only kind
  std::size_t kind_ = 0;
  std::unique_ptr<Bytes> all_;  // null: there is only one
};

}  // namespace penstock::core
