// Attributes: what belongs to a file besides its content and stays when that is replaced.
//
// Thread safety: functions.
#pragma once

#include <sys/stat.h>

#include <string>

#include "penstock/result.h"

namespace penstock::files {

// An open file, with O_PATH too.
struct AttributesOf {
  int file = -1;
  const std::string& path;  // for messages, and where there is no /proc
  const struct stat& status;
};

// Gives the open file `fd` the owner, as far as this user may, the mode, the ACL and the other extended attributes of
// `from`. Not what vouches for the content: set-user-ID bits, capabilities, signatures. An attribute that can't be kept
// is logged as a warning; an ACL that can't is an error, since others could read then.
Status take_attributes(int fd, const AttributesOf& from);

}  // namespace penstock::files
