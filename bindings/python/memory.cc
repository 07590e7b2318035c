#include "memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "errors.h"
#include "gil.h"
#include "penstock/capture_mode.h"
#include "penstock/gpu.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Memory that Python lends by the buffer protocol. While it is lent, a bytearray can't be resized, nor a mapping
// closed.
class LentBuffer {
 public:
  LentBuffer(nb::handle object, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
  }
  LentBuffer(const LentBuffer&) = delete;
  LentBuffer& operator=(const LentBuffer&) = delete;
  ~LentBuffer() { PyBuffer_Release(&view_); }

  std::uintptr_t pointer() const { return reinterpret_cast<std::uintptr_t>(view_.buf); }
  std::size_t size_bytes() const { return static_cast<std::size_t>(view_.len); }
  std::string domain() const { return "host"; }

 private:
  Py_buffer view_{};
};

// Memory that a library lends by DLPack, as a capsule. What may not be written, or is not contiguous, is not accepted.
class LentTensor {
 public:
  explicit LentTensor(nb::ndarray<nb::c_contig> array) : array_(std::move(array)) {
    switch (array_.device_type()) {
      case nb::device::cpu::value:
      case nb::device::cuda_host::value:
        return;
      case nb::device::cuda::value:
        domain_ = Domain::cuda(static_cast<std::uint16_t>(array_.device_id()));
        return;
      default:
        raise({Code::unsupported, 0, "DLPack: memory of a device of kind " + std::to_string(array_.device_type()),
               "give memory of the host or of a CUDA device"});
    }
  }

  std::uintptr_t pointer() const { return reinterpret_cast<std::uintptr_t>(array_.data()); }
  std::size_t size_bytes() const { return array_.nbytes(); }
  std::string domain() const { return domain_.name(); }

 private:
  nb::ndarray<nb::c_contig> array_;
  Domain domain_;
};

// A `with` block in which calls of CUDA disturb no graph that another thread captures.
class RelaxedCaptures {
 public:
  void enter() { mode_.emplace(); }
  void exit(const nb::args&) { mode_.reset(); }

 private:
  std::optional<RelaxedCaptureMode> mode_;
};

std::string find_cuda_domain(std::uintptr_t pointer, std::size_t size_bytes) {
  // Starts CUDA, if nobody has yet.
  auto region = without_gil([&] { return find_cuda_region(reinterpret_cast<const void*>(pointer), size_bytes); });
  return value_or_raise(std::move(region)).domain.name();
}

}  // namespace

void define_memory(nb::module_& module) {
  nb::class_<LentBuffer>(module, "LentBuffer")
      .def(nb::init<nb::handle, bool>(), nb::arg("object"), nb::arg("writable") = true)
      .def_prop_ro("pointer", &LentBuffer::pointer)
      .def_prop_ro("size_bytes", &LentBuffer::size_bytes)
      .def_prop_ro("domain", &LentBuffer::domain);
  nb::class_<LentTensor>(module, "LentTensor")
      .def(nb::init<nb::ndarray<nb::c_contig>>(), nb::arg("capsule").noconvert())
      .def_prop_ro("pointer", &LentTensor::pointer)
      .def_prop_ro("size_bytes", &LentTensor::size_bytes)
      .def_prop_ro("domain", &LentTensor::domain);
  nb::class_<RelaxedCaptures>(module, "RelaxedCaptures")
      .def(nb::init<>())
      .def("__enter__", &RelaxedCaptures::enter)
      .def("__exit__", &RelaxedCaptures::exit);
  module.def("find_cuda_domain", &find_cuda_domain, nb::arg("pointer"), nb::arg("size_bytes"));
}

}  // namespace penstock::python
