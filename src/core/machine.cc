#include "penstock/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "core/cgroup.h"
#include "core/page_memory.h"

namespace penstock {
namespace {

// Of a memory cgroup, in both versions: its limit, and what of that is used.
constexpr std::pair<const char*, const char*> group_files[] = {{"/memory.max", "/memory.current"},
                                                               {"/memory.limit_in_bytes", "/memory.usage_in_bytes"}};

// Small files of /proc and /sys; empty if there is none.
std::string read_text(const std::string& path) {
  constexpr std::size_t most_bytes = 1 << 20;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char piece[4096];
  while (file && text.size() < most_bytes) {
    const ssize_t got = ::read(file.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece, static_cast<std::size_t>(got));
  }
  return text;
}

std::uint32_t cpus_by_affinity() {
  // The kernel refuses a mask smaller than its own, so grow until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(cpus), [](cpu_set_t* set) { CPU_FREE(set); });
    if (!mask) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    if (::sched_getaffinity(0, bytes, mask.get()) == 0)
      return static_cast<std::uint32_t>(CPU_COUNT_S(bytes, mask.get()));
    if (errno != EINVAL) break;
  }
  return static_cast<std::uint32_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

std::uint32_t cpus_usable(std::string_view cgroup, std::string_view mountinfo) {
  double cpus = cpus_by_affinity();
  for (const std::string& folder : core::cgroup_folders(cgroup, mountinfo, "cpu")) {
    auto limit = core::parse_cpu_max(read_text(folder + "/cpu.max"));
    if (!limit) {
      limit = core::parse_cpu_quota(read_text(folder + "/cpu.cfs_quota_us"), read_text(folder + "/cpu.cfs_period_us"));
    }
    cpus = std::min(cpus, limit.value_or(cpus));
  }
  return static_cast<std::uint32_t>(std::max(1.0, std::ceil(cpus)));
}

std::uint64_t memory_usable(std::string_view cgroup, std::string_view mountinfo) {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  std::uint64_t bytes = static_cast<std::uint64_t>(std::max(pages, 0L)) * ::sysconf(_SC_PAGESIZE);
  for (const std::string& folder : core::cgroup_folders(cgroup, mountinfo, "memory")) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
      bytes = std::min(bytes, core::parse_memory_limit(read_text(folder + file)).value_or(bytes));
    }
  }
  return bytes;
}

// In /proc/meminfo, "MemAvailable:   23949060 kB".
std::optional<std::uint64_t> meminfo_bytes(std::string_view meminfo, std::string_view key) {
  const std::size_t at = meminfo.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  const std::size_t digits = meminfo.find_first_not_of(' ', at + key.size());
  std::uint64_t kilobytes = 0;
  if (digits == std::string_view::npos) return std::nullopt;
  std::from_chars(meminfo.data() + digits, meminfo.data() + meminfo.size(), kilobytes);
  return kilobytes * 1024;
}

// CAP_IPC_LOCK counts only in the first user namespace, whose users are mapped to themselves.
bool may_lock_everything() {
  constexpr unsigned cap_ipc_lock = 14;
  const std::string status = read_text("/proc/self/status");
  constexpr std::string_view key = "CapEff:\t";
  const std::size_t at = status.find(key);
  if (at == std::string::npos) return false;
  std::uint64_t capabilities = 0;
  std::from_chars(status.data() + at + key.size(), status.data() + status.size(), capabilities, 16);
  if ((capabilities >> cap_ipc_lock & 1) == 0) return false;
  std::string users = read_text("/proc/self/uid_map");
  std::erase_if(users, [](char c) { return c == ' ' || c == '\n'; });
  return users.empty() || users == "004294967295";
}

std::uint64_t bytes_lockable() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY || may_lock_everything() ? UINT64_MAX : limit.rlim_cur;
}

bool has_cachestat() {
  constexpr long cachestat_number = 451;  // on every architecture; older headers don't name it
  // An impossible descriptor: a kernel that has the call looks at it first.
  return ::syscall(cachestat_number, -1, nullptr, nullptr, 0) == -1 && errno != ENOSYS && errno != EPERM;
}

}  // namespace

Machine Machine::detect() {
  Machine machine;
  utsname names{};
  if (::uname(&names) == 0) {
    machine.kernel = names.release;
    machine.architecture = names.machine;
  }
  const std::string cgroup = read_text("/proc/self/cgroup");
  const std::string mountinfo = read_text("/proc/self/mountinfo");
  machine.usable_cpus = cpus_usable(cgroup, mountinfo);
  machine.page_bytes = static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE));
  machine.memory_bytes = memory_usable(cgroup, mountinfo);
  machine.lockable_bytes = bytes_lockable();
  const std::string huge_pages = read_text("/sys/kernel/mm/transparent_hugepage/enabled");
  machine.transparent_huge_pages =
      huge_pages.find("[always]") != std::string::npos || huge_pages.find("[madvise]") != std::string::npos;
  machine.cachestat = has_cachestat();
  return machine;
}

std::uint64_t Machine::available_memory_bytes() {
  const std::string cgroup = read_text("/proc/self/cgroup");
  const std::string mountinfo = read_text("/proc/self/mountinfo");
  std::uint64_t bytes = memory_usable(cgroup, mountinfo);
  const std::string meminfo = read_text("/proc/meminfo");
  if (const auto available = meminfo_bytes(meminfo, "MemAvailable:")) {
    bytes = *available + meminfo_bytes(meminfo, "SwapFree:").value_or(0);
  }
  for (const std::string& folder : core::cgroup_folders(cgroup, mountinfo, "memory")) {
    const std::string statistics = read_text(folder + "/memory.stat");
    for (const auto& [limit, usage] : group_files) {
      const auto left = core::memory_left({read_text(folder + limit), read_text(folder + usage), statistics});
      bytes = std::min(bytes, left.value_or(bytes));
    }
  }
  return bytes;
}

namespace core {

PageMemory parse_meminfo(std::string_view meminfo) {
  const auto bytes = [&](std::string_view key) { return meminfo_bytes(meminfo, key).value_or(0); };
  return {bytes("MemAvailable:"), bytes("MemFree:") + bytes("Inactive(file):")};
}

PageMemoryReader::PageMemoryReader()
    : folders_(cgroup_folders(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"), "memory")) {}

PageMemory PageMemoryReader::operator()() const {
  PageMemory least = parse_meminfo(read_text("/proc/meminfo"));
  for (const std::string& folder : folders_) {
    for (const auto& [limit, usage] : group_files) {
      const std::string limit_text = read_text(folder + limit);
      if (!parse_memory_limit(limit_text)) continue;
      const auto left = page_memory_left({limit_text, read_text(folder + usage), read_text(folder + "/memory.stat")});
      least.available_bytes = std::min(least.available_bytes, left->available_bytes);
      least.idle_bytes = std::min(least.idle_bytes, left->idle_bytes);
    }
  }
  return least;
}

}  // namespace core
}  // namespace penstock
