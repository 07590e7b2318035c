// Waiting for requests without holding the GIL, so that other threads run and ctrl-C works.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>

#include "gil.h"

namespace penstock::python {

// Short enough for a person who presses ctrl-C, long enough for at most twenty calls of `progress` a second.
inline constexpr std::chrono::milliseconds wait_slice(60);

// Waits until `request` (a Ticket or a Loading) has ended. What a signal handler or `progress(done, all)` raises
// cancels the request and is passed on once its memory is not written any more.
template <typename Request>
void wait_or_cancel(Request& request, std::uint64_t all_bytes, nanobind::handle progress) {
  const auto ended = [&] {
    const WithoutGil released;
    return request.wait_for(wait_slice);
  };
  try {
    while (!ended()) {
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
      if (!progress.is_none()) progress(request.bytes_done(), all_bytes);
    }
    if (!progress.is_none()) progress(request.bytes_done(), all_bytes);
  } catch (...) {
    const WithoutGil released;
    while (!request.ended()) request.cancel();
    throw;
  }
}

}  // namespace penstock::python
