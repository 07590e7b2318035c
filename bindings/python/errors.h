// How errors of the library become exceptions of Python: by the classes in penstock/_errors.py, chosen by code.
//
// Thread safety: all calls need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "penstock/request.h"

namespace penstock::python {

// `report` is what is known of the request that failed; none: there was none.
[[noreturn]] void raise(const Error& error, nanobind::handle report = nanobind::none());

template <typename T>
T value_or_raise(Result<T>&& result) {
  if (!result) raise(result.error());
  return std::move(*result);
}
inline void check(const Status& status) {
  if (!status) raise(status.error());
}

// What penstock/_report.py makes a Report of.
nanobind::dict to_dict(const Report& report);
// That Report itself.
nanobind::object to_python(const Report& report);

}  // namespace penstock::python
