// The Service's part that compares the catalog with what is there, and measures tiers.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/callback.h"
#include "base/clock.h"
#include "services/tiers/folder.h"
#include "services/tiers/names.h"
#include "services/tiers/service.h"

namespace penstock::tiers {
namespace {

// Calls `found` for every file below a tier's folder that belongs to no unit there. Units on their way are none of
// that, and neither is what lies in a folder that is a tier by itself.
class Strays {
 public:
  // `is_elsewhere`: a unit of this name lies on another tier.
  using Found = std::function<Status(const std::string& name, bool is_elsewhere)>;
  // Of a folder, or of something in one, that can't be looked at. The rest goes on: any user can make one.
  using Unreadable = std::function<void(const std::string& name, const Error& error)>;
  Strays(Catalog& catalog, const TierRow& tier, const HeldFolder& folder, Found found, Unreadable unreadable)
      : catalog_(catalog), tier_(tier), folder_(folder), found_(std::move(found)), unreadable_(std::move(unreadable)) {}

  Status start(const std::string& below) {
    std::vector<std::string> folders = parents_of(below);
    if (!below.empty()) folders.push_back(below);
    for (const std::string& folder : folders) {
      if (!is_tier(folder)) continue;
      return Error{Code::in_use, 0, tier_.path + "/" + folder + " is the folder of another tier",
                   "use the catalog that it belongs to"};
    }
    return walk(below, 0);
  }

 private:
  enum class Standing : std::uint8_t { none, here, elsewhere, moving };

  Status walk(const std::string& below, int depth) {
    constexpr int listed_depth = 200;
    if (depth > listed_depth) {
      return skip(below, {Code::unsupported, 0, tier_.path + "/" + below + " is nested too deeply", ""});
    }
    const auto names = list_names(PathBeneath{&folder_, below});
    if (!names) return skip(below, names.error());
    for (const std::string& last : *names) {
      if (last == own_folder || (below.empty() && last == "lost+found")) continue;
      const std::string name = below.empty() ? last : below + "/" + last;
      if (is_of_catalog(tier_.path + "/" + name)) continue;
      if (Status done = look(name, depth); !done) return done;
    }
    return {};
  }

  Status skip(const std::string& name, const Error& error) {
    if (name.empty() || is_shortage(error)) return error;
    if (error.code != Code::not_found) unreadable_(name, error);
    return {};
  }

  // A move that ends between two looks took the file along, or made it the unit: so the catalog is asked before and
  // after.
  Status look(const std::string& name, int depth) {
    const auto before = standing_of(name);
    if (!before) return before.error();
    if (*before == Standing::here || *before == Standing::moving) return {};
    const PathBeneath path{&folder_, name};
    const auto status = look_at(path);
    if (!status) return skip(name, status.error());
    if (status->st_ino == 0) return {};
    if (*before == Standing::none && S_ISDIR(status->st_mode)) return is_tier(name) ? Status() : walk(name, depth + 1);
    // Left from when the unit lay here.
    if (*before == Standing::elsewhere && is_empty_folder(path)) return {};
    const auto after = standing_of(name);
    if (!after) return after.error();
    return *after == *before ? found_(name, *after == Standing::elsewhere) : Status();
  }

  Result<Standing> standing_of(const std::string& name) {
    const auto unit = catalog_.unit(name);
    if (!unit) return unit.error();
    if (!*unit) return Standing::none;
    if ((*unit)->tier == tier_.id) return Standing::here;
    Standing standing = Standing::none;
    // Both at one moment: it may have set out since.
    Status asked = catalog_.read([&]() -> Status {
      const auto now = catalog_.unit(name);
      if (!now) return now.error();
      if (!*now) return {};
      const auto move = catalog_.move_of((*now)->id);
      if (!move) return move.error();
      standing = *move ? Standing::moving : (*now)->tier == tier_.id ? Standing::here : Standing::elsewhere;
      return {};
    });
    if (!asked) return std::move(asked).error();
    return standing;
  }

  bool is_tier(const std::string& folder) const {
    const auto marker = look_at(PathBeneath{&folder_, folder} / own_folder / "tier.json");
    return marker && marker->st_ino != 0;
  }

  bool is_of_catalog(const std::string& path) const {
    if (!path.starts_with(catalog_.path())) return false;
    const std::string_view ending = std::string_view(path).substr(catalog_.path().size());
    return ending.empty() || ending == "-wal" || ending == "-shm" || ending == "-units";
  }

  Catalog& catalog_;
  const TierRow& tier_;
  const HeldFolder& folder_;
  const Found found_;
  const Unreadable unreadable_;
};

// Of a version that a mover kept: going/UNIT.RANDOM.kept.
Result<TierFinding> finding_of_kept(Catalog& catalog, const PathBeneath& kept) {
  const std::string path = kept.text();
  const std::string file = kept.last();
  std::int64_t id = 0;
  std::from_chars(file.data(), file.data() + file.size(), id);
  const auto unit = catalog.unit(id);
  if (!unit) return unit.error();
  constexpr const char* advice =
      " that was written while it moved, or whose name was taken: take from it what you need, then remove it";
  if (!*unit) return TierFinding{"", path, std::string("a version of a unit that is gone,") + advice};
  return TierFinding{(*unit)->name, path, "a version of " + shown((*unit)->name) + advice};
}

}  // namespace

Result<CheckReport> Service::import_all(std::string_view tier_name, std::string_view below) {
  const auto row = tier(tier_name);
  if (!row) return row.error();
  const auto folder = open_tier(*row);
  if (!folder) return folder.error();
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
      std::uint64_t taken = 0;
      for (const UnitRow& unit : units) {
        const auto known = catalog_->unit(unit.name);  // another process may have been faster
        if (!known) return known.error();
        if (*known) continue;
        const auto id = catalog_->insert_unit(unit);
        if (!id) return id.error();
        ++taken;
      }
      report.units += taken;
      units.clear();
      return {};
    });
  };
  const auto refuse = [&](const std::string& name, const Error& error) {
    report.findings.push_back({name, PathBeneath{&*folder, name}.text(), error.message});
  };
  const auto take = [&](const std::string& name, bool is_elsewhere) -> Status {
    constexpr std::size_t most = 1000;
    const PathBeneath path{&*folder, name};
    const auto checked = checked_name(name);
    const auto tree = is_elsewhere
                          ? Result<Tree>(Error{Code::in_use, 0, "a unit of this name lies on another tier", ""})
                          : scan(path);
    if (!tree && is_shortage(tree.error())) return tree.error();
    if (!tree && tree.error().code == Code::not_found) return {};  // it is gone since
    if (!tree || !checked) {
      refuse(name, tree ? checked.error() : tree.error());
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
  };
  Strays strays(*catalog_, *row, *folder, take, refuse);
  if (Status walked = strays.start(start); !walked) return std::move(walked).error();
  if (Status written = write(); !written) return std::move(written).error();
  return report;
}

// Whether a unit is as the catalog has it: empty, or what is wrong. With `bytes`, all of it is read.
Result<std::string> Service::examine(Mover& mover, const UnitRow& unit, const PathBeneath& place, bool bytes,
                                     CheckReport& report) {
  const std::string path = place.text();
  const auto tree = bytes ? scan(place) : glance(place);
  if (!tree && is_shortage(tree.error())) return tree.error();
  // What may be written at any time may change while it is looked at: what was known of it stays.
  const auto is_written = [&](const Error& error) {
    if (!unit.identity.empty()) return false;
    if (error.code == Code::changed || error.code == Code::truncated) return true;
    const auto there = error.code == Code::not_found ? look_at(place) : Result<struct stat>(error);
    return there.ok() && there->st_ino != 0;
  };
  if (!tree && is_written(tree.error())) return unit.doubt;
  if (!tree) return tree.error().code == Code::not_found ? path + " is missing" : tree.error().message;
  const bool is_same = unit.identity.empty() || tree->identity == unit.identity;
  if (!is_same && (!bytes || unit.checksum.empty())) return path + " was changed by somebody else";
  if (!bytes) return std::string();
  report.bytes += tree->size_bytes;
  const auto sum = mover.checksum(place, *tree);
  if (!sum) {
    // Nothing of that is the unit's fault.
    const Code code = sum.error().code;
    if (code == Code::cancelled || code == Code::over_budget || is_shortage(sum.error())) return sum.error();
    if (is_written(sum.error())) return unit.doubt;
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
  if (tier == tiers.end()) return std::optional<TierFinding>();
  const auto folder = open_tier(*tier);
  if (!folder) {
    if (is_shortage(folder.error())) return folder.error();
    return std::optional<TierFinding>();
  }
  const PathBeneath path{&*folder, unit.name};
  auto problem = examine(mover, unit, path, bytes || !unit.doubt.empty(), report);
  if (!problem) return std::move(problem).error();
  if (problem->empty() && !unit.doubt.empty()) {
    for (const TierRow& other : tiers) {
      if (other.id == unit.tier) continue;
      const auto other_folder = HeldFolder::open(other.path);
      if (!other_folder) continue;
      const PathBeneath same_name{&*other_folder, unit.name};
      const auto there = look_at(same_name);
      if (there && there->st_ino != 0 && !is_empty_folder(same_name)) *problem = unit.doubt;
    }
  }
  if (problem->empty() && unit.doubt.empty()) return std::optional<TierFinding>();
  // Who moves, writes or removes it looks by himself, and tells the catalog only when he has done so.
  const auto locked = mover.claim(unit.id, 0);
  if (!locked) return locked.error();
  if (!*locked) return std::optional<TierFinding>();
  auto finding = write_down(unit, path.text(), *problem);
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

Status Service::end_interrupted() {
  const auto moves = catalog_->moves();
  if (!moves) return moves.error();
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  const bool any = !moves->empty() || std::ranges::any_of(*tiers, [](const TierRow& tier) {
    const auto folder = HeldFolder::open(tier.path);
    return folder.ok() && is_anything_aside(*folder);
  });
  if (!any) return {};
  const auto recovered = recover();
  return recovered ? Status() : Status(recovered.error());
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
    if (const auto marked = open_tier(tier); marked) {
      there.push_back(tier.id);
    } else if (is_shortage(marked.error())) {
      return marked.error();
    } else {
      const auto usage = catalog_->usage(tier.id);
      report.findings.push_back(
          {"", tier.path,
           marked.error().message + "; " + count_of_units(usage ? usage->units : 0) + " of it can't be reached"});
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
    const auto folder = open_tier(tier);
    if (!folder) return folder.error();
    const auto going = list_names(going_folder(*folder));
    if (!going && going.error().code != Code::not_found) return going.error();
    for (const std::string& name : going.ok() ? *going : std::vector<std::string>()) {
      if (!name.ends_with(".kept")) continue;
      auto finding = finding_of_kept(*catalog_, going_folder(*folder) / name);
      if (!finding) return std::move(finding).error();
      report.findings.push_back(std::move(*finding));
    }
    if (!options.strays) continue;
    const auto note = [&](const std::string& name, const Error& error) {
      report.findings.push_back({.name = "", .path = tier.path + "/" + name, .text = error.message, .harmless = true});
    };
    const auto take = [&](const std::string& name, bool is_elsewhere) -> Status {
      if (!keep_going()) return Error{Code::cancelled, 0, "the check was stopped", ""};
      TierFinding finding{.name = "", .path = tier.path + "/" + name, .text = "it is no unit", .harmless = true};
      if (is_elsewhere) {
        finding.text = "it has the name of a unit that lies on another tier";
        finding.harmless = false;
      }
      report.findings.push_back(std::move(finding));
      return {};
    };
    Strays strays(*catalog_, tier, *folder, take, note);
    if (Status walked = strays.start(""); !walked) return std::move(walked).error();
  }
  return report;
}

Status Service::probe(std::string_view name) {
  auto row = tier(name);
  if (!row) return row.error();
  const auto folder = open_tier(*row);
  if (!folder) return folder.error();
  constexpr std::uint64_t bytes = 64 << 20;
  const auto mover = this->mover({});  // makes the Context
  if (!mover) return mover.error();
  const Context& context = *context_;
  auto locks = UnitLocks::open(catalog_->path());
  if (!locks) return locks.error();
  const auto number = locks->lock_new_number();
  if (!number) return number.error();
  const PathBeneath file = coming_path(*folder, *number);
  const std::string path = file.text();
  const auto measured = [&]() -> Status {
    const UniqueFd fd = file.open(O_RDWR | O_CREAT | O_EXCL, 0600);
    if (!fd) return file_error(errno, "create " + path);
    auto store = context.open(path, {.access = Access::create, .size_bytes = bytes, .descriptor = fd.get()});
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
    store = context.open(path, {.descriptor = fd.get()});
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
  static_cast<void>(remove_file(file));
  if (!measured) return measured;
  return catalog_->update_tier(*row);
}

}  // namespace penstock::tiers
