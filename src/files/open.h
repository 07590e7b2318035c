// Opening of files and block devices: descriptors and facts, nothing that moves bytes.
#pragma once

#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "engine/store.h"
#include "files/replacement.h"
#include "penstock/store.h"

namespace penstock::files {

struct OpenedFile {
  StoreInfo info;
  std::string path;  // absolute; by way of `buffered` where OpenOptions::descriptor was given
  UniqueFd buffered;
  UniqueFd direct;                           // past the page cache; none where that is not possible
  std::unique_ptr<Replacement> replacement;  // with Access::replace
  bool name_is_new = false;                  // opening made the file, or may have
};

// REQUIRES: nothing of `name`; whatever it is, the call waits for nobody but the server of its file system.
Result<OpenedFile> open_file(const std::string& name, const OpenOptions& options);

Result<engine::State> state_of(int fd, const std::string& name);

// Grows the file so that writes within the room don't; an error leaves its size as it was. What lies before the room
// and past the end is a hole then, and takes no space.
Status reserve_space(int fd, const std::string& name, engine::Room room);

}  // namespace penstock::files
