#include "files/mount.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>

namespace penstock::files {
namespace {

// statfs(2); those that <linux/magic.h> lacks are from the sources of the file systems.
namespace magic {
constexpr std::uint32_t afs = 0x5346414F;
constexpr std::uint32_t afs_kernel = 0x6B414653;
constexpr std::uint32_t bcachefs = 0xCA451A4E;
constexpr std::uint32_t beegfs = 0x19830326;
constexpr std::uint32_t binfmt_misc = 0x42494E4D;
constexpr std::uint32_t bpf = 0xCAFE4A11;
constexpr std::uint32_t btrfs = 0x9123683E;
constexpr std::uint32_t ceph = 0x00C36400;
constexpr std::uint32_t cgroup = 0x27E0EB;
constexpr std::uint32_t cgroup2 = 0x63677270;
constexpr std::uint32_t cifs = 0xFF534D42;
constexpr std::uint32_t coda = 0x73757245;
constexpr std::uint32_t configfs = 0x62656570;
constexpr std::uint32_t debugfs = 0x64626720;
constexpr std::uint32_t erofs = 0xE0F5E1E2;
constexpr std::uint32_t exfat = 0x2011BAB0;
constexpr std::uint32_t ext = 0xEF53;
constexpr std::uint32_t f2fs = 0xF2F52010;
constexpr std::uint32_t fuse = 0x65735546;
constexpr std::uint32_t fusectl = 0x65735543;
constexpr std::uint32_t gpfs = 0x47504653;
constexpr std::uint32_t hugetlbfs = 0x958458F6;
constexpr std::uint32_t iso9660 = 0x9660;
constexpr std::uint32_t lustre = 0x0BD00BD0;
constexpr std::uint32_t mqueue = 0x19800202;
constexpr std::uint32_t nfs = 0x6969;
constexpr std::uint32_t nfsd = 0x6E667364;
constexpr std::uint32_t nsfs = 0x6E736673;
constexpr std::uint32_t ntfs3 = 0x7366746E;
constexpr std::uint32_t overlay = 0x794C7630;
constexpr std::uint32_t plan9 = 0x01021997;
constexpr std::uint32_t proc = 0x9FA0;
constexpr std::uint32_t ramfs = 0x858458F6;
constexpr std::uint32_t resctrl = 0x07655821;
constexpr std::uint32_t securityfs = 0x73636673;
constexpr std::uint32_t selinuxfs = 0xF97CFF8C;
constexpr std::uint32_t smackfs = 0x43415D53;
constexpr std::uint32_t smb = 0x517B;
constexpr std::uint32_t smb2 = 0xFE534D42;
constexpr std::uint32_t squashfs = 0x73717368;
constexpr std::uint32_t sysfs = 0x62656572;
constexpr std::uint32_t tmpfs = 0x01021994;
constexpr std::uint32_t tracefs = 0x74726163;
constexpr std::uint32_t vboxsf = 0x786F4256;
constexpr std::uint32_t vfat = 0x4D44;
constexpr std::uint32_t xfs = 0x58465342;
constexpr std::uint32_t zfs = 0x2FC12FC1;
}  // namespace magic

struct Known {
  std::uint32_t magic;
  std::string_view name;
  Locality locality;
};
constexpr std::array known_file_systems{
    Known{magic::ext, "ext4", Locality::local},          Known{magic::xfs, "xfs", Locality::local},
    Known{magic::btrfs, "btrfs", Locality::local},       Known{magic::f2fs, "f2fs", Locality::local},
    Known{magic::zfs, "zfs", Locality::local},           Known{magic::bcachefs, "bcachefs", Locality::local},
    Known{magic::overlay, "overlayfs", Locality::local}, Known{magic::squashfs, "squashfs", Locality::local},
    Known{magic::erofs, "erofs", Locality::local},       Known{magic::iso9660, "iso9660", Locality::local},
    Known{magic::vfat, "vfat", Locality::local},         Known{magic::exfat, "exfat", Locality::local},
    Known{magic::ntfs3, "ntfs3", Locality::local},       Known{magic::tmpfs, "tmpfs", Locality::memory},
    Known{magic::ramfs, "ramfs", Locality::memory},      Known{magic::hugetlbfs, "hugetlbfs", Locality::memory},
    Known{magic::nfs, "nfs", Locality::network},         Known{magic::cifs, "cifs", Locality::network},
    Known{magic::smb, "smb", Locality::network},         Known{magic::smb2, "smb2", Locality::network},
    Known{magic::ceph, "ceph", Locality::network},       Known{magic::lustre, "lustre", Locality::network},
    Known{magic::gpfs, "gpfs", Locality::network},       Known{magic::beegfs, "beegfs", Locality::network},
    Known{magic::plan9, "9p", Locality::network},        Known{magic::afs, "afs", Locality::network},
    Known{magic::afs_kernel, "afs", Locality::network},  Known{magic::coda, "coda", Locality::network},
    Known{magic::vboxsf, "vboxsf", Locality::network},   Known{magic::fuse, "fuse", Locality::fuse},
};

struct Generated {
  std::uint32_t magic;
  std::string_view name;
};
constexpr std::array generated_file_systems{
    Generated{magic::proc, "procfs"},
    Generated{magic::sysfs, "sysfs"},
    Generated{magic::cgroup, "cgroup"},
    Generated{magic::cgroup2, "cgroup2"},
    Generated{magic::debugfs, "debugfs"},
    Generated{magic::tracefs, "tracefs"},
    Generated{magic::configfs, "configfs"},
    Generated{magic::securityfs, "securityfs"},
    Generated{magic::selinuxfs, "selinuxfs"},
    Generated{magic::smackfs, "smackfs"},
    Generated{magic::bpf, "bpf"},
    Generated{magic::binfmt_misc, "binfmt_misc"},
    Generated{magic::fusectl, "fusectl"},
    Generated{magic::mqueue, "mqueue"},
    Generated{magic::nfsd, "nfsd"},
    Generated{magic::nsfs, "nsfs"},
    Generated{magic::resctrl, "resctrl"},
};

// Takes what stands before the separator off the front of `text`, and the separator with it.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view piece = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return piece;
}

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

// The kernel writes space, tab, newline and backslash in names as \ooo.
std::string unescape(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
        is_octal(text[i + 3])) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// 36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/sda1 rw
std::optional<Mount> parse_mount(std::string_view line) {
  const auto id = parse_number<std::uint64_t>(take(line, ' '));
  take(line, ' ');
  std::string_view numbers = take(line, ' ');
  const auto major = parse_number<std::uint32_t>(take(numbers, ':'));
  const auto minor = parse_number<std::uint32_t>(numbers);
  take(line, ' ');
  const std::string_view point = take(line, ' ');
  if (!major || !minor || point.empty()) return std::nullopt;
  while (!line.empty() && take(line, ' ') != "-") {
  }
  const std::string_view type = take(line, ' ');
  Mount mount{{*major, *minor}, unescape(point), unescape(take(line, ' ')), unescape(type), id.value_or(0), {}};
  mount.options = take(line, ' ');
  return mount;
}

}  // namespace

FileSystem file_system_from_magic(std::uint32_t magic) {
  for (const Known& known : known_file_systems) {
    if (known.magic == magic) return {std::string(known.name), known.locality};
  }
  for (const Generated& generated : generated_file_systems) {
    if (generated.magic == magic) return {std::string(generated.name), Locality::memory, true};
  }
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "0x%x", magic);
  return {name.data(), Locality::local};
}

std::vector<Mount> parse_mountinfo(std::string_view text) {
  std::vector<Mount> mounts;
  while (!text.empty()) {
    if (auto mount = parse_mount(take(text, '\n'))) mounts.push_back(std::move(*mount));
  }
  return mounts;
}

bool is_served(std::string_view type) {
  return std::ranges::any_of(known_file_systems, [&](const Known& known) {
    // "nfs4", "smb3", "fuse.sshfs"
    return (known.locality == Locality::network || known.locality == Locality::fuse) && type.starts_with(known.name);
  });
}

std::optional<std::string> mount_option(const Mount& mount, std::string_view name) {
  for (std::string_view options = mount.options; !options.empty();) {
    std::string_view value = take(options, ',');
    if (take(value, '=') == name) return unescape(value);
  }
  return std::nullopt;
}

std::optional<Mount> mount_of(int fd) {
  struct statx status = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &status) != 0) return std::nullopt;
  if ((status.stx_mask & STATX_MNT_ID) == 0) return std::nullopt;
  std::ifstream file("/proc/self/mountinfo", std::ios::binary);
  for (Mount& mount : parse_mountinfo(std::string(std::istreambuf_iterator<char>(file), {}))) {
    if (mount.id == status.stx_mnt_id) return std::move(mount);
  }
  return std::nullopt;
}

std::vector<SwapArea> parse_swaps(std::string_view text) {
  std::vector<SwapArea> areas;
  take(text, '\n');  // the heading
  while (!text.empty()) {
    std::string_view line = take(text, '\n');
    constexpr std::string_view blanks = " \t";
    const std::string_view name = line.substr(0, line.find_first_of(blanks));
    if (name.empty()) continue;
    line.remove_prefix(name.size());
    line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
    areas.push_back({unescape(name), line.substr(0, line.find_first_of(blanks)) == "file"});
  }
  return areas;
}

}  // namespace penstock::files
