// Published statistics: those of Contexts of other processes, which publish them under a name (Options::publish).
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

// Where they are: one file for each Context, penstock.NAME.PID.N. It begins with a robust mutex, whose first word is
// the number of the thread that publishes for as long as that lives; the text follows behind published_head_bytes.
inline constexpr std::string_view published_folder = "/dev/shm";
inline constexpr std::string_view published_prefix = "penstock.";
inline constexpr std::uint64_t published_head_bytes = 64;

struct Published {
  std::string name;
  std::uint64_t pid = 0;  // as its process sees itself
  std::string command;    // its name
  std::string file;       // in published_folder; tells Contexts apart
  Statistics statistics;
};

// Those that live, in the order of names and processes; an empty name: all. What a process that died left there is
// removed, as far as this user may.
PENSTOCK_EXPORT Result<std::vector<Published>> list_published(std::string_view name = {});

// The text exposition format of Prometheus, version 0.0.4.
PENSTOCK_EXPORT std::string to_prometheus(std::span<const Published> published);

}  // namespace penstock
