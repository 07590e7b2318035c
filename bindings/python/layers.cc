#include "layers.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "context.h"
#include "errors.h"
#include "gil.h"
#include "penstock/layers.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// (tensor, rows or none)
using PythonTensor = std::tuple<std::uint32_t, std::optional<std::pair<std::uint64_t, std::uint64_t>>>;
using PythonGroup = std::tuple<std::string, std::vector<PythonTensor>>;

// Layers, and the Context that they need: they close when the last of both goes.
class PythonLayers {
 public:
  PythonLayers(std::shared_ptr<Context> context, Layers layers, Region memory, nb::object owner)
      : context_(std::move(context)), layers_(std::move(layers)), memory_(memory), owner_(std::move(owner)) {}
  PythonLayers(PythonLayers&&) = default;
  PythonLayers& operator=(PythonLayers&&) = delete;
  ~PythonLayers() { (void)close(); }

  Layers& get() { return layers_; }
  const Region& memory() const { return memory_; }
  // An error: work on a stream ran without its tensors, and nobody was told.
  Status close() {
    Status closed = without_gil([&] {
      Status status = layers_.close(Layers::Held::released);
      context_.reset();
      return status;
    });
    const bool is_abandoned = !closed && closed.error().code == Code::abandoned;
    if (is_abandoned) (void)owner_.release();  // what may still be written is never given back
    owner_.reset();
    return is_abandoned ? Status() : closed;
  }

 private:
  std::shared_ptr<Context> context_;  // shared with Python's
  Layers layers_;
  Region memory_;
  nb::object owner_;  // of the memory
};

std::vector<PythonGroup> groups_of(const Model& model, const std::vector<std::string>& patterns) {
  std::vector<PythonGroup> result;
  for (TensorGroup& group : value_or_raise(layer_groups(model, patterns))) {
    std::vector<PythonTensor> tensors;
    for (const GroupTensor& each : group.tensors) {
      tensors.emplace_back(each.tensor,
                           each.rows ? std::optional(std::pair(each.rows->begin, each.rows->end)) : std::nullopt);
    }
    result.emplace_back(std::move(group.name), std::move(tensors));
  }
  return result;
}

Cache cache_named(const std::string& name) {
  for (const Cache cache : {Cache::automatic, Cache::keep, Cache::bypass}) {
    if (name == cache_name(cache)) return cache;
  }
  raise({Code::invalid_argument, 0, "cache=\"" + name + "\"", "use \"auto\", \"keep\" or \"bypass\""});
}

PythonLayers open(PythonContext& self, const Model& model, const std::vector<PythonGroup>& given, std::uintptr_t memory,
                  std::size_t memory_bytes, const std::string& domain, std::uint64_t ahead_bytes,
                  double deadline_seconds, const std::optional<std::string>& cache, bool in_order, nb::object owner) {
  std::vector<TensorGroup> groups;
  for (const auto& [name, tensors] : given) {
    TensorGroup group{.name = name, .tensors = {}};
    for (const auto& [tensor, rows] : tensors) {
      group.tensors.push_back({tensor, rows ? std::optional(Interval{rows->first, rows->second}) : std::nullopt});
    }
    groups.push_back(std::move(group));
  }
  LayersOptions options;
  options.memory = {reinterpret_cast<std::byte*>(memory), memory_bytes, value_or_raise(Domain::parse(domain))};
  options.ahead_bytes = ahead_bytes;
  options.deadline_seconds = deadline_seconds;
  if (cache) options.cache = cache_named(*cache);
  options.in_order = in_order;
  auto context = self.get();
  auto layers = without_gil([&] { return Layers::open(*context, model, std::move(groups), options); });
  return {std::move(context), value_or_raise(std::move(layers)), options.memory, std::move(owner)};
}

// Where the tensors are, or will be when the stream comes to them, as offsets in the memory.
std::vector<std::uint64_t> acquire(PythonLayers& self, std::size_t group, std::optional<std::uintptr_t> stream) {
  const auto tensors = value_or_raise(without_gil([&] {
    if (!stream) return self.get().acquire(group);
    return self.get().acquire(group, {reinterpret_cast<void*>(*stream)});
  }));
  // ctrl-C while it waited: who is interrupted holds nothing.
  if (PyErr_CheckSignals() != 0) {
    static_cast<void>(self.get().release(group, {stream ? reinterpret_cast<void*>(*stream) : nullptr}));
    throw nb::python_error();
  }
  std::vector<std::uint64_t> offsets;
  for (const Region& tensor : tensors) {
    offsets.push_back(static_cast<std::uint64_t>(tensor.data - self.memory().data));
  }
  return offsets;
}

void release(PythonLayers& self, std::size_t group, std::uintptr_t stream) {
  check(without_gil([&] { return self.get().release(group, {reinterpret_cast<void*>(stream)}); }));
}

nb::dict to_dict(const GroupReport& report) {
  nb::dict result;
  result["hits"] = report.hits;
  result["waits"] = report.waits;
  result["wait_seconds"] = report.wait_seconds;
  result["loads"] = report.loads;
  result["loaded_bytes"] = report.loaded_bytes;
  result["failed_loads"] = report.failed_loads;
  result["is_loaded"] = report.is_loaded;
  result["is_pinned"] = report.is_pinned;
  result["held"] = report.held;
  return result;
}

// (all, groups, (slot bytes, slots, groups, lost) of each size, memory in bytes)
nb::tuple report(PythonLayers& self) {
  const LayersReport report = without_gil([&] { return self.get().report(); });
  nb::list groups;
  for (const GroupReport& each : report.groups) groups.append(to_dict(each));
  nb::list slots;
  for (const SlotsReport& each : report.slots) {
    slots.append(nb::make_tuple(each.slot_bytes, each.slots, each.groups, each.lost));
  }
  return nb::make_tuple(to_dict(report.all), groups, slots, report.memory_bytes);
}

}  // namespace

void define_layers(nb::module_& module) {
  nb::class_<PythonLayers>(module, "Layers")
      .def("acquire", &acquire, nb::arg("group"), nb::arg("stream").none())
      .def("release", &release, nb::arg("group"), nb::arg("stream"))
      .def("check", [](PythonLayers& self) { check(without_gil([&] { return self.get().check(); })); })
      .def(
          "hint", [](PythonLayers& self, const std::vector<std::size_t>& groups) { check(self.get().hint(groups)); },
          nb::arg("groups"))
      .def(
          "pin", [](PythonLayers& self, std::size_t group) { check(self.get().pin(group)); }, nb::arg("group"))
      .def(
          "unpin", [](PythonLayers& self, std::size_t group) { check(self.get().unpin(group)); }, nb::arg("group"))
      .def("report", &report)
      .def("close", [](PythonLayers& self) { check(self.close()); });
  module.def("layer_groups", &groups_of, nb::arg("model"), nb::arg("patterns"));
  module.def("open_layers", &open, nb::arg("context"), nb::arg("model"), nb::arg("groups"), nb::arg("memory"),
             nb::arg("memory_bytes"), nb::arg("domain"), nb::arg("ahead_bytes"), nb::arg("deadline_seconds"),
             nb::arg("cache").none(), nb::arg("in_order"), nb::arg("owner"));
}

}  // namespace penstock::python
