#include "services/tiers/mover.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "penstock/checksum.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/mover_work.h"
#include "services/tiers/names.h"
#include "services/tiers/side_by_side.h"

namespace penstock::tiers {

Status sync_parents(const std::vector<PathBeneath>& paths) {
  std::map<std::string, PathBeneath> folders;
  for (const PathBeneath& path : paths) folders.try_emplace(path.parent().text(), path.parent());
  for (const auto& [text, folder] : folders) {
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

Result<std::unique_ptr<Mover>> Mover::create(Catalog& catalog, const Context& copying, Closer& closer,
                                             const MoveOptions& options) {
  auto locks = UnitLocks::open(catalog.path());
  if (!locks) return std::move(locks).error();
  auto tiers = catalog.tiers();
  if (!tiers) return std::move(tiers).error();
  return std::unique_ptr<Mover>(new Mover(catalog, copying, closer, options, std::move(*locks), std::move(*tiers)));
}

Mover::Mover(Catalog& catalog, const Context& copying, Closer& closer, const MoveOptions& options, UnitLocks locks,
             std::vector<TierRow> tiers)
    : catalog_(catalog),
      context_(copying),
      closer_(closer),
      options_(options),
      locks_(std::move(locks)),
      tiers_(std::move(tiers)),
      pace_(catalog, options_),
      copier_(copying, pace_) {}

void Mover::Work::list_files() {
  for (const Entry& entry : tree.entries) {
    if (entry.kind != Entry::Kind::file) continue;
    files.push_back({.from = source / entry.name,
                     .to = staged / entry.name,
                     .entry = &entry,
                     .source = tree.kind == UnitKind::file ? leases.descriptor() : -1,
                     .done_bytes = resumed ? row.done_bytes : 0});  // only a file goes on
  }
}

void Mover::drop_over(Batch& batch) {
  std::erase_if(batch, [](const auto& work) { return work->over; });
}

std::vector<FileCopy*> Mover::files_of(const Batch& batch) {
  std::vector<FileCopy*> files;
  for (const auto& work : batch) {
    for (FileCopy& file : work->files) files.push_back(&file);
  }
  return files;
}

const TierRow* Mover::tier(std::int64_t id) const {
  const auto found = std::ranges::find(tiers_, id, &TierRow::id);
  return found == tiers_.end() ? nullptr : &*found;
}

// A tier that was there a moment ago need not be looked for again for each of a thousand small files: they go to the
// folder that is held, whatever is mounted over it by now.
Result<const HeldFolder*> Mover::usable(const TierRow& tier) {
  const auto known = held_.find(tier.id);
  if (known != held_.end() && Clock::now() - known->second.checked_at < std::chrono::seconds(1)) {
    return &known->second.folder;
  }
  auto folder = open_usable(tier);
  if (!folder) return std::move(folder).error();
  Held& held = held_[tier.id];
  held = {std::move(*folder), Clock::now()};
  return &held.folder;
}

PathBeneath Mover::path_in(const TierRow& tier, const std::string& name) const {
  return {&held_.at(tier.id).folder, name};
}

PathBeneath Mover::coming(const TierRow& tier, std::int64_t unit) const {
  return coming_path(held_.at(tier.id).folder, unit);
}

PathBeneath Mover::going(const TierRow& tier, std::int64_t unit) const {
  return going_path(held_.at(tier.id).folder, unit);
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

void Mover::move_together(std::span<const Task> tasks, MoveReport& report) {
  Batch batch;
  for (const Task& task : tasks) {
    auto work = std::make_unique<Work>();
    work->unit.id = task.unit;
    work->unit.name = task.name;
    work->to = tier(task.to);
    batch.push_back(std::move(work));
  }
  lock(batch, report);
  look_up(batch, report);
  check_folders(batch, report);
  std::vector<Status> begun(batch.size());
  side_by_side(batch.size(), [&](std::size_t i) { begun[i] = begin(*batch[i]); });
  std::vector<Task> alone;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Work& work = *batch[i];
    // One after the other: files are made in one folder, whose lock threads would only fight for.
    if (begun[i] && !work.resumed) begun[i] = stage(work);
    if (begun[i]) work.list_files();
    if (!begun[i]) {
      fail(work, begun[i].error(), report);
    } else if (batch.size() > 1 && is_large(work.tree.kind, work.tree.size_bytes)) {
      // It was written since the catalog has looked.
      alone.push_back({work.unit.id, work.unit.name, work.to->id, work.tree.kind, work.tree.size_bytes});
      let_go(work);
    }
  }
  drop_over(batch);
  if (!batch.empty()) run(batch, report);
  for (const Task& task : alone) {
    if (!report.error) move_together({&task, 1}, report);
  }
}

void Mover::fail(Work& work, Error error, MoveReport& report) {
  if (work.over) return;
  if (error.code == Code::cancelled && !report.error) report.error = error;
  // What is safe of a large copy is gone on with, unless it may be the reason. A unit that has never been is not.
  const bool is_good = error.code == Code::cancelled || (work.resumed && error.code != Code::io_error);
  work.is_kept = work.from != nullptr && !work.named && is_good && work.row.done_bytes != 0;
  let_go(work);
  if (work.to != nullptr) pace_.tell(work.progress(MoveStep::failed), true);
  if (error.code == Code::cancelled) return;
  note_failure(work, std::move(error), report);
}

void Mover::note_failure(const Work& work, Error error, MoveReport& report) {
  ++report.failure_count;
  if (report.failures.size() < most_failures) report.failures.push_back({work.unit.name, std::move(error)});
}

void Mover::fail_all(const Batch& batch, const Error& error, MoveReport& report) {
  for (const auto& work : batch) fail(*work, error, report);
}

// Those of which a file has failed.
void Mover::fail_files(const Batch& batch, MoveReport& report) {
  for (const auto& work : batch) {
    const auto failed = std::ranges::find_if(work->files, [](const FileCopy& file) { return !file.status; });
    if (failed != work->files.end()) fail(*work, failed->status.error(), report);
  }
}

// It stays where it is, and others may have it.
void Mover::let_go(Work& work) {
  work.over = true;
  if (!work.is_kept) undo(work);
  work.leases = {};
  if (work.locked) locks_.unlock(work.unit.id);
  work.locked = false;
}

// It is not as the catalog has it, and is left alone until somebody has looked.
Error Mover::doubt(const Work& work, Error error) const {
  const bool is_there = work.from != nullptr && open_tier(*work.from).ok();
  if (is_there) static_cast<void>(catalog_.doubt(work.unit.id, error.message));
  return error;
}

// Once it has its name, only what the catalog says counts: recovery goes on from there.
void Mover::undo(Work& work) {
  if (!work.locked) return;
  if (work.named) {
    take_name_back(work.row, work.target);
    const auto row = catalog_.move_of(work.unit.id);
    if (row && *row) static_cast<void>(recover(**row, false));
    return;
  }
  if (work.row.unit == 0) return;
  if (remove_all(work.staged).ok()) static_cast<void>(catalog_.delete_move(work.unit.id));
}

void Mover::lock(Batch& batch, MoveReport& report) {
  if (Status going = pace_.after(0); !going) fail_all(batch, going.error(), report);
  for (const auto& work : batch) {
    if (work->over) continue;
    const auto locked = locks_.try_lock(work->unit.id);
    if (!locked) {
      fail(*work, locked.error(), report);
    } else if (!*locked) {
      ++report.busy;
      work->over = true;
    } else {
      work->locked = true;
      fault_point("begun");
    }
  }
  drop_over(batch);
}

// Their rows. REQUIRES: they are locked, so nobody changes them.
void Mover::look_up(Batch& batch, MoveReport& report) {
  std::vector<std::optional<MoveRow>> left(batch.size());
  Status read = catalog_.read([&]() -> Status {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      auto row = catalog_.move_of(batch[i]->unit.id);
      if (!row) return std::move(row).error();
      left[i] = std::move(*row);
    }
    return {};
  });
  if (!read) fail_all(batch, read.error(), report);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i]->over || !left[i] || batch[i]->to == nullptr) continue;
    if (Status resumed = resume(*batch[i], *left[i]); !resumed) fail(*batch[i], resumed.error(), report);
  }
  drop_over(batch);
  read = catalog_.read([&]() -> Status {
    for (const auto& work : batch) {
      auto unit = catalog_.unit(work->unit.id);
      if (!unit) return std::move(unit).error();
      const bool is_there = *unit && !(*unit)->is_new;
      work->unit.tier = 0;
      if (is_there) work->unit = std::move(**unit);
    }
    return {};
  });
  if (!read) fail_all(batch, read.error(), report);
  for (const auto& work : batch) {
    if (work->over) continue;
    const bool is_done = work->unit.tier == 0 || (work->to != nullptr && work->unit.tier == work->to->id);
    if (is_done) {  // it is gone, or there already
      let_go(*work);
      continue;
    }
    work->from = tier(work->unit.tier);
    if (work->from == nullptr || work->to == nullptr) {
      fail(*work, {Code::not_found, 0, "its tier is no longer in the catalog", "plan again"}, report);
      continue;
    }
    for (const TierRow* place : {work->from, work->to}) {
      if (const auto there = usable(*place); !there) fail(*work, there.error(), report);
    }
  }
  drop_over(batch);
}

Result<std::string> Mover::checksum(const PathBeneath& path, const Tree& tree) {
  pace_.ignore_pause();
  std::vector<FileCopy> files;
  for (const Entry& entry : tree.entries) {
    if (entry.kind != Entry::Kind::file) continue;
    files.push_back({.from = path / entry.name, .to = {}, .entry = &entry});
  }
  std::vector<FileCopy*> pointers;
  for (FileCopy& file : files) pointers.push_back(&file);
  if (Status added = copier_.add_up(pointers, [](std::uint64_t) {}); !added) return std::move(added).error();
  return checksum_of(tree, files);
}

}  // namespace penstock::tiers
