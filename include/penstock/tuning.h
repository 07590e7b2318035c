// Tuning: the options that were measured to be best for one file system and one kind of memory. `penstock tune` finds
// and keeps them; the defaults are good without.
//
// A Context never looks for tunings by itself. The tool does, and so may any program:
//
//   auto tuning = penstock::find_tuning("weights.bin", penstock::Domain::cuda(0), penstock::default_tuning_file());
//   if (tuning.ok() && *tuning) options = (*tuning)->apply(options);
//
// Thread safety: functions of a file that is only ever replaced as a whole. Of two programs that save at the same time,
// the later wins. Lifetime: values.
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

// What a Tuning is for. It outlives a reboot; a disk that comes back under another name has none, and gets the
// defaults.
struct PENSTOCK_EXPORT TuningKey {
  std::string file_system;  // its type: "ext4"; "block" for a block device
  std::string source;       // "/dev/nvme0n1p2", "server:/export"
  std::string mount_point;  // empty for a block device
  std::string memory;       // "host", "pinned", or the name of a GPU

  friend bool operator==(const TuningKey&, const TuningKey&) = default;
};
// `path` need not exist yet: then its folder counts.
PENSTOCK_EXPORT Result<TuningKey> tuning_key(const std::string& path, Domain memory);

// Medians, with the defaults and with what was found.
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
  std::optional<TuningSpeed> cached, cold;  // nothing: was not measurable there

  // Sets what the caller left at its default. All stays as it is if that would not go together with the rest.
  Options apply(const Options& given) const;

  friend bool operator==(const Tuning&, const Tuning&) = default;
};

// Those of the options above that differ from the defaults, by their keys.
PENSTOCK_EXPORT std::vector<std::pair<std::string_view, std::uint64_t>> tuned_options(const Options& options);

// $PENSTOCK_TUNING, else penstock/tuning.json in $XDG_CONFIG_HOME or ~/.config. Empty, as when PENSTOCK_TUNING is set
// to nothing: there is none.
PENSTOCK_EXPORT std::string default_tuning_file();

// Nothing where the file does not exist, can't be read by this user, or has none for that. Fails if the file is broken.
PENSTOCK_EXPORT Result<std::optional<Tuning>> find_tuning(const std::string& path, Domain memory,
                                                          const std::string& file);
// Takes the place of one with the same key; others stay. Folders are made as needed.
PENSTOCK_EXPORT Status save_tuning(const Tuning& tuning, const std::string& file);
// Says whether there was one. A file that is left without any is deleted.
PENSTOCK_EXPORT Result<bool> remove_tuning(const TuningKey& key, const std::string& file);

// One step of a search: a change against the best that was known then.
struct TuningTrial {
  Options options;
  std::optional<TuningSpeed> cached, cold;
  double gain = 1;
};

struct TuningSearch {
  std::string path;  // no URI; is read, evicted from the page cache and read into it, many times
  Domain memory;
  std::uint64_t size_bytes = 1 << 30;  // of it, at most; less where the store is slow
  double seconds = 60;                 // about
  std::function<bool()> keep_going;    // asked ten times a second; false ends the search with Code::cancelled
  std::function<void(const TuningTrial&)> on_trial;  // after each
};

struct TuningResult {
  Options options;  // the best that was found
  // Than the defaults: cached or cold, by more than 3 % and more than the noise, at no such cost for the other.
  bool better = false;
  std::optional<TuningSpeed> cached, cold;  // nothing: was not measurable
  double noise = 0;  // how far the middle half of the defaults' own rounds lies apart, of their median
  std::uint64_t size_bytes = 0;
  double seconds = 0;
  std::vector<TuningTrial> trials;
};
// Loads a part of a store over and over, with options that differ in one place, and keeps what helps. What it finds is
// measured against the defaults once more, in turns.
PENSTOCK_EXPORT Result<TuningResult> search_tuning(const TuningSearch& search);

}  // namespace penstock
