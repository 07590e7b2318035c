#include "context.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "errors.h"
#include "gil.h"
#include "penstock/gpu.h"
#include "penstock/machine.h"
#include "starting.h"
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

// Where a read goes, and from where; a write the other way round.
struct Wanted {
  bool writes = false;
  bool durable = false;
  std::optional<std::uint64_t> offset;  // none: 0
  bool in_blocks = false;               // `offset` and `count` count blocks of the store
  std::optional<std::uint64_t> size_bytes;
  std::optional<std::uint64_t> count;
  Region memory;
  bool on_some_gpu = false;  // which one is still to be asked
  std::optional<std::uintptr_t> stream;
};

Result<std::uint64_t> in_bytes(const StoreInfo& info, const char* what, std::uint64_t blocks) {
  if (info.block_bytes == 0) {
    return Error{Code::invalid_argument, 0, info.name + ": has no blocks to count", "give offset and size in bytes"};
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(blocks, std::uint64_t{info.block_bytes}, &bytes)) {
    return Error{Code::invalid_argument, 0, info.name + ": " + what + " " + std::to_string(blocks) + " overflows",
                 "give one within the store"};
  }
  return bytes;
}

Result<Range> range_of(const Store& store, const Wanted& wanted) {
  Range range{&store, wanted.offset.value_or(0), wanted.memory};
  std::uint64_t size_bytes = wanted.size_bytes.value_or(wanted.memory.size_bytes);
  if (wanted.in_blocks) {
    auto offset = in_bytes(store.info(), "lba", range.offset);
    if (!offset) return std::move(offset).error();
    range.offset = *offset;
  }
  if (wanted.count) {
    auto bytes = in_bytes(store.info(), "count", *wanted.count);
    if (!bytes) return std::move(bytes).error();
    size_bytes = *bytes;
  }
  if (size_bytes > wanted.memory.size_bytes) {
    return Error{Code::invalid_argument, 0,
                 "the memory has " + std::to_string(wanted.memory.size_bytes) + " bytes, not the " +
                     std::to_string(size_bytes) + " requested",
                 "give larger memory"};
  }
  if (wanted.on_some_gpu && size_bytes != 0) {
    // Starts CUDA, if nothing has yet.
    auto region = find_cuda_region(wanted.memory.data, wanted.memory.size_bytes);
    if (!region) return std::move(region).error();
    range.memory.domain = region->domain;
  }
  range.memory.size_bytes = size_bytes;
  return range;
}

// A read or a write that is started, perhaps on a thread of Starters.
class Start {
 public:
  Start(std::shared_ptr<Context> context, Wanted wanted) : context_(std::move(context)), wanted_(wanted) {}

  // Opens the store, where none is given, and submits. `done` is called when the request has ended, or could not begin.
  void run(const Store* opened, const std::string& path, const std::function<void()>& done) {
    try {
      begin(opened, path, done);
    } catch (const std::bad_alloc&) {
      const std::scoped_lock lock(mutex_);
      if (has_begun() || is_cancelled_) return;
      end_with({Code::out_of_memory, 0, "no memory to begin the request", "free some"}, done);
    }
  }

  // Whether it has begun, or never will, by then.
  bool wait_for_begin(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex_);
    return begun_.wait_for(lock, time, [this] { return has_begun() || is_cancelled_; });
  }
  // From now on it does not begin; where it has begun, its request.
  Ticket prevent() {
    const std::scoped_lock lock(mutex_);
    is_cancelled_ = true;
    begun_.notify_all();
    return ticket_;
  }
  // REQUIRES: it has begun.
  const Ticket& ticket() const { return ticket_; }
  const std::optional<Error>& error() const { return error_; }
  std::uint64_t all_bytes() const { return all_bytes_; }
  bool ended() {
    const std::scoped_lock lock(mutex_);
    return is_cancelled_ || error_ || (ticket_ && ticket_.ended());
  }

 private:
  void begin(const Store* opened, const std::string& path, const std::function<void()>& done) {
    const Result<Store> store = opened != nullptr ? Result<Store>(*opened) : context_->open(path);
    const Result<Range> range = store ? range_of(*store, wanted_) : Result<Range>(store.error());
    const std::scoped_lock lock(mutex_);
    if (is_cancelled_) return;  // and its memory may be gone
    if (!range) return end_with(range.error(), done);
    RequestOptions options;
    options.durable = wanted_.writes && wanted_.durable;
    if (done) options.on_end = [done](const Report&) { done(); };
    if (wanted_.stream && range->memory.size_bytes != 0) {
      options.stream = CudaStream{reinterpret_cast<void*>(*wanted_.stream)};
    }
    options.stream_waits = false;  // the caller waits for the end, which orders it before later work
    auto ticket = context_->submit(wanted_.writes ? Direction::write : Direction::read, {&*range, 1}, options);
    if (!ticket) return end_with(ticket.error(), done);
    all_bytes_ = range->memory.size_bytes;
    ticket_ = std::move(*ticket);
    context_.reset();
    begun_.notify_all();
  }
  void end_with(Error error, const std::function<void()>& done) {
    error_ = std::move(error);
    context_.reset();
    begun_.notify_all();
    if (done) done();
  }
  bool has_begun() const { return ticket_ || error_; }

  std::mutex mutex_;  // held while the request begins
  std::condition_variable begun_;
  std::shared_ptr<Context> context_;  // until then
  const Wanted wanted_;
  bool is_cancelled_ = false;
  Ticket ticket_;
  std::optional<Error> error_;
  std::uint64_t all_bytes_ = 0;
};

// A read under way, with a reference to the object whose memory it fills.
class Reading {
 public:
  Reading(std::weak_ptr<Context> context, std::shared_ptr<Start> start, nb::object memory)
      : context_(std::move(context)), start_(std::move(start)), memory_(std::move(memory)) {}
  Reading(Reading&&) = default;
  Reading& operator=(Reading&&) = delete;
  ~Reading() {
    if (!start_) return;
    cancel();
    const Ticket ticket = start_->prevent();
    if (ticket && ticket.outcome() == Outcome::abandoned) keep_abandoned(std::move(context_), std::move(memory_));
  }

  bool ended() const { return start_->ended(); }
  nb::object wait(nb::handle progress) {
    while (!without_gil([&] { return start_->wait_for_begin(wait_slice); })) {
      if (PyErr_CheckSignals() != 0) {
        cancel();
        throw nb::python_error();
      }
    }
    if (start_->error()) raise(*start_->error());
    Ticket ticket = start_->ticket();
    if (!ticket) raise({Code::cancelled, 0, "the request was cancelled before it began", {}});
    wait_or_cancel(ticket, start_->all_bytes(), progress);
    const Report report = ticket.report();
    if (!report.ok()) raise(*report.error, to_dict(report));
    return to_python(report);
  }
  void cancel() {
    Ticket ticket = start_->prevent();
    if (!ticket || ticket.ended()) return;
    const WithoutGil released;
    while (!ticket.ended()) ticket.cancel();  // on a starved machine one may not be enough
  }

 private:
  std::weak_ptr<Context> context_;  // which, when it closes, ends the read
  std::shared_ptr<Start> start_;    // shared with the thread that starts it
  nb::object memory_;
};

Store open(const Context& context, const nb::bytes& path, const OpenOptions& options = {}) {
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

// By the calling thread, which orders it in the stream by itself: nothing that waits is put there.
Report transfer_now(const Context& context, const Store& store, const Wanted& wanted,
                    std::function<bool()> keep_going = {}) {
  const auto range = range_of(store, wanted);
  if (!range) {
    Report report;
    report.outcome = Outcome::failed;
    report.error = range.error();
    return report;
  }
  RequestOptions options;
  options.durable = wanted.writes && wanted.durable;
  options.keep_going = std::move(keep_going);
  if (wanted.stream && range->memory.size_bytes != 0) {
    options.stream = CudaStream{reinterpret_cast<void*>(*wanted.stream)};
  }
  return context.transfer(wanted.writes ? Direction::write : Direction::read, {&*range, 1}, options);
}

Report finished(Report report) {
  if (!report.ok()) raise(*report.error, to_dict(report));
  return report;
}

Wanted wanted_of(bool writes, bool durable, std::optional<std::uint64_t> offset,
                 std::optional<std::uint64_t> size_bytes, std::optional<std::uint64_t> lba,
                 std::optional<std::uint64_t> count, std::uintptr_t pointer, std::size_t memory_bytes,
                 const std::string& domain, std::optional<std::uintptr_t> stream) {
  Wanted wanted{.writes = writes,
                .durable = durable,
                .offset = lba ? lba : offset,
                .in_blocks = lba.has_value(),
                .size_bytes = size_bytes,
                .count = count,
                .memory = {reinterpret_cast<std::byte*>(pointer), memory_bytes, Domain::host()},
                .on_some_gpu = domain == "cuda",
                .stream = stream};
  if (domain != "host" && !wanted.on_some_gpu) wanted.memory.domain = value_or_raise(Domain::parse(domain));
  return wanted;
}

// The report, if the request was so brief that it has ended; otherwise a Reading. With `endings`, the call waits for
// nothing, and the end is told there as `number`.
nb::object transfer(PythonContext& self, const nb::bytes& path, const HeldStore* store, bool writes, bool durable,
                    std::optional<std::uint64_t> offset, std::optional<std::uint64_t> size_bytes,
                    std::optional<std::uint64_t> lba, std::optional<std::uint64_t> count, std::uintptr_t pointer,
                    std::size_t memory_bytes, const std::string& domain, std::optional<std::uintptr_t> stream,
                    nb::object memory, const PythonEndings* endings, std::uint64_t number) {
  const auto context = self.get();
  const Wanted wanted =
      wanted_of(writes, durable, offset, size_bytes, lba, count, pointer, memory_bytes, domain, stream);
  const bool is_small = !stream && !wanted.on_some_gpu && wanted.memory.domain == Domain::host();
  auto start = std::make_shared<Start>(context, wanted);
  const auto reading = [&] { return nb::cast(Reading(context, start, std::move(memory)), nb::rv_policy::move); };
  const auto now = [&](Report report) {
    if (report.outcome == Outcome::abandoned) keep_abandoned(context, std::move(memory));
    return to_python(finished(std::move(report)));
  };
  if (endings == nullptr) {
    Store opened;
    if (store == nullptr) opened = open(*context, path);
    const HeldStore held(store != nullptr ? static_cast<const Store&>(*store) : std::move(opened));
    if (is_small && is_brief(held.info().locality, wanted.memory.size_bytes)) {
      return now(without_gil([&] { return transfer_now(*context, held, wanted); }));
    }
    if (is_soon_over(held.info().locality, wanted.memory.size_bytes)) {
      Interruption interruption;
      Report report = without_gil([&] { return transfer_now(*context, held, wanted, interruption.keep_going()); });
      const bool is_abandoned = report.outcome == Outcome::abandoned;
      if (is_abandoned) keep_abandoned(context, std::move(memory));
      interruption.raise_again(is_abandoned);
      return to_python(finished(std::move(report)));
    }
    without_gil([&] { start->run(&held, {}, {}); });
    if (start->error()) raise(*start->error());
    return reading();
  }
  auto done = [to = endings->shared, number] { to->add(number); };
  if (store != nullptr && is_small && is_brief(store->info().locality, wanted.memory.size_bytes)) {
    // What is in the page cache has ended by then: the loop need not come round for it.
    constexpr std::chrono::microseconds moment(2);
    const bool has_ended = without_gil([&] {
      start->run(store, {}, {});
      return start->error() || start->ticket().wait_for(moment);
    });
    if (start->error()) raise(*start->error());
    if (has_ended) return now(start->ticket().report());
    start->ticket().then(std::move(done));
    Starters::of_process().wait_for(start->ticket());
    return reading();
  }
  auto opened = store == nullptr ? std::nullopt : std::optional<Store>(*store);
  const bool is_started = Starters::of_process().run([start, opened = std::move(opened), path = to_string(path), done] {
    start->run(opened ? &*opened : nullptr, path, done);
  });
  if (!is_started) {
    raise({Code::out_of_memory, 0, "no room for another thread",
           "raise the limit of memory or threads (ulimit -v, ulimit -u)"});
  }
  return reading();
}

// A number of Python that fits; none for all else.
std::optional<std::uint64_t> plain_number(nb::handle number) {
  if (!PyLong_CheckExact(number.ptr())) return std::nullopt;
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value != ULLONG_MAX || PyErr_Occurred() == nullptr) return value;
  PyErr_Clear();
  return std::nullopt;
}

// What most reads of an open store are, in one call: of a few bytes of a disk of this machine into a buffer, or to an
// address in host memory, which `owner` has. The Report; None if it is no such read: `transfer` does the others, and
// says what is wrong.
nb::object read_brief(PythonContext& self, const HeldStore& store, nb::handle target, nb::handle offset,
                      nb::handle size, nb::handle owner) {
  const auto begin = offset.is_none() ? std::optional<std::uint64_t>(0) : plain_number(offset);
  auto size_bytes = size.is_none() ? std::optional<std::uint64_t>() : plain_number(size);
  if (!begin || (!size.is_none() && !size_bytes)) return nb::none();
  Py_buffer view{};
  std::byte* memory = nullptr;
  if (const auto address = plain_number(target)) {
    if (!size_bytes) return nb::none();
    memory = reinterpret_cast<std::byte*>(*address);
  } else {
    if (PyObject_GetBuffer(target.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) {
      PyErr_Clear();
      return nb::none();
    }
    memory = static_cast<std::byte*>(view.buf);
    if (!size_bytes) size_bytes = static_cast<std::uint64_t>(view.len);
  }
  const bool fits = view.obj == nullptr || *size_bytes <= static_cast<std::uint64_t>(view.len);
  const auto context = fits ? self.get() : nullptr;
  if (context == nullptr || !is_brief(store.info().locality, *size_bytes)) {
    PyBuffer_Release(&view);
    return nb::none();
  }
  Report report = without_gil([&] { return context->read(store, *begin, Region::host(memory, *size_bytes)); });
  const bool is_abandoned = report.outcome == Outcome::abandoned;
  if (is_abandoned) keep_abandoned(context, nb::borrow(view.obj != nullptr ? target : owner));
  if (!is_abandoned) PyBuffer_Release(&view);  // otherwise the view stays for good
  return to_python(finished(std::move(report)));
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

// Called by the last user, with the GIL or without. Closes at once, although tables and models may still have a handle:
// they are destroyed with the GIL, and closing waits for storage.
void PythonContext::let_go(Context* context) {
  std::optional<WithoutGil> released;
  if (has_gil()) released.emplace();
  context->close();
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
      .def("transfer", &transfer, nb::arg("path"), nb::arg("store").none(), nb::arg("writes"), nb::arg("durable"),
           nb::arg("offset").none(), nb::arg("size_bytes").none(), nb::arg("lba").none(), nb::arg("count").none(),
           nb::arg("pointer"), nb::arg("memory_bytes"), nb::arg("domain"), nb::arg("stream").none(),
           nb::arg("memory").none(), nb::arg("endings").none() = nb::none(), nb::arg("number") = 0)
      .def("read_brief", &read_brief, nb::arg("store"), nb::arg("target"), nb::arg("offset").none(),
           nb::arg("size").none(), nb::arg("owner").none() = nb::none())
      .def("engines", &engines)
      .def("prefetch", &prefetch, nb::arg("path"), nb::arg("ranges"));
  module.def("gpus", &gpus);
  module.def("available_memory_bytes", &Machine::available_memory_bytes);
  module.def("version", [] { return std::string(version()); });
}

}  // namespace penstock::python
