// How much of the page cache Contexts that are made meanwhile let files take that they keep there (Cache::automatic).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace penstock::test {

class CacheLimit {
 public:
  explicit CacheLimit(std::uint64_t bytes) { ::setenv("PENSTOCK_CACHE_LIMIT", std::to_string(bytes).c_str(), 1); }
  ~CacheLimit() { ::unsetenv("PENSTOCK_CACHE_LIMIT"); }
  CacheLimit(const CacheLimit&) = delete;
  CacheLimit& operator=(const CacheLimit&) = delete;
};

}  // namespace penstock::test
