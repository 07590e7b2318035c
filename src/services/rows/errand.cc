#include "services/rows/errand.h"

namespace penstock::rows {

void add(Report& sum, const Report& report) {
  const double seconds = sum.seconds + report.seconds;
  if (sum.outcome == Outcome::pending) {
    sum = report;
  } else {
    sum.add(report);
  }
  sum.seconds = seconds;
}

}  // namespace penstock::rows
