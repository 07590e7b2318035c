#include "core/store_entry.h"

#include <algorithm>

#include "core/environment.h"
#include "core/uri.h"

namespace penstock::core {

namespace {

std::vector<EngineFacts> engine_facts(const Environment& environment, std::string_view scheme) {
  std::vector<EngineFacts> facts;
  for (std::size_t i = 0; i < environment.engines->size(); ++i) {
    const auto& description = (*environment.engines)[i]->description();
    const auto& schemes = description.schemes;
    facts.push_back({.name = description.name,
                     .serves_scheme = std::find(schemes.begin(), schemes.end(), scheme) != schemes.end(),
                     .available = environment.probes[i].available,
                     .unavailable_because = environment.probes[i].reason,
                     .sleeps_in_kernel = description.sleeps_in_kernel});
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

}  // namespace

StoreEntry::StoreEntry(std::shared_ptr<const engine::Table> engines, EnginePlan plan,
                       std::unique_ptr<engine::Store> store, const Environment& environment)
    : engines_(std::move(engines)),
      engine_(plan.engine),
      engine_reason_(std::move(plan.reason)),
      store_(std::move(store)),
      read_alignment_(std::max<std::uint32_t>(store_->info().alignments.offset,
                                              static_cast<std::uint32_t>(environment.options.alignment_bytes))),
      write_alignment_(store_->info().kind == StoreKind::file
                           ? std::max(read_alignment_, environment.machine.page_bytes)
                           : read_alignment_),
      size_bytes_(store_->info().size_bytes) {}

Result<std::shared_ptr<StoreEntry>> StoreEntry::open(const Environment& environment, std::string_view name,
                                                     const OpenOptions& options) {
  const auto uri = parse_uri(name, all_schemes(*environment.engines));
  if (!uri) return uri.error();
  const auto facts = engine_facts(environment, uri->scheme);
  auto plan = plan_engine(facts, environment.options.engine, std::nullopt);
  if (!plan) return plan.error();
  auto store = (*environment.engines)[plan->engine]->open(uri->name, options);
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
      new StoreEntry(environment.engines, std::move(*plan), std::move(*store), environment));
}

std::uint32_t StoreEntry::alignment(Direction direction) const {
  return direction == Direction::write ? write_alignment_ : read_alignment_;
}

Status StoreEntry::check_end(std::uint64_t end) {
  if (end <= size_bytes_.load(std::memory_order_relaxed)) return {};
  auto identity = store_->identity();
  if (!identity) return identity.error();
  size_bytes_.store(identity->size_bytes, std::memory_order_relaxed);
  if (end <= identity->size_bytes) return {};
  return Error{Code::out_of_range, 0,
               info().name + ": a range ends at " + std::to_string(end) + ", past the end at " +
                   std::to_string(identity->size_bytes),
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
  if (cache == nullptr) return Residency::likely_none;
  int slow = 0;
  for (const std::uint64_t at : {offset, offset + length / 2, offset + length - std::min(length, sample_bytes)}) {
    const auto seconds = cache->timed_read_seconds(at, std::min(offset + length - at, sample_bytes));
    if (!seconds || *seconds > cached_below_seconds) ++slow;
  }
  return slow == 0 ? Residency::likely_all : Residency::likely_none;
}

}  // namespace penstock::core
