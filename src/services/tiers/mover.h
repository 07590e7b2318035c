// Mover: moves units between tiers, and puts right what a dead mover left. docs/tiers.md has the steps.
//
// Invariant: at every instant, the place that the catalog names holds the unit whole. What else there is of it is
// either aside (folder.h), or known by its inode from the catalog's row of the move.
//
// Thread safety: one thread; any number of them at once. Lifetime: the catalog, the Context and the Closer must outlive
// it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/held_folder.h"
#include "services/tiers/catalog.h"
#include "services/tiers/closer.h"
#include "services/tiers/copier.h"
#include "services/tiers/leases.h"
#include "services/tiers/pace.h"
#include "services/tiers/unit_locks.h"

namespace penstock::tiers {

struct Task {
  std::int64_t unit = 0;
  std::string name;
  std::int64_t to = 0;
  // As the catalog has it: what moves alone, and what together.
  UnitKind kind = UnitKind::file;
  std::uint64_t size_bytes = 0;
};

class Mover {
 public:
  static Result<std::unique_ptr<Mover>> create(Catalog& catalog, const Context& copying, Closer& closer,
                                               const MoveOptions& options);

  // Small units share transactions, and a thread helps with them. What fails stays where it is.
  MoveReport move(std::span<const Task> tasks);
  // A new unit, from a file or directory elsewhere. `unit` has its name, tier and kind.
  Status add(UnitRow unit, const PathBeneath& path);
  // Gives a new file the name of a unit. It lies aside in the folder of the tier, by the number `staged`, and is
  // durable. Waits for movers of that unit, which stop.
  Status replace(const std::string& name, std::int64_t tier, std::int64_t staged, double wait_seconds);
  Status remove(std::int64_t unit, double wait_seconds);
  // Whether nobody works on a unit; then it is locked.
  Result<bool> claim(std::int64_t unit, double wait_seconds);
  void release(std::int64_t unit) { locks_.unlock(unit); }

  // Of all that is under way and that nobody works on. With `keep`, large copies that were interrupted stay.
  Result<std::vector<TierFinding>> recover(bool keep);
  // Of one unit. REQUIRES: its lock is held.
  Result<std::optional<TierFinding>> recover(const MoveRow& row, bool keep);
  // Finishes or undoes what a dead process has left of a unit. REQUIRES: its lock is held.
  Status end_interrupted(std::int64_t unit);
  // Reads a unit, and returns its checksum.
  Result<std::string> checksum(const PathBeneath& path, const Tree& tree);

 private:
  struct Work;
  using Batch = std::vector<std::unique_ptr<Work>>;

  Mover(Catalog& catalog, const Context& copying, Closer& closer, const MoveOptions& options, UnitLocks locks,
        std::vector<TierRow> tiers);
  const TierRow* tier(std::int64_t id) const;
  // The folder of a tier, opened anew if its marker has not been checked for a second. Those that were opened before
  // stay valid, and mean what is there now.
  Result<const HeldFolder*> usable(const TierRow& tier);
  // REQUIRES: it was `usable`.
  PathBeneath path_in(const TierRow& tier, const std::string& name) const;
  PathBeneath coming(const TierRow& tier, std::int64_t unit) const;
  PathBeneath going(const TierRow& tier, std::int64_t unit) const;

  void move_batches(std::span<const std::span<const Task>> batches, MoveReport& report);
  // The steps, in order. Each goes on with those that have not failed.
  void move_together(std::span<const Task> tasks, MoveReport& report);
  void lock(Batch& batch, MoveReport& report);
  void look_up(Batch& batch, MoveReport& report);
  void check_folders(Batch& batch, MoveReport& report);
  Status begin(Work& work);
  Status stage(Work& work) const;
  Status resume(Work& work, const MoveRow& row);
  void run(Batch& batch, MoveReport& report);
  void journal(Batch& batch, MoveReport& report);
  void copy(Batch& batch, MoveReport& report);
  void sync(Batch& batch, MoveReport& report);
  void verify(Batch& batch, MoveReport& report);
  Status settle(const Work& work, std::set<std::string>& folders) const;
  Status commit(const Batch& batch);
  void clear(const Batch& batch, MoveReport& report);
  Status heed_others(const Batch& batch, MoveReport& report);
  bool start_over(Work& work, MoveReport& report);
  void let_go(Work& work);
  static void drop_over(Batch& batch);
  static std::vector<FileCopy*> files_of(const Batch& batch);
  void undo(Work& work);
  Error doubt(const Work& work, Error error) const;
  void fail(Work& work, Error error, MoveReport& report);
  static void note_failure(const Work& work, Error error, MoveReport& report);
  void fail_all(const Batch& batch, const Error& error, MoveReport& report);
  void fail_files(const Batch& batch, MoveReport& report);
  Result<std::uint64_t> room_at(const TierRow& tier);
  void wait_for_room(const TierRow& tier, std::uint64_t bytes);
  Status check_room(const Work& work, std::uint64_t free_bytes) const;

  // Of a row whose unit is locked.
  Result<bool> has_whole_copy(const UnitRow& unit, const MoveRow& row);
  Result<std::optional<TierFinding>> return_to_source(UnitRow unit, const MoveRow& row);
  Result<std::optional<TierFinding>> clear_source(const UnitRow& unit, const MoveRow& row, const Leases* leases) const;
  Status clear_aside(std::vector<TierFinding>& findings);
  Status clear_coming(const TierRow& place, const HeldFolder& root, std::vector<TierFinding>& findings);
  Status clear_going(const TierRow& place, const HeldFolder& root, std::vector<TierFinding>& findings);
  Status take_out(const UnitRow& unit, const TierRow& from);
  static Status discard(std::int64_t unit, const HeldFolder& from);
  Status put_back(std::int64_t unit);
  Status give_name(const MoveRow& row, const PathBeneath& target) const;
  bool is_committed(const MoveRow& row);
  // As long as the catalog does not have the unit there.
  void take_name_back(const MoveRow& row, const PathBeneath& target);

  Catalog& catalog_;
  const Context context_;
  Closer& closer_;
  const MoveOptions options_;
  UnitLocks locks_;
  const std::vector<TierRow> tiers_;
  struct Held {
    HeldFolder folder;
    TimePoint checked_at;
  };
  std::map<std::int64_t, Held> held_;  // by tier
  Pace pace_;
  Copier copier_;
};

// What the catalog says of a unit that lies there.
void describe(UnitRow& unit, const Tree& tree);
// Over the entries of a directory; of a file, that of its bytes. REQUIRES: `sums` are those of the files, in order.
std::string checksum_of(const Tree& tree, std::span<const FileCopy> files);

}  // namespace penstock::tiers
