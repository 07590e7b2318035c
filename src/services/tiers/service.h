// Service: what all handles of a catalog share in a process: the catalog, accesses that were counted and not written
// down yet, and the threads that write them down and move units.
//
// Thread safety: any thread. Lifetime: shared by handles and by functions that Contexts hold.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fork_guard.h"
#include "services/tiers/catalog.h"
#include "services/tiers/closer.h"
#include "services/tiers/mover.h"
#include "services/tiers/policy.h"

namespace penstock::tiers {

class Service : public std::enable_shared_from_this<Service> {
 public:
  static std::shared_ptr<Service> make(std::unique_ptr<Catalog> catalog, TiersOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Code::closed in a forked child.
  Status usable() const;
  // Code::in_use while movers are paused: who asks for a move is told rather than held.
  Status check_not_paused();
  Status check_no_other_has(const std::string& name, std::string_view tier);
  Catalog& catalog() { return *catalog_; }
  const TiersOptions& options() const { return options_; }

  Result<TierRow> tier(std::string_view name);
  // Why a tier can't be used now; that it is read-only by choice is none.
  static std::optional<Error> problem_of(const TierRow& tier);
  Result<std::vector<TierInfo>> tier_infos();
  Status add_tier(const NewTier& tier, std::string_view behind);
  Status change_tier(const NewTier& tier);
  Status remove_tier(std::string_view name);
  Status probe(std::string_view name);

  Result<UnitRow> unit(std::string_view name);
  static UnitInfo info(const UnitRow& unit, const std::vector<TierRow>& tiers, const TierPolicy& policy);
  Status import(std::string_view name, bool checksum);
  Result<CheckReport> import_all(std::string_view tier, std::string_view below);
  Status add(const std::string& path, std::string_view name, std::string_view tier, const MoveOptions& options);
  Status forget(std::string_view name);

  Result<std::unique_ptr<Mover>> mover(const MoveOptions& options);
  // What the policy is given.
  struct Picture {
    std::vector<TierRow> rows;
    std::vector<TierState> tiers;
    std::vector<std::optional<Error>> problems;  // of each of them
    TierPolicy policy;
    double now = 0;
  };
  Result<Picture> picture();
  Result<MovePlan> plan();
  Result<TierPlacement> why(std::string_view name);
  // On none of the tiers with these ids.
  Result<TierPlacement> place(std::uint64_t size_bytes, std::span<const std::int64_t> but = {});
  Result<MoveReport> rebalance(const MoveOptions& options);
  Status start_mover(double interval_seconds, MoveOptions options);
  Status stop_mover();

  Result<CheckReport> check(const CheckOptions& options);
  Result<std::vector<TierFinding>> recover();
  // The same, if there is anything.
  Status end_interrupted();
  Status flush();

  // Where a name lies; counts as an access.
  Result<std::string> path_of(std::string_view name);
  // Of what follows the scheme of a URI.
  Result<Location> locate(std::string_view text, const OpenOptions& options);

 private:
  Service(std::unique_ptr<Catalog> catalog, TiersOptions options);
  // A unit, and where below it a name leads.
  struct Found {
    Place place;
    std::string unit;
    std::string name;  // the unit's, or below it
    std::string path;
    bool is_unit = false;  // rather than a file within it
  };
  Result<Found> find(std::string_view name);
  // The folder of the tier that it lies on.
  static Result<HeldFolder> tier_folder(const Found& found);
  // The name that the text of a URI stands for: the text itself if it names what is there, else what it encodes.
  std::string meant(std::string_view text);
  Result<Location> locate_to_read(std::string_view name, const OpenOptions& options);
  Result<Location> locate_to_change(const Found& found, const OpenOptions& options);
  Result<Location> locate_to_replace(const std::string& name, const OpenOptions& options);
  Result<Location> locate_to_create(const std::string& name, const OpenOptions& options);
  Result<TierRow> tier_for_new(const std::string& name, std::uint64_t size_bytes,
                               std::span<const std::int64_t> but = {});
  Status refresh(std::int64_t unit);
  Result<std::string> examine(Mover& mover, const UnitRow& unit, const PathBeneath& path, bool bytes,
                              CheckReport& report);
  Result<std::string> take_times(Mover& mover, const UnitRow& unit, const Tree& tree);
  // What was found of a unit. REQUIRES: it is locked.
  Result<std::optional<TierFinding>> write_down(const UnitRow& unit, const std::string& path,
                                                const std::string& problem);
  // Of a unit that is not there, what a dead process was about to remove. True if it may be there now.
  bool put_back(const Found& found);
  Result<std::optional<TierFinding>> judge(Mover& mover, const UnitRow& unit, const std::vector<TierRow>& tiers,
                                           bool bytes, CheckReport& report);
  void count(std::int64_t unit);
  // As one access, however often a program opens the unit within a second: a model is opened to look at it, then to
  // load.
  void count_open(std::int64_t unit);
  void keep_accounts();
  // Nothing: its tier came or went since the picture was made.
  static std::optional<UnitState> state_of(const Picture& picture, const Brief& brief);

  const std::unique_ptr<Catalog> catalog_;
  const TiersOptions options_;
  const ForkGuard fork_guard_;

  std::mutex context_mutex_;
  std::optional<Context> context_;  // that copies; made when it is first needed

  Closer closer_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::unordered_map<std::int64_t, std::uint64_t> counted_;
  std::unordered_map<std::int64_t, TimePoint> opened_at_;  // lately
  std::thread accountant_;                                 // writes accesses down

  std::mutex mover_mutex_;
  std::condition_variable mover_wake_;
  bool mover_stops_ = false;
  std::thread mover_;
};

}  // namespace penstock::tiers
