#include "nvme/prp.h"

#include <bit>

namespace penstock::nvme {
namespace {

constexpr std::uint64_t entry_bytes = sizeof(std::uint64_t);

std::uint64_t pages_of(std::uint64_t offset, std::uint64_t length, std::uint64_t page_bytes) {
  return (offset + length + page_bytes - 1) / page_bytes;
}

// `count` pages after the first one, `step` apart.
Prps fill(std::uint64_t first, std::uint64_t next, std::uint64_t count, std::uint64_t step, std::uint64_t page_bytes,
          PrpListMemory list) {
  if (count == 0) return {first, 0};
  if (count == 1) return {first, next};
  const std::uint64_t entries_in_page = page_bytes / entry_bytes;
  std::uint64_t place = list.address % page_bytes / entry_bytes;  // within its page
  for (std::uint64_t at = 0; count > 0; ++at, ++place) {
    if (place % entries_in_page == entries_in_page - 1 && count > 1) {
      list.entries[at] = list.address + (at + 1) * entry_bytes;  // the rest is on the next page
      continue;
    }
    list.entries[at] = next;
    next += step;
    --count;
  }
  return {first, list.address};
}

}  // namespace

std::size_t prp_list_bytes(std::uint64_t length, std::uint64_t page_bytes) {
  const std::uint64_t entries = pages_of(page_bytes - 1, length, page_bytes) - 1;
  if (entries * entry_bytes <= page_bytes) return std::bit_ceil(entries * entry_bytes);
  // Each page but the last gives one entry away, for the address of the next.
  const std::uint64_t in_page = page_bytes / entry_bytes - 1;
  return (entries - 1 + in_page - 1) / in_page * page_bytes;
}

Prps make_prps(std::uint64_t address, std::uint64_t length, std::uint64_t page_bytes, PrpListMemory list) {
  const std::uint64_t offset = address % page_bytes;
  return fill(address, address - offset + page_bytes, pages_of(offset, length, page_bytes) - 1, page_bytes, page_bytes,
              list);
}

Prps make_repeated_prps(std::uint64_t page, std::uint64_t length, std::uint64_t page_bytes, PrpListMemory list) {
  return fill(page, page, pages_of(0, length, page_bytes) - 1, 0, page_bytes, list);
}

}  // namespace penstock::nvme
