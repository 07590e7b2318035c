#include "context.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "errors.h"
#include "gil.h"
#include "penstock/gpu.h"
#include "penstock/machine.h"
#include "waiting.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// The reads that have ended, by number, for one event loop: its descriptor is readable while there are some. Completion
// threads add to it instead of calling Python: they never need the GIL, and can't meet an interpreter that is shutting
// down.
class Endings {
 public:
  Endings() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_ < 0) raise(system_error(errno, "eventfd", "close some files, or raise the limit (ulimit -n)"));
  }
  Endings(const Endings&) = delete;
  Endings& operator=(const Endings&) = delete;
  ~Endings() { ::close(descriptor_); }

  int descriptor() const { return descriptor_; }
  void add(std::uint64_t number) {
    {
      const std::scoped_lock lock(mutex_);
      numbers_.push_back(number);
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(descriptor_, &one, sizeof one);
  }
  // Those since the last call.
  std::vector<std::uint64_t> take() {
    std::uint64_t count = 0;
    // Before the list is taken: what is added later wakes the loop again.
    [[maybe_unused]] const auto got = ::read(descriptor_, &count, sizeof count);
    const std::scoped_lock lock(mutex_);
    return std::exchange(numbers_, {});
  }

 private:
  const int descriptor_;
  std::mutex mutex_;
  std::vector<std::uint64_t> numbers_;
};

struct PythonEndings {
  // Shared with callbacks, which may come later than the object goes, and have no GIL to let go of it with.
  const std::shared_ptr<Endings> shared = std::make_shared<Endings>();
};

// A read under way, with a reference to the object whose memory it fills.
class Reading {
 public:
  Reading(std::weak_ptr<Context> context, Ticket ticket, std::uint64_t all_bytes, nb::object memory)
      : context_(std::move(context)), ticket_(std::move(ticket)), all_bytes_(all_bytes), memory_(std::move(memory)) {}
  Reading(Reading&&) = default;
  Reading& operator=(Reading&&) = delete;
  ~Reading() {
    if (!ticket_) return;
    if (!ticket_.ended()) cancel();
    if (ticket_.outcome() == Outcome::abandoned) keep_abandoned(std::move(context_), std::move(memory_));
  }

  bool ended() const { return ticket_.ended(); }
  nb::dict wait(nb::handle progress) {
    wait_or_cancel(ticket_, all_bytes_, progress);
    const Report report = ticket_.report();
    if (!report.ok()) raise(*report.error, to_dict(report));
    return to_dict(report);
  }
  void cancel() {
    const WithoutGil released;
    while (!ticket_.ended()) ticket_.cancel();  // on a starved machine one may not be enough
  }

 private:
  std::weak_ptr<Context> context_;  // which, when it closes, ends the read
  Ticket ticket_;
  std::uint64_t all_bytes_;
  nb::object memory_;
};

Store open(Context& context, const nb::bytes& path, const OpenOptions& options = {}) {
  return value_or_raise(without_gil([&, name = to_string(path)] { return context.open(name, options); }));
}

Access access_from(const std::string& name) {
  if (name == "read") return Access::read;
  if (name == "write") return Access::write;
  if (name == "create") return Access::create;
  if (name == "replace") return Access::replace;
  raise({Code::invalid_argument, 0, "access: " + name, "give read, write, create or replace"});
}

HeldStore open_store(PythonContext& self, const nb::bytes& path, const std::string& access, std::uint64_t size_bytes,
                     bool device_write, const std::string& serial, std::uint64_t first_block, std::uint64_t blocks) {
  OpenOptions options;
  options.access = access_from(access);
  options.size_bytes = size_bytes;
  options.allow_block_device_write = device_write;
  options.serial = serial;
  options.first_writable_block = first_block;
  options.writable_blocks = blocks;
  return HeldStore(open(*self.get(), path, options));
}

struct Place {
  std::uint64_t offset = 0;
  bool in_blocks = false;  // `offset` counts blocks of the store
};

std::uint64_t offset_in(const StoreInfo& info, Place place) {
  if (!place.in_blocks) return place.offset;
  if (info.block_bytes == 0) {
    raise({Code::invalid_argument, 0, info.name + ": has no blocks to count", "give offset and size in bytes"});
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(place.offset, std::uint64_t{info.block_bytes}, &bytes)) {
    raise({Code::invalid_argument, 0, info.name + ": lba " + std::to_string(place.offset) + " overflows",
           "give one within the store"});
  }
  return bytes;
}

Reading transfer(PythonContext& self, const HeldStore& store, bool writes, bool durable, std::uint64_t offset,
                 bool in_blocks, std::uintptr_t pointer, std::size_t size_bytes, const std::string& domain,
                 std::optional<std::uintptr_t> stream, nb::object memory, const PythonEndings* endings,
                 std::uint64_t number) {
  const auto context = self.get();
  const Domain where = value_or_raise(Domain::parse(domain));
  const Range range{
      &store, offset_in(store.info(), {offset, in_blocks}), {reinterpret_cast<std::byte*>(pointer), size_bytes, where}};
  RequestOptions options;
  options.durable = writes && durable;
  if (endings != nullptr) options.on_end = [to = endings->shared, number](const Report&) { to->add(number); };
  if (stream && size_bytes != 0) options.stream = CudaStream{reinterpret_cast<void*>(*stream)};
  options.stream_waits = false;  // the caller waits for the end, which orders it before later work
  auto ticket =
      without_gil([&] { return context->submit(writes ? Direction::write : Direction::read, {&range, 1}, options); });
  return {context, value_or_raise(std::move(ticket)), size_bytes, std::move(memory)};
}

std::uint64_t prefetch(PythonContext& self, const nb::bytes& path,
                       const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
  const auto context = self.get();
  const Store store = open(*context, path);
  std::vector<Range> wanted;
  for (const auto& [offset, size_bytes] : ranges) wanted.push_back({&store, offset, Region::host(nullptr, size_bytes)});
  if (ranges.empty()) wanted.push_back({&store, 0, Region::host(nullptr, store.info().size_bytes)});
  return value_or_raise(without_gil([&] { return context->prefetch(wanted); }));
}

nb::list engines(PythonContext& self) {
  nb::list all;
  for (const EngineInfo& info : self.get()->engines()) {
    nb::dict each;
    each["name"] = info.name;
    each["summary"] = info.summary;
    each["schemes"] = info.schemes;
    each["available"] = info.available;
    each["reason"] = info.reason;
    each["remedy"] = info.remedy;
    each["reaches_device"] = info.reaches_device;
    all.append(each);
  }
  return all;
}

// None where there is no CUDA.
nb::list gpus() {
  nb::list all;
  auto found = without_gil([] { return list_gpus(); });
  if (!found && found.error().code == Code::no_device) return all;
  for (const Gpu& gpu : value_or_raise(std::move(found))) {
    nb::dict each;
    each["device"] = gpu.domain.name();
    each["name"] = gpu.name;
    each["pci_address"] = gpu.pci_address;
    each["memory_bytes"] = gpu.memory_bytes;
    each["compute_capability"] = nb::make_tuple(gpu.compute_major, gpu.compute_minor);
    each["numa_node"] = gpu.numa_node;
    each["gpu_direct_rdma"] = gpu.gpu_direct_rdma;
    each["dma_buf"] = gpu.dma_buf;
    all.append(each);
  }
  return all;
}

}  // namespace

void raise_closed() {
  raise({Code::closed, 0, "this Context is closed", "make another one"});
}

PythonContext::PythonContext(const std::string& options_json) {
  const Options options = value_or_raise(Options::from_json(options_json));
  auto context = without_gil([&] { return Context::create(options); });
  context_ = {new Context(value_or_raise(std::move(context))), let_go};
}

// By whoever is the last to use it, with the GIL or without: closing waits for storage.
void PythonContext::let_go(Context* context) {
  std::optional<WithoutGil> released;
  if (has_gil()) released.emplace();
  delete context;
}

std::shared_ptr<Context> PythonContext::get() const {
  if (!context_) raise_closed();
  const std::shared_ptr<Context> context = context_;
  let_go_of_what_came_home(context);  // which may close this one
  return context;
}

bool PythonContext::add(std::weak_ptr<Loading> load) {
  if (!context_) return false;
  std::erase_if(loads_, [](const auto& each) { return each.expired(); });
  loads_.push_back(std::move(load));
  return true;
}

void PythonContext::close() {
  auto closing = std::move(context_);  // first: what starts from now on is refused
  *closed_ = true;
  for (const auto& each : std::exchange(loads_, {})) {
    const auto load = each.lock();
    const WithoutGil released;
    if (load) load->cancel();
  }
  if (closing) let_go_of_what_came_home(closing);
}

void define_context(nb::module_& module) {
  nb::class_<PythonEndings>(module, "Endings")
      .def(nb::init<>())
      .def("fileno", [](const PythonEndings& self) { return self.shared->descriptor(); })
      .def("take", [](const PythonEndings& self) { return self.shared->take(); });
  nb::class_<Reading>(module, "Reading")
      .def_prop_ro("ended", &Reading::ended)
      .def("wait", &Reading::wait, nb::arg("progress").none() = nb::none())
      .def("cancel", &Reading::cancel);
  nb::class_<HeldStore>(module, "Store")
      .def_prop_ro("name", [](const HeldStore& self) { return self.info().name; })
      .def_prop_ro("kind", [](const HeldStore& self) { return std::string(store_kind_name(self.info().kind)); })
      .def_prop_ro("block_bytes", [](const HeldStore& self) { return self.info().block_bytes; })
      .def_prop_ro("writable", [](const HeldStore& self) { return self.info().writable; })
      .def("size_bytes",
           [](const HeldStore& self) { return value_or_raise(without_gil([&] { return self.size_bytes(); })); })
      .def(
          "commit", [](HeldStore& self, bool durable) { check(without_gil([&] { return self.commit(durable); })); },
          nb::arg("durable"))
      .def("abort", [](HeldStore& self) { check(without_gil([&] { return self.abort(); })); });
  nb::class_<PythonContext>(module, "Context")
      .def(nb::init<const std::string&>(), nb::arg("options_json"))
      .def("close", &PythonContext::close)
      .def("options_json", [](PythonContext& self) { return self.get()->options().to_json(); })
      .def("statistics_json", [](PythonContext& self) { return self.get()->statistics().to_json(); })
      .def("reset_statistics", [](PythonContext& self) { self.get()->reset_statistics(); })
      .def("open", &open_store, nb::arg("path"), nb::arg("access"), nb::arg("size_bytes"), nb::arg("device_write"),
           nb::arg("serial"), nb::arg("first_block"), nb::arg("blocks"))
      .def("transfer", &transfer, nb::arg("store"), nb::arg("writes"), nb::arg("durable"), nb::arg("offset"),
           nb::arg("in_blocks"), nb::arg("pointer"), nb::arg("size_bytes"), nb::arg("domain"), nb::arg("stream").none(),
           nb::arg("memory").none(), nb::arg("endings").none(), nb::arg("number"))
      .def("engines", &engines)
      .def("prefetch", &prefetch, nb::arg("path"), nb::arg("ranges"));
  module.def("gpus", &gpus);
  module.def("available_memory_bytes", &Machine::available_memory_bytes);
  module.def("version", [] { return std::string(version()); });
}

}  // namespace penstock::python
