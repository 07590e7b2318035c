// What can be opened as a store: regular files and block devices, which hold bytes at offsets.
#pragma once

#include <sys/stat.h>

#include <string>

#include "penstock/store.h"

namespace penstock::files {

// An error that says what it is and what to do instead, for anything else.
Status check_kind(const struct stat& status, const std::string& name, Access access);

}  // namespace penstock::files
