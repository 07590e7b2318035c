// Tree: what a unit consists of: one file, or the entries of a directory. Its identity tells, by names, sizes and
// times, whether the content may have changed; it is the same for a copy that kept them.
//
// Thread safety: values.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/held_folder.h"
#include "penstock/tiers.h"

namespace penstock::tiers {

struct Entry {
  enum class Kind : std::uint8_t { file, directory, link, same };
  std::string name;  // below the unit; empty: the unit itself
  Kind kind = Kind::file;
  struct stat status = {};
  std::string target = {};  // of a symbolic link; of another name of the same file ("same"), its first name
  std::uint64_t size_bytes() const { return kind == Kind::file ? static_cast<std::uint64_t>(status.st_size) : 0; }
};

struct Tree {
  UnitKind kind = UnitKind::file;
  std::vector<Entry> entries;  // directories before what is in them, sorted by name
  std::uint64_t size_bytes = 0;
  std::uint64_t room_bytes = 0;
  std::uint64_t files = 0;
  std::string identity;
  std::uint64_t inode = 0;  // of the unit
};

// Code::not_found if nothing is there. Code::unsupported for what can't move as it is: links that lead out, files with
// names elsewhere, devices and the like, other file systems mounted within.
Result<Tree> scan(const PathBeneath& path);
// Whether all of it can be deleted: nothing is mounted within, and nothing protected (chattr(1)). Says what can't.
Status check_removable(const PathBeneath& path);
// Whether names can be given and taken in a folder, as far as it is there.
Status check_unprotected(const PathBeneath& folder);
// Whether an open folder is one that something is mounted on.
bool is_mount(int folder);
// Only the identity and the inode, as cheap as can be.
Result<Tree> glance(const PathBeneath& path);
// Whether two looks at one unit have found the same files, each with the same inode.
bool are_same_files(const Tree& one, const Tree& other);
// A file of a unit, open for reading; Code::changed if another file has its name by now.
Result<UniqueFd> open_entry(const PathBeneath& path, const Entry& entry, int flags = 0);
// The identity of a unit that is a file.
std::string identity_of(const struct stat& file);

}  // namespace penstock::tiers
