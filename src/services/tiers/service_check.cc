// The Service's part that compares the catalog with what is there, and measures tiers.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/callback.h"
#include "base/clock.h"
#include "services/tiers/folder.h"
#include "services/tiers/names.h"
#include "services/tiers/service.h"

namespace penstock::tiers {
namespace {

namespace fs = std::filesystem;

// Calls `found` for every file below a tier's folder that belongs to no unit.
class Strays {
 public:
  using Found = std::function<Status(const std::string& name)>;
  Strays(Catalog& catalog, const TierRow& tier, Found found)
      : catalog_(catalog), tier_(tier), found_(std::move(found)) {}

  Status walk(const std::string& below, int depth = 0) {
    constexpr int most_deep = 200;
    if (depth > most_deep) return {};
    const std::string folder = below.empty() ? tier_.path : tier_.path + "/" + below;
    std::error_code failed;
    std::vector<std::string> names;
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
      names.push_back(at->path().filename().string());
    }
    if (failed)
      return failed == std::errc::no_such_file_or_directory ? Status() : system_error(failed.value(), "list " + folder);
    std::ranges::sort(names);
    for (const std::string& last : names) {
      if (last == own_folder || (below.empty() && last == "lost+found")) continue;
      const std::string name = below.empty() ? last : below + "/" + last;
      if (is_of_catalog(tier_.path + "/" + name)) continue;
      const auto unit = catalog_.unit(name);
      if (!unit) return unit.error();
      if (*unit && (*unit)->tier == tier_.id) continue;
      const auto status = look_at(tier_.path + "/" + name);
      if (!status) return status.error();
      if (status->st_ino == 0) continue;
      if (*unit && is_empty_folder(tier_.path + "/" + name)) continue;  // it is left from when the unit lay here
      Status done = S_ISDIR(status->st_mode) && !*unit ? walk(name, depth + 1) : found_(name);
      if (!done) return done;
    }
    return {};
  }

 private:
  bool is_of_catalog(const std::string& path) const {
    if (!path.starts_with(catalog_.path())) return false;
    const std::string_view ending = std::string_view(path).substr(catalog_.path().size());
    return ending.empty() || ending == "-wal" || ending == "-shm" || ending == "-units";
  }

  Catalog& catalog_;
  const TierRow& tier_;
  const Found found_;
};

}  // namespace

Result<CheckReport> Service::import_all(std::string_view tier_name, std::string_view below) {
  const auto row = tier(tier_name);
  if (!row) return row.error();
  if (Status marked = check_marker(row->path, row->mark, row->name); !marked) return std::move(marked).error();
  std::string start;
  if (!below.empty()) {
    auto checked = checked_name(below);
    if (!checked) return std::move(checked).error();
    start = std::move(*checked);
  }
  CheckReport report;
  std::vector<UnitRow> units;
  // Many in a transaction: a million of them would take hours otherwise.
  const auto write = [&]() -> Status {
    return catalog_->transact([&]() -> Status {
      for (const UnitRow& unit : units) {
        const auto id = catalog_->insert_unit(unit);
        if (!id) return id.error();
      }
      report.units += units.size();
      units.clear();
      return {};
    });
  };
  Strays strays(*catalog_, *row, [&](const std::string& name) -> Status {
    constexpr std::size_t most = 1000;
    const std::string path = row->path + "/" + name;
    const auto elsewhere = catalog_->unit(name);
    if (!elsewhere) return elsewhere.error();
    const auto checked = checked_name(name);
    const auto tree =
        *elsewhere ? Result<Tree>(Error{Code::in_use, 0, "a unit of this name lies on another tier", ""}) : scan(path);
    if (!tree || !checked) {
      report.findings.push_back({name, path, tree ? checked.error().message : tree.error().message});
      return {};
    }
    units.push_back({.name = name,
                     .tier = row->id,
                     .kind = tree->kind,
                     .size_bytes = tree->size_bytes,
                     .room_bytes = tree->room_bytes,
                     .files = tree->files,
                     .identity = tree->identity});
    return units.size() < most ? Status() : write();
  });
  if (Status walked = strays.walk(start); !walked) return std::move(walked).error();
  if (Status written = write(); !written) return std::move(written).error();
  return report;
}

// Whether a unit is as the catalog has it: empty, or what is wrong. With `bytes`, all of it is read.
Result<std::string> Service::examine(Mover& mover, const UnitRow& unit, const TierRow& tier, bool bytes,
                                     CheckReport& report) {
  const std::string path = tier.path + "/" + unit.name;
  const auto tree = bytes ? scan(path) : glance(path);
  if (!tree) return tree.error().code == Code::not_found ? path + " is missing" : tree.error().message;
  const bool is_same = unit.identity.empty() || tree->identity == unit.identity;
  if (!is_same && (!bytes || unit.checksum.empty())) return path + " was changed by somebody else";
  if (!bytes) return std::string();
  report.bytes += tree->size_bytes;
  const auto sum = mover.checksum(path, *tree);
  if (!sum) {
    // Nothing of that is the unit's fault.
    for (const Code code : {Code::cancelled, Code::out_of_memory, Code::over_budget}) {
      if (sum.error().code == code) return sum.error();
    }
    return path + " can't be read: " + sum.error().message;
  }
  if (unit.checksum.empty() || *sum == unit.checksum) return is_same ? std::string() : take_times(mover, unit, *tree);
  if (!is_same) return path + " was changed by somebody else";
  return path + " is damaged: its checksum is " + *sum + ", and was " + unit.checksum;
}

// Every byte is what it was, and only the times are others: of a file that came back from a backup.
Result<std::string> Service::take_times(Mover& mover, const UnitRow& unit, const Tree& tree) {
  const auto locked = mover.claim(unit.id, 0);
  if (!locked) return locked.error();
  if (!*locked) return std::string();  // who moves it looks by himself
  auto now = catalog_->unit(unit.id);
  Status taken = now ? Status() : Status(now.error());
  if (now && *now && (*now)->tier == unit.tier && (*now)->identity == unit.identity) {
    (*now)->identity = tree.identity;
    taken = catalog_->update_unit(**now);
  }
  mover.release(unit.id);
  if (!taken) return std::move(taken).error();
  return std::string();
}

// A doubt goes when every byte is as the catalog has it, and nothing of that name lies on another tier.
Result<std::optional<TierFinding>> Service::judge(Mover& mover, const UnitRow& unit, const std::vector<TierRow>& tiers,
                                                  bool bytes, CheckReport& report) {
  const auto tier = std::ranges::find(tiers, unit.tier, &TierRow::id);
  if (tier == tiers.end() || !check_marker(tier->path, tier->mark, tier->name).ok())
    return std::optional<TierFinding>();
  const std::string path = tier->path + "/" + unit.name;
  auto problem = examine(mover, unit, *tier, bytes || !unit.doubt.empty(), report);
  if (!problem) return std::move(problem).error();
  if (problem->empty() && !unit.doubt.empty()) {
    for (const TierRow& other : tiers) {
      if (other.id == unit.tier) continue;
      const auto there = look_at(other.path + "/" + unit.name);
      if (there && there->st_ino != 0 && !is_empty_folder(other.path + "/" + unit.name)) *problem = unit.doubt;
    }
  }
  if (problem->empty() && unit.doubt.empty()) return std::optional<TierFinding>();
  // Who moves, writes or removes it looks by himself, and tells the catalog only when he has done so.
  const auto locked = mover.claim(unit.id, 0);
  if (!locked) return locked.error();
  if (!*locked) return std::optional<TierFinding>();
  auto finding = write_down(unit, path, *problem);
  mover.release(unit.id);
  return finding;
}

// What was found of a unit, unless it was worked on since its row was read. REQUIRES: it is locked.
Result<std::optional<TierFinding>> Service::write_down(const UnitRow& unit, const std::string& path,
                                                       const std::string& problem) {
  const auto now = catalog_->unit(unit.id);
  if (!now) return now.error();
  const auto move = catalog_->move_of(unit.id);
  if (!move) return move.error();
  const bool is_as_read = *now && (*now)->tier == unit.tier && (problem.empty() || (*now)->identity == unit.identity);
  if (!is_as_read || *move) return std::optional<TierFinding>();
  if (Status told = catalog_->doubt(unit.id, problem); !told) return std::move(told).error();
  if (problem.empty()) return std::optional(TierFinding{unit.name, path, "it is whole again", true});
  return std::optional(TierFinding{unit.name, path, problem});
}

Result<std::vector<TierFinding>> Service::recover() {
  const auto mover = this->mover({});
  if (!mover) return mover.error();
  auto findings = (*mover)->recover(true);
  if (!findings) return findings;
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  const auto doubted = catalog_->units_in_doubt();
  if (!doubted) return doubted.error();
  CheckReport read;
  for (const UnitRow& unit : *doubted) {
    auto finding = judge(**mover, unit, *tiers, true, read);
    if (!finding) return std::move(finding).error();
    if (*finding) findings->push_back(std::move(**finding));
  }
  return findings;
}

Result<CheckReport> Service::check(const CheckOptions& options) {
  const auto keep_going = keep_going_by("CheckOptions::keep_going", options.keep_going);
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  const auto mover = this->mover({.keep_going = keep_going});
  if (!mover) return mover.error();
  CheckReport report;
  auto recovered = (*mover)->recover(true);
  if (!recovered) return std::move(recovered).error();
  report.findings = std::move(*recovered);
  std::vector<std::int64_t> there;
  for (const TierRow& tier : *tiers) {
    if (Status marked = check_marker(tier.path, tier.mark, tier.name); marked) {
      there.push_back(tier.id);
    } else {
      const auto usage = catalog_->usage(tier.id);
      report.findings.push_back(
          {"", tier.path,
           marked.error().message + "; " + std::to_string(usage ? usage->units : 0) + " units of it can't be reached"});
    }
  }
  UnitFilter filter;
  for (;;) {
    const auto page = catalog_->units(filter, {});
    if (!page) return page.error();
    if (page->empty()) break;
    filter.after = page->back().name;
    for (const UnitRow& unit : *page) {
      if (!keep_going()) return Error{Code::cancelled, 0, "the check was stopped", ""};
      ++report.units;
      auto finding = judge(**mover, unit, *tiers, options.bytes, report);
      if (!finding) return std::move(finding).error();
      if (*finding) report.findings.push_back(std::move(**finding));
    }
  }
  for (const TierRow& tier : *tiers) {
    if (std::ranges::find(there, tier.id) == there.end()) continue;
    std::error_code failed;
    const std::string going = parent_of(going_path(tier.path, 0));
    for (fs::directory_iterator at(going, failed), end; !failed && at != end; at.increment(failed)) {
      if (at->path().extension() == ".kept") {
        report.findings.push_back({"", at->path().string(), "a version that was written while its unit moved"});
      }
    }
    if (!options.strays) continue;
    Strays strays(*catalog_, tier, [&](const std::string& name) -> Status {
      if (!keep_going()) return Error{Code::cancelled, 0, "the check was stopped", ""};
      // A unit that came here after the page of the catalog was read is none.
      const auto unit = catalog_->unit(name);
      if (!unit) return unit.error();
      const auto move = *unit ? catalog_->move_of((*unit)->id) : Result<std::optional<MoveRow>>(std::nullopt);
      if (!move) return move.error();
      if (*unit && ((*unit)->tier == tier.id || *move)) return {};
      TierFinding finding{.name = "", .path = tier.path + "/" + name, .text = "it is no unit", .harmless = true};
      if (*unit) {
        finding.text = "it has the name of a unit that lies on another tier";
        finding.harmless = false;
      }
      report.findings.push_back(std::move(finding));
      return {};
    });
    if (Status walked = strays.walk(""); !walked) return std::move(walked).error();
  }
  return report;
}

Status Service::probe(std::string_view name) {
  auto row = tier(name);
  if (!row) return row.error();
  if (Status marked = check_marker(row->path, row->mark, row->name); !marked) return marked;
  constexpr std::uint64_t bytes = 64 << 20;
  const auto mover = this->mover({});  // makes the Context
  if (!mover) return mover.error();
  Context& context = *context_;
  auto locks = UnitLocks::open(catalog_->path());
  if (!locks) return locks.error();
  const auto number = locks->lock_new_number();
  if (!number) return number.error();
  const std::string path = coming_path(row->path, *number);
  const auto measured = [&]() -> Status {
    auto store = context.open(path, {.access = Access::create, .size_bytes = bytes});
    if (!store) return store.error();
    auto memory = context.allocate(Domain::host(), bytes);
    if (!memory) return memory.error();
    for (std::uint64_t i = 0; i < bytes / sizeof(std::uint64_t); ++i) {
      reinterpret_cast<std::uint64_t*>(memory->region().data)[i] = (i + 1) * 0x9e3779b97f4a7c15ULL;
    }
    const Report written = context.write(*store, 0, memory->region(), {.durable = true});
    if (!written.ok()) return *written.error;
    row->write_speed = static_cast<double>(bytes) / std::max(written.seconds, 1e-9);
    if (Status synced = store->commit(); !synced) return synced;
    *store = {};
    store = context.open(path);
    if (!store) return store.error();
    const Report read = context.read(*store, 0, memory->region());
    if (!read.ok()) return *read.error;
    row->read_speed = static_cast<double>(bytes) / std::max(read.seconds, 1e-9);
    const auto plan = context.plan(*store, Direction::read, Domain::cuda(0));
    if (!plan) {
      row->gpu_direct = "no: " + plan.error().message;
    } else {
      row->gpu_direct = plan->device_engine.empty() ? "no: " + plan->device_reason : "yes, by " + plan->device_engine;
    }
    return {};
  }();
  ::unlink(path.c_str());
  if (!measured) return measured;
  return catalog_->update_tier(*row);
}

}  // namespace penstock::tiers
