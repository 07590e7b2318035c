// PRPs: how a command names the memory that it reads or writes (NVMe 2.0 §4.1.1), for the CPU and for CUDA kernels.
//
// Pure functions but for the list that they write.
#pragma once

#include "penstock/anywhere.h"

namespace penstock::nvme {

struct Prps {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

// Where a list may be written: as many bytes as prp_list_bytes says, aligned to those or to a page.
struct PrpListMemory {
  std::uint64_t* entries = nullptr;
  std::uint64_t address = 0;
};

namespace prp {

inline constexpr std::uint64_t entry_bytes = sizeof(std::uint64_t);

PENSTOCK_ANYWHERE constexpr std::uint64_t pages_of(std::uint64_t offset, std::uint64_t length,
                                                   std::uint64_t page_bytes) {
  return (offset + length + page_bytes - 1) / page_bytes;
}

// Pages that follow one another, or the same one again and again.
struct Pages {
  std::uint64_t next = 0;
  std::uint64_t count = 0;
  std::uint64_t step = 0;
};
// `first`, and the pages after it.
PENSTOCK_ANYWHERE constexpr Prps fill(std::uint64_t first, Pages pages, std::uint64_t page_bytes, PrpListMemory list) {
  if (pages.count == 0) return {first, 0};
  if (pages.count == 1) return {first, pages.next};
  const std::uint64_t entries_in_page = page_bytes / entry_bytes;
  std::uint64_t place = list.address % page_bytes / entry_bytes;  // within its page
  for (std::uint64_t at = 0; pages.count > 0; ++at, ++place) {
    if (place % entries_in_page == entries_in_page - 1 && pages.count > 1) {
      list.entries[at] = list.address + (at + 1) * entry_bytes;  // the rest is on the next page
      continue;
    }
    list.entries[at] = pages.next;
    pages.next += pages.step;
    --pages.count;
  }
  return {first, list.address};
}

}  // namespace prp

// The bytes of list that a transfer of `length` may need, wherever it begins within a page. A list that fits in a page
// takes a power of two, so that lists packed one after another never cross a page.
PENSTOCK_ANYWHERE constexpr std::uint64_t prp_list_bytes(std::uint64_t length, std::uint64_t page_bytes) {
  const std::uint64_t entries = prp::pages_of(page_bytes - 1, length, page_bytes) - 1;
  if (entries * prp::entry_bytes <= page_bytes) {
    std::uint64_t bytes = 1;
    while (bytes < entries * prp::entry_bytes) bytes *= 2;
    return bytes;
  }
  // Each page but the last gives one entry away, for the address of the next.
  const std::uint64_t in_page = page_bytes / prp::entry_bytes - 1;
  return (entries - 1 + in_page - 1) / in_page * page_bytes;
}

// For `length` bytes from the I/O address on. REQUIRES: a multiple of 4, and length > 0.
PENSTOCK_ANYWHERE constexpr Prps make_prps(std::uint64_t address, std::uint64_t length, std::uint64_t page_bytes,
                                           PrpListMemory list) {
  const std::uint64_t offset = address % page_bytes;
  const std::uint64_t more = prp::pages_of(offset, length, page_bytes) - 1;
  return prp::fill(address, {address - offset + page_bytes, more, page_bytes}, page_bytes, list);
}
// For `length` bytes that all come from one page, again and again. REQUIRES: the address of a page.
PENSTOCK_ANYWHERE constexpr Prps make_repeated_prps(std::uint64_t page, std::uint64_t length, std::uint64_t page_bytes,
                                                    PrpListMemory list) {
  return prp::fill(page, {page, prp::pages_of(0, length, page_bytes) - 1, 0}, page_bytes, list);
}

}  // namespace penstock::nvme
