// Durability: what has to be synced besides content, and where syncing is in vain.
//
// Thread safety: functions.
#pragma once

#include <string>

#include "penstock/result.h"

namespace penstock::files {

// Makes the names in a folder durable, after `path` in it has got its own. Code::not_durable says that all but this
// went well.
Status sync_folder(int folder, const std::string& path);
// The same for the folder that `path` leads to, through links too.
Status sync_folder_of(const std::string& path);

// Why nothing that is written to an open file or block device survives a power cut ("tmpfs is memory"); empty where
// syncing helps.
std::string volatile_because(int fd);

}  // namespace penstock::files
