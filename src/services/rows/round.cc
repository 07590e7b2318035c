#include "services/rows/round.h"

#include <algorithm>
#include <cstring>

#include "base/out_of_memory.h"

namespace penstock::rows {
namespace {

constexpr std::uint64_t slot_line_bytes = 64;
// A block of the GPU's copies so much at once; long rounds more, so that the list stays short.
constexpr std::uint64_t shortest_copy_bytes = 4096;
constexpr std::uint64_t block_warps = 8;
constexpr std::uint64_t wanted_blocks = 1024;                                           // enough for the largest GPUs
constexpr std::uint64_t missing_bytes = sizeof(std::uint64_t) + sizeof(std::uint32_t);  // of a row that is

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + slot_line_bytes - 1) / slot_line_bytes * slot_line_bytes;
}

void add_copies(std::vector<GpuCopy>& list, GpuCopy whole, std::uint64_t longest) {
  for (std::uint64_t done = 0; done < whole.bytes; done += longest) {
    list.push_back({whole.from + done, whole.to + done, std::min(longest, whole.bytes - done)});
  }
}

std::uint64_t address_of(const Region& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data);
}

// What is missing: numbers, then places.
std::uint64_t list_bytes(std::uint64_t rows) {
  return aligned(rows * sizeof(std::uint64_t)) + aligned(rows * sizeof(std::uint32_t));
}

// A row for each warp of a block, and more in long rounds.
std::uint64_t rows_a_block(std::span<const PlannedGather> gathers) {
  std::uint64_t rows = 0;
  for (const PlannedGather& each : gathers) rows += each.numbers.size();
  const std::uint64_t wanted = (rows / wanted_blocks + block_warps - 1) / block_warps * block_warps;
  return std::clamp<std::uint64_t>(wanted, block_warps, cuda::RowsEntry::most_rows);
}

std::uint64_t blocks_of(std::uint64_t rows, std::uint64_t in_block) {
  return (rows + in_block - 1) / in_block;
}

}  // namespace

Room needed_room(const Sources& sources, std::span<const PlannedGather> gathers) {
  Room room;
  const std::uint64_t in_block = rows_a_block(gathers);
  if (!sources.caches.empty()) room.pinned_bytes += slot_line_bytes;
  for (const PlannedGather& each : gathers) {
    if (sources.caches.empty()) {
      room.pinned_bytes +=
          aligned(each.numbers.memory().size_bytes) + slot_line_bytes + aligned(each.memory.size_bytes);
    } else {
      const std::uint64_t rows = each.numbers.size();
      room.pinned_bytes += aligned(blocks_of(rows, in_block) * sizeof(cuda::RowsEntry)) + list_bytes(rows) +
                           aligned(each.memory.size_bytes);
      room.gpu_bytes += list_bytes(rows);
    }
  }
  return room;
}

Result<Room> most_room(const Sources& sources, std::uint64_t rows) {
  std::uint64_t row_bytes = 0;
  for (const auto& table : sources.tables) row_bytes = std::max(row_bytes, table->info().row_bytes);
  const std::uint64_t other_bytes =
      sources.caches.empty() ? sizeof(std::uint64_t) : missing_bytes + sizeof(cuda::RowsEntry) / block_warps;
  Room room;
  if (__builtin_mul_overflow(rows, row_bytes + other_bytes, &room.pinned_bytes)) return out_of_memory();
  const std::uint64_t lines = (5 * slot_line_bytes + 2 * sizeof(cuda::RowsEntry)) * sources.tables.size();
  room.pinned_bytes += lines;
  if (!sources.caches.empty()) room.gpu_bytes = rows * missing_bytes + lines;
  return room;
}

Copies lay_out(Round& round, std::span<const PlannedGather> gathers) {
  std::uint64_t all = 0;
  for (const PlannedGather& each : gathers) all += each.memory.size_bytes;
  // Each gather adds one for what is left of it, and one for its status.
  const std::uint64_t copies = Rendezvous::copies_limit - 2 * gathers.size();
  const std::uint64_t longest =
      std::max(shortest_copy_bytes, (all / copies + shortest_copy_bytes) / shortest_copy_bytes * shortest_copy_bytes);
  Copies list;
  std::uint64_t offset = 0;
  round.parts.clear();
  for (const PlannedGather& each : gathers) {
    const Region& numbers = each.numbers.memory();
    std::byte* const host = round.memory.data() + offset;
    const std::uint64_t status_offset = aligned(numbers.size_bytes);
    const std::uint64_t rows_offset = status_offset + slot_line_bytes;
    const std::uint64_t address = round.address + offset;
    round.parts.push_back({each.table,
                           {RowNumbers(each.numbers.type(), Region::host(host, numbers.size_bytes)),
                            std::span(host + rows_offset, each.memory.size_bytes)},
                           host + status_offset,
                           {},
                           {}});
    list.before.push_back({address_of(numbers), address, numbers.size_bytes});
    add_copies(list.after, {address + rows_offset, address_of(each.memory), each.memory.size_bytes}, longest);
    if (each.status.size_bytes != 0) {
      list.after.push_back({address + status_offset, address_of(each.status), sizeof(std::uint32_t)});
    }
    offset += rows_offset + aligned(each.memory.size_bytes);
  }
  return list;
}

KernelEntries lay_out_cached(Round& round, const Sources& sources, std::span<const PlannedGather> gathers) {
  const std::uint64_t in_block = rows_a_block(gathers);
  std::uint64_t blocks = 0;
  for (const PlannedGather& each : gathers) blocks += blocks_of(each.numbers.size(), in_block);
  const std::span entries(reinterpret_cast<cuda::RowsEntry*>(round.memory.data() + slot_line_bytes), blocks);
  std::uint64_t offset = slot_line_bytes + aligned(entries.size_bytes());
  std::uint64_t gpu_address = address_of(round.gpu_memory.region());
  std::size_t first_block = 0;
  round.parts.clear();
  round.rows = 0;
  ++round.layout;
  for (const PlannedGather& each : gathers) {
    const std::uint64_t rows = each.numbers.size();
    const std::uint64_t places = aligned(rows * sizeof(std::uint64_t));
    cuda::RowsEntry entry{};
    entry.numbers = address_of(each.numbers.memory());
    entry.memory = address_of(each.memory);
    entry.status = each.status.size_bytes != 0 ? address_of(each.status) : 0;
    entry.table_rows = sources.tables[each.table]->info().rows;
    entry.row_bytes = sources.tables[each.table]->info().row_bytes;
    sources.caches[each.table].describe(entry);
    entry.asked_numbers = round.address + offset;
    entry.asked_places = entry.asked_numbers + places;
    entry.missing_numbers = gpu_address;
    entry.missing_places = gpu_address + places;
    entry.answer = entry.asked_numbers + list_bytes(rows);
    entry.round = round.gpu_state;
    entry.trusted_ns = round.trusted_ns;
    entry.ask_word = round.words.ask;
    entry.answer_word = round.words.answer;
    entry.passed = round.address;
    entry.layout = round.layout;
    entry.type = static_cast<std::uint32_t>(each.numbers.type());
    const auto own = entries.subspan(first_block, blocks_of(rows, in_block));
    for (std::size_t i = 0; i < own.size(); ++i) {
      entry.first = static_cast<std::uint32_t>(i * in_block);
      entry.count = static_cast<std::uint32_t>(std::min(in_block, rows - entry.first));
      own[i] = entry;
    }
    std::byte* const host = round.memory.data() + offset;
    const bool is_signed = static_cast<unsigned>(each.numbers.type()) % 2 == 0;
    round.parts.push_back({each.table,
                           {RowNumbers(is_signed ? RowNumbers::Type::i64 : RowNumbers::Type::u64,
                                       Region::host(host, rows * sizeof(std::uint64_t))),
                            std::span(host + list_bytes(rows), each.memory.size_bytes)},
                           nullptr,
                           own,
                           std::span(reinterpret_cast<std::uint32_t*>(host + places), rows)});
    round.rows += rows;
    first_block += own.size();
    offset += list_bytes(rows) + aligned(each.memory.size_bytes);
    gpu_address += list_bytes(rows);
  }
  return {round.address + slot_line_bytes, static_cast<std::uint32_t>(blocks)};
}

Result<std::uint32_t> join_missing(const Part& part) {
  auto* const numbers = reinterpret_cast<std::uint64_t*>(part.rows.numbers.memory().data);
  std::uint32_t missing = 0;
  for (cuda::RowsEntry& entry : part.entries) {
    if (entry.missing > entry.count) {
      return Error{Code::internal, 0, "the GPU misses more rows than it was asked for", "report this"};
    }
    std::memmove(numbers + missing, numbers + entry.first, entry.missing * sizeof *numbers);
    std::memmove(&part.places[missing], &part.places[entry.first], entry.missing * sizeof part.places[0]);
    entry.answer_begin = missing;
    missing += entry.missing;
  }
  return missing;
}

}  // namespace penstock::rows
