// Catalog: which units there are, where they lie, and which of them are on their way. A file of SQLite, in WAL mode;
// every change is on the disk when a call returns.
//
// Thread safety: any thread; calls take turns. Lifetime: owns the database.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/tiers.h"
#include "services/tiers/sqlite.h"
#include "services/tiers/unit_locks.h"

namespace penstock::tiers {

struct TierRow {
  std::int64_t id = 0;
  std::string name;
  std::string path;
  std::string mark;  // the id in its marker
  std::uint64_t capacity_bytes = 0;
  double low_water = 0;
  double high_water = 0;
  double from_heat = 0;
  bool read_only = false;
  double read_speed = 0;
  double write_speed = 0;
  std::string gpu_direct = {};
  uid_t owner = 0;  // of the catalog: what tiers keep of their own may belong to him
};

struct UnitRow {
  std::int64_t id = 0;
  std::string name;
  std::int64_t tier = 0;
  UnitKind kind = UnitKind::file;
  std::uint64_t size_bytes = 0;
  std::uint64_t room_bytes = 0;  // on the disk
  std::uint64_t files = 1;
  std::string identity = {};  // of its content, by sizes and times; empty: it may be written, so none is expected
  std::string checksum = {};  // empty: not known
  std::uint64_t accesses = 0;
  double heat = 0;
  double heat_at = 0;
  double accessed_at = 0;
  double moved_at = 0;
  std::optional<std::int64_t> pinned = {};
  std::string doubt = {};  // what is not as it should be
  bool is_new = false;     // it is being written for the first time
};

enum class Job : std::uint8_t {
  move,   // the bytes of `source` to `target`
  write,  // new bytes to `target`, instead of those at `source` if there are any
};
enum class Stage : std::uint8_t {
  copying,   // the unit lies at `source`; what is staged at `target` is unfinished
  removing,  // the unit lies at `target`; what lies at `source` goes
};

// What is under way with a unit. Whoever works on it holds its lock (services/tiers/unit_locks.h); if nobody does, he
// is dead.
struct MoveRow {
  std::int64_t unit = 0;
  Job job = Job::move;
  Stage stage = Stage::copying;
  std::optional<std::int64_t> source = {};
  std::int64_t target = 0;
  std::uint64_t staged_inode = 0;  // by which it is known when it has its name
  std::uint64_t source_inode = 0;
  std::string identity = {};     // of the source
  std::uint64_t room_bytes = 0;  // that are taken at the target
  std::uint64_t done_bytes = 0;  // that are safe there
  double began_at = 0;
};

struct Usage {
  std::uint64_t bytes = 0;  // of units, and reserved for moves
  std::uint64_t units = 0;
};

struct Claims {
  std::uint64_t units = 0;   // that lie there
  std::uint64_t coming = 0;  // that are written for the first time
  std::uint64_t pinned = 0;  // to it, wherever they lie
};

// What a plan needs of a unit.
struct Brief {
  std::int64_t id = 0;
  std::int64_t tier = 0;
  std::uint64_t room_bytes = 0;
  double heat = 0;
  double heat_at = 0;
  double moved_at = 0;
  std::optional<std::int64_t> pinned = {};
};

// Where a unit lies.
struct Place {
  std::int64_t unit = 0;
  UnitKind kind = UnitKind::file;
  std::int64_t tier = 0;
  std::string root;
};

struct Counted {
  std::int64_t unit = 0;
  std::uint64_t accesses = 0;
};

class Catalog {
 public:
  // Unfinished: until `finish`, only another `create` takes it, once this process has died.
  static Result<std::unique_ptr<Catalog>> create(const std::string& path, const TierPolicy& policy,
                                                 double wait_seconds);
  Status finish();
  static Result<std::unique_ptr<Catalog>> open(const std::string& path, double wait_seconds);

  const std::string& path() const { return path_; }
  const std::string& id() const { return id_; }
  uid_t owner() const { return owner_; }

  // All changes that `work` makes, or none of them if it fails.
  Status transact(const std::function<Status()>& work);
  // All that `work` reads is of one moment, and cheaper. REQUIRES: it changes nothing.
  Status read(const std::function<Status()>& work);
  // The same for each of many; now and then others have their turn.
  Status read_each(std::size_t count, const std::function<Status(std::size_t)>& work);

  Result<std::vector<TierRow>> tiers();  // the fastest first
  // Behind the tier of that id; 0: first.
  Result<std::int64_t> insert_tier(const TierRow& tier, std::int64_t behind);
  Status update_tier(const TierRow& tier);
  Status delete_tier(std::int64_t id);
  Result<Usage> usage(std::int64_t tier);
  // What keeps it from being deleted. This one counts, and takes its time.
  Result<Claims> claims(std::int64_t tier);

  Result<TierPolicy> policy();
  Status set_policy(const TierPolicy& policy);
  Result<bool> paused();
  Status set_paused(bool paused);

  Result<std::optional<UnitRow>> unit(std::string_view name);
  Result<std::optional<UnitRow>> unit(std::int64_t id);
  // As quick as can be.
  Result<std::optional<Place>> place_of(std::string_view name);
  // Whether a unit lies below a name.
  Result<bool> has_units_below(std::string_view name);
  // Whether a unit of that name would lie within another, or have one within itself. For the transaction that makes it.
  Status check_free(const std::string& name);
  Result<std::vector<UnitRow>> units(const UnitFilter& filter, std::optional<std::int64_t> tier);
  Result<std::vector<UnitRow>> units_in_doubt();
  Result<std::vector<Brief>> briefs();
  Result<std::int64_t> insert_unit(const UnitRow& unit);
  Status update_unit(const UnitRow& unit);  // all but its accesses and its pin
  Status delete_unit(std::int64_t id);
  Status pin(std::int64_t unit, std::optional<std::int64_t> tier);
  Status doubt(std::int64_t unit, std::string_view text);
  // Heat that was counted while the clock was ahead fades from now on.
  Status fade_from(double now);
  Status add_accesses(std::span<const Counted> counted, double now, double half_life_seconds);

  Result<std::vector<MoveRow>> moves();
  Result<std::optional<MoveRow>> move_of(std::int64_t unit);
  Status put_move(const MoveRow& move);
  Status set_stage(std::int64_t unit, Stage stage);
  Status set_done(std::int64_t unit, std::uint64_t done_bytes);
  Status delete_move(std::int64_t unit);
  // Asks whoever works on a unit to stop; of which units that was asked.
  Status ask_to_stop(std::int64_t unit);
  Result<std::vector<std::int64_t>> asked_to_stop();

 private:
  struct Statements;
  Catalog(Database database, std::string path);
  static Result<std::unique_ptr<Catalog>> prepare(Database database, const std::string& path);
  Result<bool> is_unfinished();

  const std::string path_;
  std::string id_;
  uid_t owner_ = 0;                      // of the file
  std::optional<UnitLocks> unfinished_;  // locks number 0 until it is finished
  std::recursive_mutex mutex_;           // recursive: `work` of a transaction calls
  int depth_ = 0;                        // of transactions
  Database database_;
  std::unique_ptr<Statements> statements_;

 public:
  ~Catalog();
};

// Sixteen random bytes, as text.
std::string random_id();
// Seconds since 1970.
double wall_seconds();

}  // namespace penstock::tiers
