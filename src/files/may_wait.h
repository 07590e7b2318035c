// Whether to open a file may wait for the server of its file system. Told from what the kernel has at hand: nobody is
// asked, so that the answer does not wait itself.
//
// Thread safety: functions.
#pragma once

#include <string>

namespace penstock::files {

// Where it can't be told, too.
bool may_wait(const std::string& name);

}  // namespace penstock::files
