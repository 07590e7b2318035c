// The commands of `penstock tier`, each with what was given on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "output.h"

namespace penstock::cli::tier {

struct Flags {
  std::string catalog;
  std::vector<std::string> names;
  std::string name, tier, path, configuration, behind, prefix, after, below, html;
  std::optional<std::uint64_t> capacity, rate;
  std::optional<double> low, high, from_heat, half_life, cooling, least_stay;
  std::uint64_t limit = 1000;
  double interval = 60;
  bool adopt = false, first = false, read_only = false, writable = false, checksum = false, all = false,
       dry_run = false;
  bool bytes = false, prometheus = false, no_strays = false;
  OutputFlags output;
};

// Which tiers there are, what lies where, and taking it in (tier_catalog.cc).
Exit init(const Flags& flags, const Output& output);
Exit add_tier(const Flags& flags, const Output& output, Tiers& tiers);
Exit change(const Flags& flags, const Output& output, Tiers& tiers);
Exit status(const Flags& flags, const Output& output, Tiers& tiers);
Exit list_units(const Flags& flags, const Output& output, Tiers& tiers);
Exit where(const Flags& flags, const Output& output, Tiers& tiers);
Exit why(const Flags& flags, const Output& output, Tiers& tiers);
Exit import(const Flags& flags, const Output& output, Tiers& tiers);
Exit check(const Flags& flags, const Output& output, Tiers& tiers);

// Moving it (tier_moving.cc).
Exit add(const Flags& flags, const Output& output, Tiers& tiers);
Exit move(const Flags& flags, const Output& output, Tiers& tiers);
Exit rebalance(const Flags& flags, const Output& output, Tiers& tiers);
Exit run_mover(const Flags& flags, const Output& output, Tiers& tiers);

// "1 unit", "2 units".
std::string count_of_units(std::uint64_t count);
// The head of each JSON object.
Json head(const char* verb);
// The end of what has nothing to tell but that it was done.
Exit done(const Flags& flags, const char* verb, const Status& status, const std::string& text);

}  // namespace penstock::cli::tier
