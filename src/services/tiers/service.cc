#include "services/tiers/service.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "services/tiers/folder.h"
#include "services/tiers/names.h"

namespace penstock::tiers {
namespace {

namespace fs = std::filesystem;

Error no_tier(std::string_view name) {
  return {Code::not_found, 0, "there is no tier \"" + shown(name) + "\"", "see `penstock tier status` for their names"};
}

Error no_unit(std::string_view name) {
  return {Code::not_found, 0, "there is no unit \"" + shown(name) + "\" in the catalog",
          "see `penstock tier list`, or take it in with `penstock tier import`"};
}

Status check_new(const NewTier& tier) {
  if (Status named = check_tier_name(tier.name); !named) return named;
  const bool shares = tier.low_water > 0 && tier.low_water <= tier.high_water && tier.high_water <= 1;
  if (!shares) {
    const auto text = [](double mark) { return std::to_string(mark).substr(0, 4); };
    return Error{Code::invalid_argument, 0,
                 "the water marks of " + tier.name + " would be " + text(tier.low_water) + " (low) and " +
                     text(tier.high_water) + " (high), which is not 0 < low <= high <= 1",
                 "give both, as shares of the capacity: 0.8 and 0.9"};
  }
  if (tier.from_heat && !(*tier.from_heat >= 0)) {
    return Error{Code::invalid_argument, 0, "from_heat of " + tier.name + " is less than 0", "give 0 or more"};
  }
  return {};
}

bool is_within(const std::string& path, const std::string& other) {
  return path == other || path.starts_with(other == "/" ? other : other + "/");
}

// What a tier's folder is, whatever it is called.
Result<std::string> folder_of(const std::string& path) {
  std::error_code failed;
  const fs::path folder = fs::canonical(path, failed);
  if (failed) return system_error(failed.value(), "open the folder " + path, "create it, or mount its disk");
  if (!fs::is_directory(folder, failed)) {
    return Error{Code::invalid_argument, ENOTDIR, path + " is not a folder", "name one"};
  }
  return folder.string();
}

Status check_apart(const std::string& folder, const std::vector<TierRow>& tiers, std::int64_t but = 0) {
  struct stat own = {};
  if (::stat(folder.c_str(), &own) != 0) return system_error(errno, "look at " + folder);
  for (const TierRow& other : tiers) {
    if (other.id == but) continue;
    struct stat status = {};
    const bool same =
        ::stat(other.path.c_str(), &status) == 0 && status.st_dev == own.st_dev && status.st_ino == own.st_ino;
    if (!same && !is_within(folder, other.path) && !is_within(other.path, folder)) continue;
    return Error{
        Code::invalid_argument, 0,
        folder + (same ? " is the folder of the tier " : " lies within or around the folder of the tier ") + other.name,
        "give every tier a folder of its own"};
  }
  return {};
}

constexpr Duration one_use = std::chrono::seconds(1);

double usual_heat(std::size_t place) {
  return place == 0 ? 100 : place == 1 ? 10 : 0;
}

}  // namespace

Service::Service(std::unique_ptr<Catalog> catalog, TiersOptions options)
    : catalog_(std::move(catalog)), options_(std::move(options)) {}

std::shared_ptr<Service> Service::make(std::unique_ptr<Catalog> catalog, TiersOptions options) {
  // In a forked child all of it is left as it is: the threads that wait in it stayed with the parent.
  const auto end = [](Service* service) {
    if (!service->fork_guard_.in_child()) delete service;
  };
  return {new Service(std::move(catalog), std::move(options)), end};
}

Service::~Service() {
  static_cast<void>(stop_mover());
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (accountant_.joinable()) accountant_.join();
  static_cast<void>(flush());
}

Status Service::usable() const {
  if (!fork_guard_.in_child()) return {};
  return Error{Code::closed, 0, "these Tiers were opened before this process was forked", "open them again"};
}

Status Service::check_not_paused() {
  const auto paused = catalog_->paused();
  if (!paused) return paused.error();
  if (!*paused) return {};
  return Error{Code::in_use, 0, "movers are paused", "let them go on with `penstock tier resume`"};
}

// --- Tiers ---

Result<TierRow> Service::tier(std::string_view name) {
  auto tiers = catalog_->tiers();
  if (!tiers) return std::move(tiers).error();
  const auto found = std::ranges::find(*tiers, name, &TierRow::name);
  if (found == tiers->end()) return no_tier(name);
  return std::move(*found);
}

Result<std::vector<TierInfo>> Service::tier_infos() {
  const auto rows = catalog_->tiers();
  if (!rows) return rows.error();
  std::vector<TierInfo> all;
  for (const TierRow& row : *rows) {
    const auto usage = catalog_->usage(row.id);
    if (!usage) return usage.error();
    TierInfo info{.name = row.name,
                  .path = row.path,
                  .id = row.mark,
                  .capacity_bytes = row.capacity_bytes,
                  .used_bytes = usage->bytes,
                  .units = usage->units,
                  .low_water = row.low_water,
                  .high_water = row.high_water,
                  .from_heat = &row == &rows->back() ? 0 : row.from_heat,
                  .read_only = row.read_only,
                  .read_bytes_per_second = row.read_speed,
                  .write_bytes_per_second = row.write_speed,
                  .gpu_direct = row.gpu_direct,
                  .problem = {}};
    if (Status marked = check_marker(row.path, row.mark, row.name); !marked) {
      info.problem = marked.error();
    } else if (!row.read_only && ::access(row.path.c_str(), W_OK) != 0) {
      info.problem = system_error(errno, "write to " + row.path);
    } else if (const auto room = room_of(row.path); room) {
      const auto limit = static_cast<std::uint64_t>(row.high_water * static_cast<double>(row.capacity_bytes));
      info.free_bytes = std::min(room->free_bytes, limit - std::min(limit, usage->bytes));
    }
    all.push_back(std::move(info));
  }
  return all;
}

Status Service::add_tier(const NewTier& tier, std::string_view behind) {
  if (Status valid = check_new(tier); !valid) return valid;
  const auto folder = folder_of(tier.path);
  if (!folder) return folder.error();
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  if (std::ranges::find(*tiers, tier.name, &TierRow::name) != tiers->end()) {
    return Error{Code::invalid_argument, 0, "there is a tier " + tier.name + " already", "choose another name"};
  }
  if (Status apart = check_apart(*folder, *tiers); !apart) return apart;
  if (tier.first && !behind.empty()) {
    return Error{Code::invalid_argument, 0, tier.name + " can't be first and behind " + shown(behind),
                 "give one of both"};
  }
  const auto named = std::ranges::find(*tiers, behind, &TierRow::name);
  if (!behind.empty() && named == tiers->end()) return no_tier(behind);
  const std::size_t last = tiers->size();
  const std::size_t place = tier.first       ? 0
                            : behind.empty() ? last
                                             : static_cast<std::size_t>(named - tiers->begin()) + 1;

  const auto marker = read_marker(*folder);
  if (!marker && marker.error().code != Code::not_found) return marker.error();
  if (marker && marker->catalog != catalog_->id() && !tier.adopt) {
    return Error{Code::in_use, 0, *folder + " is the tier \"" + shown(marker->name) + "\" of another catalog",
                 "use that catalog, or take the folder from it with --adopt"};
  }
  const auto room = room_of(*folder);
  if (!room) return room.error();
  TierRow row{.name = tier.name,
              .path = *folder,
              .mark = random_id(),
              .capacity_bytes = tier.capacity_bytes != 0 ? tier.capacity_bytes : room->total_bytes,
              .low_water = tier.low_water,
              .high_water = tier.high_water,
              .from_heat = tier.from_heat.value_or(usual_heat(place)),
              .read_only = tier.read_only};
  // The marker first: a tier of the catalog always has one.
  if (Status marked = write_marker(*folder, {row.mark, catalog_->id(), row.name}); !marked) return marked;
  const auto inserted = catalog_->insert_tier(row, place == 0 ? 0 : (*tiers)[place - 1].id);
  return inserted ? Status() : Status(inserted.error());
}

Status Service::change_tier(const NewTier& tier) {
  if (Status valid = check_new(tier); !valid) return valid;
  auto row = this->tier(tier.name);
  if (!row) return row.error();
  if (!tier.path.empty() && tier.path != row->path) {
    const auto folder = folder_of(tier.path);
    if (!folder) return folder.error();
    const auto tiers = catalog_->tiers();
    if (!tiers) return tiers.error();
    if (Status apart = check_apart(*folder, *tiers, row->id); !apart) return apart;
    if (Status marked = check_marker(*folder, row->mark, row->name); !marked) return marked;
    row->path = *folder;
  }
  if (tier.capacity_bytes != 0) row->capacity_bytes = tier.capacity_bytes;
  row->low_water = tier.low_water;
  row->high_water = tier.high_water;
  row->from_heat = tier.from_heat.value_or(row->from_heat);
  row->read_only = tier.read_only;
  return catalog_->update_tier(*row);
}

Status Service::remove_tier(std::string_view name) {
  const auto row = tier(name);
  if (!row) return row.error();
  Status removed = catalog_->transact([&]() -> Status {
    const auto usage = catalog_->usage(row->id);
    if (!usage) return usage.error();
    const auto moves = catalog_->moves();
    if (!moves) return moves.error();
    const bool under_way = std::ranges::any_of(
        *moves, [&](const MoveRow& move) { return move.target == row->id || move.source == row->id; });
    if (usage->units == 0 && !under_way) return catalog_->delete_tier(row->id);
    return Error{Code::in_use, 0, "the tier " + row->name + " has " + std::to_string(usage->units) + " units",
                 "move, remove or forget them first"};
  });
  if (removed) remove_marker(row->path, row->mark);
  return removed;
}

// --- Units ---

Result<UnitRow> Service::unit(std::string_view name) {
  const auto checked = checked_name(name);
  if (!checked) return checked.error();
  auto row = catalog_->unit(*checked);
  if (!row) return std::move(row).error();
  if (!*row || (*row)->is_new) return no_unit(*checked);
  return std::move(**row);
}

Result<UnitInfo> Service::info(const UnitRow& unit, const std::vector<TierRow>& tiers) {
  const auto name_of = [&](std::int64_t id) {
    const auto found = std::ranges::find(tiers, id, &TierRow::id);
    return found == tiers.end() ? std::string() : found->name;
  };
  const auto policy = catalog_->policy();
  if (!policy) return policy.error();
  const auto place = std::ranges::find(tiers, unit.tier, &TierRow::id);
  return UnitInfo{.name = unit.name,
                  .kind = unit.kind,
                  .tier = name_of(unit.tier),
                  .path = place == tiers.end() ? "" : place->path + "/" + unit.name,
                  .size_bytes = unit.size_bytes,
                  .files = unit.files,
                  .checksum = unit.checksum,
                  .accesses = unit.accesses,
                  .heat = faded(unit.heat, wall_seconds() - unit.heat_at, policy->half_life_seconds),
                  .accessed_at = unit.accessed_at,
                  .moved_at = unit.moved_at,
                  .pinned = unit.pinned ? name_of(*unit.pinned) : "",
                  .moving_to = {},
                  .moved_bytes = 0,
                  .in_doubt = !unit.doubt.empty()};
}

Status Service::check_free(const std::string& name) {
  for (const std::string& parent : parents_of(name)) {
    const auto above = catalog_->unit(parent);
    if (!above) return above.error();
    if (*above) {
      return Error{Code::in_use, 0, shown(name) + " lies within the unit " + shown(parent), "a unit moves as a whole"};
    }
  }
  const auto below = catalog_->has_units_below(name);
  if (!below) return below.error();
  if (*below) return Error{Code::in_use, 0, "units lie within " + shown(name), "forget them first"};
  return {};
}

Status Service::import(std::string_view given, bool checksum) {
  const auto name = checked_name(given);
  if (!name) return name.error();
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  const auto known = catalog_->unit(*name);
  if (!known) return known.error();
  const TierRow* place = nullptr;
  const TierRow* empty = nullptr;  // where it is but a folder that is left from earlier
  for (const TierRow& tier : *tiers) {
    if (!check_marker(tier.path, tier.mark, tier.name).ok()) continue;
    const auto there = look_at(tier.path + "/" + *name);
    if (!there) return there.error();
    if (there->st_ino == 0) continue;
    if (is_empty_folder(tier.path + "/" + *name)) {
      if (empty == nullptr) empty = &tier;
      continue;
    }
    if (place != nullptr) {
      return Error{Code::invalid_argument, 0, shown(*name) + " lies on both " + place->name + " and " + tier.name,
                   "remove or rename one of them"};
    }
    place = &tier;
  }
  if (place == nullptr) place = empty;
  if (place == nullptr) {
    return Error{Code::not_found, 0, shown(*name) + " lies on no tier",
                 "give its path below the folder of a tier, or copy it in with `penstock tier add`"};
  }
  const auto mover = this->mover({});
  if (!mover) return mover.error();
  if (*known) {
    const auto locked = (*mover)->claim((*known)->id, 0);
    if (!locked) return locked.error();
    if (!*locked) return Error{Code::in_use, 0, shown(*name) + " is being moved or written", "import it later"};
  }
  if (Status parents = check_parents(place->path, *name); !parents) return parents;
  const std::string path = place->path + "/" + *name;
  const auto tree = scan(path);
  if (!tree) return tree.error();
  UnitRow row = *known ? **known : UnitRow{};
  row.name = *name;
  row.tier = place->id;
  describe(row, *tree);
  row.checksum.clear();
  row.doubt.clear();
  row.is_new = false;
  if (checksum) {
    auto sum = (*mover)->checksum(path, *tree);
    if (!sum) return sum.error();
    const auto after = glance(path);
    if (!after || after->identity != tree->identity) {
      return Error{Code::changed, 0, path + " was changed while it was read", "import it when nobody writes to it"};
    }
    row.checksum = std::move(*sum);
  }
  return catalog_->transact([&]() -> Status {
    if (*known) return catalog_->update_unit(row);
    if (Status free = check_free(*name); !free) return free;
    const auto again = catalog_->unit(*name);
    if (!again) return again.error();
    if (*again) return Error{Code::in_use, 0, shown(*name) + " was added by another process meanwhile", ""};
    const auto id = catalog_->insert_unit(row);
    return id ? Status() : Status(id.error());
  });
}

Status Service::add(const std::string& path, std::string_view given, std::string_view tier,
                    const MoveOptions& options) {
  const auto name = checked_name(given);
  if (!name) return name.error();
  if (Status going = check_not_paused(); !going) return going;
  const auto tree = scan(path);
  if (!tree) return tree.error();
  const auto place = tier.empty() ? tier_for_new(*name, tree->room_bytes) : this->tier(tier);
  if (!place) return place.error();
  const auto mover = this->mover(options);
  if (!mover) return mover.error();
  const auto known = catalog_->unit(*name);
  if (!known) return known.error();
  if (*known) {
    return Error{Code::in_use, 0, "there is a unit " + shown(*name) + " already", "remove it first, or replace it"};
  }
  if (Status free = check_free(*name); !free) return free;
  std::error_code failed;
  const std::string absolute = fs::absolute(path, failed).string();
  return (*mover)->add({.name = *name, .tier = place->id}, absolute);
}

Status Service::forget(std::string_view name) {
  const auto row = unit(name);
  if (!row) return row.error();
  const auto mover = this->mover({});
  if (!mover) return mover.error();
  const auto locked = (*mover)->claim(row->id, options_.wait_seconds);
  if (!locked) return locked.error();
  if (!*locked) return Error{Code::in_use, 0, shown(name) + " is being moved or written", "forget it later"};
  const auto move = catalog_->move_of(row->id);
  if (!move) return move.error();
  if (*move) return Error{Code::in_use, 0, shown(name) + " has an unfinished move", "see `penstock tier check`"};
  return catalog_->delete_unit(row->id);
}

Result<std::unique_ptr<Mover>> Service::mover(const MoveOptions& options) {
  {
    const std::scoped_lock lock(context_mutex_);
    if (!context_) {
      Options copying = options_.copying;
      copying.cache = Cache::bypass;
      auto made = Context::create(copying);
      if (!made) return std::move(made).error();
      context_.emplace(std::move(*made));
    }
  }
  return Mover::create(*catalog_, *context_, closer_, one_at_a_time(options));
}

// --- Names ---

void Service::count(std::int64_t unit) {
  const std::scoped_lock lock(mutex_);
  ++counted_[unit];
  if (!accountant_.joinable() && !stopping_) accountant_ = std::thread([this] { keep_accounts(); });
}

void Service::count_open(std::int64_t unit) {
  const TimePoint now = Clock::now();
  {
    const std::scoped_lock lock(mutex_);
    const auto [opened, is_first] = opened_at_.try_emplace(unit, now);
    if (!is_first && now - opened->second < one_use) return;
    opened->second = now;
  }
  count(unit);
}

// So that no reader waits for the disk of the catalog.
void Service::keep_accounts() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, duration_from_seconds(std::clamp(options_.flush_seconds, 0.01, 1e6)),
                   [&] { return stopping_; });
    lock.unlock();
    static_cast<void>(flush());
    lock.lock();
  }
}

Status Service::flush() {
  std::vector<Counted> counted;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [unit, accesses] : counted_) counted.push_back({unit, accesses});
    counted_.clear();
    std::erase_if(opened_at_, [now = Clock::now()](const auto& opened) { return now - opened.second >= one_use; });
  }
  if (counted.empty()) return {};
  const auto policy = catalog_->policy();
  Status written =
      policy ? catalog_->add_accesses(counted, wall_seconds(), policy->half_life_seconds) : Status(policy.error());
  if (!written) {
    const std::scoped_lock lock(mutex_);
    for (const Counted& one : counted) counted_[one.unit] += one.accesses;
  }
  return written;
}

Result<Service::Found> Service::find(std::string_view given) {
  const auto name = checked_name(given);
  if (!name) return name.error();
  auto place = catalog_->place_of(*name);
  if (!place) return std::move(place).error();
  if (*place) {
    std::string path = (*place)->root + "/" + *name;
    return Found{std::move(**place), *name, std::move(path), true};
  }
  for (const std::string& parent : parents_of(*name)) {
    auto above = catalog_->place_of(parent);
    if (!above) return std::move(above).error();
    if (!*above || (*above)->kind != UnitKind::directory) continue;
    std::string path = (*above)->root + "/" + *name;
    return Found{std::move(**above), parent, std::move(path), false};
  }
  return no_unit(*name);
}

Result<std::string> Service::path_of(std::string_view name) {
  auto found = find(name);
  if (!found) return std::move(found).error();
  count(found->place.unit);
  return std::move(found->path);
}

Result<Location> Service::locate(std::string_view given, const OpenOptions& options) {
  if (Status status = usable(); !status) return std::move(status).error();
  if (options.access == Access::read) return locate_to_read(given, options);
  const auto name = checked_name(given);
  if (!name) return name.error();
  auto found = find(*name);
  if (!found && found.error().code != Code::not_found) return found.error();
  if (found) count_open(found->place.unit);
  const TimePoint until = time_after(Clock::now(), duration_from_seconds(options_.wait_seconds));
  while (found && (options.access != Access::replace || !found->is_unit)) {
    auto location = locate_to_change(*found, options);
    if (location || location.error().code != Code::changed || Clock::now() >= until) return location;
    found = find(*name);  // it has moved while we waited for its mover
    if (!found) return found.error();
  }
  if (options.access == Access::write) return found.error();
  return options.access == Access::replace ? locate_to_replace(*name, options) : locate_to_create(*name, options);
}

// The file is opened here, so that a move that follows does not take it away.
Result<Location> Service::locate_to_read(std::string_view name, const OpenOptions& options) {
  constexpr int most_moves = 16;
  std::int64_t last_tier = 0;
  for (int moves = 0;; ++moves) {
    const auto found = find(name);
    if (!found) return found.error();
    if (found->is_unit && found->place.kind == UnitKind::directory) {
      count_open(found->place.unit);
      return Location{found->path, options};
    }
    const int fd = ::open(found->path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
      count_open(found->place.unit);
      Location location{found->path, options};
      location.options.descriptor = fd;
      location.held = std::shared_ptr<const void>(nullptr, [fd](const void*) { ::close(fd); });
      return location;
    }
    const int error = errno;
    const auto tier = std::exchange(last_tier, found->place.tier);
    if (error != ENOENT || moves == most_moves || tier == last_tier) {
      const auto tiers = catalog_->tiers();
      if (!tiers) return tiers.error();
      const auto row = std::ranges::find(*tiers, found->place.tier, &TierRow::id);
      if (row != tiers->end()) {
        if (Status marked = check_marker(row->path, row->mark, row->name); !marked) return std::move(marked).error();
      }
      return system_error(error, "open " + found->path, "see what `penstock tier check` says about it");
    }
  }
}

Result<Location> Service::locate_to_change(const Found& found, const OpenOptions& options) {
  const auto mover = this->mover({});
  if (!mover) return mover.error();
  const auto locked = (*mover)->claim(found.place.unit, options_.wait_seconds);
  if (!locked) return locked.error();
  if (!*locked) return Error{Code::in_use, 0, shown(found.unit) + " is being moved or written", "write to it later"};
  auto row = catalog_->unit(found.place.unit);
  if (!row) return std::move(row).error();
  if (!*row || (*row)->tier != found.place.tier) {
    return Error{Code::changed, 0, shown(found.unit) + " has moved meanwhile", "open it again"};
  }
  // No identity is expected until it moves again: then nobody has it open for writing.
  (*row)->identity.clear();
  (*row)->checksum.clear();
  if (Status updated = catalog_->update_unit(**row); !updated) return std::move(updated).error();
  Location location{found.path, options};
  // Open for writing, so that no mover takes it away before the store is open. What is made anew, or may not be
  // written, is the store's to tell.
  if (const int fd = ::open(found.path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW); fd >= 0) {
    location.held = std::shared_ptr<const void>(nullptr, [fd](const void*) { ::close(fd); });
  }
  location.options.on_commit = [self = shared_from_this(), unit = found.place.unit, then = options.on_commit] {
    if (Status refreshed = self->refresh(unit); !refreshed) return refreshed;
    return then ? then() : Status();
  };
  return location;
}

// Sizes that have changed count for the room there is.
Status Service::refresh(std::int64_t unit) {
  auto row = catalog_->unit(unit);
  if (!row) return row.error();
  if (!*row) return {};
  const auto place = catalog_->place_of((*row)->name);
  if (!place) return place.error();
  if (!*place) return {};
  const auto tree = scan((*place)->root + "/" + (*row)->name);
  if (!tree) return tree.error();
  (*row)->size_bytes = tree->size_bytes;
  (*row)->room_bytes = tree->room_bytes;
  (*row)->files = tree->files;
  return catalog_->update_unit(**row);
}

Result<TierRow> Service::tier_for_new(const std::string& name, std::uint64_t size_bytes) {
  const auto known = catalog_->unit(name);
  if (!known) return known.error();
  if (*known && (*known)->pinned) {
    const auto tiers = catalog_->tiers();
    if (!tiers) return tiers.error();
    const auto row = std::ranges::find(*tiers, *(*known)->pinned, &TierRow::id);
    if (row != tiers->end()) return *row;
  }
  const auto placed = place(size_bytes);
  if (!placed) return placed.error();
  return tier(placed->tier);
}

Result<Location> Service::locate_to_replace(const std::string& name, const OpenOptions& options) {
  const auto known = catalog_->unit(name);
  if (!known) return known.error();
  if (*known && (*known)->kind == UnitKind::directory) {
    return Error{Code::is_directory, EISDIR, shown(name) + " is a directory", "name a file in it"};
  }
  if (!*known) {
    if (Status free = check_free(name); !free) return std::move(free).error();
  }
  const auto tier = tier_for_new(name, options.size_bytes);
  if (!tier) return tier.error();
  if (Status marked = check_marker(tier->path, tier->mark, tier->name); !marked) return std::move(marked).error();
  // As long as the store is open, its lock tells that somebody writes there.
  auto locks = UnitLocks::open(catalog_->path());
  if (!locks) return std::move(locks).error();
  const auto number = locks->lock_new_number();
  if (!number) return number.error();
  Location location{coming_path(tier->path, *number), options};
  location.options.on_commit = [self = shared_from_this(), locks = std::make_shared<UnitLocks>(std::move(*locks)), name,
                                tier = tier->id, staged = location.path, then = options.on_commit]() -> Status {
    Status done = self->usable();
    const auto mover = done ? self->mover({}) : Result<std::unique_ptr<Mover>>(done.error());
    done = mover ? (*mover)->replace(name, tier, staged, self->options_.wait_seconds) : Status(mover.error());
    if (!done) {
      static_cast<void>(remove_all(staged));
      return done;
    }
    return then ? then() : Status();
  };
  return location;
}

Result<Location> Service::locate_to_create(const std::string& name, const OpenOptions& options) {
  if (Status free = check_free(name); !free) return std::move(free).error();
  const auto tier = tier_for_new(name, options.size_bytes);
  if (!tier) return tier.error();
  if (Status marked = check_marker(tier->path, tier->mark, tier->name); !marked) return std::move(marked).error();
  const std::string path = tier->path + "/" + name;
  if (Status made = make_parents(tier->path, name, ""); !made) return std::move(made).error();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return system_error(errno, "create " + path, errno == EEXIST ? "import it first, or move it away" : "");
  }
  ::close(fd);
  const auto id = catalog_->insert_unit({.name = name, .tier = tier->id, .identity = "", .checksum = ""});
  if (!id) {
    ::unlink(path.c_str());
    return id.error();
  }
  const auto found = find(name);
  if (!found) return found.error();
  return locate_to_change(*found, options);
}

}  // namespace penstock::tiers
