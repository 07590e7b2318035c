#include "memory/budget.h"

namespace penstock::memory {

bool Budget::charge(std::uint64_t bytes) {
  std::uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

void Budget::refund(std::uint64_t bytes) {
  used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace penstock::memory
