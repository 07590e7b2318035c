#include "services/tiers/mover.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <thread>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/checksum.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/mover_work.h"
#include "services/tiers/names.h"

namespace penstock::tiers {
namespace {

// Units that share a transaction.
constexpr std::size_t batch_units = 128;
constexpr std::uint64_t batch_bytes = 32 << 20;
constexpr std::uint64_t large_bytes = 4 << 20;
// More files than this are synced by syncing their file system.
constexpr std::size_t most_single_syncs = 4;
constexpr std::size_t most_failures = 64;

Error missing(const std::string& path) {
  return {Code::not_found, ENOENT, path + " is missing: somebody has removed or renamed it",
          "put it back, or forget the unit (penstock tier forget)"};
}

Error changed(const std::string& path) {
  return {Code::changed, 0, path + " was changed by somebody else",
          "import it again to take it as it is (penstock tier import)"};
}

// The entries of a directory but its files: made before those, and finished after them.
Status make_entries(const Tree& tree, const std::string& to) {
  for (const Entry& entry : tree.entries) {
    const std::string path = to + "/" + entry.name;
    int failed = 0;
    if (entry.name.empty()) continue;
    if (entry.kind == Entry::Kind::directory) failed = ::mkdir(path.c_str(), 0700);
    if (entry.kind == Entry::Kind::link) failed = ::symlink(entry.target.c_str(), path.c_str());
    if (entry.kind == Entry::Kind::file) {
      const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      failed = file ? 0 : -1;
    }
    if (failed != 0) return system_error(errno, "make " + path);
  }
  return {};
}

Status finish_entries(const Tree& tree, const std::string& from, const std::string& to) {
  for (auto entry = tree.entries.rbegin(); entry != tree.entries.rend(); ++entry) {
    const std::string path = entry->name.empty() ? to : to + "/" + entry->name;
    if (entry->kind == Entry::Kind::same && ::link((to + "/" + entry->target).c_str(), path.c_str()) != 0) {
      return system_error(errno, "link " + path);
    }
    if (entry->kind == Entry::Kind::link) {
      const std::array<timespec, 2> times = {entry->status.st_atim, entry->status.st_mtim};
      static_cast<void>(::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW));
      if (::geteuid() == 0 && ::lchown(path.c_str(), entry->status.st_uid, entry->status.st_gid) != 0) {
        return system_error(errno, "give " + path + " its owner");
      }
    }
  }
  // Last, since what is made in a directory changes its time.
  for (auto entry = tree.entries.rbegin(); entry != tree.entries.rend(); ++entry) {
    if (entry->kind != Entry::Kind::directory) continue;
    const std::string below = entry->name.empty() ? "" : "/" + entry->name;
    if (Status taken = take_attributes(from + below, to + below, entry->status); !taken) return taken;
  }
  return {};
}

}  // namespace

Status check_usable(const TierRow& tier) {
  if (tier.read_only) {
    return Error{Code::read_only, 0, "the tier " + tier.name + " is read-only", "allow it with `penstock tier change`"};
  }
  return check_marker(tier.path, tier.mark, tier.name);
}

Status sync_parents(const std::vector<std::string>& paths) {
  std::set<std::string> folders;
  for (const std::string& path : paths) folders.insert(parent_of(path));
  for (const std::string& folder : folders) {
    if (Status synced = sync_file(folder); !synced && synced.error().code != Code::not_found) return synced;
  }
  return {};
}

void describe(UnitRow& unit, const Tree& tree) {
  unit.kind = tree.kind;
  unit.size_bytes = tree.size_bytes;
  unit.room_bytes = tree.room_bytes;
  unit.files = tree.files;
  unit.identity = tree.identity;
}

std::string checksum_of(const Tree& tree, std::span<const FileCopy> files) {
  if (tree.kind == UnitKind::file) return files.front().checksum;
  Checksum sum;
  const auto add = [&](std::string_view text) {
    sum.add(std::as_bytes(std::span(text.data(), text.size())));
    sum.add(std::as_bytes(std::span("", 1)));
  };
  std::size_t file = 0;
  for (const Entry& entry : tree.entries) {
    add(entry.name);
    add(std::to_string(static_cast<int>(entry.kind)));
    add(entry.target);
    if (entry.kind == Entry::Kind::file) add(files[file++].checksum);
  }
  return sum.hex();
}

Result<std::unique_ptr<Mover>> Mover::create(Catalog& catalog, Context& copying, const MoveOptions& options) {
  auto locks = UnitLocks::open(catalog.path());
  if (!locks) return std::move(locks).error();
  auto tiers = catalog.tiers();
  if (!tiers) return std::move(tiers).error();
  return std::unique_ptr<Mover>(new Mover(catalog, copying, options, std::move(*locks), std::move(*tiers)));
}

Mover::Mover(Catalog& catalog, Context& copying, const MoveOptions& options, UnitLocks locks,
             std::vector<TierRow> tiers)
    : catalog_(catalog),
      context_(copying),
      options_(options),
      locks_(std::move(locks)),
      tiers_(std::move(tiers)),
      pace_(catalog, options_),
      copier_(copying, pace_) {}

const TierRow* Mover::tier(std::int64_t id) const {
  const auto found = std::ranges::find(tiers_, id, &TierRow::id);
  return found == tiers_.end() ? nullptr : &*found;
}

// A tier that was there a moment ago need not be looked for again for each of a thousand small files: what is written
// to an empty mount point instead is not named there, since its folder for what is coming is missing.
Status Mover::check_usable_lately(const TierRow& tier) {
  TimePoint& seen = usable_at_[tier.id];
  if (Clock::now() - seen < std::chrono::seconds(1)) return {};
  Status usable = check_usable(tier);
  if (usable) seen = Clock::now();
  return usable;
}

Result<bool> Mover::claim(std::int64_t unit, double wait_seconds) {
  const TimePoint until = time_after(Clock::now(), duration_from_seconds(wait_seconds));
  for (bool asked = false;; asked = true) {
    const auto locked = locks_.try_lock(unit);
    if (!locked || *locked || Clock::now() >= until) return locked;
    if (!asked) {
      if (Status status = catalog_.ask_to_stop(unit); !status) return std::move(status).error();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

MoveReport Mover::move(std::span<const Task> tasks) {
  const TimePoint begin_time = Clock::now();
  MoveReport report;
  for (std::size_t next = 0; next < tasks.size() && !report.error;) {
    Batch batch;
    std::uint64_t bytes = 0;
    while (next < tasks.size() && batch.size() < batch_units && bytes < batch_bytes && !report.error) {
      const bool same_pair = batch.empty() || batch.front()->to->id == tasks[next].to;
      if (!same_pair) break;
      auto work = std::make_unique<Work>();
      work->unit.id = tasks[next].unit;
      work->unit.name = tasks[next].name;
      work->to = tier(tasks[next].to);
      ++next;
      if (Status begun = begin(*work, report); !begun) {
        fail(*work, begun.error(), report);
        continue;
      }
      if (work->over) continue;
      const bool large = work->tree.size_bytes >= large_bytes || work->tree.kind == UnitKind::directory;
      if (large && !batch.empty()) {
        run(batch, report);
        batch.clear();
      }
      bytes += work->tree.size_bytes;
      batch.push_back(std::move(work));
      if (large) break;
    }
    if (!batch.empty()) run(batch, report);
  }
  report.seconds = seconds_between(begin_time, Clock::now());
  return report;
}

void Mover::fail(Work& work, Error error, MoveReport& report) {
  if (work.over) return;
  work.over = true;
  if (error.code == Code::cancelled && !report.error) report.error = error;
  const bool goes_on_later = (work.resumed || error.code == Code::cancelled) && work.row.done_bytes != 0;
  if (work.named || !goes_on_later) undo(work);
  work.leases = {};
  if (work.locked) locks_.unlock(work.unit.id);
  work.locked = false;
  if (work.to != nullptr) pace_.tell(work.progress(MoveStep::failed), true);
  if (error.code == Code::cancelled) return;
  ++report.failure_count;
  if (report.failures.size() < most_failures) report.failures.push_back({work.unit.name, std::move(error)});
}

// It is not as the catalog has it, and is left alone until somebody has looked.
Error Mover::doubt(const Work& work, Error error) const {
  const bool is_there = work.from != nullptr && check_marker(work.from->path, work.from->mark, work.from->name).ok();
  if (is_there) static_cast<void>(catalog_.doubt(work.unit.id, error.message));
  return error;
}

// Once it has its name, only what the catalog says counts: recovery goes on from there.
void Mover::undo(Work& work) {
  if (!work.locked) return;
  if (work.named) {
    const auto row = catalog_.move_of(work.unit.id);
    if (row && *row) static_cast<void>(recover(**row, false));
    return;
  }
  if (work.row.unit == 0) return;
  if (remove_all(work.staged).ok()) static_cast<void>(catalog_.delete_move(work.unit.id));
}

Status Mover::begin(Work& work, MoveReport& report) {
  if (Status going = pace_.after(0); !going) return going;
  if (work.to == nullptr) return Error{Code::not_found, 0, "the tier is no longer in the catalog", "plan again"};
  const auto locked = locks_.try_lock(work.unit.id);
  if (!locked) return locked.error();
  if (!*locked) {
    ++report.busy;
    work.over = true;
    return {};
  }
  work.locked = true;
  fault_point("begun");
  if (Status status = resume(work); !status) return status;
  auto unit = catalog_.unit(work.unit.id);
  if (!unit) return std::move(unit).error();
  if (!*unit || (*unit)->is_new || (*unit)->tier == work.to->id) {  // gone, or there already
    locks_.unlock(work.unit.id);
    work.locked = false;
    work.over = true;
    return {};
  }
  work.unit = std::move(**unit);
  work.from = tier(work.unit.tier);
  if (work.from == nullptr) return Error{Code::not_found, 0, "its tier is no longer in the catalog", "plan again"};
  for (const TierRow* place : {work.from, work.to}) {
    if (Status usable = check_usable_lately(*place); !usable) return usable;
    if (Status parents = check_parents(place->path, work.unit.name); !parents) return parents;
  }
  work.source = path_in(*work.from, work.unit.name);
  work.target = path_in(*work.to, work.unit.name);
  work.staged = coming_path(work.to->path, work.unit.id);
  auto tree = scan(work.source);
  if (!tree) return tree.error().code == Code::not_found ? doubt(work, missing(work.source)) : tree.error();
  work.tree = std::move(*tree);
  // What can't be removed afterwards would lie on both.
  const bool stays = ::access(parent_of(work.source).c_str(), W_OK) != 0 ||
                     (::access(work.source.c_str(), W_OK) != 0 && (errno == EPERM || errno == EROFS));
  if (stays)
    return system_error(errno, "move " + work.source + " away", "its file system is read-only, or it is protected");
  if (!work.unit.identity.empty() && work.unit.identity != work.tree.identity) {
    return doubt(work, changed(work.source));
  }
  if (work.unit.identity.empty()) work.unit.checksum.clear();
  auto leases = Leases::take(work.source, work.tree);
  if (!leases) return std::move(leases).error();
  work.leases = std::move(*leases);
  const auto there = look_at(work.target);
  if (!there) return there.error();
  if (there->st_ino != 0 && !(work.tree.kind == UnitKind::directory && is_empty_folder(work.target))) {
    return Error{Code::in_use, EEXIST, work.target + " exists, and is not the unit's", "move it away, or remove it"};
  }
  if (work.resumed && work.row.identity != work.tree.identity) {
    work.resumed = false;
    work.row = {};
    if (Status removed = remove_all(work.staged); !removed) return removed;
    if (Status forgotten = catalog_.delete_move(work.unit.id); !forgotten) return forgotten;
  }
  if (!work.resumed) {
    if (Status room = check_room(work); !room) return room;
    if (Status staged = stage(work); !staged) return staged;
  }
  for (const Entry& entry : work.tree.entries) {
    if (entry.kind != Entry::Kind::file) continue;
    const std::string below = entry.name.empty() ? "" : "/" + entry.name;
    work.files.push_back({.from = work.source + below, .to = work.staged + below, .entry = &entry});
  }
  if (work.resumed && work.tree.kind == UnitKind::file) work.files.front().done_bytes = work.row.done_bytes;
  return {};
}

// What an earlier attempt has left: it is gone on with, or finished, or undone.
Status Mover::resume(Work& work) {
  const auto row = catalog_.move_of(work.unit.id);
  if (!row) return row.error();
  if (!*row) return {};
  const auto staged = look_at(coming_path(work.to->path, work.unit.id));
  if (!staged) return staged.error();
  const bool goes_on = (*row)->job == Job::move && (*row)->stage == Stage::copying && (*row)->target == work.to->id &&
                       (*row)->done_bytes != 0 && S_ISREG(staged->st_mode) && staged->st_ino == (*row)->staged_inode &&
                       static_cast<std::uint64_t>(staged->st_size) >= (*row)->done_bytes;
  if (goes_on) {
    work.row = **row;
    work.resumed = true;
    return catalog_.put_move(work.row);  // nobody has asked this attempt to stop
  }
  const auto finding = recover(**row, false);
  if (!finding) return finding.error();
  if (!*finding || (*finding)->repaired) return {};
  return Error{Code::in_use, 0, (*finding)->text, "see `penstock tier check`"};
}

Status Mover::check_room(const Work& work) {
  const auto usage = catalog_.usage(work.to->id);
  if (!usage) return usage.error();
  const auto room = room_of(work.to->path);
  if (!room) return room.error();
  const std::uint64_t capacity = work.to->capacity_bytes;
  if (usage->bytes + work.tree.room_bytes <= capacity && work.tree.room_bytes <= room->free_bytes) return {};
  return Error{Code::no_space, ENOSPC,
               "no room for " + shown(work.unit.name) + " on " + work.to->name + ": it needs " +
                   std::to_string(work.tree.room_bytes) + " bytes, and " +
                   std::to_string(std::min(room->free_bytes, capacity - std::min(capacity, usage->bytes))) +
                   " are free",
               "move something else away first, or raise the capacity of the tier"};
}

Status Mover::stage(Work& work) const {
  // Nobody else has the unit, and the catalog knows of no copy: what lies there is of no use.
  if (Status removed = remove_all(work.staged); !removed) return removed;
  if (work.tree.kind == UnitKind::file) {
    const UniqueFd file(::open(work.staged.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return system_error(errno, "create " + work.staged);
  } else if (::mkdir(work.staged.c_str(), 0700) != 0) {
    return system_error(errno, "create " + work.staged);
  }
  const auto status = look_at(work.staged);
  if (!status) return status.error();
  fault_point("staged");
  work.row = {.unit = work.unit.id,
              .job = work.from != nullptr ? Job::move : Job::write,
              .stage = Stage::copying,
              .target = work.to->id,
              .staged_inode = status->st_ino,
              .source_inode = work.tree.inode,
              .identity = work.tree.identity,
              .room_bytes = work.tree.room_bytes,
              .began_at = wall_seconds()};
  if (work.from != nullptr) work.row.source = work.from->id;
  return {};
}

void Mover::run(Batch& batch, MoveReport& report) {
  const auto fail_all = [&](const Error& error) {
    for (const auto& work : batch) fail(*work, error, report);
  };
  const auto stop_for = [&]() -> Status {
    for (const auto& work : batch) {
      if (Status leased = work->leases.check(); !leased) return leased;
      const auto asked = catalog_.asked_to_stop(work->unit.id);
      if (!asked) return asked.error();
      if (*asked) {
        return Error{Code::in_use, 0, shown(work->unit.name) + " is being written or removed", "move it later"};
      }
    }
    return {};
  };
  if (Status status = journal(batch); !status) return fail_all(status.error());
  fault_point("journaled");
  pace_.set_check(stop_for);
  Status copied = copy(batch, report);
  if (copied) copied = sync(batch);
  if (copied) fault_point("synced");
  if (copied) copied = verify(batch);
  pace_.set_check({});
  if (!copied) {
    // Which of them it was, each finds out by itself.
    if (batch.size() == 1 || copied.error().code == Code::cancelled) return fail_all(copied.error());
    std::vector<Task> alone;
    for (const auto& work : batch) {
      alone.push_back({work->unit.id, work->unit.name, work->to->id});
      undo(*work);
      work->leases = {};  // who waits to write need not wait for the others
      locks_.unlock(work->unit.id);
    }
    for (const Task& task : alone) {
      if (report.error) return;
      Batch one;
      one.push_back(std::make_unique<Work>());
      one.front()->unit.id = task.unit;
      one.front()->unit.name = task.name;
      one.front()->to = tier(task.to);
      if (Status begun = begin(*one.front(), report); !begun) {
        fail(*one.front(), begun.error(), report);
      } else if (!one.front()->over) {
        run(one, report);
      }
    }
    return;
  }
  fault_point("verified");
  for (const auto& work : batch) {
    if (Status settled = settle(*work); !settled) {
      fail(*work, settled.error(), report);
      continue;
    }
    work->named = true;
  }
  fault_point("named");
  std::erase_if(batch, [](const auto& work) { return work->over; });
  if (batch.empty()) return;
  std::vector<std::string> targets;
  for (const auto& work : batch) targets.push_back(work->target);
  if (Status synced = sync_parents(targets); !synced) return fail_all(synced.error());
  fault_point("settled");
  if (Status committed = commit(batch); !committed) return fail_all(committed.error());
  fault_point("committed");
  clear(batch, report);
}

Status Mover::journal(const Batch& batch) {
  return catalog_.transact([&]() -> Status {
    for (const auto& work : batch) {
      if (work->resumed) continue;
      if (Status room = check_room(*work); !room) return room;
      if (Status put = catalog_.put_move(work->row); !put) return put;
    }
    return {};
  });
}

Status Mover::copy(const Batch& batch, MoveReport& report) {
  std::vector<FileCopy> files;
  for (const auto& work : batch) {
    pace_.tell(work->progress(MoveStep::copying), true);
    if (work->tree.kind == UnitKind::directory) {
      if (Status made = make_entries(work->tree, work->staged); !made) return made;
    }
    files.insert(files.end(), work->files.begin(), work->files.end());
  }
  Work& first = *batch.front();
  const auto progress = [&](std::uint64_t bytes) {
    first.done_bytes += bytes;
    if (batch.size() == 1) pace_.tell(first.progress(MoveStep::copying));
  };
  const auto checkpoint = [&](std::uint64_t done_bytes) {
    first.row.done_bytes = done_bytes;
    return catalog_.set_done(first.unit.id, done_bytes);
  };
  if (first.resumed) report.resumed_bytes += first.row.done_bytes;
  if (Status copied = copier_.copy(files, progress, batch.size() == 1 ? checkpoint : Copier::Checkpoint()); !copied) {
    return copied;
  }
  std::size_t next = 0;
  for (const auto& work : batch) {
    for (FileCopy& file : work->files) file.checksum = std::move(files[next++].checksum);
    if (work->tree.kind == UnitKind::directory) {
      if (Status finished = finish_entries(work->tree, work->source, work->staged); !finished) return finished;
    }
  }
  fault_point("copied");
  return {};
}

Status Mover::sync(const Batch& batch) const {
  std::size_t entries = 0;
  for (const auto& work : batch) entries += work->tree.entries.size();
  if (entries > most_single_syncs) return sync_file_system(batch.front()->to->path);
  for (const auto& work : batch) {
    for (const Entry& entry : work->tree.entries) {
      if (entry.kind == Entry::Kind::link || entry.kind == Entry::Kind::same) continue;
      if (Status synced = sync_file(entry.name.empty() ? work->staged : work->staged + "/" + entry.name); !synced) {
        return synced;
      }
    }
  }
  return {};
}

Status Mover::verify(const Batch& batch) {
  std::vector<FileCopy> files;
  for (const auto& work : batch) files.insert(files.end(), work->files.begin(), work->files.end());
  Work& first = *batch.front();
  first.done_bytes = 0;
  const auto progress = [&](std::uint64_t bytes) {
    first.done_bytes += bytes;
    if (batch.size() == 1) pace_.tell(first.progress(MoveStep::verifying));
  };
  if (Status verified = copier_.verify(files, progress); !verified) return verified;
  for (const auto& work : batch) {
    work->checksum = checksum_of(work->tree, work->files);
    if (!work->unit.checksum.empty() && work->unit.checksum != work->checksum) {
      const Error error{
          Code::io_error, 0,
          work->source + " is damaged: its checksum is " + work->checksum + ", and was " + work->unit.checksum,
          "restore it from a backup, or import it again to take it as it is"};
      static_cast<void>(catalog_.doubt(work->unit.id, error.message));
      return error;
    }
  }
  return {};
}

// The last look at the source, then the name.
Status Mover::settle(const Work& work) const {
  if (Status leased = work.leases.check(); !leased) return leased;
  const auto now = glance(work.source);
  if (!now) return now.error().code == Code::not_found ? doubt(work, missing(work.source)) : now.error();
  if (now->identity != work.tree.identity || now->inode != work.tree.inode) return doubt(work, changed(work.source));
  const std::string model = work.from != nullptr ? work.from->path : "";
  if (Status made = make_parents(work.to->path, work.unit.name, model); !made) return made;
  if (work.tree.kind == UnitKind::directory) remove_empty_folder(work.target);
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
      MoveRow row = work->row;
      row.stage = Stage::removing;
      if (Status put = catalog_.put_move(row); !put) return put;
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
  std::vector<std::string> sources;
  std::vector<std::int64_t> cleared;
  for (const auto& work : batch) {
    ++report.units;
    report.bytes += work->tree.size_bytes;
    if (work->from == nullptr) {
      cleared.push_back(work->unit.id);
      continue;
    }
    if (work->leases.check().ok()) {
      const auto finding = clear_source(work->unit, work->row);
      if (finding && !*finding) {
        sources.push_back(work->source);
        sources.push_back(going_path(work->from->path, work->unit.id));
        cleared.push_back(work->unit.id);
        continue;
      }
      const std::string why = finding ? (*finding)->text : finding.error().message;
      static_cast<void>(catalog_.doubt(work->unit.id, why));
      if (finding) cleared.push_back(work->unit.id);
    } else {
      // He who waits to write would write to a file without a name. It keeps the old one, and both are told of.
      static_cast<void>(catalog_.doubt(work->unit.id, work->source + " was opened for writing while it moved"));
      cleared.push_back(work->unit.id);
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
    work->done_bytes = work->tree.size_bytes;
    pace_.tell(work->progress(MoveStep::done), true);
    locks_.unlock(work->unit.id);
    work->locked = false;
  }
}

Result<std::string> Mover::checksum(const std::string& path, const Tree& tree) {
  pace_.ignore_pause();
  std::vector<FileCopy> files;
  for (const Entry& entry : tree.entries) {
    if (entry.kind != Entry::Kind::file) continue;
    files.push_back({.from = entry.name.empty() ? path : path + "/" + entry.name, .to = {}, .entry = &entry});
  }
  if (Status added = copier_.add_up(files, [](std::uint64_t) {}); !added) return std::move(added).error();
  return checksum_of(tree, files);
}

}  // namespace penstock::tiers
