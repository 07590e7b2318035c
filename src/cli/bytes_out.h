// Where gathered bytes go: to a file, which is replaced once they are complete, or to standard output.
#pragma once

#include <string>

#include "penstock/context.h"
#include "standard_output.h"

namespace penstock::cli {

// Nothing is left of a file that was interrupted, and the old one stays.
Status write_file(Context& context, const std::string& name, Region memory);
// Memory of any domain.
Status print_bytes(const StandardOutput& out, Region memory);

}  // namespace penstock::cli
