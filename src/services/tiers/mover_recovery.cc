// The Mover's part that finishes or undoes what was interrupted.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "penstock/leftovers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/mover_work.h"

namespace penstock::tiers {
namespace {

// An interrupted copy of less is begun anew.
constexpr std::uint64_t least_kept_bytes = 16 << 20;

}  // namespace

Result<std::vector<TierFinding>> Mover::recover(bool keep) {
  const auto rows = catalog_.moves();
  if (!rows) return rows.error();
  std::vector<TierFinding> findings;
  for (const MoveRow& known : *rows) {
    const auto locked = locks_.try_lock(known.unit);
    if (!locked) return locked.error();
    if (!*locked) continue;
    // It may have ended since.
    const auto row = catalog_.move_of(known.unit);
    if (row && *row) {
      auto finding = recover(**row, keep);
      if (finding && *finding) findings.push_back(std::move(**finding));
      if (!finding) findings.push_back({.name = "", .path = "", .text = finding.error().message});
    }
    locks_.unlock(known.unit);
  }
  if (Status cleared = clear_aside(findings); !cleared) return std::move(cleared).error();
  return findings;
}

Result<std::optional<TierFinding>> Mover::recover(const MoveRow& known, bool keep) {
  MoveRow row = known;
  const auto found = catalog_.unit(row.unit);
  if (!found) return found.error();
  const TierRow* to = tier(row.target);
  const TierRow* from = row.source ? tier(*row.source) : nullptr;
  if (!*found || to == nullptr || (row.source && from == nullptr)) {
    if (to != nullptr && usable(*to).ok()) static_cast<void>(remove_all(coming(*to, row.unit)));
    if (Status gone = catalog_.delete_move(row.unit); !gone) return std::move(gone).error();
    return std::optional<TierFinding>();
  }
  UnitRow unit = **found;
  const auto told = [&](std::string path, std::string text, bool repaired = false) {
    return std::optional(TierFinding{unit.name, std::move(path), std::move(text), repaired});
  };
  for (const TierRow* place : {to, from}) {
    if (place == nullptr) continue;
    const auto folder = usable(*place);
    const Status fit = folder ? check_parents({*folder, unit.name}) : Status(folder.error());
    if (!fit) return told(place->path, "an interrupted move waits for a tier: " + fit.error().message);
  }
  if (row.stage == Stage::copying) {
    const PathBeneath target = path_in(*to, unit.name);
    const PathBeneath staged = coming(*to, row.unit);
    const auto there = look_at(target);
    if (!there) return there.error();
    if (row.staged_inode == 0 || there->st_ino != row.staged_inode) {
      // It has no name yet: the unit is what it was.
      const auto aside = look_at(staged);
      if (!aside) return aside.error();
      if (keep && row.job == Job::move && row.done_bytes >= least_kept_bytes && aside->st_ino == row.staged_inode) {
        return std::optional<TierFinding>();
      }
      if (Status removed = remove_all(staged); !removed) return std::move(removed).error();
      Status forgotten = catalog_.transact([&]() -> Status {
        if (unit.is_new) {
          if (Status gone = catalog_.delete_unit(unit.id); !gone) return gone;
        }
        return catalog_.delete_move(row.unit);
      });
      if (!forgotten) return std::move(forgotten).error();
      return told(staged.text(), "an interrupted copy was removed", true);
    }
    // It was verified before it got its name.
    if (Status synced = sync_parent(target); !synced) return std::move(synced).error();
    auto tree = scan(target);
    if (!tree) return std::move(tree).error();
    const bool same_bytes = row.job == Job::move;
    Status committed = catalog_.transact([&]() -> Status {
      unit.tier = to->id;
      describe(unit, *tree);
      if (!same_bytes) unit.checksum.clear();
      unit.moved_at = wall_seconds();
      unit.doubt.clear();
      unit.is_new = false;
      if (Status updated = catalog_.update_unit(unit); !updated) return updated;
      row.stage = Stage::removing;
      return catalog_.put_move(row);
    });
    if (!committed) return std::move(committed).error();
    fault_point("committed");
  }
  const bool in_place = row.job == Job::write && (from == nullptr || from->id == to->id);
  if (!in_place) {
    // Time has passed since the copy was verified.
    const auto is_whole = has_whole_copy(unit, row);
    if (!is_whole) return is_whole.error();
    if (!*is_whole) return return_to_source(unit, row);
  }
  if (in_place) {
    // What was there before.
    if (Status removed = remove_all(coming(*to, row.unit)); !removed) return std::move(removed).error();
  } else {
    auto finding = clear_source(unit, row, nullptr);
    if (!finding) return finding;
    fault_point("emptied");
    const std::vector<PathBeneath> left = {path_in(*from, unit.name), going(*from, unit.id)};
    if (Status synced = sync_parents(left); !synced) return std::move(synced).error();
    fault_point("cleared");
    if (*finding) {
      if (Status doubted = catalog_.doubt(unit.id, (*finding)->text); !doubted) return std::move(doubted).error();
      if (Status gone = catalog_.delete_move(row.unit); !gone) return std::move(gone).error();
      return finding;
    }
  }
  if (Status forgotten = catalog_.delete_move(row.unit); !forgotten) return std::move(forgotten).error();
  fault_point("forgotten");
  if (from != nullptr) {
    if (Status removed = remove_gone(held_.at(from->id).folder); !removed) return std::move(removed).error();
  }
  return told(path_in(*to, unit.name).text(), "an interrupted change was finished", true);
}

// Whether the source may go: its copy is there, and for a move has the same bytes.
Result<bool> Mover::has_whole_copy(const UnitRow& unit, const MoveRow& row) {
  const PathBeneath target = path_in(*tier(row.target), unit.name);
  const TierRow& from = *tier(*row.source);
  auto copy = scan(target);
  if (!copy) return copy.error().code == Code::not_found ? Result<bool>(false) : std::move(copy).error();
  if (unit.identity.empty()) return true;  // somebody was let write to it since: that is the unit
  if (row.job == Job::write) return copy->identity == unit.identity;
  for (const PathBeneath& source : {path_in(from, unit.name), going(from, unit.id)}) {
    const auto there = look_at(source);
    if (!there) return there.error();
    if (there->st_ino != row.source_inode) continue;
    const auto tree = scan(source);
    if (!tree) return tree.error();
    if (!row.identity.empty() && tree->identity != row.identity) return true;  // it stays, as a version of its own
    const auto before = checksum(source, *tree);
    if (!before) return before.error();
    const auto after = checksum(target, *copy);
    if (!after) return after.error();
    return *before == *after;
  }
  return true;  // there is no source left to lose
}

// The copy is not what it was: the unit lies where it came from, and the copy stays for whoever wants to look.
Result<std::optional<TierFinding>> Mover::return_to_source(UnitRow unit, const MoveRow& row) {
  const TierRow& from = *tier(*row.source);
  const PathBeneath source = path_in(from, unit.name);
  const PathBeneath target = path_in(*tier(row.target), unit.name);
  const auto aside = look_at(going(from, unit.id));
  if (!aside) return aside.error();
  if (aside->st_ino == row.source_inode) {
    if (Status named = rename_to_free(going(from, unit.id), source); !named) return std::move(named).error();
    if (Status synced = sync_parent(source); !synced) return std::move(synced).error();
  }
  auto tree = scan(source);
  if (!tree) return std::move(tree).error();
  const std::string text =
      target.text() + " was changed or removed before the move had ended: the unit stays at " + source.text();
  Status returned = catalog_.transact([&]() -> Status {
    unit.tier = from.id;
    describe(unit, *tree);
    if (Status updated = catalog_.update_unit(unit); !updated) return updated;
    return catalog_.delete_move(row.unit);
  });
  if (!returned) return std::move(returned).error();
  return std::optional(TierFinding{unit.name, target.text(), text});
}

namespace {

// The copy has those of when it was made. Its name may mean another file by now: `target` is what it meant.
Status keep_owner_and_mode(const struct stat& source, const struct stat& target, const PathBeneath& path) {
  constexpr mode_t all_bits = 07777;
  const bool is_owned = source.st_uid == target.st_uid && source.st_gid == target.st_gid;
  if (is_owned && (source.st_mode & all_bits) == (target.st_mode & all_bits)) return {};
  fault_point("owning");
  const auto file = open_entry(path, {.name = "", .status = target});
  if (!file) return file.error();
  if (!is_owned && ::fchown(file->get(), source.st_uid, source.st_gid) != 0)
    return system_error(errno, "change the owner of " + path.text());
  if (::fchmod(file->get(), source.st_mode & all_bits) != 0)
    return system_error(errno, "change the mode of " + path.text());
  return {};
}

}  // namespace

// Takes the name from the source, looks whether it is what was copied, then deletes it; of a directory, the catalog has
// to forget the move first. What is not stays, and is told; so does the source of a copy that is no longer there.
Result<std::optional<TierFinding>> Mover::clear_source(const UnitRow& unit, const MoveRow& row,
                                                       const Leases* leases) const {
  const TierRow& from = *tier(*row.source);
  const PathBeneath source = path_in(from, unit.name);
  const PathBeneath going = this->going(from, unit.id);
  const auto told = [&](std::string path, std::string text) {
    return std::optional(TierFinding{unit.name, std::move(path), std::move(text)});
  };
  const auto is_copied = [&](const PathBeneath& path, const struct stat& there) -> Result<bool> {
    if (there.st_ino != row.source_inode) return false;
    if (row.identity.empty()) return true;
    if (S_ISREG(there.st_mode)) return identity_of(there) == row.identity;
    const auto now = glance(path);
    if (!now && now.error().code != Code::unsupported) return now.error();
    return now.ok() && now->identity == row.identity;
  };
  const auto there = look_at(source);
  if (!there) return there.error();
  if (there->st_ino != 0) {
    const auto is_same = is_copied(source, *there);
    if (!is_same) return is_same.error();
    if (!*is_same) {
      return told(source.text(), source.text() + " was changed while the unit moved; it lies there beside the unit");
    }
    if (row.staged_inode != 0) {
      const PathBeneath target = path_in(*tier(row.target), unit.name);
      const auto copy = look_at(target);
      if (!copy) return copy.error();
      if (copy->st_ino != row.staged_inode) {
        return told(source.text(),
                    target.text() + " was replaced while the unit moved; what it was still lies at " + source.text());
      }
      if (row.job == Job::move && unit.kind == UnitKind::file) {
        if (Status kept = keep_owner_and_mode(*there, *copy, target); !kept) return std::move(kept).error();
      }
    }
    if (Status moved = rename_to_free(source, going); !moved) return std::move(moved).error();
    fault_point("aside");
  }
  const auto aside = look_at(going);
  if (!aside) return aside.error();
  // Out of the way of later moves, and never deleted.
  const auto keep = [&](const char* what_happened) -> Result<std::optional<TierFinding>> {
    const PathBeneath kept = new_kept_path(going);
    if (Status moved = rename_to_free(going, kept); !moved) return std::move(moved).error();
    return told(kept.text(),
                source.text() + what_happened + " while the unit moved; that version is kept as " + kept.text());
  };
  if (aside->st_ino != 0) {
    const auto is_same = is_copied(going, *aside);
    if (!is_same) return is_same.error();
    if (!*is_same) return keep(" was changed");
    // He who waits to write since it lost its name would write to a file that nobody finds.
    if (leases != nullptr && !leases->check().ok()) return keep(" was opened for writing");
    if (S_ISREG(aside->st_mode)) {
      if (Status removed = remove_file(going); !removed) return std::move(removed).error();
      return std::optional<TierFinding>();
    }
  }
  // Half a directory would look like one that was changed. It is deleted when the catalog has forgotten the move.
  if (aside->st_ino != 0) {
    if (Status moved = rename_to_free(going, new_gone_path(*going.folder, unit.id)); !moved)
      return std::move(moved).error();
  }
  return std::optional<TierFinding>();
}

Status Mover::clear_aside(std::vector<TierFinding>& findings) {
  for (const TierRow& place : tiers_) {
    const auto root = place.read_only ? Result<const HeldFolder*>(nullptr) : usable(place);
    if (!root || *root == nullptr) continue;
    if (Status cleared = clear_coming(place, **root, findings); !cleared) return cleared;
    if (Status cleared = clear_going(place, **root, findings); !cleared) return cleared;
  }
  return {};
}

namespace {

struct Numbered {
  std::int64_t unit = 0;
  std::string ending;
};

// What lies in a folder under the numbers of units, or of files that belong to none yet.
std::vector<Numbered> numbered(const PathBeneath& folder) {
  std::vector<Numbered> found;
  const auto names = list_names(folder);
  if (!names) return found;
  for (const std::string& name : *names) {
    std::int64_t unit = 0;
    const auto [last, error] = std::from_chars(name.data(), name.data() + name.size(), unit);
    if (error == std::errc()) found.push_back({unit, name.substr(static_cast<std::size_t>(last - name.data()))});
  }
  return found;
}

// Out of the way, and never deleted.
Status keep(const PathBeneath& path) {
  return rename_to_free(path, new_kept_path(path));
}

}  // namespace

// What was being removed when somebody died gets its name back, unless something else has it by now. REQUIRES: the unit
// is locked, and no move of it is under way.
Status Mover::put_back(std::int64_t id) {
  const auto unit = catalog_.unit(id);
  if (!unit) return unit.error();
  const TierRow* place = *unit ? tier((*unit)->tier) : nullptr;
  if (place == nullptr) return {};
  // Several threads may be here, once the folder is held.
  if (!held_.contains(place->id) && !usable(*place)) return {};
  const PathBeneath going = this->going(*place, id);
  const PathBeneath path = path_in(*place, (*unit)->name);
  const auto aside = look_at(going);
  const auto there = look_at(path);
  if (!aside || !there) return (aside ? there : aside).error();
  if (aside->st_ino == 0) return {};
  if (there->st_ino != 0) return keep(going);
  if (Status made = make_parents(path); !made) return made;
  if (Status named = rename_to_free(going, path); !named) return named;
  return sync_parent(path);
}

Status Mover::end_interrupted(std::int64_t id) {
  const auto move = catalog_.move_of(id);
  if (!move) return move.error();
  if (!*move) return put_back(id);
  const auto ended = recover(**move, false);
  if (!ended) return ended.error();
  const auto left = catalog_.move_of(id);
  if (!left) return left.error();
  if (!*left) return {};
  return Error{Code::in_use, 0, *ended ? (*ended)->text : "the unit has an unfinished move",
               "see `penstock tier check`"};
}

// What died before the catalog knew of it.
Status Mover::clear_coming(const TierRow& place, const HeldFolder& root, std::vector<TierFinding>& findings) {
  const PathBeneath folder = coming_folder(root);
  static_cast<void>(remove_leftovers(folder.text()));
  for (const auto& [unit, ending] : numbered(folder)) {
    const auto locked = locks_.try_lock(unit);
    if (!locked) return locked.error();
    if (!*locked) continue;
    const auto row = catalog_.move_of(unit);
    if (ending == ".folder") remove_empty_folder(folder / (std::to_string(unit) + ending));
    const PathBeneath path = coming_path(root, unit);
    if (ending.empty() && row && (!*row || (*row)->target != place.id) && remove_all(path).ok()) {
      findings.push_back({"", path.text(), "an interrupted copy was removed", true});
    }
    locks_.unlock(unit);
  }
  return {};
}

// What was being removed when somebody died: it is deleted if the catalog has forgotten it, and put back if not.
Status Mover::clear_going(const TierRow& place, const HeldFolder& root, std::vector<TierFinding>& findings) {
  for (const auto& [id, ending] : numbered(going_folder(root))) {
    if (!ending.empty()) continue;
    const PathBeneath path = going_path(root, id);
    const auto locked = locks_.try_lock(id);
    if (!locked) return locked.error();
    if (!*locked) continue;
    const auto row = catalog_.move_of(id);
    const auto unit = catalog_.unit(id);
    const auto still = look_at(path);
    if (row && !*row && unit && still && still->st_ino != 0) {
      const bool is_here = *unit && (*unit)->tier == place.id;
      const Status ended = !*unit ? discard(id, root) : is_here ? put_back(id) : keep(path);
      const auto kept = look_at(is_here ? PathBeneath{&root, (*unit)->name} : path);
      const bool is_back = is_here && kept && kept->st_ino == still->st_ino;
      TierFinding finding{*unit ? (*unit)->name : "", path.text(), "an interrupted removal was undone", true};
      if (!*unit) finding.text = "an interrupted removal was finished";
      if (*unit && !is_back) finding.text = "of an interrupted removal: its name was taken since, so it is kept";
      if (!ended) finding.text = "an interrupted removal can't be ended: " + ended.error().message;
      finding.repaired = ended.ok();
      findings.push_back(std::move(finding));
    }
    locks_.unlock(id);
  }
  if (Status removed = remove_gone(root); !removed) {
    findings.push_back(
        {.name = "",
         .path = going_folder(root).text(),
         .text = "what is left of a unit that moved or was removed can't be deleted: " + removed.error().message});
  }
  return {};
}

}  // namespace penstock::tiers
