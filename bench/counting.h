// Which instructions callgrind counts: those between two calls of toggle_counting(), on the thread that makes them.
#pragma once

namespace bench {

// Whether this process runs under valgrind, and was built to talk to it.
bool can_count();
void toggle_counting();

}  // namespace bench
