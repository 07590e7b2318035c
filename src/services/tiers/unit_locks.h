// UnitLocks: who works on a unit. A lock on a byte of a file beside the catalog, which the kernel releases when the
// process dies: so a unit that the catalog has under way, and whose lock can be had, was left by a dead one.
//
// Thread safety: one thread at a time; others, of this process too, make their own. A forked child shares the locks
// until it ends.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/result.h"

namespace penstock::tiers {

class UnitLocks {
 public:
  static Result<UnitLocks> open(const std::string& catalog);

  // False if another has it.
  Result<bool> try_lock(std::int64_t unit);
  void unlock(std::int64_t unit);

  // For a file that is written aside and belongs to no unit yet: a number that nobody else has, locked.
  Result<std::int64_t> lock_new_number();

 private:
  static constexpr std::int64_t first_new_number = std::int64_t{1} << 61;
  explicit UnitLocks(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

}  // namespace penstock::tiers
