// Budget: a hard limit shared by everything that charges against it.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace penstock::memory {

class Budget {
 public:
  explicit Budget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  // Takes the bytes, or takes nothing and says no.
  bool charge(std::uint64_t bytes);
  void refund(std::uint64_t bytes);
  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  const std::uint64_t limit_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0};
};

}  // namespace penstock::memory
