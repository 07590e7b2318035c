// Leftovers: what a killed program leaves of Access::replace: an unfinished file of full size beside the target, with
// the hidden name ".NAME.0123456789abcdef.part".
//
// The writer of such a file holds a lock on it (flock), which the kernel releases when the process dies, in whatever
// container. So a file whose lock can be taken belongs to nobody and is removed: by the next write to the same name, or
// here. Locks belong to one file system: the layers below an overlay, and shares that a virtual machine or Samba
// exports, don't show them.
//
// Thread safety: functions, beside any number of writers and other cleaners. Lifetime: values.
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
  // Also subfolders on the same file system; symbolic links are never followed.
  bool recursive = false;
  bool dry_run = false;  // look, but remove nothing
  // Also network and FUSE mounts whose locks other machines may not see: no other machine may write there.
  bool remote = false;
  std::function<bool()> keep_going = {};  // asked for each folder and file; false ends it
};

struct Leftover {
  std::string path;
  std::uint64_t bytes = 0;  // that it takes on the disk
  // Why it is still there: Code::in_use while it is being written, Code::unsupported if locks prove nothing, else
  // the failure. A folder that can't be read has an entry too; the last entry has Code::cancelled if it ended
  // early.
  std::optional<Error> kept = {};
};

// Removes leftovers in a folder; returns those it found, sorted by name.
PENSTOCK_EXPORT Result<std::vector<Leftover>> remove_leftovers(const std::string& folder,
                                                               const CleanOptions& options = {});

}  // namespace penstock
