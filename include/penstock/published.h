// Published statistics: those of Contexts in other processes that publish them under a name (Options::publish).
// `penstock top` shows them.
//
// Thread safety: functions. Lifetime: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/result.h"
#include "penstock/statistics.h"

namespace penstock {

// One file per Context, penstock.NAME.PID.N. It begins with a robust mutex; its first word is the number of the
// publishing thread as long as that lives. The text follows after published_head_bytes.
inline constexpr std::string_view published_folder = "/dev/shm";
inline constexpr std::string_view published_prefix = "penstock.";
inline constexpr std::uint64_t published_head_bytes = 64;

struct Published {
  std::string name;
  std::uint64_t pid = 0;  // as its process sees itself
  std::string command;    // its name
  std::string file;       // in published_folder; distinguishes Contexts
  Statistics statistics;
};

// The living ones, sorted by name and process; an empty name means all. Removes files of dead processes, as far as this
// user may.
PENSTOCK_EXPORT Result<std::vector<Published>> list_published(std::string_view name = {});

// The text exposition format of Prometheus, version 0.0.4.
PENSTOCK_EXPORT std::string to_prometheus(std::span<const Published> published);

}  // namespace penstock
