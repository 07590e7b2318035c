// PRPs: how a command names the memory that it reads or writes (NVMe 2.0 §4.1.1).
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::nvme {

// The bytes of list that a transfer of `length` may need, wherever it begins within a page. A list that fits in a page
// takes a power of two, so that lists packed one after another never cross a page.
std::size_t prp_list_bytes(std::uint64_t length, std::uint64_t page_bytes);

struct Prps {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

// Where a list may be written: as many bytes as prp_list_bytes says, aligned to those or to a page.
struct PrpListMemory {
  std::uint64_t* entries = nullptr;
  std::uint64_t address = 0;
};

// For `length` bytes from the I/O address on. REQUIRES: a multiple of 4, and length > 0.
Prps make_prps(std::uint64_t address, std::uint64_t length, std::uint64_t page_bytes, PrpListMemory list);
// For `length` bytes that all come from one page, again and again. REQUIRES: the address of a page.
Prps make_repeated_prps(std::uint64_t page, std::uint64_t length, std::uint64_t page_bytes, PrpListMemory list);

}  // namespace penstock::nvme
