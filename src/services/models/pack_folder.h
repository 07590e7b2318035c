// The folder that a packed or unpacked model is written into.
//
// Thread safety: functions of the file system.
#pragma once

#include <span>
#include <string>

#include "penstock/result.h"

namespace penstock::models {

// Where a file of a model goes: into the folder, under its own name.
std::string target_in(const std::string& folder, const std::string& source);

// Before anything is written: that no file in the folder that would be replaced is one of `sources`, under whatever
// name, nor a symbolic link.
Status check_targets(const std::string& folder, std::span<const std::string> sources);

}  // namespace penstock::models
