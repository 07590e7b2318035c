// Allocations of this executable: counted on every thread, and made to fail on one, or on all others.
//
// allocations.cc replaces operator new.
#pragma once

#include <cstdint>

namespace penstock::test {

std::uint64_t allocation_count();

// While it lives, one allocation of the calling thread, or of the other threads together, fails, after so many that
// don't; or all from there on.
class FailingAllocation {
 public:
  enum class Which : std::uint8_t { one, all };
  enum class Threads : std::uint8_t { this_one, others };
  FailingAllocation(std::uint64_t after, Which which, Threads threads = Threads::this_one);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  bool happened() const;

  // Where a thread is inside something that isn't tested, it is spared. Null: nowhere.
  static void spare(int (*is_inside)());

 private:
  const Threads threads_;
};

}  // namespace penstock::test
