#include "errors.h"

#include <string>

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Names of files in messages need not be UTF-8.
nb::object text(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

}  // namespace

void raise(const Error& error, nb::handle report) {
  const nb::object make = nb::module_::import_("penstock._errors").attr("make");
  const nb::object exception =
      make(text(code_name(error.code)), error.system_error, text(error.message), text(error.hint), report);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

nb::dict to_dict(const Report& report) {
  nb::dict routes;
  for (std::size_t i = 0; i < route_count; ++i) {
    if (report.routes[i] != 0) routes[text(route_name(static_cast<Route>(i)))] = report.routes[i];
  }
  nb::dict result;
  result["outcome"] = text(outcome_name(report.outcome));
  result["bytes"] = report.bytes;
  result["seconds"] = report.seconds;
  result["routes"] = routes;
  result["engine"] = text(report.engine);
  result["reason"] = text(report.reason);
  result["limit"] = text(limit_name(report.limit));
  return result;
}

nb::object to_python(const Report& report) {
  // Never freed: it may be needed until the interpreter ends. The GIL guards it, since to import may let others run.
  static PyObject* class_ = nullptr;
  if (class_ == nullptr) class_ = nb::object(nb::module_::import_("penstock._report").attr("Report")).release().ptr();
  nb::dict routes;
  for (std::size_t i = 0; i < route_count; ++i) {
    if (report.routes[i] != 0) routes[text(route_name(static_cast<Route>(i)))] = report.routes[i];
  }
  return nb::handle(class_)(text(outcome_name(report.outcome)), report.bytes, report.seconds, routes,
                            text(report.engine), text(report.reason), text(limit_name(report.limit)));
}

}  // namespace penstock::python
