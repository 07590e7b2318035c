#include <valgrind/callgrind.h>

#include "counting.h"

namespace bench {

bool can_count() {
  return RUNNING_ON_VALGRIND != 0;
}

void toggle_counting() {
  CALLGRIND_TOGGLE_COLLECT;
}

}  // namespace bench
