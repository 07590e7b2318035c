// Opening of files and block devices: descriptors and facts, nothing that moves bytes.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "engine/store.h"
#include "files/replacement.h"
#include "penstock/store.h"

namespace penstock::files {

struct OpenedFile {
  StoreInfo info;
  std::string path;          // absolute; by way of `buffered` where OpenOptions::descriptor was given
  std::uint64_t number = 0;  // engine::PageCache::file_number
  UniqueFd buffered;
  UniqueFd direct;                           // past the page cache; with info.direct, none: opened when it is needed
  std::unique_ptr<Replacement> replacement;  // with Access::replace
  bool name_is_new = false;                  // opening made the file, or may have
  bool is_nonblocking = false;               // `buffered`, which make_blocking changes
};

// O_NONBLOCK is for the moment of opening only: io_uring would fail where it should wait. Reads and writes of local
// files by system calls don't mind. `kept` are the other flags that can be changed and were set.
void make_blocking(int fd, int kept = 0);

// REQUIRES: nothing of `name`; whatever it is, the call waits for nobody but the server of its file system.
Result<OpenedFile> open_file(const std::string& name, const OpenOptions& options);

// The same where that waits for nobody at all (files/may_wait.h); nothing otherwise.
std::optional<Result<OpenedFile>> open_file_now(const std::string& name, const OpenOptions& options);

// Opens the file of `buffered` again, past the page cache; `path` is for where there is no /proc. None where that is
// refused: the process may have fewer rights or descriptors than when it opened the file.
UniqueFd open_direct(int buffered, const std::string& path, bool writable);

Result<engine::State> state_of(int fd, const std::string& name);
// Of a file, not of a device.
engine::State state_of_file(const struct stat& status);

// Grows the file so that writes within the room don't; an error leaves its size as it was. What lies before the room
// and past the end is a hole then, and takes no space.
Status reserve_space(int fd, const std::string& name, engine::Room room);

}  // namespace penstock::files
