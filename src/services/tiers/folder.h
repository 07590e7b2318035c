// The folder of a tier: its marker, what tiers keep aside in it, and work on names that has to be durable.
//
//   ROOT/.penstock/tier.json   the marker: by it a tier is known, so an empty mount point is never taken for one
//   ROOT/.penstock/coming/ID   a unit on its way here, unfinished
//   ROOT/.penstock/going/ID    a unit that has moved on, or was removed, and is about to be deleted
//   ROOT/.penstock/going/ID.RANDOM.gone   the same, if a directory, once nothing of it is needed
//   ROOT/.penstock/going/ID.RANDOM.kept   a version that was written while its unit moved
//
// Thread safety: functions of the file system.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/result.h"

namespace penstock::tiers {

struct Marker {
  std::string tier;     // its id
  std::string catalog;  // that of the catalog which it belongs to
  std::string name;
};
// Code::not_found if there is none. One that can't be read is told of as such, and is not damaged.
Result<Marker> read_marker(const std::string& root);
Status write_marker(const std::string& root, const Marker& marker);
// If it is still this tier's.
void remove_marker(const std::string& root, std::string_view tier);
// Whether it can be written anew: it is missing, or damaged.
bool is_lost_marker(const Error& error);
// Whether this is the folder of the tier with that id, now.
Status check_marker(const std::string& root, std::string_view tier, std::string_view name);

// A system error, with what to do if there are no more descriptors.
Error file_error(int error_number, std::string what, std::string hint = {});
// Whether this process or machine lacks descriptors or memory: that says nothing about the file.
bool is_shortage(const Error& error);

std::string coming_path(const std::string& root, std::int64_t unit);
std::string going_path(const std::string& root, std::int64_t unit);
// A name for the same, once it is certain that nothing of it is needed; another one each time.
std::string new_gone_path(const std::string& root, std::int64_t unit);
// Keeps what lies there for a unit of another catalog: numbers of this one mean others.
void keep_going(const std::string& root);
// Deletes what has names of new_gone_path.
Status remove_gone(const std::string& root);
// Whether something is on its way to the tier, or about to be removed from it: by somebody at work, or by one who died.
bool is_anything_aside(const std::string& root);
// Whether versions of units are kept there that only a person can decide about.
bool is_anything_kept(const std::string& root);
std::string coming_folder(const std::string& root);

struct Room {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};
Result<Room> room_of(const std::string& root);

// What a name means, without following a link at its end; st_ino is 0 if there is nothing.
Result<struct stat> look_at(const std::string& path);
// Whether the folders above root/name, as far as they are there, are folders and no links: those lead out of the tier,
// and give a file two names.
Status check_parents(const std::string& root, const std::string& name);
// Whether it is a folder without anything but folders in it: such are left where units were moved away.
bool is_empty_folder(const std::string& path);
// Removes such folders. Where something came into one meanwhile, it stays.
void remove_empty_folder(const std::string& path);
// Makes what is missing of the folders above root/name, like those above model_root/name where there is one.
Status make_parents(const std::string& root, const std::string& name, const std::string& model_root);
// Code::in_use if there is something of that name already.
Status rename_to_free(const std::string& from, const std::string& to);
Status rename_over(const std::string& from, const std::string& to);
// Fails if one of them is missing, or the file system can't do it.
Status exchange_names(const std::string& one, const std::string& other);
// Nothing to remove is no failure. What is mounted within stays, and so does what is above it.
Status remove_all(const std::string& path);
Status sync_file(const std::string& path);  // or a folder
Status sync_parent(const std::string& path);
Status sync_file_system(const std::string& root);
std::string parent_of(const std::string& path);

}  // namespace penstock::tiers
