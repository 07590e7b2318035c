// Leftovers: what stays of Access::replace when its program is killed: an unfinished file of full size beside the one
// that was to be replaced, with the hidden name ".NAME.0123456789abcdef.part".
//
// Who writes such a file holds a lock on it (flock), which the kernel takes from the dead, whatever container they were
// in. So a file whose lock can be had is nobody's and is removed: when the same name is written next, or here. Locks
// are those of one file system: the layers below an overlay, and shares that a virtual machine or Samba exports, don't
// show them.
//
// Thread safety: functions, beside any number of writers and of others that remove. Lifetime: values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/error.h"
#include "penstock/export.h"
#include "penstock/result.h"

namespace penstock {

struct CleanOptions {
  // Folders below as well, on the same file system; symbolic links are never followed.
  bool recursive = false;
  bool dry_run = false;  // look, but remove nothing
  // Network and FUSE mounts whose locks may be seen on this machine alone: nobody may be writing there from elsewhere.
  bool remote = false;
  std::function<bool()> keep_going = {};  // asked for each folder and file; false ends it
};

struct Leftover {
  std::string path;
  std::uint64_t bytes = 0;  // that it takes on the disk
  // Why it is still there: Code::in_use while it is being written, Code::unsupported where locks prove nothing, else
  // what failed. An entry for a folder that can't be read has one too; the last one has Code::cancelled where it ended
  // early.
  std::optional<Error> kept = {};
};

// Removes leftovers in a folder; says which ones were there, in the order of their names.
PENSTOCK_EXPORT Result<std::vector<Leftover>> remove_leftovers(const std::string& folder,
                                                               const CleanOptions& options = {});

}  // namespace penstock
