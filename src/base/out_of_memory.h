// What a public call answers where the process gets no memory: an Error, since no exception crosses the API.
//
//   Result<Model> Model::open(const std::string& path) {
//     return or_out_of_memory([&] { return open_model(path); });
//   }
//
// Thread safety: functions.
#pragma once

#include <cerrno>
#include <new>
#include <stdexcept>
#include <utility>

#include "penstock/error.h"

namespace penstock {

// There may be no memory left for the texts either.
inline Error out_of_memory() {
  Error error{.code = Code::out_of_memory, .system_error = ENOMEM, .message = "out of memory", .hint = {}};
  try {
    error.hint =
        "free some memory, ask for less at once, or raise the limits of the process (ulimit -v) or its container";
  } catch (const std::bad_alloc&) {  // without a hint, then
  }
  return error;
}

// REQUIRES: what the call returns can be made of an Error; where it is interrupted, it leaves nothing half done.
template <typename Call>
auto or_out_of_memory(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::length_error&) {  // more than any memory has
    return out_of_memory();
  }
}

}  // namespace penstock
