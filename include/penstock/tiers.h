// Tiers: folders on disks of different speed, the fastest first, and a catalog that knows which of them holds what.
//
//   auto tiers = penstock::Tiers::open().value();           // the catalog that `penstock tier init` made
//   tiers.serve(context);                                   // from now on "tier:NAME" is a store of the Context
//   auto file = context.open("tier:models/llama.gguf").value();
//   tiers.rebalance();                                      // moves what is on the wrong tier
//
// A *unit* is what moves as a whole: a file, or a directory such as a sharded model. Its name is its path below the
// folder of its tier, the same on every tier: "models/llama" lies at /nvme/models/llama or at /hdd/models/llama. So a
// unit is an ordinary file wherever it is, and without Penstock too.
//
// A move loses nothing, whenever it is stopped: the copy is made aside, synced, read back past the page cache and
// compared, then gets its name; one transaction of the catalog makes it the unit; the source is removed last. What was
// interrupted is finished or undone by the next process that opens the catalog, or by `recover`. Readers that have the
// source open keep it. Files that are open for writing don't move; docs/tiers.md has the rules for writers.
//
// Every call waits for other processes at most TiersOptions::wait_seconds.
//
// Thread safety: any thread, and any number of processes on one catalog, of one machine. Lifetime: handles share what
// they stand for, and so does a Context that they serve. A thread writes accesses down; with `start_mover`, one moves.
// The last handle stops both. In a forked child, calls fail with Code::closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/context.h"

namespace penstock {

namespace tiers {
class Service;
}

// A tier to be made. Its folder must exist, and lie neither within another tier nor around one.
struct NewTier {
  std::string name;  // of a-z, 0-9, - and _
  std::string path;
  std::uint64_t capacity_bytes = 0;  // 0: what the file system has
  // Shares of the capacity. Above `high_water` the coldest units leave until `low_water` is reached; nothing moves to
  // it that would take it above `high_water`.
  double low_water = 0.80;
  double high_water = 0.90;
  // Units with at least this heat belong here. Nothing: 100 for the first tier, 10 for the second, else 0. Always 0 for
  // the last.
  std::optional<double> from_heat = {};
  bool read_only = false;  // nothing is moved to or from it
  // Take the folder even if it belongs to another catalog. `change_tier`: write the marker anew where it is missing or
  // damaged; another tier's stays.
  bool adopt = false;
  bool first = false;  // `add_tier`: as the fastest of all
};

// What decides where units belong. Kept in the catalog.
struct TierPolicy {
  // An access counts half after this long; 0: accesses never fade.
  double half_life_seconds = 24 * 3600;
  // A unit leaves its tier for a slower one when its heat falls below this share of the tier's `from_heat`.
  double cooling = 0.5;
  // It stays at least so long after a move, unless room is needed.
  double least_stay_seconds = 600;
};

struct TierInfo {
  std::string name;
  std::string path;
  std::string id;  // also in the folder's marker: an empty mount point is never taken for the tier
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;  // by units, and by what is on its way here
  std::uint64_t free_bytes = 0;  // below `high_water`, and on the file system
  std::uint64_t units = 0;
  double low_water = 0;
  double high_water = 0;
  double from_heat = 0;
  bool read_only = false;
  double read_bytes_per_second = 0;  // as `probe` measured; 0: it has not
  double write_bytes_per_second = 0;
  std::string gpu_direct;        // whether GPU memory is reached without staging, in words; empty: not probed
  std::optional<Error> problem;  // why it can't be used now: not mounted, full of something else, read-only
};

enum class UnitKind : std::uint8_t { file, directory };
PENSTOCK_EXPORT std::string_view unit_kind_name(UnitKind kind);

// Times are seconds since 1970; 0: never.
struct UnitInfo {
  std::string name;
  UnitKind kind = UnitKind::file;
  std::string tier;
  std::string path;
  std::uint64_t size_bytes = 0;
  std::uint64_t files = 1;
  std::string checksum;        // xxh3; of a directory, over its entries; empty: not known yet
  std::uint64_t accesses = 0;  // ever
  double heat = 0;             // accesses that have not faded
  double accessed_at = 0;
  double moved_at = 0;
  std::string pinned;             // the tier that it must stay on; empty: any
  std::string moving_to;          // a tier, while it is on its way
  std::uint64_t moved_bytes = 0;  // of it, so far
  bool in_doubt = false;          // it is not as the catalog has it; `check` says why
};

// Which units, sorted by name.
struct UnitFilter {
  std::string tier = {};    // only this one's
  std::string prefix = {};  // names that begin so
  std::string after = {};   // names greater than this: the next page
  std::uint64_t limit = 1000;
};

// A move, and why.
struct PlannedMove {
  std::string name;
  std::string from;
  std::string to;
  std::uint64_t size_bytes = 0;
  double heat = 0;
  std::string reason;
};

struct MovePlan {
  std::vector<PlannedMove> moves;  // in the order in which they make room for each other
  std::uint64_t bytes = 0;
  std::uint64_t units = 0;  // that were looked at
};

// Where a unit belongs, and why.
struct TierPlacement {
  std::string tier;
  std::string reason;
};

enum class MoveStep : std::uint8_t { copying, verifying, done, failed, paused };

struct MoveProgress {
  std::string_view name;
  std::string_view from;
  std::string_view to;
  MoveStep step = MoveStep::copying;
  std::uint64_t bytes = 0;  // of this unit
  std::uint64_t total_bytes = 0;
};

// Its functions may be called by another thread than the caller's, one at a time.
struct MoveOptions {
  std::uint64_t bytes_per_second = 0;  // how fast to read the source; 0: as fast as it goes
  // Asked between pieces; false ends it with Code::cancelled. What was copied of a large file stays, and the next move
  // to the same tier goes on from there.
  std::function<bool()> keep_going = {};
  // Called when a step begins or ends, and several times a second. It must not call the Tiers.
  std::function<void(const MoveProgress&)> on_progress = {};
};

struct MoveFailure {
  std::string name;
  Error error;
};

struct MoveReport {
  std::uint64_t units = 0;  // that moved
  std::uint64_t bytes = 0;
  std::uint64_t resumed_bytes = 0;  // of them, copied before an interruption
  double seconds = 0;
  std::uint64_t busy = 0;             // units that another process was moving
  std::vector<MoveFailure> failures;  // the first 64
  std::uint64_t failure_count = 0;
  std::optional<Error> error;  // why it ended early

  bool ok() const { return !error && failure_count == 0; }
};

// Something that is not as the catalog has it.
struct TierFinding {
  std::string name;  // of a unit; empty: of a tier or the catalog
  std::string path;
  std::string text;
  bool repaired = false;
  bool harmless = false;  // nothing is wrong: a file that is no unit, such as one that was forgotten
};

struct CheckOptions {
  bool bytes = false;  // read every byte and compare checksums; otherwise only names, sizes and times
  bool strays = true;  // also look for files that belong to no unit
  std::function<bool()> keep_going = {};
};

struct CheckReport {
  std::uint64_t units = 0;
  std::uint64_t bytes = 0;  // that were read
  std::vector<TierFinding> findings;
};

struct TiersOptions {
  // The catalog: a file on a local disk. Empty: $PENSTOCK_TIERS, else $XDG_STATE_HOME/penstock/tiers.db, else
  // ~/.local/state/penstock/tiers.db.
  std::string catalog = {};
  double wait_seconds = 10;
  double flush_seconds = 5;  // accesses are written down this often
  Options copying = {};      // of the Context that copies; its cache is always Cache::bypass
};

// Default-constructed or moved from, it has no catalog: calls fail with Code::invalid_argument.
class PENSTOCK_EXPORT Tiers {
 public:
  // Makes a catalog with these tiers, the fastest first. Code::in_use if it exists.
  static Result<Tiers> create(std::span<const NewTier> tiers, const TierPolicy& policy = {},
                              const TiersOptions& options = {});
  // Opens a catalog, and finishes or undoes what dead processes left. Code::not_found if there is none,
  // Code::unsupported if a newer Penstock made it, Code::io_error if it is damaged.
  static Result<Tiers> open(const TiersOptions& options = {});
  // nvme, ssd and hdd, at /nvme, /ssd and /hdd; or $PENSTOCK_TIER_PATHS ("fast=/mnt/a,slow=/mnt/b").
  static Result<std::vector<NewTier>> usual_tiers();
  // {"tiers": [{"name": "nvme", "path": "/nvme", "capacity_bytes": …, "low_water": …, "high_water": …, "from_heat": …,
  // "read_only": …}], "policy": {"half_life_seconds": …, "cooling": …, "least_stay_seconds": …}}; what is left out is
  // as above.
  struct Configuration {
    std::vector<NewTier> tiers;
    TierPolicy policy;
  };
  static Result<Configuration> parse_configuration(std::string_view json);

  Tiers();
  Tiers(const Tiers&);
  Tiers(Tiers&&) noexcept;
  Tiers& operator=(const Tiers&);
  Tiers& operator=(Tiers&&) noexcept;
  ~Tiers();

  explicit operator bool() const { return service_ != nullptr; }
  std::string catalog() const;

  // --- Tiers ---
  Result<std::vector<TierInfo>> tiers() const;
  // Adds a tier behind the one named, or behind all: the slowest.
  Status add_tier(const NewTier& tier, std::string_view behind = {});
  // Forgets a tier without units; its folder stays. Code::in_use while it has some, or keeps versions of units that
  // check names.
  Status remove_tier(std::string_view name);
  // Changes what is given of capacity, water marks, heat and read_only. The path may change too: the marker must be
  // there, unless `adopt` writes it.
  Status change_tier(const NewTier& tier);
  Result<TierPolicy> policy() const;
  Status set_policy(const TierPolicy& policy);
  // Measures reading and writing with a file of its own, and asks whether GPU memory is reached without staging.
  Status probe(std::string_view tier);

  // --- Units ---
  // Takes a file or directory that lies in the folder of a tier into the catalog, where it is; again, after it was
  // changed from outside. Symbolic links are refused, and so are directories with links that lead out, and files that
  // have names elsewhere too. The checksum is taken when it first moves, or now.
  Status import(std::string_view name, bool checksum = false);
  // All files in the folder of a tier that are no unit yet, each as a unit. Returns how many; what is refused is named.
  Result<CheckReport> import_all(std::string_view tier, std::string_view below = {});
  // Copies a file or directory from elsewhere into a tier; empty: the fastest with room. The source stays.
  Status add(const std::string& path, std::string_view name, std::string_view tier = {},
             const MoveOptions& options = {});
  // Deletes a unit, with its bytes.
  Status remove(std::string_view name);
  // Forgets a unit. Its file stays where it is.
  Status forget(std::string_view name);
  // It moves to this tier with the next rebalance, and stays there. An empty tier undoes that.
  Status pin(std::string_view name, std::string_view tier);

  Result<std::vector<UnitInfo>> list(const UnitFilter& filter = {}) const;
  Result<UnitInfo> find(std::string_view name) const;
  // Where a unit lies, or a file within a directory that is one ("models/llama/config.json"). It may move: open it
  // soon, and ask again if it is gone. Counts as an access.
  Result<std::string> path_of(std::string_view name);
  // Where a new unit of this size would go: the fastest tier with room. Code::no_space if there is none.
  Result<TierPlacement> place(std::uint64_t size_bytes) const;

  // --- Moving ---
  // Where a unit belongs now, and why.
  Result<TierPlacement> why(std::string_view name) const;
  Result<MovePlan> plan() const;
  // Moves a unit. Code::in_use if it is open for writing or another process moves it, Code::changed if it is not as the
  // catalog has it, Code::no_space.
  Result<MoveReport> move(std::string_view name, std::string_view tier, const MoveOptions& options = {});
  Result<MoveReport> move(std::span<const PlannedMove> moves, const MoveOptions& options = {});
  // Decides where a unit belongs, and moves it there; returns the decision.
  Result<TierPlacement> auto_tier(std::string_view name, const MoveOptions& options = {});
  // Plans and moves.
  Result<MoveReport> rebalance(const MoveOptions& options = {});
  // Rebalances every so often, on a thread of its own, until it is stopped or the last handle is gone.
  Status start_mover(double interval_seconds = 60, const MoveOptions& options = {});
  Status stop_mover();
  // Holds all movers of the catalog, of every process, between two pieces. Calls that would begin to move or add fail
  // with Code::in_use meanwhile; `start_mover` waits.
  Status set_paused(bool paused);
  Result<bool> paused() const;

  // --- Care ---
  // Finishes or undoes what dead processes left, and reads what is in doubt: what is whole again is no longer. What
  // can't be done, since a tier is missing, is told and stays for later.
  Result<std::vector<TierFinding>> recover();
  // The same, and compares all of the catalog with the tiers. Bytes that were read and are as they were make a unit
  // whole, whatever its times.
  Result<CheckReport> check(const CheckOptions& options = {});
  // Writes down accesses that were counted so far.
  Status flush();
  // In the text format of Prometheus.
  Result<std::string> to_prometheus() const;

  // --- Stores ---
  // "SCHEME:NAME" is a store of the Context from now on, and counts as an access when it is opened. Access::replace
  // writes to the fastest tier with room for OpenOptions::size_bytes, and `commit` makes it the unit of that name, new
  // or instead of the old one. Access::write changes a unit in place; it does not move while it is open. Access::create
  // is one or the other. NAME is the unit of that very name, else the one that it stands for if it is percent-encoded;
  // "./" before it says that it is.
  Status serve(const Context& context, std::string scheme = "tier");
  // The same for one name, for a Locator of your own.
  Result<Location> locate(std::string_view name, const OpenOptions& options = {});

 private:
  explicit Tiers(std::shared_ptr<tiers::Service> service);
  std::shared_ptr<tiers::Service> service_;  // shared: by handles, and by Contexts that they serve
};

}  // namespace penstock
