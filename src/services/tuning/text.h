// The text of a tuning file, apart from the file, so that it can be tested and fuzzed.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "penstock/tuning.h"

namespace penstock::tuning {

inline constexpr std::size_t file_limit_bytes = 1 << 20;

// Calls `visit(key, member)` for every option that is tuned.
template <typename Visit>
void for_each_tuned(Visit visit) {
  visit("lanes", &Options::lanes);
  visit("operations_in_flight", &Options::operations_in_flight);
  visit("storage_chunk_bytes", &Options::storage_chunk_bytes);
  visit("staging_slot_bytes", &Options::staging_slot_bytes);
  visit("staging_slots_per_lane", &Options::staging_slots_per_lane);
}

// Code::invalid_argument for anything that `format` would not write; keys that are not known are refused.
Result<std::vector<Tuning>> parse(std::string_view text);
// Code::unsupported for names that JSON can't hold.
Result<std::string> format(const std::vector<Tuning>& tunings);

}  // namespace penstock::tuning
