#include "core/staging.h"

#include <algorithm>

#include "base/log.h"

namespace penstock::core {

namespace {

constexpr Duration between_warnings = std::chrono::seconds(1);

}  // namespace

StagingArena::StagingArena(std::unique_ptr<memory::Allocation> allocation)
    : allocation_(std::move(allocation)), used_(allocation_->region().size_bytes / granule_bytes, false) {}

std::optional<StagingArena::Block> StagingArena::take(std::size_t bytes) {
  const auto total = static_cast<std::uint32_t>(used_.size());
  const auto wanted = static_cast<std::uint32_t>((bytes + granule_bytes - 1) / granule_bytes);
  if (wanted == 0 || wanted > total) return std::nullopt;
  std::uint32_t run = 0;
  // Twice around, less one: a run may begin anywhere but does not wrap.
  for (std::uint32_t step = 0, at = next_; step < total + wanted; ++step, ++at) {
    if (at == total) at = 0;
    if (at == 0) run = 0;
    run = used_[at] ? 0 : run + 1;
    if (run < wanted) continue;
    const std::uint32_t first = at + 1 - wanted;
    for (std::uint32_t i = first; i <= at; ++i) used_[i] = true;
    next_ = at + 1 == total ? 0 : at + 1;
    return Block{this, region().data + first * granule_bytes, first, wanted};
  }
  return std::nullopt;
}

void StagingArena::give_back(const Block& block) {
  for (std::uint32_t i = block.first; i < block.first + block.count; ++i) used_[i] = false;
  next_ = std::min(next_, block.first);
}

std::size_t StagingArena::room_bytes() const {
  std::size_t longest = 0;
  std::size_t run = 0;
  for (const bool is_used : used_) {
    run = is_used ? 0 : run + 1;
    longest = std::max(longest, run);
  }
  return longest * granule_bytes;
}

Result<StagingArena*> LaneStaging::get() {
  if (StagingArena* const made = made_.load(std::memory_order_acquire)) return made;
  const std::scoped_lock lock(mutex_);
  if (arena_) return arena_.get();
  // Each time anew: the caller may have freed pinned memory meanwhile.
  auto allocation =
      given_ ? given_->take(size_bytes_)
             : memory::Allocation::create({.domain = Domain::host(), .size_bytes = size_bytes_, .budget = budget_});
  if (!allocation) {
    Error error = std::move(allocation).error();
    error.message = "no staging memory: " + error.message;
    const TimePoint now = Clock::now();
    if (now - warned_ >= between_warnings) {
      log(LogLevel::warning, error.message);
      warned_ = now;
    }
    return error;
  }
  arena_ = std::make_unique<StagingArena>(std::move(*allocation));
  made_.store(arena_.get(), std::memory_order_release);
  return arena_.get();
}

Result<StagingArena*> LaneStaging::long_slots() {
  if (long_slots_) return long_slots_.get();
  if (long_slots_bytes_ == 0 || given_) return Error{Code::unsupported, 0, "the lane has no long slots", ""};
  auto allocation =
      memory::Allocation::create({.domain = Domain::host(), .size_bytes = long_slots_bytes_, .budget = budget_});
  if (!allocation) return std::move(allocation).error();
  long_slots_ = std::make_unique<StagingArena>(std::move(*allocation));
  return long_slots_.get();
}

void LaneStaging::give_up_long_slots(const Error& why) {
  if (uses_long_slots()) return;
  log(LogLevel::warning, why.message + "; long loads of cached files take shorter copies");
  long_slots_.reset();
  long_slots_bytes_ = 0;
}

Result<StagingArena*> LaneStaging::make_for(std::size_t engine, std::uint64_t bytes) {
  const bool has_own = (*engines_)[engine]->description().host == engine::HostReach::own;
  auto arena = has_own ? make_own(engine) : get();
  if (!arena) return arena;
  if (auto known = make_known(engine); !known) return std::move(known).error();
  of_engines_[engine].arena = *arena;
  if (bytes <= (*arena)->largest_bytes()) return arena;
  return Error{Code::unsupported, 0,
               std::to_string(bytes) + " bytes in whole blocks of the store don't fit the " +
                   std::to_string((*arena)->largest_bytes()) + " bytes of a lane's staging memory",
               "raise staging_slot_bytes"};
}

Result<StagingArena*> LaneStaging::make_own(std::size_t engine) {
  OfEngine& of = of_engines_[engine];
  if (of.own) return of.own.get();
  auto allocated = (*engines_)[engine]->memory()->allocate(size_bytes_);
  if (!allocated) return std::move(allocated).error();
  // The engine has to be there until its memory is not.
  struct Owned {
    std::shared_ptr<const engine::Table> engines;
    std::unique_ptr<engine::Attached> attached;
  };
  const auto owned = std::make_shared<Owned>(Owned{engines_, std::move(allocated->attached)});
  of.own = std::make_unique<StagingArena>(memory::Allocation::adopt(allocated->memory, owned));
  of.attached = std::shared_ptr<engine::Attached>(owned, owned->attached.get());
  of.is_known = true;
  return of.own.get();
}

// To most engines it makes no difference but in speed.
Status LaneStaging::make_known(std::size_t engine) {
  OfEngine& of = of_engines_[engine];
  engine::Memory* const memory = (*engines_)[engine]->memory();
  if (of.is_known || memory == nullptr) return {};
  auto attached = memory->attach(arena_->region());
  const bool is_needed = (*engines_)[engine]->description().host == engine::HostReach::attached;
  if (!attached && is_needed) return std::move(attached).error();
  if (attached) of.attached = std::move(*attached);
  of.is_known = true;
  return {};
}

void LaneStaging::detach() {
  for (OfEngine& of : of_engines_) {
    if (of.own) continue;
    of.arena = nullptr;
    of.attached.reset();
    of.is_known = false;
  }
}

void LaneStaging::clear() {
  made_.store(nullptr, std::memory_order_relaxed);
  arena_.reset();
  long_slots_.reset();
  for (OfEngine& of : of_engines_) of = {};
}

}  // namespace penstock::core
