#include "penstock/context.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <thread>

#include "api/context_builder.h"
#include "api/resolvers.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "core/callers_transfers.h"
#include "core/environment.h"
#include "core/lane_set.h"
#include "core/ordered_transfers.h"
#include "core/plan.h"
#include "core/publisher.h"
#include "core/request.h"
#include "core/store_entry.h"
#include "cuda/quiet.h"
#include "engines/made/engine.h"
#include "engines/modules.h"
#include "engines/table.h"

namespace penstock {

namespace {

Statistics statistics_of(const core::Environment& environment) {
  Statistics statistics = environment.statistics.snapshot();
  statistics.pinned_bytes = environment.pinned->used_bytes();
  statistics.lanes_replaced = environment.lanes_replaced.load(std::memory_order_relaxed);
  statistics.quarantined_bytes = environment.quarantined_bytes.load(std::memory_order_acquire);
  const cuda::Quiet::Unfreed unfreed = cuda::Quiet::of_process().unfreed();
  statistics.unfreed_calls = unfreed.calls;
  statistics.unfreed_pinned_bytes = unfreed.pinned_bytes;
  statistics.unfreed_device_bytes = unfreed.device_bytes;
  return statistics;
}

// REQUIRES: the name needs no escaping. The command may: what could is left out of it.
std::string published_text(const std::string& name, const core::Environment& environment) {
  std::string command;
  std::ifstream("/proc/self/comm") >> command;
  std::erase_if(command, [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; });
  return R"({"name":")" + name + R"(","pid":)" + std::to_string(::getpid()) + R"(,"command":")" + command +
         R"(","statistics":)" + statistics_of(environment).to_json() + "}";
}

// Null where nothing is to be published, or can't be: whoever can't be seen still works.
std::unique_ptr<core::Publisher> publish(const std::shared_ptr<core::Environment>& environment) {
  const std::string& name = environment->options.publish;
  if (name.empty()) return nullptr;
  auto made = core::Publisher::create(
      name, [environment] { return published_text(environment->options.publish, *environment); });
  if (made) return std::move(*made);
  log(LogLevel::warning, made.error().message + "; its statistics are not published");
  return nullptr;
}

engine::OpKind kind_of(Direction direction) {
  return direction == Direction::read ? engine::OpKind::read : engine::OpKind::write;
}

// How often a synchronous call asks its caller whether to go on.
constexpr Duration keep_going_period = core::Lane::keep_going_period;

// Returns early where the caller does not want to go on: then the request has been cancelled.
void wait_for(core::Request& request, const std::function<bool()>& keep_going) {
  while (!request.wait_until(keep_going ? Clock::now() + keep_going_period : TimePoint::max())) {
    if (keep_going()) continue;
    while (!request.ended()) request.cancel();
  }
}

Report failed_report(Error error) {
  Report report;
  report.outcome = Outcome::failed;
  report.error = std::move(error);
  return report;
}

}  // namespace

class Context::Impl {
 public:
  Impl(engine::Table table, const Options& options, const Machine& machine, std::shared_ptr<memory::Given> staging)
      : environment(std::make_shared<core::Environment>(std::make_shared<engine::Table>(std::move(table)), options,
                                                        machine, std::move(staging))),
        lanes(std::make_shared<core::LaneSet>(environment)),
        callers_transfers(*environment),
        ordered(std::make_unique<core::OrderedTransfers>(environment)),
        publisher(publish(environment)) {}

  ~Impl() {
    if (environment->fork_guard.in_child()) {
      // The threads stayed with the parent: nothing can be waited for, so everything is left as it is.
      static_cast<void>(publisher.release());
      static_cast<void>(ordered.release());
      new (std::nothrow) std::shared_ptr<core::LaneSet>(lanes);
      new (std::nothrow) std::shared_ptr<core::Environment>(environment);
      return;
    }
    publisher.reset();
    environment->streams.close();
    ordered->close();
    lanes->close();
    environment->completions.close();
    environment->calls->close();
    // What there is no memory for stays.
    static_cast<void>(or_out_of_memory([&]() -> Status {
      if (environment->orphans.load() == 0) environment->memory.let_go_of_buffers();
      return {};
    }));
  }

  // `impl` is null where a Context was moved from.
  static Status usable(const Impl* impl) {
    if (impl == nullptr) {
      return Error{Code::invalid_argument, 0, "this Context was moved from", "use the one that it was moved to"};
    }
    if (!impl->environment->fork_guard.in_child()) return {};
    return Error{Code::closed, 0, "this Context belongs to the parent of a fork", "create a Context in the child"};
  }

  Result<std::shared_ptr<core::Request>> make_request(engine::OpKind kind, std::span<const Range> ranges,
                                                      const RequestOptions& options, bool in_stream_order = false,
                                                      bool has_caller = false) {
    return or_out_of_memory([&]() -> Result<std::shared_ptr<core::Request>> {
      return core::Request::create(environment, ranges,
                                   {.kind = kind,
                                    .lanes = lanes->size(),
                                    .may_wait = !in_stream_order,
                                    .has_caller = has_caller,
                                    .in_stream_order = in_stream_order},
                                   options);
    });
  }

  // A small request on a store of this machine costs less on the caller's thread than the way to a lane and back.
  bool is_small(std::span<const Range> ranges, const core::Request& request) const {
    if (ranges.size() != 1 || request.total_bytes > core::LaneSet::small_bytes) return false;
    const Locality locality = request.stores[0].entry->info().locality;
    return locality == Locality::local || locality == Locality::memory;
  }

  const engine::Description& engine_of(const core::Request& request) const {
    return (*environment->engines)[request.stores[0].entry->engine()]->description();
  }

  static Result<Ticket> submit(Impl* self, Direction direction, std::span<const Range> ranges,
                               const RequestOptions& options) {
    if (auto status = usable(self); !status) return status.error();
    if (options.stream) return or_out_of_memory([&] { return self->submit_in_order(direction, ranges, options); });
    auto request = self->make_request(kind_of(direction), ranges, options);
    if (!request) return std::move(request).error();
    self->start(ranges, *request);
    return Ticket(std::move(*request));
  }

  // The GPU that has all memory of a request in stream order.
  static Result<cuda::Device*> device_of(std::span<const Range> ranges) {
    if (ranges.empty() || ranges[0].memory.domain.host_accessible()) {
      return Error{Code::invalid_argument, 0, "stream order needs GPU memory", "leave stream unset"};
    }
    const Domain domain = ranges[0].memory.domain;
    const auto differs = [&](const Range& range) { return range.memory.domain != domain; };
    if (std::any_of(ranges.begin(), ranges.end(), differs)) {
      return Error{Code::invalid_argument, 0, "stream order: the memory is on more than one device",
                   "split the request: all memory must be on the stream's device"};
    }
    return device(domain);
  }

  Result<Ticket> submit_in_order(Direction direction, std::span<const Range> ranges, const RequestOptions& options) {
    auto gpu = device_of(ranges);
    if (!gpu) return gpu.error();
    const auto hold = options.stream_waits ? cuda::StreamHold::until_release : cuda::StreamHold::none;
    return submit_in_order(**gpu, *options.stream, hold,
                           [&] { return make_request(kind_of(direction), ranges, options, true); });
  }

  template <typename Make>
  Result<Ticket> submit_in_order(cuda::Device& gpu, CudaStream stream, cuda::StreamHold hold, Make make) {
    Result<std::shared_ptr<core::Request>> request = make();
    if (!request) return std::move(request).error();
    if (hold == cuda::StreamHold::until_release) {
      const auto is_submitted = ordered->submit(*request, gpu, stream.handle);
      if (!is_submitted) return is_submitted.error();
      if (*is_submitted) return Ticket(std::move(*request));
    }
    auto order = cuda::StreamOrder::begin(gpu, stream.handle, hold);
    if (!order) return std::move(order).error();
    (*request)->order = std::move(*order);
    if (auto status = lanes->submit_in_order(*request); !status) return std::move(status).error();
    return Ticket(std::move(*request));
  }

  Result<Standing> stand_by(Direction direction, Domain domain, RangeSource ranges, const RequestOptions& options) {
    auto gpu = device(domain);
    if (!gpu) return gpu.error();
    if (auto status = lanes->prepare(**gpu); !status) return status.error();
    auto standing = core::StandingRequest::create(
        **gpu, {environment, lanes, std::move(ranges), {.kind = kind_of(direction), .lanes = lanes->size()}, options});
    if (!standing) return std::move(standing).error();
    if (auto status = environment->streams.add(*standing); !status) return std::move(status).error();
    return Standing(std::move(*standing));
  }

  static Result<cuda::Device*> device(Domain domain) {
    const auto driver = cuda::Driver::get();
    if (!driver) return driver.error();
    return (*driver)->device(domain.device());
  }

  // Ends a request whose time is over before it has begun, by a deadline that lies in the past.
  static bool is_late(const std::shared_ptr<core::Request>& request) {
    if (request->deadline > request->begun) return false;
    request->stop(Code::timed_out);
    core::Request::end_unstarted(request);
    return true;
  }

  // For a synchronous call, whose return orders it before later work: an event on the stream orders it after earlier
  // work, and nothing that waits is enqueued.
  Status wait_for_stream(std::span<const Range> ranges, const RequestOptions& options, TimePoint begun) const {
    auto gpu = device_of(ranges);
    if (!gpu) return std::move(gpu).error();
    const auto order = cuda::StreamOrder::begin(**gpu, options.stream->handle, cuda::StreamHold::none);
    if (!order) return order.error();
    const TimePoint deadline = core::Request::deadline_of(*environment, options, begun);
    constexpr Duration without_pause = std::chrono::microseconds(50);
    constexpr Duration longest_pause = std::chrono::microseconds(200);
    TimePoint asked = begun;
    while (true) {
      const cuda::CuResult state = (*order)->reached();
      if (state == cuda::cu_success) return {};
      if (state != cuda::cu_not_ready) {
        return (*gpu)->driver().error(state, "the stream of the request has failed");
      }
      const TimePoint now = Clock::now();
      if (now >= deadline) {
        return Error{Code::timed_out, 0, "the deadline passed before the stream had done its earlier work",
                     "allow more time, or find out what the GPU is busy with"};
      }
      if (options.keep_going && now - asked >= keep_going_period) {
        if (!options.keep_going()) return Error{Code::cancelled, 0, "cancelled by the caller", ""};
        asked = now;
      }
      if (now - begun >= without_pause) std::this_thread::sleep_for(std::min(longest_pause, (now - begun) / 4));
    }
  }

  void run(std::span<const Range> ranges, const std::shared_ptr<core::Request>& request,
           const std::function<bool()>& keep_going) {
    if (is_late(request)) return;
    // A deadline needs a lane: a thread inside a system call can't be called back.
    const bool here = is_small(ranges, *request) && request->deadline == TimePoint::max() &&
                      engine_of(*request).inline_queue && lanes->drive(request, keep_going);
    const bool is_done =
        here || lanes->drive_alone(request, keep_going) || lanes->drive_while_cached(request, keep_going);
    if (!is_done) lanes->submit(request);
    wait_for(*request, keep_going);
  }

  // From its making to its end.
  static Report run(Impl* self, engine::OpKind kind, std::span<const Range> ranges, const RequestOptions& options) {
    Report report;
    std::optional<core::CallersTransfers::Caller> caller;
    if (engine::moves_bytes(kind) && ranges.size() == 1 && usable(self)) {
      const Direction direction = kind == engine::OpKind::read ? Direction::read : Direction::write;
      caller.emplace(self->callers_transfers, ranges[0].memory.size_bytes);
      if (self->callers_transfers.run(direction, ranges[0], options, report)) return report;
    }
    report = try_to_run(self, kind, ranges, options);
    if (!report.ok() && kind != engine::OpKind::read) core::Request::note_unwritten(ranges);
    return report;
  }

  static Report try_to_run(Impl* self, engine::OpKind kind, std::span<const Range> ranges,
                           const RequestOptions& options) {
    if (auto status = usable(self); !status) return failed_report(std::move(status).error());
    if (core::CompletionThread::inside_callback()) {
      return failed_report({Code::would_deadlock, 0, "a synchronous transfer inside a completion callback",
                            "submit it, and continue in its callback"});
    }
    const TimePoint begun = Clock::now();
    if (options.stream) {
      Status reached = or_out_of_memory([&] { return self->wait_for_stream(ranges, options, begun); });
      if (!reached) return failed_report(std::move(reached).error());
    }
    auto request = self->make_request(kind, ranges, options, false, true);
    if (!request) return failed_report(std::move(request).error());
    if (options.stream) (*request)->count_from(begun);
    self->run(ranges, *request, options.keep_going);
    Result<Report> report = or_out_of_memory([&]() -> Result<Report> { return (*request)->report(); });
    return report ? std::move(*report) : failed_report(std::move(report).error());
  }

  Result<Store> open(std::string_view name, const OpenOptions& options) const;
  Result<Store> open(const Location& location) const;
  std::vector<std::string_view> schemes_of_engines() const;
  Result<Buffer> allocate(Domain domain, std::size_t size_bytes);
  Result<std::uint64_t> prefetch(std::span<const Range> ranges) const;

  void start(std::span<const Range> ranges, const std::shared_ptr<core::Request>& request) {
    if (is_late(request)) return;
    // A callback must come even if nobody waits, and soon: that is a lane's work.
    const bool here = is_small(ranges, *request) && !request->has_callback() && engine_of(*request).sleeps_in_kernel &&
                      lanes->start(request);
    if (!here) lanes->submit(request);
  }

  // What the rest has left to be freed is given a moment, when that has gone.
  struct CatchesUp {
    ~CatchesUp() { cuda::Quiet::of_process().catch_up(); }
  };
  const CatchesUp catches_up;
  const std::shared_ptr<core::Environment> environment;  // shared: lanes and tickets may outlive the Context
  const std::shared_ptr<core::LaneSet> lanes;            // shared: a stuck lane asks for a successor
  core::CallersTransfers callers_transfers;
  std::unique_ptr<core::OrderedTransfers> ordered;
  std::unique_ptr<core::Publisher> publisher;
  Resolvers resolvers;
};

Result<Context> Context::create(const Options& options) {
  // The C library ends the process where there is no memory for what a thread has of a library that was loaded later,
  // of ours and of the one that throws std::bad_alloc: so it is made now.
  static_cast<void>(core::CompletionThread::inside_callback());
  [[maybe_unused]] volatile int made = std::uncaught_exceptions();  // or the compiler would leave it out
  return or_out_of_memory([&]() -> Result<Context> {
    Options chosen = options;
    if (const char* engine = ::secure_getenv("PENSTOCK_ENGINE"); engine != nullptr && *engine != '\0') {
      chosen.engine = engine;
    }
    if (const char* name = ::secure_getenv("PENSTOCK_PUBLISH"); name != nullptr && chosen.publish.empty()) {
      chosen.publish = name;
    }
    engine::Table table = engines::default_table();
    if (Status status = engines::add_modules(table, chosen.modules); !status) return std::move(status).error();
    return ContextBuilder::build(std::move(table), chosen);
  });
}

Result<Context> ContextBuilder::build(engine::Table table, const Options& options) {
  if (auto status = options.validate(); !status) return status.error();
  const bool known = options.engine.empty() || std::any_of(table.begin(), table.end(), [&](const auto& engine) {
                       return engine->description().name == options.engine;
                     });
  if (!known) {
    return Error{Code::unknown_engine, 0, "there is no engine named " + options.engine,
                 "run `penstock engines` for the list"};
  }
  std::shared_ptr<memory::Given> staging;
  if (options.staging_descriptor >= 0) {
    auto mapped = memory::Given::map(options.staging_descriptor);
    if (!mapped) return std::move(mapped).error();
    staging = std::move(*mapped);
  }
  return Context(std::make_shared<Context::Impl>(std::move(table), options, Machine::detect(), std::move(staging)));
}

Context::Context(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Result<Store> Context::open(std::string_view name, const OpenOptions& options) {
  return or_out_of_memory([&]() -> Result<Store> {
    if (auto status = Impl::usable(impl_.get()); !status) return status.error();
    if (auto resolved = impl_->resolvers.open(name, options)) return std::move(*resolved);
    if (auto located = impl_->resolvers.locate(name, options)) {
      if (!*located) return std::move(*located).error();
      return impl_->open(**located);
    }
    return impl_->open(name, options);
  });
}

Result<Store> Context::Impl::open(std::string_view name, const OpenOptions& options) const {
  auto entry = core::StoreEntry::open(*environment, name, options);
  if (!entry) return entry.error();
  return Store(std::move(*entry));
}

Result<Store> Context::Impl::open(const Location& location) const {
  // Absolute, it is a path whatever it looks like.
  std::error_code failed;
  return open(std::filesystem::absolute(location.path, failed).string(), location.options);
}

std::vector<std::string_view> Context::Impl::schemes_of_engines() const {
  std::vector<std::string_view> all;
  for (const auto& engine : *environment->engines) {
    const auto& schemes = engine->description().schemes;
    all.insert(all.end(), schemes.begin(), schemes.end());
  }
  return all;
}

Status Context::add_scheme(std::string scheme, Resolver resolve) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = Impl::usable(impl_.get()); !status) return status;
    return impl_->resolvers.add(std::move(scheme), std::move(resolve), impl_->schemes_of_engines());
  });
}

Status Context::redirect(std::string scheme, Locator locate) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = Impl::usable(impl_.get()); !status) return status;
    return impl_->resolvers.add(std::move(scheme), std::move(locate), impl_->schemes_of_engines());
  });
}

Result<std::string> Context::path_of(std::string_view name) const {
  return or_out_of_memory([&]() -> Result<std::string> {
    if (auto status = Impl::usable(impl_.get()); !status) return status.error();
    auto located = impl_->resolvers.locate(name, {});
    if (!located) return std::string(name);
    if (!*located) return std::move(*located).error();
    return std::move((*located)->path);
  });
}

Result<Store> Context::open(Recipe recipe) {
  return or_out_of_memory([&]() -> Result<Store> {
    if (auto status = Impl::usable(impl_.get()); !status) return status.error();
    const core::Environment& environment = *impl_->environment;
    const auto& engines = *environment.engines;
    const auto found = std::find_if(engines.begin(), engines.end(),
                                    [](const auto& engine) { return engine->description().name == made::engine_name; });
    if (found == engines.end()) {
      return Error{Code::engine_unavailable, 0, "this Context has no engine for recipes",
                   "make one with Context::create"};
    }
    auto store = made::make_store(std::move(recipe));
    if (!store) return std::move(store).error();
    return Store(
        core::StoreEntry::adopt(environment, static_cast<std::size_t>(found - engines.begin()), std::move(*store)));
  });
}

Result<Buffer> Context::allocate(Domain domain, std::size_t size_bytes) {
  if (auto status = Impl::usable(impl_.get()); !status) return status.error();
  return or_out_of_memory([&] { return impl_->allocate(domain, size_bytes); });
}

Result<Buffer> Context::Impl::allocate(Domain domain, std::size_t size_bytes) {
  const bool pinned = domain == Domain::pinned();
  memory::AllocationOptions options{
      .domain = domain, .size_bytes = size_bytes, .lock = pinned, .budget = pinned ? environment->pinned : nullptr};
  cuda::Device* gpu = nullptr;
  if (domain.kind() == Domain::Kind::cuda) {
    auto pool = environment->device_memory.pool(domain);
    if (!pool) return pool.error();
    options.pool = std::move(*pool);
  } else if (pinned) {
    // CUDA locks what it registers; where no GPU is in use the kernel does.
    gpu = cuda::Driver::device_in_use();
    options.lock = gpu == nullptr;
  }
  auto allocation = memory::Allocation::create(options);
  if (!allocation) return allocation.error();
  if (gpu != nullptr) {
    if (auto registered = (*allocation)->register_with(*gpu); !registered) {
      options.lock = true;
      allocation->reset();  // refunds the budget
      allocation = memory::Allocation::create(options);
      if (!allocation) return registered.error();
    }
  }
  const Region region = (*allocation)->region();
  const bool attach = pinned || domain.kind() == Domain::Kind::cuda;
  if (attach && size_bytes != 0) {
    // First, since afterwards there may be no memory for it; what is not attached is not detached either.
    (*allocation)->on_free(environment.get(), [known = environment, region] {
      if (!known->fork_guard.in_child()) (void)known->memory.detach(region);
    });
    if (auto status = environment->memory.attach(region); !status) return status.error();
  }
  return Buffer(std::move(*allocation));
}

Status Context::prepare(Domain domain) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = Impl::usable(impl_.get()); !status) return status;
    if (domain.host_accessible()) return {};
    auto gpu = impl_->device(domain);
    if (!gpu) return gpu.error();
    return impl_->lanes->prepare(**gpu);
  });
}

Status Context::attach(Region memory) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = Impl::usable(impl_.get()); !status) return status;
    return impl_->environment->memory.attach(memory);
  });
}

Status Context::detach(Region memory) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = Impl::usable(impl_.get()); !status) return status;
    return impl_->environment->memory.detach(memory);
  });
}

Report Context::read(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options) {
  const Range range{&store, offset, memory};
  return transfer(Direction::read, {&range, 1}, options);
}

Report Context::write(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options) {
  const Range range{&store, offset, memory};
  return transfer(Direction::write, {&range, 1}, options);
}

Result<Loaded> Context::read(std::string_view name, Extent extent, Domain domain, const RequestOptions& options) {
  auto store = open(name);
  if (!store) return std::move(store).error();
  const auto size_bytes = store->size_bytes();
  if (!size_bytes) return size_bytes.error();
  const bool to_the_end = extent.length == Extent::to_the_end;
  if (extent.offset > *size_bytes || (!to_the_end && extent.length > *size_bytes - extent.offset)) {
    return Error{Code::out_of_range, 0,
                 std::string(name) + " has " + std::to_string(*size_bytes) + " bytes: the range does not exist",
                 "stay within the size of the store"};
  }
  auto buffer = allocate(domain, to_the_end ? *size_bytes - extent.offset : extent.length);
  if (!buffer) return std::move(buffer).error();
  Report report = read(*store, extent.offset, buffer->region(), options);
  if (!report.ok()) return *std::move(report.error);
  return Loaded{std::move(*buffer), std::move(report)};
}

Report Context::transfer(Direction direction, std::span<const Range> ranges, const RequestOptions& options) {
  return Impl::run(impl_.get(), kind_of(direction), ranges, options);
}

Report Context::zero(const Store& store, std::uint64_t offset, std::uint64_t length, const RequestOptions& options) {
  const Range range{&store, offset, Region::host(nullptr, length)};
  return Impl::run(impl_.get(), engine::OpKind::zero, {&range, 1}, options);
}

Report Context::deallocate(const Store& store, std::uint64_t offset, std::uint64_t length,
                           const RequestOptions& options) {
  const Range range{&store, offset, Region::host(nullptr, length)};
  return Impl::run(impl_.get(), engine::OpKind::deallocate, {&range, 1}, options);
}

Result<Ticket> Context::submit(Direction direction, std::span<const Range> ranges, const RequestOptions& options) {
  auto ticket = Impl::submit(impl_.get(), direction, ranges, options);
  if (!ticket && direction == Direction::write) core::Request::note_unwritten(ranges);
  return ticket;
}

Result<Ticket> Context::submit(Direction direction, Domain gpu, RangeSource ranges, const RequestOptions& options) {
  if (auto status = Impl::usable(impl_.get()); !status) return status.error();
  if (!options.stream || !ranges || gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, "late ranges need a stream, a GPU and a function to ask",
                 "set the stream, or give the ranges"};
  }
  return or_out_of_memory([&] {
    const auto device = Impl::device(gpu);
    if (!device) return Result<Ticket>(device.error());
    const auto make = [&]() -> Result<std::shared_ptr<core::Request>> {
      return core::Request::create_late(
          impl_->environment, gpu, std::move(ranges),
          {.kind = kind_of(direction), .lanes = impl_->lanes->size(), .may_wait = false, .in_stream_order = true},
          options);
    };
    return impl_->submit_in_order(**device, *options.stream, cuda::StreamHold::until_release, make);
  });
}

Result<Standing> Context::stand_by(Direction direction, Domain gpu, RangeSource ranges, const RequestOptions& options) {
  if (auto status = Impl::usable(impl_.get()); !status) return status.error();
  if (options.stream || !ranges || gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, "stand_by needs a GPU and a function to ask, and no stream",
                 "give a GPU and a function; enqueue names the stream"};
  }
  return or_out_of_memory([&] { return impl_->stand_by(direction, gpu, std::move(ranges), options); });
}

Result<std::uint64_t> Context::prefetch(std::span<const Range> ranges) {
  if (auto status = Impl::usable(impl_.get()); !status) return status.error();
  return or_out_of_memory([&] { return impl_->prefetch(ranges); });
}

Result<std::uint64_t> Context::Impl::prefetch(std::span<const Range> ranges) const {
  const auto stored_bytes = [](const Range& range) {
    return range.stored != nullptr ? range.stored->bytes : range.memory.size_bytes;
  };
  for (const Range& range : ranges) {
    if (range.store == nullptr || !*range.store) {
      return Error{Code::invalid_argument, 0, "prefetch: a range without a store", "open one first"};
    }
    std::uint64_t end = 0;
    if (__builtin_add_overflow(range.offset, stored_bytes(range), &end)) {
      return Error{Code::invalid_argument, 0, "prefetch: offset plus size overflows", "give bytes within the store"};
    }
    if (auto status = range.store->entry()->check_end(end); !status) return status.error();
  }
  std::uint64_t left = environment->options.prefetch_window_bytes;
  std::uint64_t started = 0;
  for (const Range& range : ranges) {
    core::StoreEntry& entry = *range.store->entry();
    const bool has_cache = entry.store().page_cache() != nullptr;
    const std::uint64_t length = std::min<std::uint64_t>(left, stored_bytes(range));
    if (!has_cache || length == 0) continue;
    const auto prefetch = [offset = range.offset, length](engine::Store& store) {
      return store.page_cache()->prefetch(offset, length);
    };
    if (auto status = entry.ask(prefetch); !status) return status.error();
    left -= length;
    started += length;
  }
  return started;
}

std::vector<EngineInfo> Context::engines() const {
  std::vector<EngineInfo> infos;
  if (!impl_) return infos;
  const auto& environment = *impl_->environment;
  for (std::size_t i = 0; i < environment.engines->size(); ++i) {
    const auto& description = (*environment.engines)[i]->description();
    if (description.schemes.empty()) continue;  // names open nothing of it
    const auto& probe = environment.probes[i];
    infos.push_back({std::string(description.name), std::string(description.summary),
                     std::vector<std::string>(description.schemes.begin(), description.schemes.end()), probe.available,
                     probe.reason, probe.remedy, probe.conditions, description.reaches_device, probe.device_route});
  }
  return infos;
}

Result<Plan> Context::plan(const Store& store, Direction direction, Domain domain) const {
  if (auto status = Impl::usable(impl_.get()); !status) return status.error();
  if (!store) return Error{Code::invalid_argument, 0, "the Store is not open", "open one first"};
  return or_out_of_memory([&] { return core::plan_of(*impl_->environment, *store.entry(), direction, domain); });
}
std::string Context::explain(const Store& store, Direction direction, Domain domain) const {
  const auto found = plan(store, direction, domain);
  return found ? found->text() : found.error().message;
}
const Options& Context::options() const {
  static const Options none;
  return impl_ ? impl_->environment->options : none;
}
const Machine& Context::machine() const {
  static const Machine none;
  return impl_ ? impl_->environment->machine : none;
}

Statistics Context::statistics() const {
  return impl_ ? statistics_of(*impl_->environment) : Statistics();
}

void Context::count_mapped(std::uint64_t bytes, double seconds) {
  if (impl_) impl_->environment->statistics.count_mapped(bytes, seconds);
}

Trace Context::trace(double since_seconds) const {
  return impl_ ? impl_->environment->traces.snapshot(since_seconds) : Trace();
}

void Context::reset_statistics() {
  if (impl_) impl_->environment->statistics.reset();
}

std::string_view version() {
  return PENSTOCK_VERSION;
}

}  // namespace penstock
