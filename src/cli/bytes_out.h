// Where the bytes that a command gathered go: to a file, which is replaced once they are complete.
#pragma once

#include <string>

#include "penstock/context.h"

namespace penstock::cli {

// Nothing is left of a file that was interrupted, and the old one stays.
Status write_file(Context& context, const std::string& name, Region memory);

}  // namespace penstock::cli
