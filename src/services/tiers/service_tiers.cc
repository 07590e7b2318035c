// The Service's part that has the tiers themselves.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "services/tiers/folder.h"
#include "services/tiers/names.h"
#include "services/tiers/service.h"

namespace penstock::tiers {
namespace {

namespace fs = std::filesystem;

Error no_tier(std::string_view name) {
  return {Code::not_found, 0, "there is no tier \"" + shown(name) + "\"", "see `penstock tier status` for their names"};
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
  if (tier.capacity_bytes > INT64_MAX) {
    return Error{Code::invalid_argument, 0,
                 "the capacity of " + tier.name + " would be " + std::to_string(tier.capacity_bytes) +
                     " bytes, which is 2^63 or more",
                 "give less, or nothing for what its file system has"};
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

double usual_heat(std::size_t place) {
  return place == 0 ? 100 : place == 1 ? 10 : 0;
}

}  // namespace

Result<TierRow> Service::tier(std::string_view name) {
  auto tiers = catalog_->tiers();
  if (!tiers) return std::move(tiers).error();
  const auto found = std::ranges::find(*tiers, name, &TierRow::name);
  if (found == tiers->end()) return no_tier(name);
  return std::move(*found);
}

std::optional<Error> Service::problem_of(const TierRow& tier) {
  const auto root = open_tier(tier);
  if (!root) return root.error();
  if (tier.read_only) return {};
  for (const PathBeneath& folder : {PathBeneath{&*root, ""}, coming_folder(*root)}) {
    const UniqueFd held = folder.open(O_PATH | O_DIRECTORY);
    if (held && ::faccessat(held.get(), ".", W_OK, 0) == 0) continue;
    const int error = errno;
    const std::string change = "penstock tier change " + tier.name;
    return file_error(error, "write to " + folder.text(),
                      error == ENOENT
                          ? "make it again: " + change + " --adopt"
                          : "let this user write there, or leave the tier alone: " + change + " --read-only");
  }
  return {};
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
    info.problem = problem_of(row);
    const auto folder = HeldFolder::open(row.path);
    if (const auto room = folder ? room_of(*folder) : Result<Room>(folder.error()); room && !info.problem) {
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

  const auto held = HeldFolder::open(*folder);
  if (!held) return held.error();
  const auto marker = read_marker(*held, catalog_->owner());
  if (!marker && marker.error().code != Code::not_found && !(tier.adopt && is_lost_marker(marker.error()))) {
    return marker.error();
  }
  if (marker && marker->catalog != catalog_->id() && !tier.adopt) {
    return Error{Code::in_use, 0, *folder + " is the tier \"" + shown(marker->name) + "\" of another catalog",
                 "use that catalog, or take the folder from it with --adopt"};
  }
  const auto room = room_of(*held);
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
  if (Status marked = write_marker(*held, {row.mark, catalog_->id(), row.name}, catalog_->owner()); !marked) {
    return marked;
  }
  keep_going(*held);
  const auto inserted = catalog_->insert_tier(row, place == 0 ? 0 : (*tiers)[place - 1].id);
  return inserted ? Status() : Status(inserted.error());
}

Status Service::change_tier(const NewTier& tier) {
  if (Status valid = check_new(tier); !valid) return valid;
  auto row = this->tier(tier.name);
  if (!row) return row.error();
  if (!tier.path.empty() || tier.adopt) {
    const auto folder = folder_of(tier.path.empty() ? row->path : tier.path);
    if (!folder) return folder.error();
    const auto tiers = catalog_->tiers();
    if (!tiers) return tiers.error();
    if (Status apart = check_apart(*folder, *tiers, row->id); !apart) return apart;
    const auto held = HeldFolder::open(*folder);
    if (!held) return held.error();
    Status marked = check_marker(*held, *row);
    if (tier.adopt && (marked || is_lost_marker(marked.error()))) {
      marked = write_marker(*held, {row->mark, catalog_->id(), row->name}, catalog_->owner());
    }
    if (!marked) return marked;
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
  // Nobody would come back for it later.
  if (Status ended = end_interrupted(); !ended) return ended;
  const auto folder = HeldFolder::open(row->path);
  if (folder.ok() && is_anything_kept(*folder)) {
    return Error{Code::in_use, 0, "the tier " + row->name + " has versions of units that were kept",
                 "`penstock tier check` names them: take from them what you need, and remove them"};
  }
  Status removed = catalog_->transact([&]() -> Status {
    const auto claims = catalog_->claims(row->id);
    if (!claims) return claims.error();
    const auto moves = catalog_->moves();
    if (!moves) return moves.error();
    const bool under_way = claims->coming != 0 || std::ranges::any_of(*moves, [&](const MoveRow& move) {
                             return move.target == row->id || move.source == row->id;
                           });
    if (claims->units != 0) {
      return Error{Code::in_use, 0, "the tier " + row->name + " has " + count_of_units(claims->units),
                   "move, remove or forget them first"};
    }
    if (under_way) {
      return Error{Code::in_use, 0, "units are on their way to or from the tier " + row->name,
                   "wait for them; what was interrupted, `penstock tier check` ends"};
    }
    if (claims->pinned != 0) {
      return Error{Code::in_use, 0, "pinned to the tier " + row->name + ": " + count_of_units(claims->pinned),
                   "unpin them (penstock tier unpin), or pin them to another tier"};
    }
    return catalog_->delete_tier(row->id);
  });
  if (removed) remove_marker(*row);
  return removed;
}

}  // namespace penstock::tiers
