// A hash of text for tables in memory, with a key that is drawn once a process: who writes the names in a file can't
// choose ones that meet in a table. Nothing to store, or to compare with other processes.
//
// Thread safety: a function.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

std::uint64_t keyed_hash(std::string_view text);

}  // namespace penstock
