// Whether to open a file may wait for the server of its file system. Told from what the kernel has at hand: nobody is
// asked, so that the answer does not wait itself.
//
// Thread safety: functions.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "files/file_status.h"

namespace penstock::files {

// What a name means.
struct Lookup {
  bool may_wait = true;               // also where it can't be told
  std::optional<struct stat> status;  // of the file, if it is local and there
  std::optional<FileStatus> all;      // the same with the rest, where the kernel had the file in memory
};
Lookup look_in_memory(const std::string& name);

bool may_wait(const std::string& name);

}  // namespace penstock::files
