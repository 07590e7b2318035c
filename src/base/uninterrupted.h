// System calls that a signal may interrupt, if its handler was installed without SA_RESTART: on network and FUSE file
// systems nearly all that take a path, elsewhere some that wait or take long.
//
// Thread safety: a function.
#pragma once

#include <cerrno>

namespace penstock {

// Calls until it was not interrupted. REQUIRES: `call` returns -1 and sets errno where it fails, and has done nothing
// where it was interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace penstock
