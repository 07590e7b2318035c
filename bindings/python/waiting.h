// Waiting for requests without holding the GIL, so that other threads run and ctrl-C works.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "gil.h"
#include "penstock/models.h"
#include "penstock/request.h"

namespace penstock::python {

// Short enough for a person who presses ctrl-C, long enough for at most twenty calls of `progress` a second.
inline constexpr std::chrono::milliseconds wait_slice(60);

inline bool is_abandoned(const Ticket& ticket) {
  return ticket.outcome() == Outcome::abandoned;
}
inline bool is_abandoned(const Loading& loading) {
  return loading.report().transfer.outcome == Outcome::abandoned;
}

// An exception of the caller's own does not say so. Python has notes since 3.11.
inline void note_abandoned(nanobind::python_error& error) {
  constexpr const char* note =
      "penstock: operations did not come back in time, and may still touch the memory until quarantined_bytes of the "
      "Context's statistics() is 0";
  PyObject* const added = PyObject_CallMethod(error.value().ptr(), "add_note", "s", note);
  if (added == nullptr) PyErr_Clear();
  Py_XDECREF(added);
}

// Waits until `request` (a Ticket or a Loading) has ended. What a signal handler or `progress(done, all)` raises
// cancels the request and is passed on once its memory is not written any more, or with a note that it may be.
template <typename Request>
void wait_or_cancel(Request& request, std::uint64_t all_bytes, nanobind::handle progress) {
  const auto ended = [&] {
    const WithoutGil released;
    return request.wait_for(wait_slice);
  };
  const auto end = [&] {
    const WithoutGil released;
    while (!request.ended()) request.cancel();
  };
  try {
    while (!ended()) {
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
      if (!progress.is_none()) progress(request.bytes_done(), all_bytes);
    }
    if (!progress.is_none()) progress(request.bytes_done(), all_bytes);
  } catch (nanobind::python_error& error) {
    end();
    if (is_abandoned(request)) note_abandoned(error);
    throw;
  } catch (...) {
    end();
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
      const WithGil acquired;
      if (PyErr_CheckSignals() == 0) return true;
      raised_.emplace();
      return false;
    };
  }
  void raise_again(bool was_abandoned) {
    if (raised_ && was_abandoned) note_abandoned(*raised_);
    if (raised_) throw nanobind::python_error(std::move(*raised_));
  }

 private:
  std::optional<nanobind::python_error> raised_;
};

}  // namespace penstock::python
