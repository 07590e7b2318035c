// Whether this thread is inside a callback of a Context, of any: there it must not wait.
//
// Thread safety: each thread has its own.
#pragma once

namespace penstock {

inline constinit thread_local bool runs_callback = false;

}  // namespace penstock
