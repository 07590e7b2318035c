#include "core/cgroup.h"

#include <algorithm>
#include <charconv>

namespace penstock::core {
namespace {

// Cuts the text at the first `separator`; the rest begins behind it.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  return part;
}

bool list_has(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    if (take(list, ',') == item) return true;
  }
  return false;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

std::optional<std::uint64_t> number(std::string_view text) {
  text = trimmed(text);
  std::uint64_t value = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// mountinfo writes blanks, tabs, newlines and backslashes as \040 and the like.
std::string unescaped(std::string_view text) {
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && text.size() - at > 3 && octal(text[at + 1]) && octal(text[at + 2]) && octal(text[at + 3])) {
      plain.push_back(static_cast<char>((text[at + 1] - '0') * 64 + (text[at + 2] - '0') * 8 + (text[at + 3] - '0')));
      at += 3;
    } else {
      plain.push_back(text[at]);
    }
  }
  return plain;
}

struct Mount {
  std::string root;  // the part of the hierarchy that is mounted
  std::string point;
  bool version_2 = false;
};

// Of a line of mountinfo, if it mounts the hierarchy that has the controller (proc(5)).
std::optional<Mount> cgroup_mount(std::string_view line, std::string_view controller) {
  for (int skipped = 0; skipped < 3; ++skipped) take(line, ' ');
  Mount mount;
  mount.root = unescaped(take(line, ' '));
  mount.point = unescaped(take(line, ' '));
  const std::size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  line.remove_prefix(dash + 3);
  const std::string_view type = take(line, ' ');
  take(line, ' ');
  mount.version_2 = type == "cgroup2";
  if (mount.version_2 || (type == "cgroup" && list_has(line, controller))) return mount;
  return std::nullopt;
}

// The process's place in the hierarchy, from lines like "4:cpu,cpuacct:/a/b" or "0::/a/b".
std::optional<std::string_view> cgroup_path(std::string_view cgroup, std::string_view controller, bool version_2) {
  while (!cgroup.empty()) {
    std::string_view line = take(cgroup, '\n');
    const std::string_view id = take(line, ':');
    const std::string_view controllers = take(line, ':');
    const bool found = version_2 ? id == "0" && controllers.empty() : list_has(controllers, controller);
    if (found && line.starts_with("/")) return line;
  }
  return std::nullopt;
}

// The process's place below the mount's point; empty if it is the point, or is not to be seen from here.
std::string_view path_below(const Mount& mount, std::string_view path) {
  if (path.find("..") != std::string_view::npos) return {};
  if (mount.root == "/") return path;
  if (!path.starts_with(mount.root)) return {};
  path.remove_prefix(mount.root.size());
  return path.starts_with("/") ? path : std::string_view{};
}

void append_folders(const Mount& mount, std::string_view path, std::vector<std::string>& folders) {
  for (path = path_below(mount, path); path.size() > 1; path = path.substr(0, path.rfind('/'))) {
    folders.push_back(mount.point + std::string(path));
  }
  folders.push_back(mount.point);
}

// From memory.stat. What version 1 calls "total_" counts the groups below too, as everything does in version 2.
struct FilePages {
  std::uint64_t active = 0, inactive = 0;
  std::uint64_t all() const { return active + inactive; }
};
FilePages file_pages(std::string_view statistics) {
  FilePages own, total;
  while (!statistics.empty()) {
    std::string_view value = take(statistics, '\n');
    const std::string_view key = take(value, ' ');
    if (key == "active_file") own.active = number(value).value_or(0);
    if (key == "inactive_file") own.inactive = number(value).value_or(0);
    if (key == "total_active_file") total.active = number(value).value_or(0);
    if (key == "total_inactive_file") total.inactive = number(value).value_or(0);
  }
  return total.all() > own.all() ? total : own;
}

}  // namespace

std::vector<std::string> cgroup_folders(std::string_view cgroup, std::string_view mountinfo,
                                        std::string_view controller) {
  std::vector<std::string> folders;
  while (!mountinfo.empty()) {
    const auto mount = cgroup_mount(take(mountinfo, '\n'), controller);
    if (!mount) continue;
    if (const auto path = cgroup_path(cgroup, controller, mount->version_2)) append_folders(*mount, *path, folders);
  }
  return folders;
}

std::optional<double> parse_cpu_max(std::string_view text) {
  text = trimmed(text);
  const std::string_view quota = take(text, ' ');
  return parse_cpu_quota(quota, text);
}

std::optional<double> parse_cpu_quota(std::string_view quota, std::string_view period) {
  const auto quota_us = number(quota);
  const auto period_us = number(period);
  if (!quota_us || !period_us || *quota_us == 0 || *period_us == 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

std::optional<std::uint64_t> parse_memory_limit(std::string_view text) {
  const auto bytes = number(text);
  return bytes && *bytes > 0 ? bytes : std::nullopt;
}

namespace {

// Without its page cache.
std::uint64_t taken_bytes(const MemoryGroup& group, const FilePages& pages) {
  const std::uint64_t usage = number(group.usage).value_or(0);
  return usage - std::min(usage, pages.all());
}

}  // namespace

std::optional<std::uint64_t> memory_left(const MemoryGroup& group) {
  constexpr std::uint64_t most_beside = 16 << 20;
  const auto limit = parse_memory_limit(group.limit);
  if (!limit) return std::nullopt;
  const std::uint64_t taken = taken_bytes(group, file_pages(group.statistics));
  return *limit - std::min(*limit, taken + std::min(*limit / 2, most_beside));
}

std::optional<PageMemory> page_memory_left(const MemoryGroup& group) {
  const auto limit = parse_memory_limit(group.limit);
  if (!limit) return std::nullopt;
  const FilePages pages = file_pages(group.statistics);
  const std::uint64_t available = *limit - std::min(*limit, taken_bytes(group, pages));
  return PageMemory{available, available - std::min(available, pages.active)};
}

}  // namespace penstock::core
