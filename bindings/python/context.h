// The Context as Python has it, and the reads that it starts.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/context.h"
#include "penstock/models.h"

namespace penstock::python {

// Closing waits for threads, so it is done without the GIL, which guards the rest.
class PythonContext {
 public:
  explicit PythonContext(const std::string& options_json);
  PythonContext(const PythonContext&) = delete;
  PythonContext& operator=(const PythonContext&) = delete;
  ~PythonContext() { let_go(); }

  // Raises once the Context is closed.
  std::shared_ptr<Context> get() const;
  // To be cancelled by close.
  void add(std::weak_ptr<Loading> load);
  // Loads that are left keep the Context until they end; those that nobody closes it on go on.
  void close();

 private:
  void let_go();

  std::shared_ptr<Context> context_;  // shared: another thread may be inside a call when one closes it
  std::vector<std::weak_ptr<Loading>> loads_;
};

// Names of files as Python has them: bytes.
inline std::string to_string(const nanobind::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

void define_context(nanobind::module_& module);

}  // namespace penstock::python
