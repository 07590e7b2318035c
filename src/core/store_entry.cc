#include "core/store_entry.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/environment.h"
#include "core/uri.h"

namespace penstock::core {

namespace {

// Some file systems would like a whole file at once.
constexpr std::uint64_t optimal_bytes_most = 16 << 20;

// Only those that may be chosen are asked whether they work.
std::vector<EngineFacts> engine_facts(const Environment& environment, std::string_view scheme) {
  std::vector<EngineFacts> facts;
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

// The store may be in use by requests that have ended: by their completion thread, which has yet to close it, or by
// operations that nobody waits for any more.
Result<std::unique_ptr<engine::Store>> open_when_closed(const Environment& environment, engine::Engine& engine,
                                                        const std::string& name, const OpenOptions& options) {
  auto store = engine.open(name, options);
  const auto is_in_use = [&] { return !store && store.error().code == Code::in_use; };
  if (!is_in_use()) return store;
  const Deadlines& deadlines = environment.options.deadlines;
  const TimePoint now = Clock::now();
  if (!environment.completions.wait_for_posted(now + duration_from_seconds(deadlines.close_seconds))) return store;
  store = engine.open(name, options);
  const TimePoint deadline = now + duration_from_seconds(deadlines.cancel_grace_seconds);
  while (is_in_use() && environment.orphans.load(std::memory_order_relaxed) != 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    store = engine.open(name, options);
  }
  return store;
}

StoreFacts describe(const engine::Table& engines, EnginePlan plan, const StoreInfo& info) {
  StoreFacts facts{info.name, plan.engine, std::move(plan.reason)};
  if (engines[facts.engine]->description().host != engine::HostReach::none) return facts;
  facts.from_host = false;
  facts.device_engine = facts.engine;
  facts.device_reason = facts.engine_reason;
  return facts;
}

}  // namespace

StoreEntry::StoreEntry(const Environment& environment, Name name, EnginePlan plan, std::unique_ptr<engine::Store> store)
    : engines_(environment.engines),
      name_(std::move(name)),
      store_(std::move(store)),
      facts_(std::make_shared<StoreFacts>(describe(*engines_, std::move(plan), store_->info()))),
      host_reach_((*engines_)[facts_->engine]->description().host),
      read_alignment_(std::max<std::uint32_t>(store_->info().alignments.offset,
                                              static_cast<std::uint32_t>(environment.options.alignment_bytes))),
      write_alignment_(store_->info().kind == StoreKind::file
                           ? std::max(read_alignment_, environment.machine.page_bytes)
                           : read_alignment_),
      size_bytes_(store_->info().size_bytes),
      read_flow_(environment.flows.of({engine(), store_->info().device, Direction::read})),
      write_flow_(environment.flows.of({engine(), store_->info().device, Direction::write})) {}

Result<std::shared_ptr<StoreEntry>> StoreEntry::open(const Environment& environment, std::string_view name,
                                                     const OpenOptions& options) {
  const auto uri = parse_uri(name, all_schemes(*environment.engines));
  if (!uri) return uri.error();
  if (options.descriptor >= 0 && (uri->scheme != "file" || options.access != Access::read)) {
    return Error{Code::invalid_argument, 0, std::string(name) + ": only files that are read are opened by a descriptor",
                 "leave OpenOptions::descriptor as it is"};
  }
  const auto facts = engine_facts(environment, uri->scheme);
  auto plan = plan_engine(facts, environment.options.engine, std::nullopt);
  if (!plan) return plan.error();
  auto store = open_when_closed(environment, *(*environment.engines)[plan->engine], uri->name, options);
  if (!store) return store.error();

  // Where the bytes live is known only now; another engine may serve that better.
  auto better = plan_engine(facts, environment.options.engine, (*store)->info().locality);
  if (better && better->engine != plan->engine && options.access == Access::read) {
    auto reopened = (*environment.engines)[better->engine]->open(uri->name, options);
    if (!reopened) return reopened.error();
    store = std::move(reopened);
    plan = std::move(better);
  }
  return std::shared_ptr<StoreEntry>(
      new StoreEntry(environment, {uri->scheme, uri->name, options}, std::move(*plan), std::move(*store)));
}

std::shared_ptr<StoreEntry> StoreEntry::adopt(const Environment& environment, std::size_t engine,
                                              std::unique_ptr<engine::Store> store) {
  EnginePlan plan{engine, std::string((*environment.engines)[engine]->description().name) +
                              ": opened by the caller's own function"};
  return std::shared_ptr<StoreEntry>(new StoreEntry(environment, {}, std::move(plan), std::move(store)));
}

StoreEntry* StoreEntry::for_device(const Environment& environment) {
  if (!from_host()) return this;
  std::call_once(device_once_, [&] {
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
      pass_over(description.name, probe.reason.empty() ? "its route is not among the allowed ones" : probe.reason);
      continue;
    }
    if (name_.options.access == Access::replace) {
      pass_over(description.name, "the file has no name yet that it could be opened by");
      continue;
    }
    OpenOptions options = name_.options;
    if (options.access == Access::create) options.access = Access::write;
    options.size_bytes = 0;
    // The name may mean another file by now.
    const bool by_descriptor = info().kind == StoreKind::file && store_->descriptor() >= 0;
    options.descriptor = by_descriptor ? store_->descriptor() : -1;
    auto store = engine.open(name_.name, options);
    if (!store) {
      pass_over(description.name, store.error().message);
      continue;
    }
    if (!by_descriptor && (*store)->info().identity != info().identity) {
      pass_over(description.name, "the name means another file by now");
      continue;
    }
    if (!is_allowed((*store)->device_route())) {
      pass_over(description.name, "it would not reach this file without a detour through host memory");
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

Status StoreEntry::check_end(std::uint64_t end) {
  if (end <= size_bytes_.load(std::memory_order_relaxed)) return {};
  auto state = store_->state();
  if (!state) return state.error();
  size_bytes_.store(state->size_bytes, std::memory_order_relaxed);
  if (end <= state->size_bytes) return {};
  return Error{Code::out_of_range, 0,
               info().name + ": a range ends at " + std::to_string(end) + ", past the end at " +
                   std::to_string(state->size_bytes),
               "ask for bytes within the store's size"};
}

void StoreEntry::grown_to(std::uint64_t end) {
  std::uint64_t known = size_bytes_.load(std::memory_order_relaxed);
  while (known < end && !size_bytes_.compare_exchange_weak(known, end, std::memory_order_relaxed)) {
  }
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
