#include "kinds.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "abandoned.h"
#include "context.h"
#include "errors.h"
#include "gil.h"
#include "penstock/kinds.h"
#include "rows.h"
#include "waiting.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// With the object of its Context, as PythonRows has it.
class PythonKinds {
 public:
  PythonKinds(nb::object context, Kinds kinds) : context_(std::move(context)), kinds_(std::move(kinds)) {}
  PythonKinds(PythonKinds&&) = default;
  PythonKinds& operator=(PythonKinds&&) = delete;
  ~PythonKinds() {
    const WithoutGil released;
    kinds_ = Kinds();
  }

  const Kinds& kinds() const { return kinds_; }
  const nb::object& context_object() const { return context_; }
  std::shared_ptr<Context> context() const { return nb::cast<PythonContext&>(context_).get(); }

 private:
  nb::object context_;
  Kinds kinds_;
};

struct PythonKindsOptions {
  std::string dictionary;
  bool device_write;
  std::string serial;
  std::uint64_t first_writable_block;
  std::uint64_t writable_blocks;
  double lock_seconds;

  KindsOptions get() const {
    return {.dictionary = dictionary,
            .writing = {.allow_block_device_write = device_write,
                        .serial = serial,
                        .first_writable_block = first_writable_block,
                        .writable_blocks = writable_blocks},
            .lock_seconds = lock_seconds};
  }
};

PythonKinds open_kinds(nb::object context, const nb::bytes& store, const PythonKindsOptions& options, bool create) {
  const auto held = nb::cast<PythonContext&>(context).get();
  const std::string name = to_string(store);
  auto kinds = without_gil(
      [&] { return create ? Kinds::create(*held, name, options.get()) : Kinds::open(*held, name, options.get()); });
  return {std::move(context), value_or_raise(std::move(kinds))};
}

nb::dict to_dict(const Kind& kind) {
  nb::dict result;
  result["id"] = kind.id;
  result["name"] = kind.name;
  result["start_byte"] = kind.start_byte;
  result["length_bytes"] = kind.length_bytes;
  result["record_bytes"] = kind.record_bytes;
  result["type"] = kind.type;
  result["shape"] = nb::tuple(nb::cast(kind.shape));
  result["records"] = kind.records;
  return result;
}

nb::list list(const PythonKinds& self) {
  nb::list result;
  for (const Kind& kind : self.kinds().list()) result.append(to_dict(kind));
  return result;
}

nb::dict find_by_name(const PythonKinds& self, const std::string& name) {
  const auto context = self.context();
  return to_dict(value_or_raise(without_gil([&] { return self.kinds().find(name); })));
}

nb::dict find_by_id(const PythonKinds& self, std::uint32_t id) {
  const auto context = self.context();
  return to_dict(value_or_raise(without_gil([&] { return self.kinds().find(id); })));
}

nb::dict add(const PythonKinds& self, const std::string& name, std::uint32_t id, std::uint64_t start_byte,
             std::uint64_t start_lba, std::uint64_t capacity, std::uint64_t length_bytes, std::uint64_t record_bytes,
             const std::string& type, const std::vector<std::uint64_t>& shape, std::uint64_t records) {
  const auto context = self.context();
  const NewKind wanted{.name = name,
                       .id = id,
                       .start_byte = start_byte,
                       .start_lba = start_lba,
                       .capacity = capacity,
                       .length_bytes = length_bytes,
                       .record_bytes = record_bytes,
                       .type = type,
                       .shape = shape,
                       .records = records};
  return to_dict(value_or_raise(without_gil([&] { return self.kinds().add(wanted); })));
}

// (kind, memory, its bytes, domain)
using PythonAppend = std::tuple<std::uint32_t, std::uintptr_t, std::size_t, std::string>;

std::vector<std::uint64_t> append(const PythonKinds& self, const std::vector<PythonAppend>& given, nb::object memory) {
  const auto context = self.context();
  std::vector<RecordsAppend> parts;
  for (const auto& [kind, pointer, bytes, domain] : given) parts.push_back({kind, region_of(pointer, bytes, domain)});
  Interruption interruption;
  auto first = without_gil([&] { return self.kinds().append(parts, interruption.keep_going()); });
  const bool is_abandoned = !first && first.error().code == Code::abandoned;
  if (is_abandoned) keep_abandoned(context, std::move(memory));
  interruption.raise_again(is_abandoned);
  return value_or_raise(std::move(first));
}

// (kind, index, count, memory, its bytes, domain)
using PythonRead = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uintptr_t, std::size_t, std::string>;

nb::object read(const PythonKinds& self, const std::vector<PythonRead>& given, double deadline_seconds,
                nb::object memory) {
  const auto context = self.context();
  std::vector<RecordsRead> reads;
  reads.reserve(given.size());
  std::uint64_t all_bytes = 0;
  bool is_on_host = true;
  for (const auto& [kind, index, count, pointer, bytes, domain] : given) {
    reads.push_back({{kind, index, count}, region_of(pointer, bytes, domain)});
    all_bytes += bytes;
    is_on_host = is_on_host && reads.back().memory.domain == Domain::host();
  }
  RequestOptions options;
  options.deadline_seconds = deadline_seconds;
  if (is_on_host && is_brief(self.kinds().locality(), all_bytes)) {
    Report report = without_gil([&] { return self.kinds().read(reads, options); });
    if (report.outcome == Outcome::abandoned) keep_abandoned(context, std::move(memory));
    if (!report.ok()) raise(*report.error);
    return to_python(report);
  }
  auto ticket = value_or_raise(without_gil([&] { return self.kinds().submit(reads, options); }));
  std::exception_ptr interruption;
  try {
    wait_or_cancel(ticket, 0, nb::none());
  } catch (nb::python_error&) {
    interruption = std::current_exception();
  }
  const Report report = ticket.report();
  if (report.outcome == Outcome::abandoned) keep_abandoned(context, std::move(memory));
  if (interruption) std::rethrow_exception(interruption);
  if (!report.ok()) raise(*report.error);
  return to_python(report);
}

// A kind as it was when a caller first read it.
struct KnownKind {
  Kind kind;

  bool is(const Kind& now) const {
    return now.id == kind.id && now.record_bytes == kind.record_bytes && now.type == kind.type &&
           now.shape == kind.shape;
  }
};

KnownKind find_known(const PythonKinds& self, const std::string& name) {
  const auto context = self.context();
  return {value_or_raise(without_gil([&] { return self.kinds().find(name); }))};
}

// How a read went, as Python's Report where a caller asks for it.
struct PythonReport {
  Report report;
};

// Most reads: a few records of a kind that the caller knows, into a buffer or to an address in host memory that has
// exactly their size, of `memory`. None if the kind has changed, if it has no such records, or if the read may take
// long: `read` serves those, and reports errors.
nb::object read_known(const PythonKinds& self, const KnownKind& known, std::uint64_t index, std::uint64_t count,
                      nb::handle target, nb::object memory) {
  const auto context = self.context();
  const std::uint64_t size_bytes = count * known.kind.record_bytes;
  Py_buffer view{};
  std::byte* begin = nullptr;
  if (PyLong_CheckExact(target.ptr())) {
    begin = reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(target));
  } else if (PyObject_GetBuffer(target.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) == 0) {
    begin = static_cast<std::byte*>(view.buf);
  } else {
    PyErr_Clear();
    return nb::none();
  }
  std::optional<Report> report;
  if (view.obj == nullptr || size_bytes == static_cast<std::uint64_t>(view.len)) {
    without_gil([&] {
      const auto now = self.kinds().find(known.kind.name);
      if (!now || !known.is(*now) || index > now->records || count > now->records - index ||
          !is_brief(self.kinds().locality(), size_bytes)) {
        return;
      }
      report = self.kinds().read({.kind = now->id, .index = index, .count = count}, Region::host(begin, size_bytes));
    });
  }
  PyBuffer_Release(&view);  // the memory stays with its object
  if (!report) return nb::none();
  if (report->outcome == Outcome::abandoned) keep_abandoned(context, std::move(memory));
  if (!report->ok()) raise(*report->error);
  return nb::cast(PythonReport{std::move(*report)});
}

PythonRows rows(const PythonKinds& self, std::uint32_t kind, const PythonRowsOptions& options) {
  const auto context = self.context();
  return {self.context_object(), value_or_raise(without_gil([&] { return self.kinds().rows(kind, options.get()); }))};
}

}  // namespace

void define_kinds(nb::module_& module) {
  nb::class_<PythonKindsOptions>(module, "KindsOptions")
      .def(
          "__init__",
          [](PythonKindsOptions* self, const nb::bytes& dictionary, bool device_write, std::string serial,
             std::uint64_t first_writable_block, std::uint64_t writable_blocks, double lock_seconds) {
            new (self) PythonKindsOptions{to_string(dictionary), device_write,    std::move(serial),
                                          first_writable_block,  writable_blocks, lock_seconds};
          },
          nb::arg("dictionary"), nb::arg("device_write"), nb::arg("serial"), nb::arg("first_writable_block"),
          nb::arg("writable_blocks"), nb::arg("lock_seconds"));
  nb::class_<KnownKind>(module, "KnownKind");
  nb::class_<PythonReport>(module, "KindsReport").def("get", [](const PythonReport& self) {
    return to_python(self.report);
  });
  nb::class_<PythonKinds>(module, "Kinds")
      .def("kinds", &list)
      .def("find_by_name", &find_by_name, nb::arg("name"))
      .def("find_by_id", &find_by_id, nb::arg("id"))
      .def("dictionary",
           [](const PythonKinds& self) {
             const std::string& path = self.kinds().dictionary();
             return nb::bytes(path.data(), path.size());
           })
      .def("block_bytes", [](const PythonKinds& self) { return self.kinds().block_bytes(); })
      .def("refresh",
           [](const PythonKinds& self) {
             const auto context = self.context();
             check(without_gil([&] { return self.kinds().refresh(); }));
           })
      .def("add", &add, nb::arg("name"), nb::arg("id"), nb::arg("start_byte"), nb::arg("start_lba"),
           nb::arg("capacity"), nb::arg("length_bytes"), nb::arg("record_bytes"), nb::arg("type"), nb::arg("shape"),
           nb::arg("records"))
      .def(
          "remove",
          [](const PythonKinds& self, std::uint32_t kind) {
            const auto context = self.context();
            check(without_gil([&] { return self.kinds().remove(kind); }));
          },
          nb::arg("kind"))
      .def("append", &append, nb::arg("parts"), nb::arg("memory").none())
      .def("read", &read, nb::arg("reads"), nb::arg("deadline_seconds"), nb::arg("memory").none())
      .def("find_known", &find_known, nb::arg("name"))
      .def("read_known", &read_known, nb::arg("kind"), nb::arg("index"), nb::arg("count"), nb::arg("target"),
           nb::arg("memory"))
      .def("rows", &rows, nb::arg("kind"), nb::arg("options"));
  module.def("open_kinds", &open_kinds, nb::arg("context"), nb::arg("store"), nb::arg("options"), nb::arg("create"));
}

}  // namespace penstock::python
