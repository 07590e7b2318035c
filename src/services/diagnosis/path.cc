#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "penstock/diagnosis.h"

namespace penstock {

namespace {

// proc_pid_mountinfo(5) writes space, tab, newline and backslash in names as \ooo.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string digits = text[i] == '\\' ? text.substr(i + 1, 3) : "";
    const bool octal = digits.size() == 3 && digits.find_first_not_of("01234567") == std::string::npos;
    plain += octal ? static_cast<char>(std::stoi(digits, nullptr, 8)) : text[i];
    if (octal) i += 3;
  }
  return plain;
}

// 36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
std::optional<MountFacts> parse_mount(const std::string& line) {
  const std::size_t dash = line.find(" - ");
  if (dash == std::string::npos) return std::nullopt;
  std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
  std::string skipped, options, of_file_system;
  MountFacts mount;
  front >> skipped >> skipped >> skipped >> skipped >> mount.point >> mount.options;
  back >> mount.file_system >> mount.source >> of_file_system;
  mount.point = unescape(mount.point);
  mount.source = unescape(mount.source);
  // Both lists begin with the same word as a rule.
  std::istringstream words(of_file_system);
  for (std::string word; std::getline(words, word, ',');) {
    if (("," + mount.options + ",").find("," + word + ",") == std::string::npos) mount.options += "," + word;
  }
  return mount;
}

}  // namespace

Result<MountFacts> find_mount(const std::string& path) {
  struct statx status {};
  if (statx(AT_FDCWD, path.c_str(), 0, STATX_MODE | STATX_MNT_ID, &status) != 0) {
    return system_error(errno, "look at " + path);
  }
  std::error_code failed;
  if (S_ISBLK(status.stx_mode)) {
    return MountFacts{.file_system = "block", .source = std::filesystem::canonical(path, failed).string()};
  }
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; (status.stx_mask & STATX_MNT_ID) != 0 && std::getline(mounts, line);) {
    if (!line.starts_with(std::to_string(status.stx_mnt_id) + " ")) continue;
    if (std::optional<MountFacts> mount = parse_mount(line)) return std::move(*mount);
  }
  return Error{.code = Code::unsupported,
               .message = "the kernel does not say how " + path + " is mounted",
               .hint = "this needs Linux 5.8 and /proc"};
}

Result<std::uint64_t> count_extents(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(errno, "open " + path);
  // Room for no extent: the kernel only counts.
  fiemap map;  // NOLINT(cppcoreguidelines-pro-type-member-init): its array without elements can't be initialized
  std::memset(&map, 0, sizeof map);
  map.fm_length = FIEMAP_MAX_OFFSET;
  const int failed = ioctl(fd, FS_IOC_FIEMAP, &map) == 0 ? 0 : errno;
  close(fd);
  if (failed == 0) return map.fm_mapped_extents;
  return Error{.code = Code::unsupported,
               .system_error = failed,
               .message = "the file system does not say where the bytes of " + path + " are",
               .hint = {}};
}

}  // namespace penstock
