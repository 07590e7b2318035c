#include "rows.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "abandoned.h"
#include "context.h"
#include "errors.h"
#include "gil.h"
#include "penstock/cuda.h"
#include "penstock/rows_plan.h"
#include "waiting.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

nb::dict to_dict(const RowsReport& report) {
  nb::dict result;
  result["outcome"] = std::string(outcome_name(report.outcome));
  result["seconds"] = report.seconds;
  result["bytes"] = report.bytes;
  result["cached_rows"] = report.cached_rows;
  result["cold_rows"] = report.cold_rows;
  result["missing_rows"] = report.missing_rows;
  result["read_bytes"] = report.read_bytes;
  result["extra_bytes"] = report.extra_bytes;
  result["reading"] = penstock::python::to_dict(report.reading);
  result["filling"] = penstock::python::to_dict(report.filling);
  return result;
}

// `open(const Context&)` gives a Result<Rows>.
template <typename Open>
PythonRows opened(nb::object context, Open open) {
  const auto held = nb::cast<PythonContext&>(context).get();
  return {std::move(context), value_or_raise(without_gil([&] { return open(*held); }))};
}

PythonRows open_tensor(nb::object context, const nb::bytes& path, const std::string& tensor,
                       const PythonRowsOptions& options) {
  return opened(std::move(context), [&, name = to_string(path)](const Context& held) {
    return Rows::open_tensor(held, name, tensor, options.get());
  });
}

PythonRows open_npy(nb::object context, const nb::bytes& path, const PythonRowsOptions& options) {
  return opened(std::move(context),
                [&, name = to_string(path)](const Context& held) { return Rows::open_npy(held, name, options.get()); });
}

PythonRows open_raw(nb::object context, const nb::bytes& path, std::uint64_t offset, std::uint64_t row_bytes,
                    std::uint64_t stride_bytes, std::uint64_t count, const PythonRowsOptions& options) {
  const RawRows raw{.offset = offset, .row_bytes = row_bytes, .stride_bytes = stride_bytes, .count = count};
  return opened(std::move(context), [&, name = to_string(path)](const Context& held) {
    return Rows::open_raw(held, name, raw, options.get());
  });
}

PythonRows join(const std::vector<const PythonRows*>& parts) {
  std::vector<Rows> tables;
  for (const PythonRows* part : parts) tables.push_back(part->rows());
  return {parts.front()->context_object(), value_or_raise(Rows::join(tables))};
}

RowNumbers numbers_of(const Region& memory, unsigned type) {
  return {static_cast<RowNumbers::Type>(type & 7), memory};
}

// How a gather went, as a dict where that is looked at.
struct PythonRowsReport {
  RowsReport report;
};

PythonRowsReport report_or_raise(RowsReport report) {
  if (!report.ok()) raise(*report.error);
  return {std::move(report)};
}

PythonRowsReport gather(const PythonRows& self, std::uintptr_t numbers, std::size_t numbers_bytes, unsigned type,
                        const std::string& numbers_domain, std::uintptr_t out, std::size_t out_bytes,
                        const std::string& out_domain, bool zeros_for_missing, double deadline_seconds,
                        nb::object memory) {
  const auto context = self.context();
  const RowNumbers wanted = numbers_of(region_of(numbers, numbers_bytes, numbers_domain), type);
  const Region to = region_of(out, out_bytes, out_domain);
  Interruption interruption;
  const GatherOptions options{.zeros_for_missing = zeros_for_missing,
                              .deadline_seconds = deadline_seconds,
                              .keep_going = interruption.keep_going()};
  RowsReport report = without_gil([&] { return self.rows().gather(wanted, to, options); });
  const bool is_abandoned = report.outcome == Outcome::abandoned;
  if (is_abandoned) keep_abandoned(context, std::move(memory));
  interruption.raise_again(is_abandoned);
  return report_or_raise(std::move(report));
}

// Most gathers: by int64 numbers in host memory, into as many rows of host memory.
PythonRowsReport gather_here(const PythonRows& self, std::uintptr_t numbers, std::size_t count, std::uintptr_t out,
                             nb::object memory) {
  const auto context = self.context();
  const auto host = [](std::uintptr_t pointer, std::size_t bytes) {
    return Region::host(reinterpret_cast<std::byte*>(pointer), bytes);
  };
  const RowNumbers wanted{RowNumbers::Type::i64, host(numbers, count * sizeof(std::int64_t))};
  const Region to = host(out, count * self.rows().info().row_bytes);
  Interruption interruption;
  const GatherOptions options{.keep_going = interruption.keep_going()};
  RowsReport report = without_gil([&] { return self.rows().gather(wanted, to, options); });
  const bool is_abandoned = report.outcome == Outcome::abandoned;
  if (is_abandoned) keep_abandoned(context, std::move(memory));
  interruption.raise_again(is_abandoned);
  return report_or_raise(std::move(report));
}

PythonRowsReport consecutive(const PythonRows& self, std::uint64_t begin, std::uint64_t count, std::uintptr_t out,
                             std::size_t out_bytes, const std::string& out_domain, double deadline_seconds,
                             nb::object memory) {
  const auto context = self.context();
  const Region to = region_of(out, out_bytes, out_domain);
  Interruption interruption;
  const GatherOptions options{.deadline_seconds = deadline_seconds, .keep_going = interruption.keep_going()};
  RowsReport report = without_gil([&] { return self.rows().rows(begin, count, to, options); });
  const bool is_abandoned = report.outcome == Outcome::abandoned;
  if (is_abandoned) keep_abandoned(context, std::move(memory));
  interruption.raise_again(is_abandoned);
  return report_or_raise(std::move(report));
}

std::uint64_t prefetch(const PythonRows& self, std::uintptr_t numbers, std::size_t numbers_bytes, unsigned type,
                       const std::string& domain) {
  const auto context = self.context();
  const RowNumbers wanted = numbers_of(region_of(numbers, numbers_bytes, domain), type);
  return value_or_raise(without_gil([&] { return self.rows().prefetch(wanted); }));
}

nb::dict info(const PythonRows& self) {
  const TableInfo& about = self.rows().info();
  nb::dict result;
  result["rows"] = about.rows;
  result["row_bytes"] = about.row_bytes;
  result["row_shape"] = nb::tuple(nb::cast(about.row_shape));
  result["dtype"] = about.dtype;
  result["stores"] = about.stores;
  return result;
}

// Until the stream has done all that it was given. The thread sleeps in between, so that ctrl-C works.
void wait_for_stream(const std::string& domain, std::uintptr_t stream) {
  constexpr std::chrono::microseconds pause(20);
  constexpr int checks_between_signals = 1000;
  const Domain gpu = value_or_raise(Domain::parse(domain));
  const CudaMark mark =
      value_or_raise(without_gil([&] { return CudaMark::put(gpu, {reinterpret_cast<void*>(stream)}); }));
  for (;;) {
    auto reached = without_gil([&]() -> Result<bool> {
      for (int i = 0; i < checks_between_signals; ++i) {
        auto now = mark.reached();
        if (!now || *now) return now;
        std::this_thread::sleep_for(pause);
      }
      return false;
    });
    if (value_or_raise(std::move(reached))) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

// A plan, and the Context that it needs: it closes when the last of both goes.
class PythonRowsPlan {
 public:
  PythonRowsPlan(std::shared_ptr<Context> context, RowsPlan plan)
      : context_(std::move(context)), plan_(std::move(plan)) {}
  PythonRowsPlan(PythonRowsPlan&&) = default;
  PythonRowsPlan& operator=(PythonRowsPlan&&) = delete;
  ~PythonRowsPlan() { close(); }

  RowsPlan& get() { return plan_; }
  void close() {
    const WithoutGil released;
    { const RowsPlan closing = std::move(plan_); }
    context_.reset();
  }

 private:
  std::shared_ptr<Context> context_;  // shared with Python's
  RowsPlan plan_;
};

PythonRowsPlan make_plan(const std::vector<const PythonRows*>& tables, const std::string& domain,
                         std::uint64_t most_rows, bool zeros_for_missing, double deadline_seconds,
                         std::uint64_t cache_bytes, double unasked_seconds) {
  const Domain gpu = value_or_raise(Domain::parse(domain));
  auto context = tables.front()->context();
  std::vector<Rows> all;
  for (const PythonRows* table : tables) all.push_back(table->rows());
  const RowsPlanOptions options{.zeros_for_missing = zeros_for_missing,
                                .deadline_seconds = deadline_seconds,
                                .cache_bytes = cache_bytes,
                                .unasked_seconds = unasked_seconds};
  auto plan = without_gil([&] { return RowsPlan::make(gpu, all, most_rows, options); });
  return {std::move(context), value_or_raise(std::move(plan))};
}

// (table, type, numbers, their bytes, rows, their bytes, status or 0)
using PythonGather =
    std::tuple<std::size_t, unsigned, std::uintptr_t, std::size_t, std::uintptr_t, std::size_t, std::uintptr_t>;

void enqueue(PythonRowsPlan& self, std::uintptr_t stream, const std::string& domain,
             const std::vector<PythonGather>& given) {
  std::vector<PlannedGather> gathers;
  for (const auto& [table, type, numbers, numbers_bytes, rows, rows_bytes, status] : given) {
    gathers.push_back({.table = table,
                       .numbers = numbers_of(region_of(numbers, numbers_bytes, domain), type),
                       .memory = region_of(rows, rows_bytes, domain),
                       .status = status == 0 ? Region() : region_of(status, sizeof(std::uint32_t), domain)});
  }
  check(without_gil([&] { return self.get().enqueue({reinterpret_cast<void*>(stream)}, gathers); }));
}

nb::dict plan_report(PythonRowsPlan& self) {
  const RowsPlanReport report = self.get().report();
  nb::dict result;
  result["rounds"] = report.rounds;
  result["rows"] = report.rows;
  result["cold_rows"] = report.cold_rows;
  result["missing_rows"] = report.missing_rows;
  result["failed_gathers"] = report.failed_gathers;
  result["hit_rows"] = report.hit_rows;
  result["unasked_rounds"] = report.unasked_rounds;
  result["cache_rows"] = report.cache_rows;
  result["cache_bytes"] = report.cache_bytes;
  return result;
}

}  // namespace

void define_rows(nb::module_& module) {
  nb::class_<PythonRowsOptions>(module, "RowsOptions")
      .def(
          "__init__",
          [](PythonRowsOptions* self, bool mapping, double look_again_seconds, std::uint64_t join_bytes,
             std::uint64_t scratch_bytes) {
            new (self) PythonRowsOptions{mapping, look_again_seconds, join_bytes, scratch_bytes};
          },
          nb::arg("mapping"), nb::arg("look_again_seconds"), nb::arg("join_bytes"), nb::arg("scratch_bytes"));
  nb::class_<PythonRowsReport>(module, "RowsReport").def("as_dict", [](const PythonRowsReport& self) {
    return to_dict(self.report);
  });
  nb::class_<PythonRows>(module, "Rows")
      .def("info", &info)
      .def("gather", &gather, nb::arg("numbers"), nb::arg("numbers_bytes"), nb::arg("type"), nb::arg("numbers_domain"),
           nb::arg("out"), nb::arg("out_bytes"), nb::arg("out_domain"), nb::arg("zeros_for_missing"),
           nb::arg("deadline_seconds"), nb::arg("memory").none())
      .def("gather_here", &gather_here, nb::arg("numbers"), nb::arg("count"), nb::arg("out"), nb::arg("memory").none())
      .def("rows", &consecutive, nb::arg("begin"), nb::arg("count"), nb::arg("out"), nb::arg("out_bytes"),
           nb::arg("out_domain"), nb::arg("deadline_seconds"), nb::arg("memory").none())
      .def("prefetch", &prefetch, nb::arg("numbers"), nb::arg("numbers_bytes"), nb::arg("type"), nb::arg("domain"));
  module.def("open_tensor_rows", &open_tensor, nb::arg("context"), nb::arg("path"), nb::arg("tensor"),
             nb::arg("options"));
  module.def("open_npy_rows", &open_npy, nb::arg("context"), nb::arg("path"), nb::arg("options"));
  module.def("open_raw_rows", &open_raw, nb::arg("context"), nb::arg("path"), nb::arg("offset"), nb::arg("row_bytes"),
             nb::arg("stride_bytes"), nb::arg("count"), nb::arg("options"));
  nb::class_<PythonRowsPlan>(module, "RowsPlan")
      .def("enqueue", &enqueue, nb::arg("stream"), nb::arg("domain"), nb::arg("gathers"))
      .def("check", [](PythonRowsPlan& self) { check(self.get().check()); })
      .def("report", &plan_report)
      .def("close", &PythonRowsPlan::close);
  module.def("plan_rows", &make_plan, nb::arg("tables"), nb::arg("domain"), nb::arg("most_rows"),
             nb::arg("zeros_for_missing"), nb::arg("deadline_seconds"), nb::arg("cache_bytes"),
             nb::arg("unasked_seconds"));
  module.def("join_rows", &join, nb::arg("parts"));
  module.def("wait_for_stream", &wait_for_stream, nb::arg("domain"), nb::arg("stream"));
}

}  // namespace penstock::python
