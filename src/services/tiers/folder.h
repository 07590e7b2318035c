// The folder of a tier: its marker, what tiers keep aside in it, and work on names that has to be durable.
//
//   ROOT/.penstock/tier.json   the marker: by it a tier is known, so an empty mount point is never taken for one
//   ROOT/.penstock/coming/ID   a unit on its way here, unfinished
//   ROOT/.penstock/coming/ID.folder   a folder above a unit, which is about to get its name
//   ROOT/.penstock/going/ID    a unit that has moved on, or was removed, and is about to be deleted
//   ROOT/.penstock/going/ID.RANDOM.gone   the same, if a directory, once nothing of it is needed
//   ROOT/.penstock/going/ID.RANDOM.kept   a version that was written while its unit moved
//
// Other users may own folders in ROOT, and change them at any time. ROOT and ROOT/.penstock belong to this user, to
// root or to the owner of the catalog, and others may not write to them; as root, the same goes for all folders above
// (docs/tiers.md#whom-tiers-trust).
//
// Thread safety: functions of the file system.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/held_folder.h"
#include "penstock/result.h"
#include "services/tiers/catalog.h"

namespace penstock::tiers {

struct Marker {
  std::string tier;     // its id
  std::string catalog;  // that of the catalog which it belongs to
  std::string name;
};
// Code::not_found if there is none. One that can't be read is told of as such, and is not damaged. Code::
// permission_denied if ROOT or ROOT/.penstock is not to be trusted; `owner` is that of the catalog.
Result<Marker> read_marker(const HeldFolder& root, uid_t owner);
Status write_marker(const HeldFolder& root, const Marker& marker, uid_t owner);
// If it is still this tier's.
void remove_marker(const TierRow& tier);
// Whether it can be written anew: it is missing, or damaged.
bool is_lost_marker(const Error& error);
// Whether this is the folder of the tier, now.
Status check_marker(const HeldFolder& root, const TierRow& tier);
// Its folder, once the marker has been checked.
Result<HeldFolder> open_tier(const TierRow& tier);
// The same if units may be moved to and from it, now.
Result<HeldFolder> open_usable(const TierRow& tier);

// A system error, with what to do if there are no more descriptors.
Error file_error(int error_number, std::string what, std::string hint = {});
// Whether this process or machine lacks descriptors or memory: that says nothing about the file.
bool is_shortage(const Error& error);

PathBeneath coming_path(const HeldFolder& root, std::int64_t unit);
PathBeneath going_path(const HeldFolder& root, std::int64_t unit);
// A name for the same, once it is certain that nothing of it is needed; another one each time.
PathBeneath new_gone_path(const HeldFolder& root, std::int64_t unit);
// The same for what is kept, and never deleted.
PathBeneath new_kept_path(const PathBeneath& path);
PathBeneath coming_folder(const HeldFolder& root);
PathBeneath going_folder(const HeldFolder& root);
// Keeps what lies there for a unit of another catalog: numbers of this one mean others.
void keep_going(const HeldFolder& root);
// Deletes what has names of new_gone_path.
Status remove_gone(const HeldFolder& root);
// Whether something is on its way to the tier, or about to be removed from it: by somebody at work, or by one who died.
bool is_anything_aside(const HeldFolder& root);
// Whether versions of units are kept there that only a person can decide about.
bool is_anything_kept(const HeldFolder& root);

// As root: whether nobody but `owner` and root can exchange a folder above `path`, and so what that means.
Status check_above(const std::string& path, uid_t owner);

struct Room {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};
Result<Room> room_of(const HeldFolder& root);

// The names in a folder, sorted.
Result<std::vector<std::string>> list_names(int folder, const std::string& path);
Result<std::vector<std::string>> list_names(const PathBeneath& folder);
// What a name means, without following a link; st_ino is 0 if there is nothing.
Result<struct stat> look_at(const PathBeneath& path);
// Whether the folders above a unit, as far as they are there, are folders and no links: those lead out of the tier, and
// give a file two names.
Status check_parents(const PathBeneath& unit);
// Whether it is a folder without anything but folders in it: such are left where units were moved away.
bool is_empty_folder(const PathBeneath& path);
// Removes such folders. Where something came into one meanwhile, it stays.
void remove_empty_folder(const PathBeneath& path);
// Makes what is missing of the folders above a unit. Where there is a `model`, they get the owners and modes of those
// there; they are made aside, in the place of `unit`, since other users may exchange what lies in their folders.
// Code::permission_denied: one that is there belongs to another user than that of the model, who is not trusted either.
// REQUIRES: with a model, the unit of that number is locked.
Status make_parents(const PathBeneath& path, const HeldFolder* model = nullptr, std::int64_t unit = 0);
// Code::in_use if there is something of that name already.
Status rename_to_free(const PathBeneath& from, const PathBeneath& to);
Status rename_over(const PathBeneath& from, const PathBeneath& to);
// Fails if one of them is missing, or the file system can't do it.
Status exchange_names(const PathBeneath& one, const PathBeneath& other);
// A file or a link. Nothing to remove is no failure.
Status remove_file(const PathBeneath& path);
// Nothing to remove is no failure. What is mounted within stays, and so does what is above it.
Status remove_all(const PathBeneath& path);
Status sync_file(const PathBeneath& path);  // or a folder
Status sync_parent(const PathBeneath& path);
Status sync_file_system(const HeldFolder& root);

}  // namespace penstock::tiers
