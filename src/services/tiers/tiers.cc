#include "penstock/tiers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/made_folders.h"
#include "base/out_of_memory.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/folder.h"
#include "services/tiers/names.h"
#include "services/tiers/service.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using tiers::Catalog;
using tiers::Service;
using tiers::TierRow;

Result<std::string> catalog_path(const TiersOptions& options) {
  std::string path = options.catalog;
  const auto variable = [](const char* name) {
    const char* value = ::secure_getenv(name);
    return value != nullptr && *value != '\0' ? std::string(value) : std::string();
  };
  if (path.empty()) path = variable("PENSTOCK_TIERS");
  if (path.empty() && !variable("XDG_STATE_HOME").empty()) path = variable("XDG_STATE_HOME") + "/penstock/tiers.db";
  if (path.empty() && !variable("HOME").empty()) path = variable("HOME") + "/.local/state/penstock/tiers.db";
  if (path.empty()) {
    return Error{Code::invalid_argument, 0, "there is no name for the catalog of tiers: HOME is not set",
                 "set PENSTOCK_TIERS, or give --catalog"};
  }
  std::error_code failed;
  const fs::path absolute = fs::absolute(path, failed);
  if (failed) return system_error(failed.value(), "find " + path);
  return absolute.string();
}

Status check_policy(const TierPolicy& policy) {
  if (Status valid = check_seconds("half_life_seconds", policy.half_life_seconds); !valid) return valid;
  if (Status valid = check_seconds("least_stay_seconds", policy.least_stay_seconds); !valid) return valid;
  if (policy.cooling >= 0 && policy.cooling <= 1) return {};
  return Error{Code::invalid_argument, 0, "cooling is " + std::to_string(policy.cooling), "choose from 0 to 1"};
}

// Every public call: there is a catalog, this is no child, and there is memory.
template <typename Call>
auto with(const std::shared_ptr<Service>& service, Call call) -> decltype(call(*service)) {
  if (!service) return Error{Code::invalid_argument, 0, "these Tiers are not open", "use those that open returned"};
  if (Status usable = service->usable(); !usable) return std::move(usable).error();
  return or_out_of_memory([&] { return call(*service); });
}

std::string label(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "\"";
}

}  // namespace

std::string_view unit_kind_name(UnitKind kind) {
  return kind == UnitKind::file ? "file" : "directory";
}

Tiers::Tiers() = default;
Tiers::Tiers(std::shared_ptr<tiers::Service> service) : service_(std::move(service)) {}
Tiers::Tiers(const Tiers&) = default;
Tiers::Tiers(Tiers&&) noexcept = default;
Tiers& Tiers::operator=(const Tiers&) = default;
Tiers& Tiers::operator=(Tiers&&) noexcept = default;
Tiers::~Tiers() = default;

Result<Tiers> Tiers::create(std::span<const NewTier> list, const TierPolicy& policy, const TiersOptions& options) {
  return or_out_of_memory([&]() -> Result<Tiers> {
    if (list.empty()) return Error{Code::invalid_argument, 0, "there are no tiers to make", "give at least one"};
    if (Status valid = check_policy(policy); !valid) return std::move(valid).error();
    if (Status valid = check_seconds("wait_seconds", options.wait_seconds); !valid) return std::move(valid).error();
    const auto path = catalog_path(options);
    if (!path) return path.error();
    const MadeFolders made_for_catalog(fs::path(*path).parent_path());
    if (made_for_catalog.failed()) {
      return system_error(made_for_catalog.failed().value(), "make the folder of " + *path);
    }
    std::error_code failed;
    const bool existed = fs::exists(*path, failed);
    auto catalog = Catalog::create(*path, policy, options.wait_seconds);
    if (!catalog) return std::move(catalog).error();
    auto service = Service::make(std::move(*catalog), options);
    std::string behind;
    for (const NewTier& tier : list) {
      if (Status added = service->add_tier(tier, behind); !added) {
        // A catalog that is not what was asked for is none, and its tiers belong to nobody.
        const auto made = service->catalog().tiers();
        for (const TierRow& row : made.ok() ? *made : std::vector<TierRow>()) tiers::remove_marker(row);
        service.reset();
        if (!existed) {
          for (const char* ending : {"", "-wal", "-shm", "-units"}) fs::remove(*path + ending, failed);
        }
        return std::move(added).error();
      }
      behind = tier.name;
      tiers::fault_point("tier");
    }
    if (Status finished = service->catalog().finish(); !finished) return std::move(finished).error();
    return Tiers(std::move(service));
  });
}

Result<Tiers> Tiers::open(const TiersOptions& options) {
  return or_out_of_memory([&]() -> Result<Tiers> {
    if (Status valid = check_seconds("wait_seconds", options.wait_seconds); !valid) return std::move(valid).error();
    const auto path = catalog_path(options);
    if (!path) return path.error();
    auto catalog = Catalog::open(*path, options.wait_seconds);
    if (!catalog) return std::move(catalog).error();
    auto service = Service::make(std::move(*catalog), options);
    if (Status ended = service->end_interrupted(); !ended) return std::move(ended).error();
    return Tiers(std::move(service));
  });
}

std::string Tiers::catalog() const {
  return service_ ? service_->catalog().path() : "";
}

Result<std::vector<TierInfo>> Tiers::tiers() const {
  return with(service_, [](Service& service) { return service.tier_infos(); });
}

Status Tiers::add_tier(const NewTier& tier, std::string_view behind) {
  return with(service_, [&](Service& service) { return service.add_tier(tier, behind); });
}

Status Tiers::remove_tier(std::string_view name) {
  return with(service_, [&](Service& service) { return service.remove_tier(name); });
}

Status Tiers::change_tier(const NewTier& tier) {
  return with(service_, [&](Service& service) { return service.change_tier(tier); });
}

Result<TierPolicy> Tiers::policy() const {
  return with(service_, [](Service& service) { return service.catalog().policy(); });
}

Status Tiers::set_policy(const TierPolicy& policy) {
  return with(service_, [&](Service& service) -> Status {
    if (Status valid = check_policy(policy); !valid) return valid;
    return service.catalog().set_policy(policy);
  });
}

Status Tiers::probe(std::string_view tier) {
  return with(service_, [&](Service& service) { return service.probe(tier); });
}

Status Tiers::import(std::string_view name, bool checksum) {
  return with(service_, [&](Service& service) { return service.import(name, checksum); });
}

Result<CheckReport> Tiers::import_all(std::string_view tier, std::string_view below) {
  return with(service_, [&](Service& service) { return service.import_all(tier, below); });
}

Status Tiers::add(const std::string& path, std::string_view name, std::string_view tier, const MoveOptions& options) {
  return with(service_, [&](Service& service) { return service.add(path, name, tier, options); });
}

Status Tiers::remove(std::string_view name) {
  return with(service_, [&](Service& service) -> Status {
    const auto unit = service.unit(name);
    if (!unit) return unit.error();
    const auto mover = service.mover({});
    if (!mover) return mover.error();
    return (*mover)->remove(unit->id, service.options().wait_seconds);
  });
}

Status Tiers::forget(std::string_view name) {
  return with(service_, [&](Service& service) { return service.forget(name); });
}

Status Tiers::pin(std::string_view name, std::string_view tier) {
  return with(service_, [&](Service& service) -> Status {
    const auto unit = service.unit(name);
    if (!unit) return unit.error();
    if (tier.empty()) return service.catalog().pin(unit->id, std::nullopt);
    const auto row = service.tier(tier);
    if (!row) return row.error();
    return service.catalog().pin(unit->id, row->id);
  });
}

Result<std::vector<UnitInfo>> Tiers::list(const UnitFilter& filter) const {
  return with(service_, [&](Service& service) -> Result<std::vector<UnitInfo>> {
    std::optional<std::int64_t> only;
    if (!filter.tier.empty()) {
      const auto row = service.tier(filter.tier);
      if (!row) return row.error();
      only = row->id;
    }
    const auto rows = service.catalog().units(filter, only);
    if (!rows) return rows.error();
    const auto places = service.catalog().tiers();
    if (!places) return places.error();
    const auto moves = service.catalog().moves();
    if (!moves) return moves.error();
    const auto policy = service.catalog().policy();
    if (!policy) return policy.error();
    std::vector<UnitInfo> all;
    all.reserve(rows->size());
    for (const auto& row : *rows) {
      UnitInfo info = service.info(row, *places, *policy);
      const auto move = std::ranges::find(*moves, row.id, &tiers::MoveRow::unit);
      if (move != moves->end() && move->stage == tiers::Stage::copying) {
        const auto to = std::ranges::find(*places, move->target, &TierRow::id);
        if (to != places->end()) info.moving_to = to->name;
        info.moved_bytes = move->done_bytes;
      }
      all.push_back(std::move(info));
    }
    return all;
  });
}

Result<UnitInfo> Tiers::find(std::string_view name) const {
  return with(service_, [&](Service& service) -> Result<UnitInfo> {
    const auto unit = service.unit(name);
    if (!unit) return unit.error();
    const auto places = service.catalog().tiers();
    if (!places) return places.error();
    const auto policy = service.catalog().policy();
    if (!policy) return policy.error();
    UnitInfo info = service.info(*unit, *places, *policy);
    const auto move = service.catalog().move_of(unit->id);
    if (!move) return move.error();
    if (*move && (*move)->stage == tiers::Stage::copying) {
      const auto to = std::ranges::find(*places, (*move)->target, &TierRow::id);
      if (to != places->end()) info.moving_to = to->name;
      info.moved_bytes = (*move)->done_bytes;
    }
    return info;
  });
}

Result<std::string> Tiers::path_of(std::string_view name) {
  return with(service_, [&](Service& service) { return service.path_of(name); });
}

Result<TierPlacement> Tiers::place(std::uint64_t size_bytes) const {
  return with(service_, [&](Service& service) { return service.place(size_bytes); });
}

Result<TierPlacement> Tiers::why(std::string_view name) const {
  return with(service_, [&](Service& service) { return service.why(name); });
}

Result<MovePlan> Tiers::plan() const {
  return with(service_, [](Service& service) { return service.plan(); });
}

Result<MoveReport> Tiers::move(std::string_view name, std::string_view tier, const MoveOptions& options) {
  return with(service_, [&](Service& service) -> Result<MoveReport> {
    const auto unit = service.unit(name);
    if (!unit) return unit.error();
    const auto row = service.tier(tier);
    if (!row) return row.error();
    if (Status going = service.check_not_paused(); !going) return std::move(going).error();
    const auto mover = service.mover(options);
    if (!mover) return mover.error();
    const tiers::Task task{unit->id, unit->name, row->id, unit->kind, unit->size_bytes};
    MoveReport report = (*mover)->move({&task, 1});
    if (report.error) return *report.error;
    if (!report.failures.empty()) return report.failures.front().error;
    if (report.busy != 0) {
      return Error{Code::in_use, 0, tiers::shown(name) + " is being moved or written by another process",
                   "move it later"};
    }
    return report;
  });
}

Result<MoveReport> Tiers::move(std::span<const PlannedMove> moves, const MoveOptions& options) {
  return with(service_, [&](Service& service) -> Result<MoveReport> {
    if (Status going = service.check_not_paused(); !going) return std::move(going).error();
    const auto places = service.catalog().tiers();
    if (!places) return places.error();
    std::vector<tiers::Task> tasks;
    Status looked_up = service.catalog().read_each(moves.size(), [&](std::size_t i) -> Status {
      const PlannedMove& move = moves[i];
      const auto unit = service.unit(move.name);
      if (!unit) return unit.error();
      const auto to = std::ranges::find(*places, move.to, &TierRow::name);
      if (to == places->end()) {
        return Error{Code::not_found, 0, "there is no tier \"" + tiers::shown(move.to) + "\"", "plan again"};
      }
      tasks.push_back({unit->id, unit->name, to->id, unit->kind, unit->size_bytes});
      return {};
    });
    if (!looked_up) return std::move(looked_up).error();
    const auto mover = service.mover(options);
    if (!mover) return mover.error();
    return (*mover)->move(tasks);
  });
}

Result<TierPlacement> Tiers::auto_tier(std::string_view name, const MoveOptions& options) {
  return with(service_, [&](Service& service) -> Result<TierPlacement> {
    auto placement = service.why(name);
    if (!placement) return placement;
    const auto unit = service.unit(name);
    if (!unit) return unit.error();
    const auto to = service.tier(placement->tier);
    if (!to) return to.error();
    if (to->id == unit->tier) return placement;
    const auto moved = move(name, placement->tier, options);
    if (!moved) return moved.error();
    return placement;
  });
}

Result<MoveReport> Tiers::rebalance(const MoveOptions& options) {
  return with(service_, [&](Service& service) { return service.rebalance(options); });
}

Status Tiers::start_mover(double interval_seconds, const MoveOptions& options) {
  return with(service_, [&](Service& service) { return service.start_mover(interval_seconds, options); });
}

Status Tiers::stop_mover() {
  return with(service_, [](Service& service) { return service.stop_mover(); });
}

Status Tiers::set_paused(bool paused) {
  return with(service_, [&](Service& service) { return service.catalog().set_paused(paused); });
}

Result<bool> Tiers::paused() const {
  return with(service_, [](Service& service) { return service.catalog().paused(); });
}

Result<std::vector<TierFinding>> Tiers::recover() {
  return with(service_, [](Service& service) { return service.recover(); });
}

Result<CheckReport> Tiers::check(const CheckOptions& options) {
  return with(service_, [&](Service& service) { return service.check(options); });
}

Status Tiers::flush() {
  return with(service_, [](Service& service) { return service.flush(); });
}

Result<std::string> Tiers::to_prometheus() const {
  return with(service_, [](Service& service) -> Result<std::string> {
    const auto all = service.tier_infos();
    if (!all) return all.error();
    const auto moves = service.catalog().moves();
    if (!moves) return moves.error();
    std::string text;
    const auto metric = [&](const char* name, const char* help, const auto& value) {
      text += "# HELP " + std::string(name) + " " + help + "\n# TYPE " + name + " gauge\n";
      for (const TierInfo& tier : *all) {
        text += std::string(name) + "{tier=" + label(tier.name) + ",path=" + label(tier.path) + "} " +
                std::to_string(value(tier)) + "\n";
      }
    };
    metric("penstock_tier_capacity_bytes", "What the tier may hold.",
           [](const TierInfo& t) { return t.capacity_bytes; });
    metric("penstock_tier_used_bytes", "What its units take.", [](const TierInfo& t) { return t.used_bytes; });
    metric("penstock_tier_free_bytes", "Room below the high water mark.",
           [](const TierInfo& t) { return t.free_bytes; });
    metric("penstock_tier_units", "Units on the tier.", [](const TierInfo& t) { return t.units; });
    metric("penstock_tier_up", "Whether the tier can be used.", [](const TierInfo& t) { return t.problem ? 0 : 1; });
    text += "# HELP penstock_tier_moves Units on their way.\n# TYPE penstock_tier_moves gauge\npenstock_tier_moves " +
            std::to_string(moves->size()) + "\n";
    return text;
  });
}

Result<Location> Tiers::locate(std::string_view name, const OpenOptions& options) {
  return with(service_, [&](Service& service) { return service.locate(name, options); });
}

Status Tiers::serve(const Context& context, std::string scheme) {
  return with(service_, [&](Service&) {
    return context.redirect(std::move(scheme), [service = service_](std::string_view name, const OpenOptions& options) {
      return or_out_of_memory([&] { return service->locate(name, options); });
    });
  });
}

}  // namespace penstock
