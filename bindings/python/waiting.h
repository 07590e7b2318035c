// Waiting for requests without holding the GIL, so that other threads run and ctrl-C works.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

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

// Whether a call of the library goes on, which asks on the thread that made the call, without the GIL. What a signal
// handler raises ends it; `raise_again` passes that on once nothing writes to memory any more.
class Interruption {
 public:
  std::function<bool()> keep_going() {
    return [this] {
      if (raised_) return false;
      sleep_if_shut_down();
      const nanobind::gil_scoped_acquire acquired;
      if (PyErr_CheckSignals() == 0) return true;
      raised_.emplace();
      return false;
    };
  }
  void raise_again() {
    if (raised_) throw nanobind::python_error(std::move(*raised_));
  }

 private:
  std::optional<nanobind::python_error> raised_;
};

}  // namespace penstock::python
