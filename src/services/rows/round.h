// Round: one round of a RowsPlan, as it lies in pinned and GPU memory.
//
// Thread safety: guarded by who has it: the plan, until the round is on a stream, then who answers it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/row_cache.h"
#include "penstock/rendezvous.h"
#include "penstock/rows_plan.h"
#include "services/rows/cache.h"
#include "services/rows/table.h"

namespace penstock::rows {

// In memory of the host.
struct AskedRows {
  RowNumbers numbers;
  std::span<std::byte> memory;
};
// A gather as the host has it.
struct Part {
  std::size_t table = 0;
  AskedRows rows;               // with a cache there is room for all, and those that are missing come
  std::byte* status = nullptr;  // without a cache
  // With a cache: the blocks of its kernels, and which rows of the gather are missing.
  std::span<cuda::RowsEntry> entries;
  std::span<std::uint32_t> places;
};
// One round: pinned memory for numbers, statuses and rows, and the place where the GPU asks for it.
struct Round {
  Buffer memory;
  std::uint64_t address = 0;  // of the memory, as the GPU sees it
  Buffer gpu_memory;          // with a cache: where the GPU itself notes what is missing
  std::vector<Part> parts;

  // Where the GPU may go on without an answer; else the first is 0.
  std::uint64_t gpu_state = 0;  // the address of a cuda::RowsRound
  std::uint64_t trusted_ns = 0;
  RendezvousWords words;
  std::uint32_t layout = 0;
  std::uint64_t rows = 0;            // of a round
  std::uint64_t counted_passed = 0;  // of passed(), with other rows

  // Rounds that needed no answer: the word at the beginning of the memory, which the GPU writes.
  std::uint64_t passed() const {
    return __atomic_load_n(reinterpret_cast<std::uint64_t*>(memory.data()), __ATOMIC_RELAXED);
  }
};
struct Room {
  std::uint64_t pinned_bytes = 0;
  std::uint64_t gpu_bytes = 0;
};
struct Copies {
  std::vector<GpuCopy> before;
  std::vector<GpuCopy> after;
};

// The tables of a plan, and their caches or none.
struct Sources {
  std::span<const std::shared_ptr<const Table>> tables;
  std::span<const Cache> caches;
};

Room needed_room(const Sources& sources, std::span<const PlannedGather> gathers);
// For gathers of so many rows, a few of each table.
Result<Room> most_room(const Sources& sources, std::uint64_t rows);

// Without caches: what the stream copies.
Copies lay_out(Round& round, std::span<const PlannedGather> gathers);
// With caches: the entries of the kernels, as the GPU sees them.
struct KernelEntries {
  std::uint64_t address = 0;
  std::uint32_t count = 0;
};
KernelEntries lay_out_cached(Round& round, const Sources& sources, std::span<const PlannedGather> gathers);

// The blocks have listed what is missing each by itself. It becomes one list, of so many rows, and the blocks are told
// where in it their rows begin.
Result<std::uint32_t> join_missing(const Part& part);

}  // namespace penstock::rows
