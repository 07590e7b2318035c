// Names of units: paths below the folder of a tier.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/result.h"

namespace penstock::tiers {

// What tiers keep of their own in a folder; no unit lies there.
inline constexpr std::string_view own_folder = ".penstock";

// Without slashes at its end. Code::invalid_argument for what can't be a name: empty, absolute, with "..", a zero byte,
// a part of more than 255 bytes, or within own_folder.
Result<std::string> checked_name(std::string_view name);
// Of a tier.
Status check_tier_name(std::string_view name);
// "a/b/c": "a/b", "a".
std::vector<std::string> parents_of(std::string_view name);
// Nothing if a % has no two hexadecimal digits behind it.
std::optional<std::string> percent_decoded(std::string_view text);
// For messages: what is not printable is escaped.
std::string shown(std::string_view name);
// "1 unit", "2 units".
std::string count_of_units(std::uint64_t count);
// That the catalog does not know it.
Error no_unit(std::string_view name);

}  // namespace penstock::tiers
