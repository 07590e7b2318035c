// Diagnosis: what `penstock doctor` learns about a path: how it is mounted and laid out and, by a short measurement,
// how fast it reads.
//
// Thread safety: functions. Lifetime: values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "penstock/domain.h"
#include "penstock/options.h"
#include "penstock/request.h"
#include "penstock/result.h"

namespace penstock {

struct MountFacts {
  std::string point;        // "/data"; empty for a block device
  std::string file_system;  // its type: "ext4"; "block" for a block device
  std::string source;       // "/dev/nvme0n1p2", "server:/export"
  std::string options;      // "rw,noatime", those of the mount and of the file system
};
// Code::unsupported if the kernel does not say.
PENSTOCK_EXPORT Result<MountFacts> find_mount(const std::string& path);

// How many pieces a file consists of on its disk. Code::unsupported for anything but files, and if the file system does
// not say.
PENSTOCK_EXPORT Result<std::uint64_t> count_extents(const std::string& path);

struct SpeedCheck {
  std::string path;  // not a URI
  Domain memory;
  Options options;                       // all but `cache`
  std::uint64_t size_bytes = 256 << 20;  // at most this much, from its front
  double seconds = 1;                    // for each of the two, roughly
  std::function<bool()> keep_going;      // asked twenty times a second; false ends it with Code::cancelled
};

// One of the two may be missing; then its reason is set.
struct Speeds {
  std::optional<Report> cold;    // past the page cache
  std::optional<Report> cached;  // out of it: the median of three
  std::string no_cold_because, no_cached_because;
};
// Reads the front of a store past the page cache and out of it. Drops pages that were not in the page cache before; if
// the kernel does not say which were, reads nothing into it. A store that hangs is not an error: it is the reason why
// it was not measured.
PENSTOCK_EXPORT Result<Speeds> measure_speeds(const SpeedCheck& check);

}  // namespace penstock
