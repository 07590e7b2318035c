// The Context as Python has it, and the reads that it starts.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

#include "penstock/context.h"

namespace penstock::python {

// Closing waits for threads, so it is done without the GIL.
class PythonContext {
 public:
  explicit PythonContext(const std::string& options_json);
  PythonContext(const PythonContext&) = delete;
  PythonContext& operator=(const PythonContext&) = delete;
  ~PythonContext() { close(); }

  // Raises once the Context is closed.
  std::shared_ptr<Context> get() const;
  void close();

 private:
  std::shared_ptr<Context> context_;  // shared: another thread may be inside a call when one closes it
};

// Names of files as Python has them: bytes.
inline std::string to_string(const nanobind::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

void define_context(nanobind::module_& module);

}  // namespace penstock::python
