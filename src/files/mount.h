// Mounts: what the kernel says about mounted file systems and swap, read from text so that it can be tested and fuzzed.
//
// Thread safety: functions; all but mount_of are pure.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/store.h"

namespace penstock::files {

struct DeviceNumber {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;

  std::string name() const { return std::to_string(major) + ":" + std::to_string(minor); }
  friend auto operator<=>(const DeviceNumber&, const DeviceNumber&) = default;
};

// A mount, as an open file tells it.
struct MountMark {
  std::uint64_t id = 0;
  bool is_unique = false;  // the id is never used again; otherwise it is the one that mountinfo lists
  DeviceNumber device;     // of the file: below one mount of btrfs or overlayfs they differ

  friend bool operator==(const MountMark&, const MountMark&) = default;
};

struct FileSystem {
  std::string name;
  Locality locality = Locality::local;
  bool generated = false;  // as procfs and sysfs: the kernel writes files as they are read, and makes up their sizes
};
// What the type number of statfs(2) means. An unknown one is taken for a local disk and named by its number.
FileSystem file_system_from_magic(std::uint32_t magic);

struct Mount {
  DeviceNumber device;
  std::string point;
  std::string source;    // "/dev/sda1"; btrfs and overlayfs tell the disk only here
  std::string type;      // "ext4", "fuse.sshfs"
  std::uint64_t id = 0;  // as statx(2) tells it of a file
  std::string options;   // of the file system: "rw,lowerdir=/a,upperdir=/b"
};
// Reads /proc/self/mountinfo (proc_pid_mountinfo(5)). Lines that make no sense are skipped.
std::vector<Mount> parse_mountinfo(std::string_view text);
// The value of one of its options, empty for one that has none; nothing if it was not given.
std::optional<std::string> mount_option(const Mount& mount, std::string_view name);
// The mount that an open file was reached through; nothing before Linux 5.8 and without /proc.
std::optional<Mount> mount_of(int fd);

// Whether a file system of this type needs another program or machine to answer: networks and FUSE.
bool is_served(std::string_view type);

struct SwapArea {
  std::string name;
  bool is_file = false;  // else a device
};
// Reads /proc/swaps (proc_swaps(5)): what is swapped on.
std::vector<SwapArea> parse_swaps(std::string_view text);

}  // namespace penstock::files
