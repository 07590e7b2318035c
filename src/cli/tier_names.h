// Names of units on the command line and in JSON: bytes there, text here. A text is the name itself, or "./" and the
// percent-encoded name; no name begins with "./", so every text that is printed stands for one name.
#pragma once

#include <string>

#include "output.h"

namespace penstock::cli {

// The name as it is, if that is UTF-8 and has no % before two hexadecimal digits; else "./" and the percent-encoded
// one.
Json name_json(const std::string& name);
// The same for a path, without "./".
Json path_json(const std::string& path);
// For people: the name as it is, if that is UTF-8 without control characters.
std::string shown_name(const std::string& name);

// The name that a text is, whatever units there are.
std::string name_from(const std::string& given);
// The name of the unit that a text stands for: the unit of that very name, else the one whose name is percent-encoded
// so, else the text itself.
std::string meant(const Tiers& tiers, const std::string& given);
// The name that is percent-encoded as this text, without "./"; the text itself if none is.
std::string unmarked(const std::string& given);

}  // namespace penstock::cli
