#include "gpu_queues.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "context.h"
#include "errors.h"
#include "gil.h"
#include "penstock/gpu_array.h"
#include "penstock/gpu_queues.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// A server with the Context that it needs. Closing waits for threads, so it is done without the GIL.
struct Serving {
  std::shared_ptr<Context> context;  // shared with Python's
  GpuServer server;
};

// What is closed by hand, or with the object, without the GIL; and what it needs, which goes after it.
template <typename T, typename Needed>
class Closing {
 public:
  Closing(T open, std::shared_ptr<Needed> needed) : open_(std::move(open)), needed_(std::move(needed)) {}
  Closing(Closing&&) = default;
  Closing& operator=(Closing&&) = delete;
  ~Closing() { close(); }

  T& get() { return open_; }
  const std::shared_ptr<Needed>& needed() const { return needed_; }
  void close() {
    const WithoutGil released;
    open_ = T();
    needed_.reset();
  }

 private:
  T open_;
  std::shared_ptr<Needed> needed_;  // shared: sets, arrays and their server may be closed in any order
};

using PythonServer = Closing<std::shared_ptr<Serving>, Context>;
using PythonQueues = Closing<std::shared_ptr<GpuQueues>, Serving>;
using PythonArray = Closing<GpuArray, GpuQueues>;

template <typename T>
T& open_or_raise(const std::shared_ptr<T>& object) {
  if (!object) raise({Code::closed, 0, "this object is closed", "open another one"});
  return *object;
}

PythonServer start(PythonContext& self, std::uint32_t threads, bool hot) {
  auto context = self.get();
  auto server = without_gil([&] { return GpuServer::start(*context, {.threads = threads, .hot = hot}); });
  std::shared_ptr<Serving> serving(new Serving{context, value_or_raise(std::move(server))});
  return {std::move(serving), std::move(context)};
}

void close_server(PythonServer& self) {
  const auto serving = self.get();
  if (!serving) return;
  without_gil([&] { serving->server.close(); });
  self.close();
}

// Arrays may still have the object.
void close_queues(PythonQueues& self) {
  const auto queues = self.get();
  if (queues) without_gil([&] { queues->close(); });
  self.close();
}

// (store, offset, length, writable, block bytes)
using PythonGpuStore = std::tuple<const HeldStore*, std::uint64_t, std::uint64_t, bool, std::uint32_t>;

PythonQueues open_queues(PythonServer& self, const std::string& domain, const std::vector<PythonGpuStore>& stores,
                         std::uint32_t queues, std::uint32_t depth, std::uint32_t place_bytes,
                         std::uint32_t ahead_places, double timeout_seconds, double stall_seconds) {
  Serving& serving = open_or_raise(self.get());
  GpuQueuesOptions options;
  options.gpu = value_or_raise(Domain::parse(domain));
  for (const auto& [store, offset, length, writable, block_bytes] : stores) {
    options.stores.push_back(
        {.store = *store, .window = {offset, length}, .writable = writable, .block_bytes = block_bytes});
  }
  options.queues = queues;
  options.depth = depth;
  options.place_bytes = place_bytes;
  options.ahead_places = ahead_places;
  options.timeout_seconds = timeout_seconds;
  options.stall_seconds = stall_seconds;
  auto opened = without_gil([&] { return serving.server.open(options); });
  return {std::make_shared<GpuQueues>(value_or_raise(std::move(opened))), self.get()};
}

nb::dict report(PythonQueues& self) {
  GpuQueues& queues = open_or_raise(self.get());
  const GpuQueuesReport report = without_gil([&] { return queues.report(); });
  nb::dict result;
  result["reads"] = report.reads;
  result["writes"] = report.writes;
  result["read_bytes"] = report.read_bytes;
  result["written_bytes"] = report.written_bytes;
  result["mapped_bytes"] = report.mapped_bytes;
  result["route"] = std::string(report.route);
  result["requests"] = report.requests;
  result["failed"] = report.failed;
  result["refused"] = report.refused;
  result["last_error"] = report.last_error ? nb::cast(report.last_error->message) : nb::none();
  result["timed_out"] = report.timed_out;
  result["stalled"] = report.stalled;
  result["server_dead"] = report.server_dead;
  return result;
}

PythonArray open_array(PythonQueues& self, std::uint32_t store, std::uint64_t offset, std::uint64_t length,
                       std::uint64_t memory_bytes, std::uint32_t page_bytes) {
  GpuQueues& queues = open_or_raise(self.get());
  const GpuArrayOptions options{
      .store = store, .extent = {offset, length}, .memory_bytes = memory_bytes, .page_bytes = page_bytes};
  auto array = without_gil([&] { return GpuArray::open(*self.needed()->context, queues, options); });
  return {value_or_raise(std::move(array)), self.get()};
}

nb::dict statistics(PythonArray& self) {
  const GpuArrayStatistics statistics = value_or_raise(without_gil([&] { return self.get().statistics(); }));
  nb::dict result;
  result["hits"] = statistics.hits;
  result["fetched"] = statistics.fetched;
  result["joined"] = statistics.joined;
  result["passed"] = statistics.passed;
  result["failed"] = statistics.failed;
  result["first_failure"] = static_cast<std::uint32_t>(statistics.first_failure.status);
  result["first_failure_field"] = statistics.first_failure.field;
  return result;
}

}  // namespace

void define_gpu_queues(nb::module_& module) {
  nb::class_<PythonServer>(module, "GpuServer")
      .def_prop_ro("threads", [](PythonServer& self) { return open_or_raise(self.get()).server.threads(); })
      .def("open", &open_queues, nb::arg("domain"), nb::arg("stores"), nb::arg("queues"), nb::arg("depth"),
           nb::arg("place_bytes"), nb::arg("ahead_places"), nb::arg("timeout_seconds"), nb::arg("stall_seconds"))
      .def("close", &close_server);
  nb::class_<PythonQueues>(module, "GpuQueues")
      .def_prop_ro("is_open", [](PythonQueues& self) { return static_cast<bool>(open_or_raise(self.get())); })
      .def_prop_ro(
          "handle",
          [](PythonQueues& self) { return reinterpret_cast<std::uintptr_t>(open_or_raise(self.get()).handle()); })
      .def_prop_ro("place_bytes", [](PythonQueues& self) { return open_or_raise(self.get()).options().place_bytes; })
      .def("stop",
           [](PythonQueues& self) {
             GpuQueues& queues = open_or_raise(self.get());
             check(without_gil([&] { return queues.stop(); }));
           })
      .def("reset",
           [](PythonQueues& self) {
             GpuQueues& queues = open_or_raise(self.get());
             check(without_gil([&] { return queues.reset(); }));
           })
      .def("report", &report)
      .def("array", &open_array, nb::arg("store"), nb::arg("offset"), nb::arg("length"), nb::arg("memory_bytes"),
           nb::arg("page_bytes"))
      .def("close", &close_queues);
  nb::class_<PythonArray>(module, "GpuArray")
      .def_prop_ro("handle", [](PythonArray& self) { return reinterpret_cast<std::uintptr_t>(self.get().handle()); })
      .def_prop_ro("size_bytes", [](PythonArray& self) { return self.get().options().extent.length; })
      .def_prop_ro("page_bytes", [](PythonArray& self) { return self.get().options().page_bytes; })
      .def_prop_ro("page_count", [](PythonArray& self) { return self.get().page_count(); })
      .def_prop_ro("frame_count", [](PythonArray& self) { return self.get().frame_count(); })
      .def("statistics", &statistics)
      .def("clear", [](PythonArray& self) { check(without_gil([&] { return self.get().clear(); })); })
      .def("close", &PythonArray::close);
  module.def("start_gpu_server", &start, nb::arg("context"), nb::arg("threads"), nb::arg("hot"));
}

}  // namespace penstock::python
