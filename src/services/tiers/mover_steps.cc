// The Mover's part that takes a batch through the steps of a move, from the first look at the sources to their end.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <set>
#include <utility>

#include "base/uninterrupted.h"
#include "base/unique_fd.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/mover_work.h"
#include "services/tiers/names.h"
#include "services/tiers/side_by_side.h"

namespace penstock::tiers {
namespace {

// More files than this are synced by syncing their file system.
constexpr std::size_t most_single_syncs = 4;

Error missing(const std::string& path) {
  return {Code::not_found, ENOENT, path + " is missing: somebody has removed or renamed it",
          "put it back, or forget the unit (penstock tier forget)"};
}

Error changed(const std::string& path) {
  return {Code::changed, 0, path + " was changed by somebody else",
          "import it again to take it as it is (penstock tier import)"};
}

// Whether a file is what it was when the copy began. Its other time can be set back, this one can't.
bool is_unchanged(const Tree& tree, const MoveRow& row) {
  const timespec& changed = tree.entries.front().status.st_ctim;
  const double changed_at = static_cast<double>(changed.tv_sec) + static_cast<double>(changed.tv_nsec) * 1e-9;
  return tree.identity == row.identity && tree.inode == row.source_inode && changed_at <= row.began_at;
}

// What can't be removed afterwards would lie on both tiers.
Error stays(const std::string& what) {
  return system_error(errno, "move " + what, "its file system is read-only, or it is protected");
}

// An empty file or directory; returns its inode.
Result<std::uint64_t> make_staged(UnitKind kind, const PathBeneath& path) {
  struct stat status = {};
  const NameInFolder at(path);
  if (kind == UnitKind::file) {
    const UniqueFd file = path.open(O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (!file || ::fstat(file.get(), &status) != 0) return file_error(errno, "create " + path.text());
  } else if (!at || ::mkdirat(at.folder(), at.name(), 0700) != 0 ||
             ::fstatat(at.folder(), at.name(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return file_error(errno, "create " + path.text());
  }
  return status.st_ino;
}

// The entries of a directory but its files: made before those, and finished after them.
Status make_entries(const Tree& tree, const PathBeneath& to) {
  for (const Entry& entry : tree.entries) {
    if (entry.name.empty() || entry.kind == Entry::Kind::same) continue;
    const PathBeneath path = to / entry.name;
    const NameInFolder at(path);
    int failed = at ? 0 : -1;
    if (at && entry.kind == Entry::Kind::directory) failed = ::mkdirat(at.folder(), at.name(), 0700);
    if (at && entry.kind == Entry::Kind::link) failed = ::symlinkat(entry.target.c_str(), at.folder(), at.name());
    if (at && entry.kind == Entry::Kind::file) {
      const UniqueFd file(::openat(at.folder(), at.name(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      failed = file ? 0 : -1;
    }
    if (failed != 0) return file_error(errno, "make " + path.text());
  }
  return {};
}

Status finish_entries(const Tree& tree, const PathBeneath& from, const PathBeneath& to) {
  for (auto entry = tree.entries.rbegin(); entry != tree.entries.rend(); ++entry) {
    if (entry->kind != Entry::Kind::same && entry->kind != Entry::Kind::link) continue;
    const PathBeneath path = to / entry->name;
    const NameInFolder at(path);
    if (!at) return file_error(errno, "make " + path.text());
    if (entry->kind == Entry::Kind::same) {
      const NameInFolder first(to / entry->target);
      if (!first || ::linkat(first.folder(), first.name(), at.folder(), at.name(), 0) != 0) {
        return file_error(errno, "link " + path.text());
      }
      continue;
    }
    const std::array<timespec, 2> times = {entry->status.st_atim, entry->status.st_mtim};
    static_cast<void>(::utimensat(at.folder(), at.name(), times.data(), AT_SYMLINK_NOFOLLOW));
    const struct stat& status = entry->status;
    if (::geteuid() == 0 &&
        ::fchownat(at.folder(), at.name(), status.st_uid, status.st_gid, AT_SYMLINK_NOFOLLOW) != 0) {
      return system_error(errno, "give " + path.text() + " its owner");
    }
  }
  // Last, since what is made in a directory changes its time.
  for (auto entry = tree.entries.rbegin(); entry != tree.entries.rend(); ++entry) {
    if (entry->kind != Entry::Kind::directory) continue;
    if (Status taken = take_attributes(from / entry->name, to / entry->name, *entry); !taken) return taken;
  }
  return {};
}

}  // namespace

// The folders that units leave and come to, each once.
void Mover::check_folders(Batch& batch, MoveReport& report) {
  std::map<std::pair<std::int64_t, std::string>, Status> known;
  for (const auto& work : batch) {
    const PathBeneath source = path_in(*work->from, work->unit.name);
    const auto [found, is_new] = known.try_emplace({work->from->id, source.parent().name});
    Status& status = found->second;
    if (is_new) status = check_parents(path_in(*work->to, work->unit.name));
    if (is_new && status) status = check_parents(source);
    if (is_new && status) {
      const PathBeneath folder = source.parent();
      const UniqueFd held = folder.open(O_PATH | O_DIRECTORY);
      const bool is_writable = held && ::faccessat(held.get(), ".", W_OK, 0) == 0;
      if (!is_writable && errno != ENOENT) status = stays("units out of " + folder.text());
      if (status) status = check_unprotected(folder);
      if (status) status = check_unprotected(going_folder(*source.folder));
    }
    if (!status) fail(*work, status.error(), report);
  }
  drop_over(batch);
}

// The source and the target are looked at, and writers kept out. Several units side by side.
Status Mover::begin(Work& work) {
  work.source = path_in(*work.from, work.unit.name);
  work.target = path_in(*work.to, work.unit.name);
  work.staged = coming(*work.to, work.unit.id);
  auto tree = scan(work.source);
  if (!tree && tree.error().code == Code::not_found && put_back(work.unit.id)) tree = scan(work.source);
  if (!tree) return tree.error().code == Code::not_found ? doubt(work, missing(work.source.text())) : tree.error();
  work.tree = std::move(*tree);
  if (Status removable = check_removable(work.source); !removable) return removable;
  if (!work.unit.identity.empty() && work.unit.identity != work.tree.identity) {
    return doubt(work, changed(work.source.text()));
  }
  if (work.unit.identity.empty()) work.unit.checksum.clear();
  auto leases = Leases::take(work.source, work.tree);
  if (!leases) return std::move(leases).error();
  work.leases = std::move(*leases);
  const auto there = look_at(work.target);
  if (!there) return there.error();
  if (there->st_ino != 0 && !is_empty_folder(work.target)) {
    return Error{Code::in_use, EEXIST, work.target.text() + " exists, and is not the unit's",
                 "move it away, or remove it"};
  }
  if (work.resumed && !is_unchanged(work.tree, work.row)) {
    work.resumed = false;
    work.row = {};
    if (Status removed = remove_all(work.staged); !removed) return removed;
    if (Status forgotten = catalog_.delete_move(work.unit.id); !forgotten) return forgotten;
  }
  return {};
}

// What an earlier attempt has left: it is gone on with, or finished, or undone.
Status Mover::resume(Work& work, const MoveRow& row) {
  if (const auto there = usable(*work.to); !there) return there.error();
  const auto staged = look_at(coming(*work.to, work.unit.id));
  if (!staged) return staged.error();
  const bool goes_on = row.job == Job::move && row.stage == Stage::copying && row.target == work.to->id &&
                       row.done_bytes != 0 && S_ISREG(staged->st_mode) && staged->st_ino == row.staged_inode &&
                       static_cast<std::uint64_t>(staged->st_size) >= row.done_bytes;
  if (goes_on) {
    work.row = row;
    work.resumed = true;
    return catalog_.put_move(work.row);  // nobody has asked this attempt to stop
  }
  const auto finding = recover(row, false);
  if (!finding) return finding.error();
  if (!*finding || (*finding)->repaired) return {};
  return Error{Code::in_use, 0, (*finding)->text, "see `penstock tier check`"};
}

Result<std::uint64_t> Mover::room_at(const TierRow& tier) {
  const auto usage = catalog_.usage(tier.id);
  if (!usage) return usage.error();
  const auto room = room_of(held_.at(tier.id).folder);
  if (!room) return room.error();
  return std::min(room->free_bytes, tier.capacity_bytes - std::min(tier.capacity_bytes, usage->bytes));
}

// Sources that were deleted may still have it.
void Mover::wait_for_room(const TierRow& tier, std::uint64_t bytes) {
  const auto room = room_of(held_.at(tier.id).folder);
  if (room && room->free_bytes < bytes) closer_.finish();
}

Status Mover::check_room(const Work& work, std::uint64_t free_bytes) const {
  if (work.tree.room_bytes <= free_bytes) return {};
  return Error{Code::no_space, ENOSPC,
               "no room for " + shown(work.unit.name) + " on " + work.to->name + ": it needs " +
                   std::to_string(work.tree.room_bytes) + " bytes, and " + std::to_string(free_bytes) + " are free",
               "move something else away first, or raise the capacity of the tier"};
}

Status Mover::stage(Work& work) const {
  auto inode = make_staged(work.tree.kind, work.staged);
  if (!inode && inode.error().system_error == EEXIST) {
    // Nobody else has the unit, and the catalog knows of no copy: what lies there is of no use.
    if (Status removed = remove_all(work.staged); !removed) return removed;
    inode = make_staged(work.tree.kind, work.staged);
  }
  if (!inode) return inode.error();
  fault_point("staged");
  work.row = {.unit = work.unit.id,
              .job = work.from != nullptr ? Job::move : Job::write,
              .stage = Stage::copying,
              .target = work.to->id,
              .staged_inode = *inode,
              .source_inode = work.tree.inode,
              .identity = work.tree.identity,
              .room_bytes = work.tree.room_bytes,
              .began_at = wall_seconds()};
  if (work.from != nullptr) work.row.source = work.from->id;
  return {};
}

void Mover::run(Batch& batch, MoveReport& report) {
  journal(batch, report);
  if (batch.empty()) return;
  fault_point("journaled");
  pace_.set_check([&] { return heed_others(batch, report); });
  pace_.set_pause([&] { return batch.front()->progress(MoveStep::paused); });
  copy(batch, report);
  sync(batch, report);
  verify(batch, report);
  if (batch.size() == 1 && start_over(*batch.front(), report)) {
    copy(batch, report);
    sync(batch, report);
    verify(batch, report);
  }
  pace_.set_check({});
  pace_.set_pause({});
  fail_files(batch, report);
  drop_over(batch);
  if (batch.empty()) return;
  fault_point("verified");
  std::set<std::string> folders;
  for (const auto& work : batch) {
    if (Status settled = settle(*work, folders); !settled) {
      fail(*work, settled.error(), report);
      continue;
    }
    work->named = true;
  }
  fault_point("named");
  drop_over(batch);
  if (batch.empty()) return;
  std::vector<PathBeneath> targets;
  for (const auto& work : batch) targets.push_back(work->target);
  if (Status synced = sync_parents(targets); !synced) return fail_all(batch, synced.error(), report);
  fault_point("settled");
  if (Status committed = commit(batch); !committed) return fail_all(batch, committed.error(), report);
  fault_point("committed");
  clear(batch, report);
}

// Who waits to write or to remove one of many need not wait for the others; one that is alone ends as soon as it can.
Status Mover::heed_others(const Batch& batch, MoveReport& report) {
  const auto asked = catalog_.asked_to_stop();
  if (!asked) return asked.error();
  Status last = Error{Code::in_use, 0, "all of them are being written or removed", "move them later"};
  for (const auto& work : batch) {
    if (work->over) continue;
    Status goes_on = work->leases.check();
    if (goes_on && std::ranges::find(*asked, work->unit.id) != asked->end()) {
      goes_on = Error{Code::in_use, 0, shown(work->unit.name) + " is being written or removed", "move it later"};
    }
    if (!goes_on && batch.size() > 1) {
      fail(*work, goes_on.error(), report);
    } else {
      last = std::move(goes_on);
    }
  }
  return last;
}

void Mover::journal(Batch& batch, MoveReport& report) {
  std::uint64_t wanted_bytes = 0;
  for (const auto& work : batch) wanted_bytes += work->resumed ? 0 : work->tree.room_bytes;
  wait_for_room(*batch.front()->to, wanted_bytes);
  std::vector<Status> fits(batch.size());
  const Status written = catalog_.transact([&]() -> Status {
    const auto room = room_at(*batch.front()->to);
    if (!room) return room.error();
    std::uint64_t free_bytes = *room;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Work& work = *batch[i];
      if (work.resumed) continue;  // it has its room
      fits[i] = check_room(work, free_bytes);
      if (!fits[i]) continue;
      free_bytes -= work.tree.room_bytes;
      if (Status put = catalog_.put_move(work.row); !put) return put;
    }
    return {};
  });
  if (!written) fail_all(batch, written.error(), report);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!fits[i]) fail(*batch[i], fits[i].error(), report);
  }
  drop_over(batch);
}

void Mover::copy(Batch& batch, MoveReport& report) {
  if (batch.empty()) return;
  for (const auto& work : batch) {
    pace_.tell(work->progress(MoveStep::copying), true);
    if (work->tree.kind != UnitKind::directory) continue;
    if (Status made = make_entries(work->tree, work->staged); !made) fail(*work, made.error(), report);
  }
  drop_over(batch);
  if (batch.empty()) return;
  const bool is_single = batch.size() == 1;
  Work& first = *batch.front();
  const auto progress = [&](std::uint64_t bytes) {
    first.done_bytes += bytes;
    if (is_single) pace_.tell(first.progress(MoveStep::copying));
  };
  const auto checkpoint = [&](std::uint64_t done_bytes) {
    first.row.done_bytes = done_bytes;
    return catalog_.set_done(first.unit.id, done_bytes);
  };
  if (first.resumed) report.resumed_bytes += first.row.done_bytes;
  Status copied = copier_.copy(files_of(batch), progress, is_single ? checkpoint : Copier::Checkpoint());
  if (!copied) fail_all(batch, copied.error(), report);
  fail_files(batch, report);
  for (const auto& work : batch) {
    if (work->over || work->tree.kind != UnitKind::directory) continue;
    Status finished = finish_entries(work->tree, work->source, work->staged);
    if (!finished) fail(*work, finished.error(), report);
  }
  drop_over(batch);
  if (!batch.empty()) fault_point("copied");
}

void Mover::sync(Batch& batch, MoveReport& report) {
  if (batch.empty()) return;
  std::size_t entries = 0;
  for (const auto& work : batch) entries += work->tree.entries.size();
  if (entries > most_single_syncs) {
    if (Status synced = sync_file_system(held_.at(batch.front()->to->id).folder); !synced)
      fail_all(batch, synced.error(), report);
  } else {
    for (const auto& work : batch) {
      for (const Entry& entry : work->tree.entries) {
        if (entry.kind == Entry::Kind::link || entry.kind == Entry::Kind::same) continue;
        Status synced = sync_file(work->staged / entry.name);
        if (!synced) fail(*work, synced.error(), report);
      }
    }
  }
  drop_over(batch);
  if (!batch.empty()) fault_point("synced");
}

// What is not what was written says so in the status of its files.
void Mover::verify(Batch& batch, MoveReport& report) {
  if (batch.empty()) return;
  const bool is_single = batch.size() == 1;
  Work& first = *batch.front();
  first.done_bytes = 0;
  const auto progress = [&](std::uint64_t bytes) {
    first.done_bytes += bytes;
    if (is_single) pace_.tell(first.progress(MoveStep::verifying));
  };
  if (Status verified = copier_.verify(files_of(batch), progress); !verified) {
    fail_all(batch, verified.error(), report);
  }
  for (const auto& work : batch) {
    if (work->over) continue;
    work->checksum = checksum_of(work->tree, work->files);
    if (work->unit.checksum.empty() || work->unit.checksum == work->checksum) continue;
    const Error error{
        Code::io_error, 0,
        work->source.text() + " is damaged: its checksum is " + work->checksum + ", and was " + work->unit.checksum,
        "restore it from a backup, or import it again to take it as it is"};
    static_cast<void>(catalog_.doubt(work->unit.id, error.message));
    fail(*work, error, report);
  }
  drop_over(batch);
}

// A copy that was gone on with, and of which the old part is damaged, is made anew.
bool Mover::start_over(Work& work, MoveReport& report) {
  if (!work.resumed || work.files.front().status) return false;
  const UniqueFd staged = work.staged.open(O_WRONLY);
  if (!staged || uninterrupted([&] { return ::ftruncate(staged.get(), 0); }) != 0 ||
      !catalog_.set_done(work.unit.id, 0))
    return false;
  report.resumed_bytes -= work.row.done_bytes;
  work.resumed = false;
  work.row.done_bytes = 0;
  work.done_bytes = 0;
  work.files.front().done_bytes = 0;
  work.files.front().status = {};
  return true;
}

// The last look at the source, then the name. `folders` are those that are known to be there.
Status Mover::settle(const Work& work, std::set<std::string>& folders) const {
  if (Status leased = work.leases.check(); !leased) return leased;
  const auto now = glance(work.source);
  if (!now) return now.error().code == Code::not_found ? doubt(work, missing(work.source.text())) : now.error();
  if (now->identity != work.tree.identity || !are_same_files(*now, work.tree)) {
    return doubt(work, changed(work.source.text()));
  }
  const PathBeneath folder = work.target.parent();
  if (!folders.contains(folder.name)) {
    const HeldFolder* model = work.from != nullptr ? work.source.folder : nullptr;
    if (Status made = make_parents(work.target, model, work.unit.id); !made) return made;
    folders.insert(folder.name);
  }
  remove_empty_folder(work.target);
  return rename_to_free(work.staged, work.target);
}

Status Mover::commit(const Batch& batch) {
  std::vector<UnitRow> units;
  Status committed = catalog_.transact([&]() -> Status {
    for (const auto& work : batch) {
      const auto there = glance(work->target);
      if (!there) return there.error();
      UnitRow unit = work->unit;
      unit.tier = work->to->id;
      describe(unit, work->tree);
      unit.identity = there->identity;
      unit.checksum = work->checksum;
      unit.moved_at = wall_seconds();
      unit.doubt.clear();
      unit.is_new = false;
      if (Status updated = catalog_.update_unit(unit); !updated) return updated;
      if (Status set = catalog_.set_stage(unit.id, Stage::removing); !set) return set;
      units.push_back(std::move(unit));
    }
    return {};
  });
  if (!committed) return committed;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i]->row.stage = Stage::removing;
    batch[i]->unit = std::move(units[i]);
  }
  return {};
}

// The sources go, and then what the catalog knows of the moves.
void Mover::clear(const Batch& batch, MoveReport& report) {
  std::vector<Result<std::optional<TierFinding>>> findings(batch.size(), std::optional<TierFinding>());
  side_by_side(batch.size(), [&](std::size_t i) {
    Work& work = *batch[i];
    if (work.from == nullptr) return;
    if (work.leases.check().ok()) {
      findings[i] = clear_source(work.unit, work.row, &work.leases);
    } else {
      // He who waits to write would write to a file without a name. It keeps the old one, and both are told of.
      findings[i] = std::optional(TierFinding{.name = work.unit.name,
                                              .path = work.source.text(),
                                              .text = work.source.text() + " was opened for writing while it moved"});
    }
    const bool is_deleted = findings[i] && !*findings[i];
    if (!is_deleted) work.leases = {};  // who waits to write goes on
  });
  std::vector<PathBeneath> sources;
  std::vector<std::int64_t> cleared;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Work& work = *batch[i];
    ++report.units;
    report.bytes += work.tree.size_bytes;
    if (findings[i]) cleared.push_back(work.unit.id);
    if (findings[i] && !*findings[i]) {
      if (work.from == nullptr) continue;
      sources.push_back(work.source);
      sources.push_back(going(*work.from, work.unit.id));
    } else {
      // The unit lies at its target, and something beside it.
      const Error why = findings[i] ? Error{Code::changed, 0, (*findings[i])->text, "look at both, and remove one"}
                                    : findings[i].error();
      static_cast<void>(catalog_.doubt(work.unit.id, why.message));
      note_failure(work, why, report);
    }
  }
  fault_point("emptied");
  const bool synced = sync_parents(sources).ok();
  fault_point("cleared");
  if (synced) {
    static_cast<void>(catalog_.transact([&]() -> Status {
      for (const std::int64_t unit : cleared) {
        if (Status forgotten = catalog_.delete_move(unit); !forgotten) return forgotten;
      }
      return {};
    }));
  }
  fault_point("forgotten");
  for (const auto& work : batch) {
    if (!synced || work->from == nullptr || work->tree.kind != UnitKind::directory) continue;
    const Status removed = remove_gone(*work->source.folder);
    if (removed) continue;
    note_failure(
        *work,
        {removed.error().code, removed.error().system_error,
         shown(work->unit.name) + " has moved, but not all of its source can be deleted: " + removed.error().message,
         removed.error().hint},
        report);
  }
  std::vector<UniqueFd> deleted;
  for (const auto& work : batch) {
    if (work->from != nullptr) std::ranges::move(work->leases.take_files(), std::back_inserter(deleted));
  }
  closer_.take(std::move(deleted));
  for (const auto& work : batch) {
    work->done_bytes = work->tree.size_bytes;
    pace_.tell(work->progress(MoveStep::done), true);
    locks_.unlock(work->unit.id);
    work->locked = false;
  }
}

}  // namespace penstock::tiers
