// SoftIommu: what a controller in software may reach of this process's memory, under addresses of its own.
//
// The addresses are not those of the memory, so that a host which mixes the two up is found out; and a mapping knows
// how many commands use it, so that one which takes memory away too early is found out too.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::nvme {

// What the host did wrong, in words. Thread safety: any thread.
class Breaches {
 public:
  void add(const std::string& what);
  std::vector<std::string> list() const;

 private:
  static constexpr std::size_t most = 100;
  mutable std::mutex mutex_;
  std::vector<std::string> list_;
};

class SoftIommu {
 public:
  explicit SoftIommu(Breaches& breaches) : breaches_(breaches) {}

  std::uint64_t map(std::byte* data, std::size_t size_bytes);
  // The memory that was mapped there; null, and a breach, if none was.
  std::byte* unmap(std::uint64_t address, std::size_t size_bytes);
  // From now on nothing can be reached.
  void close();

  // The memory at an address; null if not all of it is in one mapping. It counts as used until it is released.
  std::byte* use(std::uint64_t address, std::size_t size_bytes);
  void release(std::uint64_t address);

 private:
  struct Mapping {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
    std::uint32_t users = 0;
  };
  // Far from 0, and from addresses that fit in 32 bits.
  static constexpr std::uint64_t first_address = std::uint64_t{1} << 33;
  static constexpr std::uint64_t gap_bytes = 1 << 20;

  Breaches& breaches_;
  std::mutex mutex_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::uint64_t next_ = first_address;
  bool closed_ = false;
};

}  // namespace penstock::nvme
