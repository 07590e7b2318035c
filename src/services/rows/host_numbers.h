// HostNumbers: the numbers of a gather where the CPU can read them: as they are, or copied from a GPU.
//
// Thread safety: one thread's. Lifetime: the numbers are borrowed where they are not copied.
#pragma once

#include <memory>

#include "services/rows/table.h"

namespace penstock::rows {

class HostNumbers {
 public:
  static Result<HostNumbers> of(const Table& table, const RowNumbers& numbers);

  const RowNumbers& get() const { return numbers_; }
  // Keeps what they lie in, where that is ours: lanes may use it longer than the caller waits.
  std::shared_ptr<const void> held() const;
  // For the next. REQUIRES: nobody reads them any more.
  void give_back(const Table& table) &&;

 private:
  explicit HostNumbers(const RowNumbers& numbers) : numbers_(numbers) {}

  Buffer copied_;
  RowNumbers numbers_;
};

}  // namespace penstock::rows
