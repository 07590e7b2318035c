// Machine: what this process may use here. Read once, then plain data, so everything derived from it is testable.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/export.h"

namespace penstock {

struct PENSTOCK_EXPORT Machine {
  std::string kernel;             // "6.1.0-18-arm64"
  std::string architecture;       // "aarch64"
  std::uint32_t usable_cpus = 1;  // affinity mask and cgroup quota, whichever is less
  std::uint32_t page_bytes = 4096;
  std::uint64_t memory_bytes = 0;       // of the machine or its cgroup, whichever is less
  std::uint64_t lockable_bytes = 0;     // RLIMIT_MEMLOCK; UINT64_MAX: no limit, or privileged
  bool transparent_huge_pages = false;  // always or madvise
  bool cachestat = false;               // the kernel reports what is in the page cache

  static Machine detect();

  // What this process can still allocate now: of memory and swap, and within the limits of its cgroups, less what it
  // needs beside. Who takes more may be killed.
  static std::uint64_t available_memory_bytes();
};

}  // namespace penstock
