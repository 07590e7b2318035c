// Control groups, both versions: where a process's limits are written, and what the files say. Pure functions of text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/page_memory.h"

namespace penstock::core {

// The folders whose limits bind this process: its own cgroup's first, then each above it up to the mount.
// `cgroup` and `mountinfo` are the texts of /proc/self/cgroup and /proc/self/mountinfo; `controller` is "cpu" or
// "memory". Folders of version 1 and of version 2 may both be among them.
std::vector<std::string> cgroup_folders(std::string_view cgroup, std::string_view mountinfo,
                                        std::string_view controller);

// CPUs from cpu.max ("50000 100000"); nothing where there is no limit ("max 100000") or no sense.
std::optional<double> parse_cpu_max(std::string_view text);
// CPUs from cpu.cfs_quota_us ("-1": no limit) and cpu.cfs_period_us.
std::optional<double> parse_cpu_quota(std::string_view quota, std::string_view period);
// Bytes from memory.max or memory.limit_in_bytes; nothing where there is no limit or no sense.
std::optional<std::uint64_t> parse_memory_limit(std::string_view text);

// The texts of a folder's files: memory.max, memory.current and memory.stat, or their like of version 1.
struct MemoryGroup {
  std::string limit, usage, statistics;
};
// What its members can still take, less what this process needs beside: for its lanes, their threads and buffers. Page
// cache gives way. Nothing where there is no limit.
std::optional<std::uint64_t> memory_left(const MemoryGroup& group);
// The same for its page cache.
std::optional<PageMemory> page_memory_left(const MemoryGroup& group);

}  // namespace penstock::core
