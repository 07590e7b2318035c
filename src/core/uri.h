// Names of stores: paths, and URIs with the scheme of an engine.
//
// `[a-z][a-z0-9+-]+:` is a scheme if an engine serves it; everything else is a path, taken as it is. "./x" and "file:x"
// always mean a path. URIs (file: too) are percent-decoded; paths are not.
//
// Thread safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "penstock/result.h"

namespace penstock::core {

struct Uri {
  std::string scheme;  // "file" for a path
  std::string name;    // what is left for the engine: no scheme, no "//", no percent-encoding
};

// Code::unknown_scheme for "scheme://..." that no engine serves, Code::invalid_argument for what can't be a name.
Result<Uri> parse_uri(std::string_view text, std::span<const std::string_view> schemes);

}  // namespace penstock::core
