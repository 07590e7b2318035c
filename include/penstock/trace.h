// Trace: what the lanes of a Context did, and when. Recorded only if Options::trace_events says so.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/route.h"

namespace penstock {

enum class TraceKind : std::uint8_t {
  storage,            // one operation of an engine, from submission
  copy,               // one piece between staging memory and a GPU
  waits_for_storage,  // the lane, with nothing else to do
  waits_for_copies,
  idle,  // the lane has no work
};
PENSTOCK_EXPORT std::string_view trace_kind_name(TraceKind kind);

struct TraceEvent {
  double begin_seconds = 0;  // since the Context was made
  double end_seconds = 0;
  std::uint64_t bytes = 0;  // of storage and copy
  std::uint32_t lane = 0;
  TraceKind kind = TraceKind::idle;
  Route route = Route::buffered;  // of storage
};

struct PENSTOCK_EXPORT Trace {
  double seconds = 0;              // now, since the Context was made
  std::vector<TraceEvent> events;  // lane by lane
  std::uint32_t lanes = 0;
  std::uint64_t dropped = 0;  // did not fit

  // Chrome's Trace Event Format, which Perfetto reads too: one process per lane, with a row for the lane's waits and
  // enough rows for its concurrent operations and copies.
  std::string to_chrome_json() const;
};

}  // namespace penstock
