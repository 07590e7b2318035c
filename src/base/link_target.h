// Where a name leads that is about to be replaced, and what of others is left alone in folders like /tmp, where every
// user may put a file or a link under any name. As in kernels with fs.protected_symlinks and fs.protected_regular.
//
// Thread safety: functions.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "penstock/result.h"

namespace penstock {

// Absolute, and the end of a chain of symbolic links that begins with `name`, whether or not there is a file yet.
// Code::permission_denied: in a folder that is everybody's, a link is neither this user's nor that of its owner.
Result<std::filesystem::path> link_target(const std::string& name);

// A folder that every user may write to, and none may remove what is another's.
bool is_shared_folder(const struct stat& folder);

// Whether content that is written into a file of that name is safe from the file's owner: in a folder that is
// everybody's, another user may have put it there. `path` is for messages.
Status check_own_in_shared_folder(const struct stat& folder, const struct stat& file, const std::string& path);

}  // namespace penstock
