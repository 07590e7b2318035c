// Tuning: the options that measured best for one file system and one kind of memory. `penstock tune` finds and keeps
// them; the defaults work without.
//
// A Context never looks for tunings by itself. The tool does, and so may any program:
//
//   auto tuning = penstock::find_tuning("weights.bin", penstock::Domain::cuda(0), penstock::default_tuning_file());
//   if (tuning.ok() && *tuning) options = (*tuning)->apply(options);
//
// Thread safety: functions on a file that is only ever replaced as a whole. If two programs save at the same time, the
// later one wins. Lifetime: values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/domain.h"
#include "penstock/options.h"
#include "penstock/result.h"

namespace penstock {

// What a Tuning is for. It survives a reboot; a disk that comes back under another name has no tuning, and gets the
// defaults.
struct PENSTOCK_EXPORT TuningKey {
  std::string file_system;  // its type: "ext4"; "block" for a block device
  std::string source;       // "/dev/nvme0n1p2", "server:/export"
  std::string mount_point;  // empty for a block device
  std::string memory;       // "host", "pinned", or the name of a GPU

  friend bool operator==(const TuningKey&, const TuningKey&) = default;
};
// If `path` does not exist yet, its folder counts.
PENSTOCK_EXPORT Result<TuningKey> tuning_key(const std::string& path, Domain memory);

// Medians, with the defaults and with the options found.
struct TuningSpeed {
  double before_bytes_per_second = 0;
  double after_bytes_per_second = 0;

  friend bool operator==(const TuningSpeed&, const TuningSpeed&) = default;
};

struct PENSTOCK_EXPORT Tuning {
  TuningKey key;
  Options options;      // lanes, operations_in_flight, storage_chunk_bytes and staging slots; all else is the default
  std::string when;     // "2026-01-31T12:00:00Z"
  std::string version;  // of Penstock
  std::optional<TuningSpeed> cached, cold;  // nothing: could not be measured

  // Sets options that the caller left at their defaults, or none of them if they don't fit the rest.
  Options apply(const Options& given) const;

  friend bool operator==(const Tuning&, const Tuning&) = default;
};

// The options above that differ from the defaults, by key.
PENSTOCK_EXPORT std::vector<std::pair<std::string_view, std::uint64_t>> tuned_options(const Options& options);

// $PENSTOCK_TUNING, else penstock/tuning.json in $XDG_CONFIG_HOME or ~/.config. Empty, also if PENSTOCK_TUNING is set
// but empty: none.
PENSTOCK_EXPORT std::string default_tuning_file();

// Nothing if the file does not exist, this user can't read it, or it has no entry. Fails if the file is broken.
PENSTOCK_EXPORT Result<std::optional<Tuning>> find_tuning(const std::string& path, Domain memory,
                                                          const std::string& file);
// Replaces the entry with the same key; others stay. Creates folders as needed.
PENSTOCK_EXPORT Status save_tuning(const Tuning& tuning, const std::string& file);
// Returns whether there was one. Deletes a file that has no entries left.
PENSTOCK_EXPORT Result<bool> remove_tuning(const TuningKey& key, const std::string& file);

// One step of a search: a change to the best options so far.
struct TuningTrial {
  Options options;
  std::optional<TuningSpeed> cached, cold;
  double gain = 1;
};

struct TuningSearch {
  std::string path;  // not a URI; read, evicted from the page cache and read into it, many times
  Domain memory;
  std::uint64_t size_bytes = 1 << 30;  // at most this much of it; less if the store is slow
  double seconds = 60;                 // roughly
  std::function<bool()> keep_going;    // asked ten times a second; false ends the search with Code::cancelled
  std::function<void(const TuningTrial&)> on_trial;  // after each
};

struct TuningResult {
  Options options;  // the best found
  // Whether they beat the defaults: cached or cold, by more than 3 % and the noise, at no such cost for the other.
  bool better = false;
  std::optional<TuningSpeed> cached, cold;  // nothing: could not be measured
  double noise = 0;  // the interquartile range of the defaults' own rounds, relative to their median
  std::uint64_t size_bytes = 0;
  double seconds = 0;
  std::vector<TuningTrial> trials;
};
// Loads a part of a store again and again, with options that differ in one place, and keeps what helps. Then compares
// the result with the defaults once more, taking turns.
PENSTOCK_EXPORT Result<TuningResult> search_tuning(const TuningSearch& search);

}  // namespace penstock
