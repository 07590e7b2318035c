// What a command writes must not be a file that it reads.
#pragma once

#include <string>
#include <vector>

#include "penstock/result.h"

namespace penstock::cli {

struct Written {
  std::string option;  // "--out"
  std::string name;    // empty, or "-": nothing is written over
};

struct Inputs {
  std::vector<std::string> stores;     // paths and URIs; "-" is standard input
  std::vector<std::string> arguments;  // of options; "@FILE" is read, all else is none
};

// Code::invalid_argument if both are one file, by whatever names: links, "file:", "tier:" and "soft-nvme:" are looked
// through. Of a folder, an index and a part of a split model the other files of the model count too.
Status check_apart(const Written& written, const Inputs& inputs);

}  // namespace penstock::cli
