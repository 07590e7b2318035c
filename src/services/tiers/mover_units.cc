// The Mover's part that makes units, gives them new content, and removes them.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "services/tiers/fault_point.h"
#include "services/tiers/mover_work.h"
#include "services/tiers/names.h"

namespace penstock::tiers {

namespace {

// By which it is known again: another file may get its name, and even its inode.
Status note_source(MoveRow& row, const PathBeneath& path) {
  const auto there = look_at(path);
  if (!there) return there.error();
  row.source_inode = there->st_ino;
  if (there->st_ino == 0) return {};
  auto tree = glance(path);
  if (!tree) return std::move(tree).error();
  row.identity = std::move(tree->identity);
  return {};
}

// Before anything happens to what lies there.
Status check_can_go(const PathBeneath& path, const PathBeneath& going) {
  for (const PathBeneath& folder : {path.parent(), going.parent()}) {
    if (Status open = check_unprotected(folder); !open) return open;
  }
  return check_removable(path);
}

// Whether a unit is still a file, or a directory, if it is there.
Status check_kind(const UnitRow& unit, const PathBeneath& path) {
  const auto there = look_at(path);
  if (!there) return there.error();
  const bool is_same = unit.kind == UnitKind::file ? S_ISREG(there->st_mode) : S_ISDIR(there->st_mode);
  if (there->st_ino == 0 || is_same) return {};
  return Error{Code::changed, 0,
               path.text() + " is no " + std::string(unit_kind_name(unit.kind)) + " any more, as the unit was",
               "move it away, or forget the unit (penstock tier forget)"};
}

}  // namespace

Status Mover::add(UnitRow unit, const PathBeneath& path) {
  MoveReport report;
  Batch batch;
  batch.push_back(std::make_unique<Work>());
  Work& work = *batch.front();
  work.to = tier(unit.tier);
  if (work.to == nullptr) return Error{Code::not_found, 0, "the tier is no longer in the catalog", "try again"};
  if (const auto there = usable(*work.to); !there) return there.error();
  auto tree = scan(path);
  if (!tree) return std::move(tree).error();
  work.tree = std::move(*tree);
  work.source = path;
  work.target = path_in(*work.to, unit.name);
  if (Status parents = check_parents(work.target); !parents) return parents;
  unit.is_new = true;
  unit.kind = work.tree.kind;
  unit.size_bytes = work.tree.size_bytes;
  unit.room_bytes = 0;  // reserved by the move
  work.unit = unit;
  const auto there = look_at(work.target);
  if (!there) return there.error();
  if (there->st_ino != 0 && !is_empty_folder(work.target)) {
    return Error{Code::in_use, EEXIST, work.target.text() + " exists already", "import it, or choose another name"};
  }
  wait_for_room(*work.to, work.tree.room_bytes);
  const auto room = room_at(*work.to);
  if (!room) return room.error();
  if (Status fits = check_room(work, *room); !fits) return fits;
  auto leases = Leases::take(path, work.tree);
  if (!leases) return std::move(leases).error();
  work.leases = std::move(*leases);
  // The unit and its row come together: so a unit that is new always has one.
  Status inserted = catalog_.transact([&]() -> Status {
    if (Status free = catalog_.check_free(unit.name); !free) return free;
    const auto known = catalog_.unit(unit.name);
    if (!known) return known.error();
    if (*known)
      return Error{Code::in_use, EEXIST, "there is a unit " + shown(unit.name) + " already", "choose another name"};
    const auto id = catalog_.insert_unit(unit);
    if (!id) return id.error();
    work.unit.id = *id;
    const auto locked = locks_.try_lock(*id);
    if (!locked) return locked.error();
    work.locked = *locked;
    work.row = {.unit = *id, .job = Job::write, .target = unit.tier, .began_at = wall_seconds()};
    return catalog_.put_move(work.row);
  });
  if (!inserted) return inserted;
  const std::int64_t id = work.unit.id;
  work.staged = coming(*work.to, id);
  if (Status staged = stage(work); !staged) {
    fail(work, staged.error(), report);
  } else {
    work.list_files();
    run(batch, report);
  }
  if (report.units == 1) return {};
  // The unit has never been, and its work is gone.
  const auto row = catalog_.move_of(id);
  if (row && !*row) static_cast<void>(catalog_.delete_unit(id));
  if (report.error) return *report.error;
  return report.failures.empty() ? Error{Code::internal, 0, "the unit was not added", ""}
                                 : report.failures.front().error;
}

// The old content, if it lies there, gets the place of the new: so it can have its name back.
Status Mover::give_name(const MoveRow& row, const PathBeneath& target) const {
  const PathBeneath staged = coming(*tier(row.target), row.unit);
  if (row.source != row.target) return rename_to_free(staged, target);
  const Status exchanged = exchange_names(staged, target);
  return exchanged ? exchanged : rename_over(staged, target);
}

// Whether the catalog has the unit at its target.
bool Mover::is_committed(const MoveRow& row) {
  const auto now = catalog_.move_of(row.unit);
  return now && (!*now || (*now)->stage == Stage::removing);
}

void Mover::take_name_back(const MoveRow& row, const PathBeneath& target) {
  const auto now = catalog_.move_of(row.unit);
  if (!now || !*now || (*now)->stage != Stage::copying) return;
  const auto there = look_at(target);
  if (!there || there->st_ino != row.staged_inode) return;
  const PathBeneath staged = coming(*tier(row.target), row.unit);
  if (!exchange_names(staged, target)) static_cast<void>(rename_to_free(target, staged));
}

Status Mover::replace(const std::string& name, std::int64_t to, std::int64_t number, double wait_seconds) {
  const TierRow* place = tier(to);
  if (place == nullptr) return Error{Code::not_found, 0, "the tier is no longer in the catalog", "write it again"};
  if (const auto there = usable(*place); !there) return there.error();
  const PathBeneath target = path_in(*place, name);
  const PathBeneath staged = coming(*place, number);
  if (Status parents = check_parents(target); !parents) return parents;
  auto tree = scan(staged);
  if (!tree) return std::move(tree).error();
  const auto known = catalog_.unit(name);
  if (!known) return known.error();
  MoveRow row{.job = Job::write,
              .target = to,
              .staged_inode = tree->inode,
              .room_bytes = tree->room_bytes,
              .began_at = wall_seconds()};
  if (*known) {
    row.unit = (*known)->id;
    const auto locked = claim(row.unit, wait_seconds);
    if (!locked) return locked.error();
    if (!*locked) {
      return Error{Code::in_use, 0, shown(name) + " is being moved or written by another process", "write it later"};
    }
    if (const auto old = catalog_.move_of(row.unit); old && *old) {
      static_cast<void>(recover(**old, false));
    } else if (Status back = put_back(row.unit); !back) {
      return back;
    }
  }
  const HeldFolder* model = nullptr;  // of the tier that has the old one
  Status done = catalog_.transact([&]() -> Status {
    const auto now = catalog_.unit(name);
    if (!now) return now.error();
    if (now->has_value() != known->has_value() || (*now && (*now)->id != row.unit)) {
      return Error{Code::changed, 0, shown(name) + " was added or removed by another process meanwhile",
                   "write it again"};
    }
    if (*now) {
      row.source = (*now)->tier;
      const TierRow* from = tier((*now)->tier);
      if (from == nullptr) return Error{Code::not_found, 0, "its tier is no longer in the catalog", ""};
      if (const auto there = usable(*from); !there) return there.error();
      const PathBeneath old = path_in(*from, name);
      model = old.folder;
      if (Status can = check_can_go(old, going(*from, row.unit)); !can) return can;
      if (Status noted = note_source(row, old); !noted) return noted;
    } else {
      if (Status free = catalog_.check_free(name); !free) return free;
      const auto id = catalog_.insert_unit({.name = name, .tier = to, .identity = "", .checksum = "", .is_new = true});
      if (!id) return id.error();
      row.unit = *id;
      if (const auto locked = locks_.try_lock(*id); !locked) return locked.error();
    }
    if (Status moved = rename_over(staged, coming(*place, row.unit)); !moved) return moved;
    return catalog_.put_move(row);
  });
  if (done) fault_point("journaled");
  if (done) {
    done = make_parents(target, model, row.unit);
    if (done) done = give_name(row, target);
    if (done) fault_point("named");
    if (done) done = sync_parent(target);
    if (!done) take_name_back(row, target);
    // From here on as after a crash: what has its name counts.
    const auto finding = recover(row, false);
    if (done && finding && *finding && !(*finding)->repaired) done = Error{Code::io_error, 0, (*finding)->text, ""};
    if (done && !finding && !is_committed(row)) {
      // What is said to have failed has not happened.
      done = finding.error();
      take_name_back(row, target);
      static_cast<void>(recover(row, false));
    }
  }
  if (row.unit != 0) locks_.unlock(row.unit);
  return done;
}

// It loses its name, then the catalog forgets it, then it is deleted. Until it is forgotten it can be put back; who
// dies before leaves that to recovery.
Status Mover::take_out(const UnitRow& unit, const TierRow& from) {
  const PathBeneath path = path_in(from, unit.name);
  const PathBeneath going = this->going(from, unit.id);
  const auto there = look_at(path);
  if (!there) return there.error();
  if (there->st_ino == 0) return catalog_.delete_unit(unit.id);
  if (Status can = check_can_go(path, going); !can) return can;
  if (Status moved = rename_to_free(path, going); !moved) return moved;
  fault_point("aside");
  Status done = sync_parents({path, going});
  if (done) fault_point("cleared");
  if (const auto aside = look_at(going); done && (!aside || aside->st_ino != there->st_ino)) {
    done =
        Error{Code::changed, 0, path.text() + " was replaced while it was removed", "look at it, and remove it again"};
  }
  if (done) done = catalog_.delete_unit(unit.id);
  if (!done) {
    static_cast<void>(rename_to_free(going, path));
    return done;
  }
  fault_point("forgotten");
  Status deleted = discard(unit.id, *path.folder);
  if (deleted) return deleted;
  Error error = deleted.error();
  error.message = shown(unit.name) + " is no longer a unit, but not all of it can be deleted: " + error.message;
  return error;
}

// Deletes what lies aside of a unit, of which nothing is needed. Half a directory would look like one that was changed:
// its name says what it is.
Status Mover::discard(std::int64_t unit, const HeldFolder& from) {
  const PathBeneath going = going_path(from, unit);
  const NameInFolder at(going);
  if ((at && ::unlinkat(at.folder(), at.name(), 0) == 0) || errno == ENOENT) return {};
  if (errno != EISDIR) return system_error(errno, "remove " + going.text());
  const PathBeneath gone = new_gone_path(from, unit);
  if (Status moved = rename_to_free(going, gone); !moved) return moved;
  fault_point("emptied");
  return remove_all(gone);
}

Status Mover::remove(std::int64_t unit, double wait_seconds) {
  const auto locked = claim(unit, wait_seconds);
  if (!locked) return locked.error();
  if (!*locked) return Error{Code::in_use, 0, "the unit is being moved or written by another process", "try it later"};
  const auto done = [&]() -> Status {
    if (Status ended = end_interrupted(unit); !ended) return ended;
    const auto row = catalog_.unit(unit);
    if (!row) return row.error();
    if (!*row) return Error{Code::not_found, 0, "the unit was removed or forgotten by another process meanwhile", ""};
    const TierRow* from = tier((*row)->tier);
    if (from == nullptr) return Error{Code::not_found, 0, "its tier is no longer in the catalog", ""};
    if (const auto there = usable(*from); !there) return there.error();
    const PathBeneath path = path_in(*from, (*row)->name);
    if (Status parents = check_parents(path); !parents) return parents;
    if (Status same = check_kind(**row, path); !same) return same;
    return take_out(**row, *from);
  }();
  locks_.unlock(unit);
  return done;
}

}  // namespace penstock::tiers
