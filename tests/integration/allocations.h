// Allocations of this executable: counted on every thread, and made to fail on one.
//
// allocations.cc replaces operator new.
#pragma once

#include <cstdint>

namespace penstock::test {

std::uint64_t allocation_count();

// While it lives, one allocation of the calling thread fails, after so many that don't; or all from there on.
class FailingAllocation {
 public:
  enum class Which : std::uint8_t { one, all };
  FailingAllocation(std::uint64_t after, Which which);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  bool happened() const;
};

}  // namespace penstock::test
