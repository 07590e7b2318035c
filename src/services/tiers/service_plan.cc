// The Service's part that decides, and moves what was decided.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/out_of_memory.h"
#include "services/tiers/folder.h"
#include "services/tiers/names.h"
#include "services/tiers/service.h"

namespace penstock::tiers {

Result<Service::Picture> Service::picture() {
  Picture picture;
  auto rows = catalog_->tiers();
  if (!rows) return std::move(rows).error();
  picture.rows = std::move(*rows);
  const auto policy = catalog_->policy();
  if (!policy) return policy.error();
  picture.policy = *policy;
  picture.now = wall_seconds();
  for (const TierRow& row : picture.rows) {
    const auto usage = catalog_->usage(row.id);
    if (!usage) return usage.error();
    auto problem = problem_of(row);
    const auto folder = HeldFolder::open(row.path);
    const auto room = folder ? room_of(*folder) : Result<Room>(folder.error());
    if (!problem && !room) problem = room.error();
    if (problem && is_shortage(*problem)) return *std::move(problem);  // no tier's fault
    TierState state{.name = row.name,
                    .capacity_bytes = row.capacity_bytes,
                    .used_bytes = usage->bytes,
                    .low_water = row.low_water,
                    .high_water = row.high_water,
                    .from_heat = row.from_heat,
                    .usable = !row.read_only && !problem};
    // Others may use the disk too.
    if (room) state.capacity_bytes = std::min(state.capacity_bytes, usage->bytes + room->free_bytes);
    picture.tiers.push_back(std::move(state));
    picture.problems.push_back(std::move(problem));
  }
  if (picture.tiers.empty()) {
    return Error{Code::not_found, 0, "the catalog has no tiers", "add one with `penstock tier add-tier`"};
  }
  return picture;
}

namespace {

// Why a new unit has no place. A tier that can't be used may have the room that the others lack.
Error no_place(const Service::Picture& seen, std::uint64_t size_bytes) {
  const Error* problem = nullptr;
  for (const std::optional<Error>& one : seen.problems) {
    if (one && problem == nullptr) problem = &*one;
  }
  if (std::ranges::any_of(seen.tiers, &TierState::usable)) {
    Error full{Code::no_space, 0, "no tier has room for " + std::to_string(size_bytes) + " bytes",
               "remove units, or raise the capacity of a tier"};
    if (problem != nullptr) full.message += ", among those that can be used; " + problem->message;
    if (problem != nullptr && !problem->hint.empty()) full.hint += "; " + problem->hint;
    return full;
  }
  if (problem != nullptr) return *problem;
  return {Code::read_only, 0, "all tiers are read-only", "allow one with `penstock tier change TIER --writable`"};
}

}  // namespace

std::optional<UnitState> Service::state_of(const Picture& picture, const Brief& brief) {
  const auto place_of = [&](std::int64_t id) -> std::optional<std::uint32_t> {
    const auto found = std::ranges::find(picture.rows, id, &TierRow::id);
    if (found == picture.rows.end()) return std::nullopt;
    return static_cast<std::uint32_t>(found - picture.rows.begin());
  };
  const auto tier = place_of(brief.tier);
  const auto pinned = brief.pinned ? place_of(*brief.pinned) : std::nullopt;
  if (!tier || pinned.has_value() != brief.pinned.has_value()) return std::nullopt;
  return UnitState{.tier = *tier,
                   .room_bytes = brief.room_bytes,
                   .heat = faded(brief.heat, picture.now - brief.heat_at, picture.policy.half_life_seconds),
                   .moved_at = brief.moved_at,
                   .pinned = pinned};
}

Result<MovePlan> Service::plan() {
  if (Status flushed = flush(); !flushed) return std::move(flushed).error();
  closer_.finish();  // so that what is free is seen
  const auto seen = picture();
  if (!seen) return seen.error();
  auto briefs = catalog_->briefs();
  if (!briefs) return briefs.error();
  constexpr double most_apart_seconds = 60;  // clocks of machines and processes
  const auto is_ahead = [&](const Brief& brief) { return brief.heat_at > seen->now + most_apart_seconds; };
  if (std::ranges::any_of(*briefs, is_ahead)) {
    if (Status faded = catalog_->fade_from(seen->now); !faded) return std::move(faded).error();
  }
  std::vector<UnitState> units;
  units.reserve(briefs->size());
  std::erase_if(*briefs, [&](const Brief& brief) {
    const auto state = state_of(*seen, brief);
    if (state) units.push_back(*state);
    return !state;
  });
  std::vector<Step> steps = plan_steps(seen->tiers, units, seen->policy, seen->now);
  MovePlan plan;
  plan.units = units.size();
  plan.moves.reserve(steps.size());
  Status named = catalog_->read_each(steps.size(), [&](std::size_t i) -> Status {
    Step& step = steps[i];
    auto unit = catalog_->unit((*briefs)[step.unit].id);
    if (!unit) return std::move(unit).error();
    if (!*unit) return {};
    plan.bytes += (*unit)->size_bytes;
    plan.moves.push_back({.name = std::move((*unit)->name),
                          .from = seen->tiers[units[step.unit].tier].name,
                          .to = seen->tiers[step.to].name,
                          .size_bytes = (*unit)->size_bytes,
                          .heat = units[step.unit].heat,
                          .reason = std::move(step.reason)});
    return {};
  });
  if (!named) return std::move(named).error();
  return plan;
}

Result<TierPlacement> Service::why(std::string_view name) {
  if (Status flushed = flush(); !flushed) return std::move(flushed).error();
  const auto row = unit(name);
  if (!row) return row.error();
  const auto seen = picture();
  if (!seen) return seen.error();
  const auto known = state_of(*seen, {.id = row->id,
                                      .tier = row->tier,
                                      .room_bytes = row->room_bytes,
                                      .heat = row->heat,
                                      .heat_at = row->heat_at,
                                      .moved_at = row->moved_at,
                                      .pinned = row->pinned});
  if (!known) return Error{Code::changed, 0, "its tier was added or removed meanwhile", "ask again"};
  const UnitState& state = *known;
  if (!row->doubt.empty())
    return TierPlacement{seen->tiers[state.tier].name, "it stays, since it is in doubt: " + row->doubt};
  const Wish wished = wish(seen->tiers, state, seen->policy, seen->now);
  const auto whole = plan();
  if (!whole) return whole.error();
  for (const PlannedMove& move : whole->moves) {
    if (move.name == row->name) return TierPlacement{move.to, move.reason};
  }
  if (wished.tier == state.tier) return TierPlacement{seen->tiers[wished.tier].name, wished.reason};
  return TierPlacement{seen->tiers[state.tier].name,
                       wished.reason + "; but " + seen->tiers[wished.tier].name +
                           (seen->tiers[wished.tier].usable && seen->tiers[state.tier].usable ? " has no room for it"
                                                                                              : " can't be used now")};
}

Result<TierPlacement> Service::place(std::uint64_t size_bytes, std::span<const std::int64_t> but) {
  const auto look = [&]() -> Result<Picture> {
    auto seen = picture();
    for (std::size_t i = 0; seen && i < seen->rows.size(); ++i) {
      if (std::ranges::find(but, seen->rows[i].id) != but.end()) seen->tiers[i].usable = false;
    }
    return seen;
  };
  auto seen = look();
  if (!seen) return seen.error();
  auto placed = place_new(seen->tiers, size_bytes);
  // A deleted source may still have the room of a faster tier.
  const bool is_first = placed && placed->tier == 0;
  if (!is_first && closer_.finish()) {
    seen = look();
    if (!seen) return seen.error();
    placed = place_new(seen->tiers, size_bytes);
  }
  if (!placed) return no_place(*seen, size_bytes);
  return TierPlacement{seen->tiers[placed->tier].name, placed->reason};
}

Result<MoveReport> Service::rebalance(const MoveOptions& options) {
  if (Status going = check_not_paused(); !going) return std::move(going).error();
  const auto mover = this->mover(options);
  if (!mover) return mover.error();
  if (const auto recovered = (*mover)->recover(true); !recovered) return recovered.error();
  const auto planned = plan();
  if (!planned) return planned.error();
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  std::vector<Task> tasks;
  Status looked_up = catalog_->read_each(planned->moves.size(), [&](std::size_t i) -> Status {
    const PlannedMove& move = planned->moves[i];
    const auto row = catalog_->unit(move.name);
    if (!row) return row.error();
    const auto to = std::ranges::find(*tiers, move.to, &TierRow::name);
    if (*row && to != tiers->end()) tasks.push_back({(*row)->id, move.name, to->id, (*row)->kind, (*row)->size_bytes});
    return {};
  });
  if (!looked_up) return std::move(looked_up).error();
  return (*mover)->move(tasks);
}

Status Service::start_mover(double interval_seconds, MoveOptions options) {
  if (Status valid = check_seconds("the interval of the mover", interval_seconds); !valid) return valid;
  const std::scoped_lock lock(mover_mutex_);
  if (mover_.joinable()) return Error{Code::in_use, 0, "the mover runs already", "stop it first"};
  mover_stops_ = false;
  options.keep_going = [this, then = options.keep_going] {
    {
      const std::scoped_lock stopping(mover_mutex_);
      if (mover_stops_) return false;
    }
    return !then || then();
  };
  mover_ = std::thread([this, options, interval = duration_from_seconds(interval_seconds)] {
    std::unique_lock waiting(mover_mutex_);
    while (!mover_stops_) {
      waiting.unlock();
      // What fails is in doubt in the catalog, or is tried again.
      static_cast<void>(or_out_of_memory([&] { return rebalance(options); }));
      waiting.lock();
      mover_wake_.wait_for(waiting, interval, [&] { return mover_stops_; });
    }
  });
  return {};
}

Status Service::stop_mover() {
  std::thread mover;
  {
    const std::scoped_lock lock(mover_mutex_);
    mover_stops_ = true;
    mover = std::move(mover_);
  }
  mover_wake_.notify_all();
  if (mover.joinable()) mover.join();
  return {};
}

}  // namespace penstock::tiers
