// Names of units on the command line and in JSON: bytes there, text here.
#pragma once

#include <string>

#include "output.h"

namespace penstock::cli {

// The name or path as it is, if that is UTF-8 and has no % before two hexadecimal digits; else percent-encoded. So
// every text stands for one name.
Json name_json(const std::string& name);
// The name of the unit that a text stands for; the text itself if there is none.
std::string meant(const Tiers& tiers, const std::string& given);

}  // namespace penstock::cli
