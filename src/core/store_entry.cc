#include "core/store_entry.h"

#include <fcntl.h>

#include <algorithm>

#include "base/bounded.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/unique_fd.h"
#include "core/environment.h"
#include "core/uri.h"

namespace penstock::core {

namespace {

// Some file systems would like a whole file at once.
constexpr std::uint64_t optimal_bytes_most = 16 << 20;

// Only those that may be chosen are asked whether they work.
std::vector<EngineFacts> engine_facts(const Environment& environment, std::string_view scheme) {
  std::vector<EngineFacts> facts;
  facts.reserve(environment.engines->size());
  for (std::size_t i = 0; i < environment.engines->size(); ++i) {
    const auto& description = (*environment.engines)[i]->description();
    const auto& schemes = description.schemes;
    EngineFacts& one = facts.emplace_back();
    one.name = description.name;
    one.serves_scheme = std::find(schemes.begin(), schemes.end(), scheme) != schemes.end();
    one.sleeps_in_kernel = description.sleeps_in_kernel;
    one.only_device = description.host == engine::HostReach::none;
    const bool may_be_chosen = one.serves_scheme && !one.only_device;
    if (!may_be_chosen && one.name != environment.options.engine) continue;
    one.available = environment.probes[i].available;
    one.unavailable_because = environment.probes[i].reason;
  }
  return facts;
}

std::vector<std::string_view> all_schemes(const engine::Table& table) {
  std::vector<std::string_view> schemes;
  for (const auto& engine : table) {
    for (const auto scheme : engine->description().schemes) schemes.push_back(scheme);
  }
  return schemes;
}

using OpenedStore = Result<std::unique_ptr<engine::Store>>;

// Whatever becomes of the server of a file meanwhile, if it has one.
OpenedStore open_in_time(const Environment& environment, std::size_t index, const std::string& name,
                         const OpenOptions& options) {
  engine::Engine& engine = *(*environment.engines)[index];
  UniqueFd descriptor;  // the caller's may be closed before the file is open
  if (options.descriptor >= 0) {
    descriptor = UniqueFd(::fcntl(options.descriptor, F_DUPFD_CLOEXEC, 0));
    if (!descriptor) return engine.open(name, options);  // which says what is wrong with it
  }
  return environment.calls->run(index, name, TimePoint::max(),
                                [&engine, name, options, descriptor = std::move(descriptor)]() mutable {
                                  const UniqueFd own = std::move(descriptor);
                                  OpenOptions with_own = options;
                                  if (own) with_own.descriptor = own.get();
                                  return engine.open(name, with_own);
                                });
}

// The store may be in use by requests that have ended: by their completion thread, which has yet to close it, or by
// operations that nobody waits for any more.
template <typename Open>
OpenedStore open_when_closed(const Environment& environment, Open open) {
  OpenedStore store = open();
  const auto is_in_use = [&] { return !store && store.error().code == Code::in_use; };
  if (!is_in_use()) return store;
  const Deadlines& deadlines = environment.options.deadlines;
  const TimePoint now = Clock::now();
  if (!environment.completions.wait_for_posted(now + duration_from_seconds(deadlines.close_seconds))) return store;
  const TimePoint deadline = now + duration_from_seconds(deadlines.cancel_grace_seconds);
  while (true) {
    const std::uint64_t orphans = environment.orphans.load();
    store = open();
    if (!is_in_use() || orphans == 0) return store;
    const auto one_is_home = [&] { return environment.orphans.load() < orphans; };
    if (!environment.ends.wait_until(deadline, one_is_home)) return store;
  }
}

StoreFacts describe(const engine::Table& engines, EnginePlan plan, const StoreInfo& info) {
  StoreFacts facts{info.name, plan.engine, std::move(plan.reason)};
  facts.is_made = info.kind == StoreKind::made;
  if (engines[facts.engine]->description().host != engine::HostReach::none) return facts;
  facts.from_host = false;
  facts.device_engine = facts.engine;
  facts.device_reason = facts.engine_reason;
  return facts;
}

}  // namespace

// Made with the store: to let go of one takes no memory.
struct StoreEntry::Closing : engine::Call {
  explicit Closing(std::shared_ptr<const engine::Table> table) : engines(std::move(table)) {}
  void run() override { store.reset(); }
  // No operation can do it. A thread of its own may wait for ever; as one of so many that don't close, it stays.
  void leave(Code why) {
    engine::Store* const left = store.release();
    if (why != Code::timed_out) static_cast<void>(leave_to_thread([table = engines, left] { delete left; }));
  }

  const std::shared_ptr<const engine::Table> engines;  // shared: the engine must outlive its store
  std::unique_ptr<engine::Store> store;
};

StoreEntry::StoreEntry(const Environment& environment, Name name, EnginePlan plan, std::unique_ptr<engine::Store> store)
    : OpenStore(family),
      environment_(environment.weak_from_this()),
      engines_(environment.engines),
      calls_(environment.calls),
      name_(std::move(name)),
      store_(std::move(store)),
      closing_(is_remote(store_->info().locality) ? std::make_shared<Closing>(engines_) : nullptr),
      facts_(std::make_shared<StoreFacts>(describe(*engines_, std::move(plan), store_->info()))),
      host_reach_((*engines_)[facts_->engine]->description().host),
      read_alignment_(std::max<std::uint32_t>(store_->info().alignments.offset,
                                              static_cast<std::uint32_t>(environment.options.alignment_bytes))),
      write_alignment_(store_->info().kind == StoreKind::file
                           ? std::max(read_alignment_, environment.machine.page_bytes)
                           : read_alignment_),
      size_bytes_(store_->info().size_bytes),
      read_flow_(environment.flows.of({engine(), store_->info().device, Direction::read})),
      write_flow_(environment.flows.of({engine(), store_->info().device, Direction::write})) {
  const StoreInfo& is = store_->info();
  const engine::PageCache* const cache = store_->page_cache();
  if (cache == nullptr || is.locality == Locality::memory) return;
  cached_file_.number = cache->file_number();
  if (cached_file_.number == 0) return;
  if (!is_remote(is.locality)) cached_file_.local_path = is.name;
  for (const Direction direction : {Direction::read, Direction::write}) {
    cached_file_.rates[static_cast<std::size_t>(direction)] = environment.caching.rates_of(is.device, direction);
  }
}

Result<std::shared_ptr<StoreEntry>> StoreEntry::open(const Environment& environment, std::string_view name,
                                                     const OpenOptions& options) {
  const bool may_have_scheme = name.find(':') != std::string_view::npos;
  auto uri = parse_uri(name, may_have_scheme ? all_schemes(*environment.engines) : std::vector<std::string_view>());
  if (!uri) return std::move(uri).error();
  if (options.descriptor >= 0 && uri->scheme != "file") {
    return Error{Code::invalid_argument, 0, std::string(name) + ": only files can be opened by a descriptor",
                 "leave the descriptor unset"};
  }
  const auto facts = engine_facts(environment, uri->scheme);
  auto plan = plan_engine(facts, environment.options.engine, std::nullopt);
  if (!plan) return plan.error();
  bool waits = false;
  const auto open_by = [&](std::size_t engine) -> OpenedStore {
    if (!waits) {
      if (auto opened = (*environment.engines)[engine]->open_now(uri->name, options)) return std::move(*opened);
      waits = true;
    }
    return open_in_time(environment, engine, uri->name, options);
  };
  auto store = open_when_closed(environment, [&] { return open_by(plan->engine); });
  if (!store) return store.error();

  // Where the bytes live is known only now; if that is no local disk, another engine may serve it better.
  const Locality locality = (*store)->info().locality;
  if (locality != Locality::local && options.access == Access::read) {
    auto better = plan_engine(facts, environment.options.engine, locality);
    if (better && better->engine != plan->engine) {
      auto reopened = open_by(better->engine);
      let_go(environment, plan->engine, std::move(*store));
      if (!reopened) return reopened.error();
      store = std::move(reopened);
      plan = std::move(better);
    }
  }
  return std::shared_ptr<StoreEntry>(new StoreEntry(
      environment, {std::move(uri->scheme), std::move(uri->name), options}, std::move(*plan), std::move(*store)));
}

std::shared_ptr<StoreEntry> StoreEntry::adopt(const Environment& environment, std::size_t engine,
                                              std::unique_ptr<engine::Store> store) {
  EnginePlan plan{
      engine, std::string((*environment.engines)[engine]->description().name) + ": opened by a function of the caller"};
  return std::shared_ptr<StoreEntry>(new StoreEntry(environment, {}, std::move(plan), std::move(store)));
}

StoreEntry* StoreEntry::for_device(const Environment& environment) {
  if (!from_host()) return this;
  device_once_.run([&] {
    facts_->device_reason.clear();
    device_ = open_for_device(environment);
    if (!device_) return;
    facts_->device_engine = device_->engine();
    facts_->device_reason = device_->engine_reason();
  });
  return device_.get();
}

std::shared_ptr<StoreEntry> StoreEntry::open_for_device(const Environment& environment) {
  const auto pass_over = [&](std::string_view engine, std::string_view reason) {
    std::string& text = facts_->device_reason;
    text += (text.empty() ? "" : "; ") + std::string(engine) + " not used: " + std::string(reason);
  };
  const RouteSet allowed = route_set(environment.options.allowed_routes);
  const auto is_allowed = [&](std::optional<Route> route) { return route && (allowed & route_bit(*route)) != 0; };
  for (std::size_t i = 0; i < engines_->size(); ++i) {
    engine::Engine& engine = *(*engines_)[i];
    const auto& description = engine.description();
    const auto& probe = environment.probes[i];
    const auto& schemes = description.schemes;
    if (!description.reaches_device || std::find(schemes.begin(), schemes.end(), name_.scheme) == schemes.end())
      continue;
    if (!probe.available || !is_allowed(probe.device_route)) {
      pass_over(description.name, probe.reason.empty() ? "its route is not allowed" : probe.reason);
      continue;
    }
    if (name_.options.access == Access::replace) {
      pass_over(description.name, "the file has no name yet to open it by");
      continue;
    }
    OpenOptions options = name_.options;
    if (options.access == Access::create) options.access = Access::write;
    options.size_bytes = 0;
    // The name may mean another file by now.
    const bool by_descriptor = info().kind == StoreKind::file && store_->descriptor() >= 0;
    options.descriptor = by_descriptor ? store_->descriptor() : -1;
    auto store = is_remote(info().locality) ? open_in_time(environment, i, name_.name, options)
                                            : engine.open(name_.name, options);
    if (!store) {
      pass_over(description.name, store.error().message);
      continue;
    }
    if (!by_descriptor && (*store)->info().identity != info().identity) {
      pass_over(description.name, "the name now means another file");
      let_go(environment, i, std::move(*store));
      continue;
    }
    if (!is_allowed((*store)->device_route())) {
      pass_over(description.name, "it would not reach this file without a detour through host memory");
      let_go(environment, i, std::move(*store));
      continue;
    }
    EnginePlan plan{i, std::string(description.name) + ": reaches GPU memory by itself"};
    return std::shared_ptr<StoreEntry>(new StoreEntry(environment, name_, std::move(plan), std::move(*store)));
  }
  return nullptr;
}

std::uint32_t StoreEntry::alignment(Direction direction) const {
  return direction == Direction::write ? write_alignment_ : read_alignment_;
}

std::uint64_t StoreEntry::operation_bytes() const {
  return std::min<std::uint64_t>(info().alignments.optimal, optimal_bytes_most);
}

StoreEntry::~StoreEntry() {
  close(TimePoint::min());
}

void StoreEntry::close_and_wait() {
  if (closing_) close(CompletionThread::inside_callback() ? TimePoint::min() : calls_->closing_end());
}

void StoreEntry::close(TimePoint wait_until) {
  const auto closing = std::move(closing_);
  if (!closing) return;
  closing->store = std::move(store_);
  bool is_begun = false;
  const Status closed = or_out_of_memory([&]() -> Status {
    auto begun = calls_->begin(engine(), closing);
    if (!begun) return std::move(begun).error();
    is_begun = true;
    if (wait_until == TimePoint::min() || begun->wait_until(wait_until)) return {};
    log(LogLevel::warning, facts_->name + " does not close: its server does not answer, so it is left behind");
    return {};
  });
  if (is_begun) return;
  closing->leave(closed.error().code);
}

// Of an engine that does not serve it after all. Its server may not let go of it.
void StoreEntry::let_go(const Environment& environment, std::size_t engine, std::unique_ptr<engine::Store> store) {
  if (!is_remote(store->info().locality)) return;
  const auto closing = std::make_shared<Closing>(environment.engines);
  closing->store = std::move(store);
  const auto begun = environment.calls->begin(engine, closing);
  if (!begun) closing->leave(begun.error().code);
}

Status StoreEntry::check_end(std::uint64_t end, TimePoint deadline) {
  if (has_up_to(end)) return {};
  auto state = ask([](engine::Store& store) { return store.state(); }, deadline);
  if (!state) return state.error();
  size_bytes_.store(state->size_bytes, std::memory_order_relaxed);
  if (end <= state->size_bytes) return {};
  return Error{Code::out_of_range, 0,
               info().name + ": a range ends at " + std::to_string(end) + ", past the end at " +
                   std::to_string(state->size_bytes),
               "stay within the size of the store"};
}

bool StoreEntry::fits_page_cache(const Environment& environment, TimePoint now) {
  if (cached_file_.number == 0) return false;
  const std::uint64_t size_bytes = size_bytes_.load(std::memory_order_relaxed);
  return environment.caching.fits(cached_file_, size_bytes, now,
                                  [&] { return store_->page_cache()->resident_bytes(0, size_bytes).value_or(0); });
}

void StoreEntry::let_go_of_replaced() const {
  // The file has its name already: without memory for a call, the old one is removed here.
  static_cast<void>(or_out_of_memory([&]() -> Status {
    auto replaced = store_->writer()->take_replaced();
    const auto environment = environment_.lock();
    if (replaced && environment) {
      environment->completions.post([held = std::move(replaced)]() mutable { held.reset(); });
    }
    return {};
  }));
}

void StoreEntry::grown_to(std::uint64_t end) {
  std::uint64_t known = size_bytes_.load(std::memory_order_relaxed);
  while (known < end && !size_bytes_.compare_exchange_weak(known, end, std::memory_order_relaxed)) {
  }
}

std::optional<StoreEntry::Guess> StoreEntry::guess_residency(std::uint64_t offset, std::uint64_t length) {
  constexpr std::uint64_t pages_looked_at = 8;
  engine::PageCache* cache = store_->page_cache();
  if (cache == nullptr || is_remote(info().locality) || length == 0) return std::nullopt;
  const std::uint64_t last = length - 1;
  for (std::uint64_t i = 0; i < pages_looked_at; ++i) {
    const std::uint64_t at = offset + last / (pages_looked_at - 1) * i;
    const auto there = cache->is_resident(at);
    if (!there) return std::nullopt;
    if (!*there) return Guess{at};
  }
  return Guess{};
}

Residency StoreEntry::sample_residency(std::uint64_t offset, std::uint64_t length) {
  // Copying 64 KiB takes ten microseconds or so; a disk takes longer than this to answer at all.
  constexpr double cached_below_seconds = 50e-6;
  constexpr std::uint64_t sample_bytes = 64 << 10;
  engine::PageCache* cache = store_->page_cache();
  // A lane would hang in a read that a server does not answer.
  if (cache == nullptr || is_remote(info().locality)) return Residency::likely_none;
  int slow = 0;
  for (const std::uint64_t at : {offset, offset + length / 2, offset + length - std::min(length, sample_bytes)}) {
    const auto seconds = cache->timed_read_seconds(at, std::min(offset + length - at, sample_bytes));
    if (!seconds || *seconds > cached_below_seconds) ++slow;
  }
  return slow == 0 ? Residency::likely_all : Residency::likely_none;
}

}  // namespace penstock::core
