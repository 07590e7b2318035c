// PageMemory: what the page cache can take now, of the machine and of this process's cgroups.
//
// Thread safety: any thread. Lifetime: its owner's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::core {

struct PageMemory {
  std::uint64_t available_bytes = 0;  // without swapping: free, or pages of files that can be read again
  std::uint64_t idle_bytes = 0;       // of those: free, or pages of files that were read once, and not lately
};

// From the text of /proc/meminfo.
PageMemory parse_meminfo(std::string_view meminfo);

class PageMemoryReader {
 public:
  PageMemoryReader();
  PageMemory operator()() const;

 private:
  std::vector<std::string> folders_;  // of the cgroups that bind this process
};

}  // namespace penstock::core
