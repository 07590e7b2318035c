// Calls into code of the user's that must not throw: nobody is there who could catch it, and who unwinds would leave
// requests behind that still use memory.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <type_traits>
#include <utility>

#include "base/out_of_memory.h"

namespace penstock {

// Calls it; an exception ends the process with a message that names the callback. But one that can answer with an Error
// may lack memory, and does so then.
template <typename Callback, typename... Arguments>
auto call_back(const char* name, const Callback& callback,
               Arguments&&... arguments) -> decltype(callback(std::forward<Arguments>(arguments)...)) {
  using Answer = decltype(callback(std::forward<Arguments>(arguments)...));
  try {
    return callback(std::forward<Arguments>(arguments)...);
  } catch (const std::bad_alloc& thrown) {
    if constexpr (std::is_constructible_v<Answer, Error>) return out_of_memory();
    std::fprintf(stderr, "penstock: %s threw an exception, and must not: %s\n", name, thrown.what());
  } catch (const std::exception& thrown) {
    std::fprintf(stderr, "penstock: %s threw an exception, and must not: %s\n", name, thrown.what());
  } catch (...) {
    std::fprintf(stderr, "penstock: %s threw something, and must not\n", name);
  }
  std::abort();
}

// A question that is asked by call_back. Where nobody asks, the answer is yes.
inline std::function<bool()> keep_going_by(const char* name, std::function<bool()> ask) {
  return [name, ask = std::move(ask)] { return !ask || call_back(name, ask); };
}

}  // namespace penstock
