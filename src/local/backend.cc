#include "local/backend.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <new>
#include <thread>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "core/callers_transfers.h"
#include "core/environment.h"
#include "core/lane_set.h"
#include "core/ordered_transfers.h"
#include "core/plan.h"
#include "core/publisher.h"
#include "core/request.h"
#include "core/standing.h"
#include "core/store_entry.h"
#include "cuda/quiet.h"
#include "engines/made/engine.h"

namespace penstock::local {

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

engine::OpKind kind_of(client::Operation operation) {
  switch (operation) {
    case client::Operation::read:
      return engine::OpKind::read;
    case client::Operation::write:
      return engine::OpKind::write;
    case client::Operation::zero:
      return engine::OpKind::zero;
    case client::Operation::deallocate:
      return engine::OpKind::deallocate;
  }
  __builtin_unreachable();
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

class LocalBackend final : public client::Backend {
 public:
  LocalBackend(engine::Table table, const Options& options, const Machine& machine,
               std::shared_ptr<memory::Given> staging)
      : environment_(std::make_shared<core::Environment>(std::make_shared<engine::Table>(std::move(table)), options,
                                                         machine, std::move(staging))),
        lanes_(std::make_shared<core::LaneSet>(environment_)),
        callers_transfers_(*environment_),
        ordered_(std::make_unique<core::OrderedTransfers>(environment_)),
        publisher_(publish(environment_)) {}

  ~LocalBackend() override {
    if (!environment_->fork_guard.in_child()) {
      LocalBackend::close();
      return;
    }
    // The threads stayed with the parent: nothing can be waited for, so everything is left as it is.
    static_cast<void>(publisher_.release());
    static_cast<void>(ordered_.release());
    new (std::nothrow) std::shared_ptr<core::LaneSet>(lanes_);
    new (std::nothrow) std::shared_ptr<core::Environment>(environment_);
  }

  // Another thread that closes at the same time returns at once. Requests that callbacks submit meanwhile end with
  // Code::closed.
  void close() override {
    if (environment_->fork_guard.in_child() || is_closing_.exchange(true)) return;
    publisher_.reset();
    environment_->streams.close();
    ordered_->close();
    lanes_->close();
    environment_->completions.close();
    environment_->calls->close();
    // Without memory for it, Buffers stay attached.
    static_cast<void>(or_out_of_memory([&]() -> Status {
      if (environment_->orphans.load() == 0) environment_->memory.let_go_of_buffers();
      return {};
    }));
    is_closed_.store(true, std::memory_order_release);
  }

  Status usable() const override {
    if (environment_->fork_guard.in_child()) {
      return Error{Code::closed, 0, "this Context belongs to the parent of a fork", "create a Context in the child"};
    }
    if (is_closed_.load(std::memory_order_acquire)) {
      return Error{Code::closed, 0, "this Context was closed", "create another Context"};
    }
    return {};
  }

  Result<std::shared_ptr<core::Request>> make_request(engine::OpKind kind, std::span<const Range> ranges,
                                                      const RequestOptions& options, bool in_stream_order = false,
                                                      bool has_caller = false) {
    return or_out_of_memory([&]() -> Result<std::shared_ptr<core::Request>> {
      return core::Request::create(environment_, ranges,
                                   {.kind = kind,
                                    .lanes = lanes_->size(),
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
    return (*environment_->engines)[request.stores[0].entry->engine()]->description();
  }

  using Submitted = Result<std::shared_ptr<client::PendingRequest>>;

  Submitted submit(Direction direction, std::span<const Range> ranges, const RequestOptions& options) override {
    Submitted request = try_to_submit(direction, ranges, options);
    if (!request && direction == Direction::write) core::Request::note_unwritten(ranges);
    return request;
  }
  bool in_forked_child() const override { return environment_->fork_guard.in_child(); }

  bool progress(TimePoint until) override { return lanes_->help(until); }

  Status submit(const std::shared_ptr<client::CompletionPort>& port, std::uint32_t place,
                const Submission& submission) override {
    static const RequestOptions defaults;
    const RequestOptions& options = submission.options != nullptr ? *submission.options : defaults;
    Status status = try_to_submit(port, place, submission, options);
    if (!status && submission.direction == Direction::write) core::Request::note_unwritten(submission.ranges);
    return status;
  }
  Status try_to_submit(const std::shared_ptr<client::CompletionPort>& port, std::uint32_t place,
                       const Submission& submission, const RequestOptions& options) {
    if (auto status = usable(); !status) return status;
    const std::span<const Range> ranges = submission.ranges;
    const bool may_read_here = submission.direction == Direction::read && ranges.size() == 1 &&
                               submission.ticket == nullptr &&
                               ranges[0].memory.size_bytes <= core::LaneSet::small_bytes;
    if (may_read_here && callers_transfers_.read_if_cached(ranges[0], options)) {
      port->complete(place, Code::ok, ranges[0].memory.size_bytes);
      return {};
    }
    if (options.stream) {
      if (auto gpu = device_of(ranges); !gpu) return gpu.error();
    }
    auto request = make_request(kind_of(submission.direction), ranges, options, options.stream.has_value());
    if (!request) return std::move(request).error();
    (*request)->complete_to(port, place);
    port->attach(place, *request);
    if (submission.ticket != nullptr) *submission.ticket = client::Access::ticket(*request);
    if (options.stream) {
      port->runs_elsewhere(place);
      return start_in_order(ranges, *request, options);
    }
    const bool is_driven = !port->has_descriptor() && start_here(ranges, *request);
    if (is_driven) return {};
    port->runs_elsewhere(place);
    lanes_->submit(*request);
    return {};
  }
  Submitted try_to_submit(Direction direction, std::span<const Range> ranges, const RequestOptions& options) {
    if (auto status = usable(); !status) return status.error();
    if (options.stream) return or_out_of_memory([&] { return submit_in_order(direction, ranges, options); });
    auto request = make_request(kind_of(direction), ranges, options);
    if (!request) return std::move(request).error();
    start(ranges, *request);
    return std::shared_ptr<client::PendingRequest>(std::move(*request));
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
    return device_of(domain);
  }

  Submitted submit_in_order(Direction direction, std::span<const Range> ranges, const RequestOptions& options) {
    if (auto gpu = device_of(ranges); !gpu) return gpu.error();
    auto request = make_request(kind_of(direction), ranges, options, true);
    if (!request) return std::move(request).error();
    if (auto status = start_in_order(ranges, *request, options); !status) return std::move(status).error();
    return std::shared_ptr<client::PendingRequest>(std::move(*request));
  }
  Status start_in_order(std::span<const Range> ranges, const std::shared_ptr<core::Request>& request,
                        const RequestOptions& options) {
    auto gpu = device_of(ranges);
    if (!gpu) return gpu.error();
    const auto hold = options.stream_waits ? cuda::StreamHold::until_release : cuda::StreamHold::none;
    return start_in_order(**gpu, *options.stream, hold, request);
  }
  Status start_in_order(cuda::Device& gpu, CudaStream stream, cuda::StreamHold hold,
                        const std::shared_ptr<core::Request>& request) {
    if (hold == cuda::StreamHold::until_release) {
      const auto is_submitted = ordered_->submit(request, gpu, stream.handle);
      if (!is_submitted) return is_submitted.error();
      if (*is_submitted) return {};
    }
    auto order = cuda::StreamOrder::begin(gpu, stream.handle, hold);
    if (!order) return std::move(order).error();
    request->order = std::move(*order);
    return lanes_->submit_in_order(request);
  }

  Submitted submit(Direction direction, Domain gpu, RangeSource ranges, const RequestOptions& options) override {
    if (auto status = usable(); !status) return status.error();
    if (!options.stream || !ranges || gpu.host_accessible()) {
      return Error{Code::invalid_argument, 0, "late ranges need a stream, a GPU and a function to ask",
                   "set the stream, or give the ranges"};
    }
    return or_out_of_memory([&]() -> Submitted {
      const auto device = device_of(gpu);
      if (!device) return device.error();
      const auto request = core::Request::create_late(
          environment_, gpu, std::move(ranges),
          {.kind = kind_of(direction), .lanes = lanes_->size(), .may_wait = false, .in_stream_order = true}, options);
      auto status = start_in_order(**device, *options.stream, cuda::StreamHold::until_release, request);
      if (!status) return std::move(status).error();
      return std::shared_ptr<client::PendingRequest>(request);
    });
  }

  Result<std::shared_ptr<client::StandingRequest>> stand_by(Direction direction, Domain gpu, RangeSource ranges,
                                                            const RequestOptions& options) override {
    if (auto status = usable(); !status) return status.error();
    if (options.stream || !ranges || gpu.host_accessible()) {
      return Error{Code::invalid_argument, 0, "stand_by needs a GPU and a function to ask, and no stream",
                   "give a GPU and a function; enqueue names the stream"};
    }
    return or_out_of_memory([&]() -> Result<std::shared_ptr<client::StandingRequest>> {
      auto found = device_of(gpu);
      if (!found) return found.error();
      if (auto status = lanes_->prepare(**found); !status) return status.error();
      auto standing = core::StandingRequest::create(
          **found,
          {environment_, lanes_, std::move(ranges), {.kind = kind_of(direction), .lanes = lanes_->size()}, options});
      if (!standing) return std::move(standing).error();
      if (auto status = environment_->streams.add(*standing); !status) return std::move(status).error();
      return std::shared_ptr<client::StandingRequest>(std::move(*standing));
    });
  }

  static Result<cuda::Device*> device_of(Domain domain) {
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
    const TimePoint deadline = core::Request::deadline_of(*environment_, options, begun);
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
                      engine_of(*request).inline_queue && lanes_->drive(request, keep_going);
    const bool is_done =
        here || lanes_->drive_alone(request, keep_going) || lanes_->drive_while_cached(request, keep_going);
    if (!is_done) lanes_->submit(request);
    wait_for(*request, keep_going);
  }

  Report run(client::Operation operation, std::span<const Range> ranges, const RequestOptions& options) override {
    const engine::OpKind kind = kind_of(operation);
    Report report;
    std::optional<core::CallersTransfers::Caller> caller;
    if (engine::moves_bytes(kind) && ranges.size() == 1 && usable()) {
      const Direction direction = kind == engine::OpKind::read ? Direction::read : Direction::write;
      caller.emplace(callers_transfers_, ranges[0].memory.size_bytes);
      if (callers_transfers_.run(direction, ranges[0], options, report)) return report;
    }
    report = try_to_run(kind, ranges, options);
    if (!report.ok() && kind != engine::OpKind::read) core::Request::note_unwritten(ranges);
    return report;
  }

  Report try_to_run(engine::OpKind kind, std::span<const Range> ranges, const RequestOptions& options) {
    if (auto status = usable(); !status) return failed_report(std::move(status).error());
    if (core::CompletionThread::inside_callback()) {
      return failed_report({Code::would_deadlock, 0, "a synchronous transfer inside a completion callback",
                            "submit it, and continue in its callback"});
    }
    const TimePoint begun = Clock::now();
    if (options.stream) {
      Status reached = or_out_of_memory([&] { return wait_for_stream(ranges, options, begun); });
      if (!reached) return failed_report(std::move(reached).error());
    }
    auto request = make_request(kind, ranges, options, false, true);
    if (!request) return failed_report(std::move(request).error());
    if (options.stream) (*request)->count_from(begun);
    run(ranges, *request, options.keep_going);
    Result<Report> report = or_out_of_memory([&]() -> Result<Report> { return (*request)->report(); });
    return report ? std::move(*report) : failed_report(std::move(report).error());
  }

  std::vector<std::string_view> schemes() const override;
  Result<std::shared_ptr<client::OpenStore>> open(std::string_view name, const OpenOptions& options) override;
  Result<std::shared_ptr<client::OpenStore>> open(Recipe recipe) override;
  Result<Buffer> allocate(Domain domain, std::size_t size_bytes) override;
  Result<Buffer> allocate_now(Domain domain, std::size_t size_bytes);
  Status prepare(Domain domain) override;
  Status attach(Region memory) override;
  Status detach(Region memory) override;
  Result<std::uint64_t> prefetch(std::span<const Range> ranges) override;
  Result<std::uint64_t> prefetch_now(std::span<const Range> ranges) const;

  std::vector<EngineInfo> engines() const override;
  Result<Plan> plan(const Store& store, Direction direction, Domain domain) const override;
  const Options& options() const override { return environment_->options; }
  const Machine& machine() const override { return environment_->machine; }
  Statistics statistics() const override { return statistics_of(*environment_); }
  void reset_statistics() override { environment_->statistics.reset(); }
  void count_mapped(std::uint64_t bytes, double seconds) override {
    environment_->statistics.count_mapped(bytes, seconds);
  }
  Trace trace(double since_seconds) const override { return environment_->traces.snapshot(since_seconds); }

 private:
  void start(std::span<const Range> ranges, const std::shared_ptr<core::Request>& request) {
    if (!start_here(ranges, request)) lanes_->submit(request);
  }
  // Starts a small request on this thread; false if that is not possible, or a lane should do it.
  bool start_here(std::span<const Range> ranges, const std::shared_ptr<core::Request>& request) {
    if (is_late(request)) return true;
    // A callback must come even if no thread waits, and soon: that is a lane's work.
    return is_small(ranges, *request) && !request->has_callback() && engine_of(*request).sleeps_in_kernel &&
           lanes_->start(request);
  }

  // Destroyed last: lets deferred frees of the other members finish.
  struct CatchesUp {
    ~CatchesUp() { cuda::Quiet::of_process().catch_up(); }
  };
  const CatchesUp catches_up_;
  const std::shared_ptr<core::Environment> environment_;  // shared: lanes and tickets may outlive the Context
  const std::shared_ptr<core::LaneSet> lanes_;            // shared: a stuck lane asks for a successor
  core::CallersTransfers callers_transfers_;
  std::unique_ptr<core::OrderedTransfers> ordered_;
  std::unique_ptr<core::Publisher> publisher_;
  std::atomic<bool> is_closing_{false};
  std::atomic<bool> is_closed_{false};
};

std::vector<std::string_view> LocalBackend::schemes() const {
  std::vector<std::string_view> all;
  for (const auto& engine : *environment_->engines) {
    const auto& schemes = engine->description().schemes;
    all.insert(all.end(), schemes.begin(), schemes.end());
  }
  return all;
}

Result<std::shared_ptr<client::OpenStore>> LocalBackend::open(std::string_view name, const OpenOptions& options) {
  return or_out_of_memory([&]() -> Result<std::shared_ptr<client::OpenStore>> {
    if (auto status = usable(); !status) return status.error();
    auto entry = core::StoreEntry::open(*environment_, name, options);
    if (!entry) return std::move(entry).error();
    return std::shared_ptr<client::OpenStore>(std::move(*entry));
  });
}

Result<std::shared_ptr<client::OpenStore>> LocalBackend::open(Recipe recipe) {
  return or_out_of_memory([&]() -> Result<std::shared_ptr<client::OpenStore>> {
    if (auto status = usable(); !status) return status.error();
    const auto& engines = *environment_->engines;
    const auto found = std::find_if(engines.begin(), engines.end(),
                                    [](const auto& engine) { return engine->description().name == made::engine_name; });
    if (found == engines.end()) {
      return Error{Code::engine_unavailable, 0, "this Context has no engine for recipes",
                   "make one with Context::create"};
    }
    auto store = made::make_store(std::move(recipe));
    if (!store) return std::move(store).error();
    return std::shared_ptr<client::OpenStore>(
        core::StoreEntry::adopt(*environment_, static_cast<std::size_t>(found - engines.begin()), std::move(*store)));
  });
}

Result<Buffer> LocalBackend::allocate(Domain domain, std::size_t size_bytes) {
  if (auto status = usable(); !status) return status.error();
  return or_out_of_memory([&] { return allocate_now(domain, size_bytes); });
}

Result<Buffer> LocalBackend::allocate_now(Domain domain, std::size_t size_bytes) {
  const bool pinned = domain == Domain::pinned();
  memory::AllocationOptions options{
      .domain = domain, .size_bytes = size_bytes, .lock = pinned, .budget = pinned ? environment_->pinned : nullptr};
  cuda::Device* gpu = nullptr;
  if (domain.kind() == Domain::Kind::cuda) {
    auto pool = environment_->device_memory.pool(domain);
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
    (*allocation)->on_free(environment_.get(), [known = environment_, region] {
      if (!known->fork_guard.in_child()) (void)known->memory.detach(region);
    });
    if (auto status = environment_->memory.attach(region); !status) return status.error();
  }
  return memory::make_buffer(std::move(*allocation));
}

Status LocalBackend::prepare(Domain domain) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = usable(); !status) return status;
    if (domain.host_accessible()) return {};
    auto gpu = device_of(domain);
    if (!gpu) return gpu.error();
    return lanes_->prepare(**gpu);
  });
}

Status LocalBackend::attach(Region memory) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = usable(); !status) return status;
    return environment_->memory.attach(memory);
  });
}

Status LocalBackend::detach(Region memory) {
  return or_out_of_memory([&]() -> Status {
    if (auto status = usable(); !status) return status;
    return environment_->memory.detach(memory);
  });
}

Result<std::uint64_t> LocalBackend::prefetch(std::span<const Range> ranges) {
  if (auto status = usable(); !status) return status.error();
  return or_out_of_memory([&] { return prefetch_now(ranges); });
}

Result<std::uint64_t> LocalBackend::prefetch_now(std::span<const Range> ranges) const {
  const auto stored_bytes = [](const Range& range) {
    return range.stored != nullptr ? range.stored->bytes : range.memory.size_bytes;
  };
  for (const Range& range : ranges) {
    core::StoreEntry* const entry = core::StoreEntry::of(range.store);
    if (entry == nullptr) {
      return Error{Code::invalid_argument, 0, "prefetch: a range without a store", "open one first"};
    }
    std::uint64_t end = 0;
    if (__builtin_add_overflow(range.offset, stored_bytes(range), &end)) {
      return Error{Code::invalid_argument, 0, "prefetch: offset plus size overflows", "give bytes within the store"};
    }
    if (auto status = entry->check_end(end); !status) return status.error();
  }
  std::uint64_t left = environment_->options.prefetch_window_bytes;
  std::uint64_t started = 0;
  for (const Range& range : ranges) {
    core::StoreEntry& entry = *core::StoreEntry::of(range.store);
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

std::vector<EngineInfo> LocalBackend::engines() const {
  std::vector<EngineInfo> infos;
  for (std::size_t i = 0; i < environment_->engines->size(); ++i) {
    const auto& description = (*environment_->engines)[i]->description();
    if (description.schemes.empty()) continue;  // names open nothing of it
    const auto& probe = environment_->probes[i];
    infos.push_back({std::string(description.name), std::string(description.summary),
                     std::vector<std::string>(description.schemes.begin(), description.schemes.end()), probe.available,
                     probe.reason, probe.remedy, probe.conditions, description.reaches_device, probe.device_route});
  }
  return infos;
}

Result<Plan> LocalBackend::plan(const Store& store, Direction direction, Domain domain) const {
  if (auto status = usable(); !status) return status.error();
  core::StoreEntry* const entry = core::StoreEntry::of(&store);
  if (entry == nullptr) return Error{Code::invalid_argument, 0, "the Store is not open", "open one first"};
  return or_out_of_memory([&] { return core::plan_of(*environment_, *entry, direction, domain); });
}

}  // namespace

Result<std::shared_ptr<client::Backend>> make_backend(engine::Table table, const Options& options) {
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
  return std::shared_ptr<client::Backend>(
      std::make_shared<LocalBackend>(std::move(table), options, Machine::detect(), std::move(staging)));
}

}  // namespace penstock::local
