// A call that may never come back, as calls to a file system whose server is gone: made by a thread of its own, and
// waited for only so long.
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

// Says whether the call came back in time; it is left to itself otherwise. Where no thread can be started, the caller
// makes it after all. REQUIRES: it throws nothing.
template <typename Call>
bool comes_back(double within_seconds, Call call) {
  auto own = std::make_shared<std::pair<Call, std::promise<void>>>(std::move(call), std::promise<void>());
  const std::future<void> end = own->second.get_future();
  try {
    std::thread([own] {
      own->first();
      own->second.set_value();
    }).detach();
  } catch (const std::system_error&) {
    own->first();
    return true;
  }
  return end.wait_for(duration_from_seconds(within_seconds)) == std::future_status::ready;
}

}  // namespace penstock
