// What a command writes must not be a file that it reads.
#pragma once

#include <string>
#include <vector>

#include "penstock/result.h"
#include "penstock/tiers.h"

namespace penstock::cli {

struct Written {
  std::string option;  // "--out"
  std::string name;    // empty: nothing is written; "-": to standard output
};

struct Inputs {
  std::vector<std::string> stores;            // paths and URIs; "-" is standard input
  std::vector<std::string> arguments;         // of options; "@FILE" is read, all else is none
  std::vector<std::string> replaceable = {};  // stores that may be replaced by what is read of them
  const Tiers* tiers = nullptr;               // that are read; null: the usual ones, if a store is "tier:NAME"
};

// Code::invalid_argument if both are one file, by whatever names: links, "file:", "tier:" and "soft-nvme:" are looked
// through. Of a folder, an index and a part of a split model the other files of the model count too; of tiers their
// catalog and what they keep in their folders.
Status check_apart(const Written& written, const Inputs& inputs);

}  // namespace penstock::cli
