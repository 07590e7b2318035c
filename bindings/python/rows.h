// Tables of rows as Python has them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "context.h"
#include "errors.h"
#include "gil.h"
#include "penstock/rows.h"

namespace penstock::python {

struct PythonRowsOptions {
  bool mapping;
  double look_again_seconds;
  std::uint64_t join_bytes;
  std::uint64_t scratch_bytes;

  RowsOptions get() const {
    return {.mapping = mapping,
            .look_again_seconds = look_again_seconds,
            .join_bytes = join_bytes,
            .scratch_bytes = scratch_bytes};
  }
};

// Memory as the Python side tells it.
inline Region region_of(std::uintptr_t pointer, std::size_t size_bytes, const std::string& domain) {
  return {reinterpret_cast<std::byte*>(pointer), size_bytes, value_or_raise(Domain::parse(domain))};
}

// A table, and the object of its Context: a closed one refuses calls, and one that a call uses stays until it ends.
// Closing files may wait for a server, so that is done without the GIL.
class PythonRows {
 public:
  PythonRows(nanobind::object context, Rows rows) : context_(std::move(context)), rows_(std::move(rows)) {}
  PythonRows(PythonRows&&) = default;
  PythonRows& operator=(PythonRows&&) = delete;
  ~PythonRows() {
    const WithoutGil released;
    rows_ = Rows();
  }

  const Rows& rows() const { return rows_; }
  const nanobind::object& context_object() const { return context_; }
  std::shared_ptr<Context> context() const { return nanobind::cast<PythonContext&>(context_).get(); }

 private:
  nanobind::object context_;
  Rows rows_;
};

void define_rows(nanobind::module_& module);

}  // namespace penstock::python
