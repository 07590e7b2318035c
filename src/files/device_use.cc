#include "files/device_use.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/unique_fd.h"
#include "files/may_wait.h"

namespace penstock::files {
namespace {

namespace fs = std::filesystem;

// Devices stacked higher than that are not looked at; the kernel itself gives up earlier.
constexpr int max_stacked = 16;

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Files of sysfs end in a newline.
std::string read_line(const fs::path& path) {
  std::string text = read_text(path).value_or("");
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::uint64_t read_number(const fs::path& path) {
  std::uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

// A file of procfs that is read again and again: it stays open, and each read is of the present.
class ProcFile {
 public:
  // Its text begins with `heading`. By that it is found out if the program has closed our descriptor and has another
  // file as that number; so we never close it either.
  struct What {
    const char* path;
    std::string_view heading;
    std::size_t max_line_bytes;
  };
  explicit ProcFile(const What& what) : what_(what) {}

  // Nothing if it can't be read.
  std::optional<std::string> text() {
    const std::lock_guard lock(mutex_);  // a file that is read by two at once may change in between
    auto text = read_open();
    if (text) return text;
    fd_ = ::open(what_.path, O_RDONLY | O_CLOEXEC);
    return read_open();
  }

 private:
  std::optional<std::string> read_open() const {
    if (fd_ < 0) return std::nullopt;
    std::string text;
    std::array<char, 16 << 10> part;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by the kernel
    while (true) {
      const ssize_t bytes = ::pread(fd_, part.data(), part.size(), static_cast<off_t>(text.size()));
      if (bytes < 0) return std::nullopt;
      text.append(part.data(), static_cast<std::size_t>(bytes));
      if (!text.starts_with(what_.heading)) return std::nullopt;
      // Each read has as many whole lines as there is room for (seq_file).
      if (bytes == 0 || static_cast<std::size_t>(bytes) + what_.max_line_bytes <= part.size()) return text;
    }
  }

  const What what_;
  ForkSafeMutex mutex_;
  int fd_ = -1;
};

std::optional<std::string> swaps_text(const SystemRoots& roots) {
  static ProcFile swaps({.path = "/proc/swaps", .heading = "Filename", .max_line_bytes = 8 << 10});  // it has paths
  return roots.proc == SystemRoots().proc ? swaps.text() : read_text(roots.proc + "/swaps");
}

std::optional<std::string> partitions_text(const SystemRoots& roots) {
  static ProcFile partitions({.path = "/proc/partitions", .heading = "major", .max_line_bytes = 128});
  return roots.proc == SystemRoots().proc ? partitions.text() : read_text(roots.proc + "/partitions");
}

struct Device {
  DeviceNumber number;
  fs::path folder;  // in sysfs

  std::string name() const {
    std::string text = folder.filename().string();
    std::replace(text.begin(), text.end(), '!', '/');  // "cciss!c0d0"
    return text;
  }
  std::string path() const { return "/dev/" + name(); }
};

std::optional<Device> device_at(const fs::path& folder) {
  const auto text = read_text(folder / "dev");
  DeviceNumber number;
  if (!text || std::sscanf(text->c_str(), "%u:%u", &number.major, &number.minor) != 2) return std::nullopt;
  return Device{number, folder};
}

bool is_partition(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "partition", ignored);
}

std::optional<Device> disk_of(const Device& device) {
  return is_partition(device.folder) ? device_at(device.folder.parent_path()) : std::nullopt;
}

// What lies in a folder. (For want of memory std::filesystem's iterator would end the process.)
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  const std::unique_ptr<DIR, decltype([](DIR* open) { ::closedir(open); })> directory(::opendir(folder.c_str()));
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.push_back(folder / name);
  }
  return entries;
}

std::vector<Device> partitions_of(const Device& device) {
  std::vector<Device> partitions;
  for (const fs::path& entry : entries_of(device.folder)) {
    if (!is_partition(entry)) continue;
    if (auto partition = device_at(entry)) partitions.push_back(std::move(*partition));
  }
  return partitions;
}

// The devices that a folder of links leads to: "holders" are built on a device, a device is built on its "slaves". What
// leads nowhere is known by its name alone.
std::vector<Device> linked_devices(const Device& device, const char* folder) {
  std::vector<Device> devices;
  for (const fs::path& entry : entries_of(device.folder / folder)) {
    std::error_code missing;
    const fs::path target = fs::canonical(entry, missing);
    auto found = missing ? std::nullopt : device_at(target);
    devices.push_back(found ? std::move(*found) : Device{{}, entry});
  }
  return devices;
}

struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  friend bool operator==(const FileId&, const FileId&) = default;
};

// Where the bytes of a loop device or of swap are: on another device or in a file.
struct Backing {
  std::optional<DeviceNumber> device;
  std::optional<FileId> file;
  bool operator==(const Backing&) const = default;
};

Backing backing_of(const struct stat& status) {
  if (S_ISBLK(status.st_mode)) return {device_number(status.st_rdev), {}};
  return {{}, FileId{status.st_dev, status.st_ino}};
}

struct Loop {
  Device device;
  Backing backing;
  // The part of the backing that it shows.
  std::uint64_t begin = 0;
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();

  bool is_read_only() const { return read_number(device.folder / "ro") != 0; }
  bool detaches_itself() const { return read_number(device.folder / "loop/autoclear") != 0; }
  bool overlaps(const Loop& other) const { return begin < other.end && other.begin < end; }
};

struct Swap {
  std::string name;
  Backing backing;
};

// The kernel knows which file it is, whatever has become of its name. Only who may read the device is told.
std::optional<Backing> ask_loop_driver(const Device& device, const SystemRoots& roots) {
  const UniqueFd fd(::open((roots.dev + "/" + device.name()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat node = {};
  if (!fd || ::fstat(fd.get(), &node) != 0 || !S_ISBLK(node.st_mode)) return std::nullopt;
  loop_info64 info = {};
  if (device_number(node.st_rdev) != device.number || ::ioctl(fd.get(), LOOP_GET_STATUS64, &info) != 0) {
    return std::nullopt;
  }
  if (info.lo_rdevice != 0) return Backing{device_number(info.lo_rdevice), {}};
  return Backing{{}, FileId{info.lo_device, info.lo_inode}};
}

// What is used, and what makes that end, in order.
struct Use {
  std::string what;  // "is mounted on /data"
  std::vector<std::string> steps;
};

std::string step_against(const Device& holder) {
  const std::string name = holder.name();
  const std::string mapped = read_line(holder.folder / "dm/name");
  const std::string kind = read_line(holder.folder / "dm/uuid");
  if (kind.starts_with("CRYPT-")) return "cryptsetup close " + mapped;
  if (kind.starts_with("LVM-")) return "lvchange -an /dev/mapper/" + mapped;
  if (kind.starts_with("mpath-")) return "multipath -f " + mapped;
  if (!mapped.empty()) return "dmsetup remove " + mapped;
  if (name.starts_with("md")) return "mdadm --stop /dev/" + name;
  return "stop " + name;
}

// What the system says about itself, as far as it has been asked.
class System {
 public:
  // Servers may never answer: files on them are asked about only where the caller's file is on the same one.
  System(const SystemRoots& roots, std::optional<dev_t> server) : roots_(roots) {
    if (server) server_ = device_number(*server);
  }

  // False if mounts can't be told.
  bool find_mounts() {
    const auto text = read_text(roots_.proc + "/self/mountinfo");
    if (text) mounts_ = parse_mountinfo(*text);
    return text.has_value();
  }

  void find_swaps() {
    // Kernels without swap have no such file.
    for (SwapArea& area : parse_swaps(swaps_text(roots_).value_or(""))) {
      if (auto backing = look_at(area.name)) swaps_.push_back({std::move(area.name), *backing});
    }
  }

  void find_loops() {
    for (const fs::path& entry : entries_of(roots_.sys + "/block")) {
      if (!entry.filename().string().starts_with("loop")) continue;
      std::error_code missing;
      const fs::path folder = fs::canonical(entry, missing);
      if (missing || !fs::exists(folder / "loop/backing_file", missing)) continue;
      if (auto device = device_at(folder)) add_loop(*device);
    }
  }

  Result<Device> find(DeviceNumber number, const std::string& name) const {
    std::error_code error;
    const fs::path folder = fs::canonical(fs::path(roots_.sys) / "dev/block" / number.name(), error);
    if (!error) return Device{number, folder};
    return Error{Code::unsupported, error.value(),
                 "can't tell whether " + name + " is in use: " + roots_.sys + "/dev/block/" + number.name() + ": " +
                     error.message(),
                 "make sysfs visible to this process; Penstock does not write to a disk without checking"};
  }

  std::optional<Use> use_of_file(const FileId& file, FileChange change) const {
    const Backing backing{{}, file};
    if (auto swap = swap_on(backing)) return swap;
    for (const Loop& loop : loops_) {
      if (loop.backing != backing || (change == FileChange::replacement && loop.is_read_only())) continue;
      return use_by_loop(loop, 0);
    }
    return std::nullopt;
  }

  // A device itself, then what shares its bytes: its partitions, its disk, what it is built on.
  std::optional<Use> use_of(const Device& device) const {
    if (auto use = use_of_parts(device, 0)) return use;
    const auto disk = disk_of(device);
    if (disk) {
      if (auto use = direct_use(*disk, 0))
        return Use{"is on the disk " + disk->name() + ", which " + use->what, use->steps};
    }
    if (auto use = use_below(device, 0)) return use;
    return disk ? use_below(*disk, 0) : std::nullopt;
  }

 private:
  void add_loop(const Device& device) {
    Loop loop{.device = device};
    const std::string name = read_line(device.folder / "loop/backing_file");
    if (!may_look_at(name)) return;
    auto backing = ask_loop_driver(device, roots_);
    if (!backing) backing = look_at(name);
    if (!backing) return;
    loop.backing = *backing;
    loop.begin = read_number(device.folder / "loop/offset");
    const std::uint64_t size = read_number(device.folder / "loop/sizelimit");
    if (size != 0 && size < loop.end - loop.begin) loop.end = loop.begin + size;
    loops_.push_back(std::move(loop));
  }

  bool may_look_at(const std::string& path) const {
    const Mount* last = nullptr;
    for (const Mount& mount : mounts_) {
      const bool within = mount.point == "/" || path == mount.point || path.starts_with(mount.point + "/");
      if (within && (last == nullptr || mount.point.size() >= last->point.size())) last = &mount;
    }
    return last == nullptr || !is_served(last->type) || server_ == last->device;
  }

  std::optional<Backing> look_at(const std::string& path) const {
    struct stat status = {};
    if (!may_look_at(path) || ::stat(path.c_str(), &status) != 0) return std::nullopt;
    return backing_of(status);
  }

  // btrfs tells the disk only by its name.
  bool is_source(const Mount& mount, const Device& device) const {
    if (mount.device == device.number) return true;
    if (!mount.source.starts_with(roots_.dev + "/")) return false;
    const auto backing = look_at(mount.source);
    return backing && backing->device == device.number;
  }

  std::optional<Use> swap_on(const Backing& backing) const {
    for (const Swap& swap : swaps_) {
      if (swap.backing == backing) return Use{"is swapped on", {"swapoff " + swap.name}};
    }
    return std::nullopt;
  }

  // `asking` is itself built on what is asked about, and minds only loop devices that show bytes of its own.
  std::optional<Use> loop_on(const Backing& backing, const Loop* asking, int stacked) const {
    for (const Loop& loop : loops_) {
      if (loop.backing != backing) continue;
      if (asking != nullptr && (loop.device.number == asking->device.number || !loop.overlaps(*asking))) continue;
      return use_by_loop(loop, stacked);
    }
    return std::nullopt;
  }

  Use use_by_loop(const Loop& loop, int stacked) const {
    Use use = use_by("backs " + loop.device.path(), loop.device, stacked);
    const bool goes_by_itself = !use.steps.empty() && loop.detaches_itself();
    if (!goes_by_itself) use.steps.push_back("losetup -d " + loop.device.path());
    return use;
  }

  Use use_by_holder(const Device& holder, int stacked) const {
    Use use = use_by("is held by " + holder.name(), holder, stacked);
    use.steps.push_back(step_against(holder));
    return use;
  }

  // By a device that may be in use itself.
  Use use_by(std::string what, const Device& above, int stacked) const {
    const auto use = stacked < max_stacked ? use_of_parts(above, stacked + 1) : std::nullopt;
    return use ? Use{what + ", which " + use->what, use->steps} : Use{std::move(what), {}};
  }

  std::optional<Use> use_of_parts(const Device& device, int stacked) const {
    if (auto use = direct_use(device, stacked)) return use;
    for (const Device& partition : partitions_of(device)) {
      if (auto use = direct_use(partition, stacked)) {
        return Use{"has the partition " + partition.name() + ", which " + use->what, use->steps};
      }
    }
    return std::nullopt;
  }

  std::optional<Use> direct_use(const Device& device, int stacked, const Device* asking = nullptr) const {
    for (const Mount& mount : mounts_) {
      if (is_source(mount, device)) return Use{"is mounted on " + mount.point, {"umount " + mount.point}};
    }
    const Backing itself{device.number, {}};
    if (auto swap = swap_on(itself)) return swap;
    const Loop* loop = asking != nullptr ? find_loop(asking->number) : nullptr;
    const bool shows_it = loop != nullptr && loop->backing == itself;
    if (auto use = loop_on(itself, shows_it ? loop : nullptr, stacked)) return use;
    // Logical volumes share a disk and don't mind each other.
    if (asking != nullptr && loop == nullptr) return std::nullopt;
    const std::vector<Device> holders = linked_devices(device, "holders");
    return holders.empty() ? std::nullopt : std::optional(use_by_holder(holders.front(), stacked));
  }

  const Loop* find_loop(DeviceNumber number) const {
    const auto loop = std::ranges::find_if(loops_, [&](const Loop& one) { return one.device.number == number; });
    return loop == loops_.end() ? nullptr : &*loop;
  }

  std::vector<Device> devices_below(const Device& device) const {
    std::vector<Device> devices = linked_devices(device, "slaves");
    if (const Loop* loop = find_loop(device.number); loop != nullptr && loop->backing.device) {
      if (auto below = find(*loop->backing.device, device.name())) devices.push_back(std::move(*below));
    }
    return devices;
  }

  // What is written to a device is written to those that it is built on.
  std::optional<Use> use_below(const Device& device, int stacked) const {
    if (stacked == max_stacked) return std::nullopt;
    const Loop* loop = find_loop(device.number);
    if (loop != nullptr && loop->backing.file) {
      if (auto swap = swap_on(loop->backing)) return Use{"is backed by a file that " + swap->what, swap->steps};
      if (auto use = loop_on(loop->backing, loop, stacked))
        return Use{"is backed by a file that also " + use->what, use->steps};
    }
    for (const Device& below : devices_below(device)) {
      const auto disk = disk_of(below);
      std::vector<Device> sharing = partitions_of(below);
      sharing.insert(sharing.begin(), below);
      if (disk) sharing.push_back(*disk);
      for (const Device& one : sharing) {
        if (auto use = direct_use(one, stacked, &device)) {
          return Use{"is built on " + one.path() + ", which " + use->what, use->steps};
        }
      }
      if (auto use = use_below(disk ? *disk : below, stacked + 1)) return use;
    }
    return std::nullopt;
  }

  const SystemRoots& roots_;
  std::optional<DeviceNumber> server_;
  std::vector<Mount> mounts_;
  std::vector<Swap> swaps_;
  std::vector<Loop> loops_;
};

// Whether a file may be swapped on. Its server is not asked: what has one may be.
bool may_be_swap(const struct stat& file, const SystemRoots& roots) {
  return std::ranges::any_of(parse_swaps(swaps_text(roots).value_or("")), [&](const SwapArea& area) {
    if (!area.is_file) return false;
    const Lookup known = look_in_memory(area.name);
    return !known.status || FileId{known.status->st_dev, known.status->st_ino} == FileId{file.st_dev, file.st_ino};
  });
}

// Mostly no file of the machine is used, and two reads of the kernel's present state tell; nothing is remembered. A
// loop device is listed as a partition as long as it exposes a byte. One that exposes none, of a file shorter than a
// sector, neither reads nor writes its file.
bool may_be_used(const struct stat& file, const SystemRoots& roots) {
  if (may_be_swap(file, roots)) return true;
  const auto partitions = partitions_text(roots);
  return !partitions || partitions->find(" loop") != std::string::npos;
}

Status refuse(const std::string& name, const std::optional<Use>& use) {
  if (!use) return {};
  std::string steps;
  for (const std::string& step : use->steps) steps += (steps.empty() ? "" : " && ") + step;
  return Error{Code::in_use, EBUSY, name + " is in use: it " + use->what, "end that first: " + steps};
}

}  // namespace

Status check_unused(DeviceNumber device, const std::string& name, const SystemRoots& roots) {
  System system(roots, {});
  auto found = system.find(device, name);
  if (!found) return std::move(found).error();
  if (!system.find_mounts()) {
    return Error{Code::unsupported, errno,
                 "can't tell whether " + name + " is mounted: " + roots.proc + "/self/mountinfo can't be read",
                 "make procfs visible to this process"};
  }
  system.find_swaps();
  system.find_loops();
  return refuse(name, system.use_of(*found));
}

Status check_unused(const struct stat& file, const std::string& name, FileChange change, const SystemRoots& roots) {
  if (!may_be_used(file, roots)) return {};
  System system(roots, file.st_dev);
  system.find_mounts();
  system.find_swaps();
  system.find_loops();
  return refuse(name, system.use_of_file({file.st_dev, file.st_ino}, change));
}

}  // namespace penstock::files
