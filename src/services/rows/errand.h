// Errand: what one call of Rows::gather is asked to do, and until when.
//
// Thread safety: one thread's. Lifetime: of the call, from which it borrows.
#pragma once

#include <chrono>
#include <memory>

#include "services/rows/table.h"
#include "services/rows/watch.h"

namespace penstock::rows {

struct Errand {
  using Clock = std::chrono::steady_clock;

  const Table& table;
  const RowNumbers numbers;                        // that the CPU can read
  const std::shared_ptr<const void> held_numbers;  // keeps what they lie in, where that is ours
  const Region memory;
  const GatherOptions& options;
  const Clock::time_point begin;
  Watch watch{options.keep_going};

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
  // 0: none.
  double deadline_seconds() const {
    return options.deadline_seconds != 0 ? options.deadline_seconds
                                         : table.context().options().deadlines.request_seconds;
  }
  // Whether to begin what takes a while. A deadline that has passed is told by the next request.
  bool goes_on() { return watch.goes_on() && (deadline_seconds() == 0 || seconds() < deadline_seconds()); }
  std::uint64_t row_bytes() const { return table.info().row_bytes; }
  // With what is left of the deadline; none left has passed.
  RequestOptions request_options() const {
    RequestOptions request;
    request.deadline_seconds = deadline_seconds();
    if (deadline_seconds() > 0) {
      const double left = deadline_seconds() - seconds();
      request.deadline_seconds = left > 0 ? left : -1;
    }
    return request;
  }
};

// One after the other.
void add(Report& sum, const Report& report);

}  // namespace penstock::rows
