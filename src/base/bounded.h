// A call that may never come back, as calls to a file system whose server is gone: made by a thread of its own, which
// nobody waits for, or only so long.
//
// Thread safety: functions. Lifetime: what the call needs must be its own, since it may go on after its caller.
#pragma once

#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace penstock {

// False where no thread can be started: then nobody makes the call. REQUIRES: it throws nothing.
template <typename Call>
bool leave_to_thread(Call call) {
  try {
    std::thread(std::move(call)).detach();
    return true;
  } catch (const std::exception&) {  // no thread, or no memory for it
    return false;
  }
}

// Says whether the call came back in time; it is left to itself otherwise. Where no thread can be started, the caller
// makes it after all. REQUIRES: it throws nothing.
template <typename Call>
bool comes_back(double within_seconds, Call call) {
  auto own = std::make_shared<std::pair<Call, std::promise<void>>>(std::move(call), std::promise<void>());
  const std::future<void> end = own->second.get_future();
  const bool started = leave_to_thread([own] {
    own->first();
    own->second.set_value();
  });
  if (!started) {
    own->first();
    return true;
  }
  return end.wait_for(duration_from_seconds(within_seconds)) == std::future_status::ready;
}

}  // namespace penstock
