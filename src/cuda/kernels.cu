// The kernels of the table (kernels.h).
#include <cstdint>

#include "cuda/gpu_warp.cuh"
#include "cuda/row_cache.h"
#include "cuda/unpack.h"

// Small copies to and from scattered places, many in one launch: a block an entry.
struct Entry {
  std::uint64_t from;
  std::uint64_t to;
  std::uint64_t bytes;
};

extern "C" __global__ void penstock_scatter(const Entry* entries, unsigned count) {
  if (blockIdx.x >= count) return;
  const Entry entry = entries[blockIdx.x];
  const auto* from = reinterpret_cast<const unsigned char*>(entry.from);
  auto* to = reinterpret_cast<unsigned char*>(entry.to);
  std::uint64_t copied = 0;
  if ((entry.from | entry.to) % sizeof(uint4) == 0) {
    const std::uint64_t words = entry.bytes / sizeof(uint4);
    for (std::uint64_t i = threadIdx.x; i < words; i += blockDim.x) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    copied = words * sizeof(uint4);
  }
  for (std::uint64_t i = copied + threadIdx.x; i < entry.bytes; i += blockDim.x) to[i] = from[i];
}

// Chunks of a packed tensor, a block each; its warps share out the tiles. A kernel a type: together they would need
// more registers than leave room for two blocks.
template <typename Kind>
__device__ void unpack(const penstock::UnpackRun& run) {
  using penstock::cuda::GpuWarp;
  using penstock::cuda::lane_count;
  const std::uint32_t chunk = blockIdx.x;
  if (chunk >= run.count) return;
  __shared__ unsigned long long checksum;
  __shared__ unsigned reason;
  if (threadIdx.x == 0) {
    checksum = 0;
    reason = 0;
  }
  GpuWarp::fill_keys();
  __syncthreads();
  const auto found =
      penstock::cuda::unpack_tiles<GpuWarp, Kind>(run, chunk, threadIdx.x / lane_count, blockDim.x / lane_count);
  if (GpuWarp::lane() == 0) {
    atomicAdd(&checksum, static_cast<unsigned long long>(found.checksum));
    if (found.reason != 0) atomicMax(&reason, found.reason);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const std::uint32_t status = penstock::cuda::judge(run, chunk, {checksum, reason});
  if (status != 0) *reinterpret_cast<volatile std::uint32_t*>(run.status) = status;
}

#define PENSTOCK_UNPACK(name, Kind)                                             \
  extern "C" __global__ void __launch_bounds__(512, 2)                          \
      penstock_unpack_##name(const __grid_constant__ penstock::UnpackRun run) { \
    unpack<penstock::cuda::Kind>(run);                                          \
  }
PENSTOCK_UNPACK(bf16, OfBf16)
PENSTOCK_UNPACK(f16, OfF16)
PENSTOCK_UNPACK(f32, OfF32)
PENSTOCK_UNPACK(f8_e4m3, OfE4m3)
PENSTOCK_UNPACK(f8_e5m2, OfE5m2)

namespace {

using penstock::cuda::RowCacheLayout;
using penstock::cuda::RowCacheSet;
using penstock::cuda::RowsEntry;
using penstock::cuda::RowsRound;

constexpr unsigned all_lanes = ~0U;
constexpr unsigned warp_lanes = 32;
constexpr std::uint32_t no_slot = ~0U;

// Others may write the same memory meanwhile. Such loads and stores are atomic as words, and with fences between them
// in order: those of uint4 as four words.
__device__ std::uint32_t load(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ std::uint64_t load(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ uint4 load(const uint4* from) {
  uint4 value;
  asm volatile("ld.relaxed.gpu.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ unsigned char load(const unsigned char* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return static_cast<unsigned char>(value);
}
__device__ void store(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ void store(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ void store(uint4* to, uint4 value) {
  asm volatile("st.relaxed.gpu.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ void store(unsigned char* to, unsigned char value) {
  asm volatile("st.relaxed.gpu.u8 [%0], %1;" ::"l"(to), "r"(static_cast<std::uint32_t>(value)) : "memory");
}

template <typename T>
__device__ T* at(std::uint64_t address, std::uint64_t index = 0) {
  return reinterpret_cast<T*>(address) + index;
}

// One below 0 is a number that no table has.
__device__ std::uint64_t number_at(const RowsEntry& entry, std::uint32_t place) {
  switch (entry.type) {
    case 0:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(*at<const signed char>(entry.numbers, place)));
    case 1:
      return *at<const unsigned char>(entry.numbers, place);
    case 2:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(*at<const std::int16_t>(entry.numbers, place)));
    case 3:
      return *at<const std::uint16_t>(entry.numbers, place);
    case 4:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(*at<const std::int32_t>(entry.numbers, place)));
    case 5:
      return *at<const std::uint32_t>(entry.numbers, place);
    default:
      return *at<const std::uint64_t>(entry.numbers, place);
  }
}

// Calls use(Word{}) with the longest word that all rows of the entry are made of, in its slots and elsewhere.
template <typename Use>
__device__ void with_word(const RowsEntry& entry, Use use) {
  const std::uint64_t alignment = entry.memory | entry.answer | entry.row_bytes;
  if (alignment % sizeof(uint4) == 0) {
    use(uint4{});
  } else if (alignment % sizeof(std::uint64_t) == 0) {
    use(std::uint64_t{});
  } else if (alignment % sizeof(std::uint32_t) == 0) {
    use(std::uint32_t{});
  } else {
    use(static_cast<unsigned char>(0));
  }
}

template <typename Word>
__device__ Word* row_at(std::uint64_t address, std::uint64_t row_bytes, std::uint64_t row) {
  return reinterpret_cast<Word*>(address + row * row_bytes);
}

// By a warp. Four loads are on their way at a time.
template <typename Word, typename Take, typename Put>
__device__ void copy_words(std::uint64_t words, unsigned lane, Take take, Put put) {
  std::uint64_t i = lane;
  for (; i + 3 * warp_lanes < words; i += 4 * warp_lanes) {
    Word some[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) some[j] = take(i + j * warp_lanes);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) put(i + j * warp_lanes, some[j]);
  }
  for (; i < words; i += warp_lanes) put(i, take(i));
}

// Whether the warp has brought the row from its slot.
template <typename Word>
__device__ bool take_from_cache(const RowsEntry& entry, std::uint32_t place, std::uint64_t number, unsigned lane) {
  if (number >= entry.table_rows) return false;
  const std::uint64_t set = number % entry.set_count;
  const std::uint64_t first = set * RowCacheLayout::ways;
  const std::uint64_t tag = lane < RowCacheLayout::ways ? load(at<const std::uint64_t>(entry.tags, first + lane)) : 0;
  const unsigned found = __ballot_sync(all_lanes, (tag & RowCacheLayout::number_mask) == number + 1);
  if (found == 0) return false;
  const unsigned way = __ffs(found) - 1;
  const std::uint64_t seen = __shfl_sync(all_lanes, tag, way);
  __threadfence();
  __syncwarp();
  const Word* const from = row_at<const Word>(entry.slots, entry.slot_bytes, first + way);
  Word* const to = row_at<Word>(entry.memory, entry.row_bytes, place);
  copy_words<Word>(
      entry.row_bytes / sizeof(Word), lane, [&](std::uint64_t i) { return load(from + i); },
      [&](std::uint64_t i, Word word) { to[i] = word; });
  __threadfence();
  const bool is_same = load(at<const std::uint64_t>(entry.tags, first + way)) == seen;
  if (__all_sync(all_lanes, is_same) == 0) return false;
  std::uint32_t* const used = &at<RowCacheSet>(entry.sets, set)->used;
  if (lane == 0 && (load(used) >> way & 1) == 0) atomicOr(used, 1U << way);
  return true;
}

// A slot whose set is locked, and whose tag names nobody.
struct Claim {
  std::uint64_t set;
  std::uint64_t changes;  // of its tag, as it will be
  std::uint32_t way;      // or no_slot: there is none
  std::uint32_t next;     // to go after it
};

// By a warp, with the set locked: the slot that is free, or was not used for longest, as far as is known.
__device__ std::uint32_t slot_to_give_up(RowCacheSet* set, unsigned free, std::uint32_t hand, unsigned lane) {
  if (free != 0) return __ffs(free) - 1;
  std::uint32_t way = hand;
  if (lane == 0) {
    const std::uint32_t used = load(&set->used);
    std::uint32_t passed = 0;
    for (unsigned i = 0; i < RowCacheLayout::ways && (used >> way & 1) != 0; ++i) {
      passed |= 1U << way;
      way = (way + 1) % RowCacheLayout::ways;
    }
    if (passed != 0) atomicAnd(&set->used, ~passed);
  }
  return __shfl_sync(all_lanes, way, 0);
}

__device__ void unlock(RowCacheSet* set, std::uint32_t next, unsigned lane) {
  __threadfence();
  __syncwarp();
  if (lane == 0) atomicExch(&set->next, next << 1);
}

__device__ Claim claim_slot(const RowsEntry& entry, std::uint64_t number, unsigned lane) {
  Claim claim{0, 0, no_slot, 0};
  if (number >= entry.table_rows || number >= RowCacheLayout::number_mask) return claim;
  claim.set = number % entry.set_count;
  RowCacheSet* const set = at<RowCacheSet>(entry.sets, claim.set);
  std::uint32_t next = 1;
  if (lane == 0) {
    next = load(&set->next);
    if ((next & 1) == 0 && atomicCAS(&set->next, next, next | 1) != next) next = 1;
    __threadfence();
  }
  next = __shfl_sync(all_lanes, next, 0);
  if ((next & 1) != 0) return claim;
  __syncwarp();
  std::uint64_t* const tags = at<std::uint64_t>(entry.tags, claim.set * RowCacheLayout::ways);
  const bool has_slot = lane < RowCacheLayout::ways;
  const std::uint64_t tag = has_slot ? load(tags + lane) : 0;
  const std::uint64_t named = tag & RowCacheLayout::number_mask;
  if (__ballot_sync(all_lanes, named == number + 1) != 0) {
    unlock(set, next >> 1, lane);
    return claim;
  }
  claim.way = slot_to_give_up(set, __ballot_sync(all_lanes, has_slot && named == 0), next >> 1, lane);
  claim.next = (claim.way + 1) % RowCacheLayout::ways;
  claim.changes = (__shfl_sync(all_lanes, tag, claim.way) >> RowCacheLayout::number_bits) + 1;
  if (lane == 0) store(tags + claim.way, claim.changes << RowCacheLayout::number_bits);
  __syncwarp();
  __threadfence();
  return claim;
}

__device__ void publish(const RowsEntry& entry, const Claim& claim, std::uint64_t number, unsigned lane) {
  __threadfence();
  __syncwarp();
  if (lane == 0) {
    __threadfence();
    store(at<std::uint64_t>(entry.tags, claim.set * RowCacheLayout::ways + claim.way),
          claim.changes << RowCacheLayout::number_bits | (number + 1));
  }
  unlock(at<RowCacheSet>(entry.sets, claim.set), claim.next, lane);
}

// The row that was missing, from the answer to its place, and into the cache where there is a slot for it.
template <typename Word>
__device__ void place_row(const RowsEntry& entry, std::uint32_t i, unsigned lane) {
  const std::uint64_t number = *at<const std::uint64_t>(entry.missing_numbers, entry.first + i);
  const std::uint32_t place = *at<const std::uint32_t>(entry.missing_places, entry.first + i);
  const std::uint64_t words = entry.row_bytes / sizeof(Word);
  const Word* const from = row_at<const Word>(entry.answer, entry.row_bytes, entry.answer_begin + i);
  Word* const to = row_at<Word>(entry.memory, entry.row_bytes, place);
  // What fits into registers is on its way over the bus while a slot is looked for.
  constexpr unsigned words_ahead = 4;
  const bool is_short = words <= words_ahead * warp_lanes;
  Word ahead[words_ahead];
#pragma unroll
  for (unsigned j = 0; j < words_ahead; ++j) {
    if (is_short && lane + j * warp_lanes < words) ahead[j] = from[lane + j * warp_lanes];
  }
  const Claim claim = claim_slot(entry, number, lane);
  const bool is_kept = claim.way != no_slot;
  Word* const slot =
      row_at<Word>(entry.slots, entry.slot_bytes, claim.set * RowCacheLayout::ways + (is_kept ? claim.way : 0));
  const auto put = [&](std::uint64_t word, Word value) {
    to[word] = value;
    if (is_kept) store(slot + word, value);
  };
  if (is_short) {
#pragma unroll
    for (unsigned j = 0; j < words_ahead; ++j) {
      if (lane + j * warp_lanes < words) put(lane + j * warp_lanes, ahead[j]);
    }
  } else {
    copy_words<Word>(words, lane, [&](std::uint64_t word) { return from[word]; }, put);
  }
  if (is_kept) publish(entry, claim, number, lane);
}

// An entry lies in memory of the host: all of it comes at once.
__device__ void load_entry(RowsEntry& entry, const RowsEntry* entries) {
  constexpr unsigned words = sizeof(RowsEntry) / sizeof(uint4);
  if (threadIdx.x < words) {
    reinterpret_cast<uint4*>(&entry)[threadIdx.x] = reinterpret_cast<const uint4*>(entries + blockIdx.x)[threadIdx.x];
  }
  __syncthreads();
}

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// By one thread of each block, when all that the block has written can be seen: the last asks, or answers.
__device__ void ask_or_go_on(const RowsEntry& entry, unsigned missing, unsigned blocks) {
  auto* const round = at<RowsRound>(entry.round);
  if (missing != 0) atomicAdd(&round->missing, missing);
  __threadfence();
  if (atomicAdd(&round->blocks, 1) != blocks - 1) return;
  __threadfence();
  const std::uint32_t all_missing = atomicExch(&round->missing, 0);
  atomicExch(&round->blocks, 0);
  const std::uint64_t now = nanoseconds();
  const bool is_trusted = round->asked_at != 0 && round->failed == 0 && round->layout == entry.layout &&
                          now - round->asked_at < entry.trusted_ns;
  std::uint64_t word = entry.ask_word;
  if (all_missing == 0 && is_trusted) {
    *at<std::uint64_t>(entry.passed) = ++round->passed;
    word = entry.answer_word;
  } else {
    round->asked_at = now;
    round->failed = 0;
    round->layout = entry.layout;
  }
  __threadfence_system();
  *at<volatile std::uint32_t>(word) = 1;
}

}  // namespace

// Brings rows that are in the cache to their places, and lists those that are missing, in their order.
extern "C" __global__ void penstock_rows_find(RowsEntry* entries, unsigned count) {
  __shared__ __align__(16) RowsEntry entry;
  __shared__ std::uint64_t numbers[RowsEntry::most_rows];
  __shared__ bool is_missing[RowsEntry::most_rows];
  __shared__ unsigned missing_of_warp[RowsEntry::most_rows / warp_lanes];
  if (blockIdx.x >= count) return;
  load_entry(entry, entries);
  const unsigned lane = threadIdx.x % warp_lanes;
  const unsigned warp = threadIdx.x / warp_lanes;
  if (threadIdx.x < entry.count) numbers[threadIdx.x] = number_at(entry, entry.first + threadIdx.x);
  __syncthreads();
  with_word(entry, [&](auto word) {
    for (unsigned i = warp; i < entry.count; i += blockDim.x / warp_lanes) {
      const bool found = take_from_cache<decltype(word)>(entry, entry.first + i, numbers[i], lane);
      if (lane == 0) is_missing[i] = !found;
    }
  });
  __syncthreads();
  const bool missing = threadIdx.x < entry.count && is_missing[threadIdx.x];
  const unsigned others = __ballot_sync(all_lanes, missing);
  if (lane == 0) missing_of_warp[warp] = __popc(others);
  __syncthreads();
  unsigned before = __popc(others & ((1U << lane) - 1));
  for (unsigned i = 0; i < warp; ++i) before += missing_of_warp[i];
  if (missing) {
    const std::uint64_t to = entry.first + before;
    const std::uint32_t place = entry.first + threadIdx.x;
    *at<std::uint64_t>(entry.asked_numbers, to) = numbers[threadIdx.x];
    *at<std::uint32_t>(entry.asked_places, to) = place;
    *at<std::uint64_t>(entry.missing_numbers, to) = numbers[threadIdx.x];
    *at<std::uint32_t>(entry.missing_places, to) = place;
  }
  // The last thread counts all before it.
  const bool is_last = threadIdx.x == blockDim.x - 1;
  const unsigned all = before + (missing ? 1 : 0);
  if (is_last) entries[blockIdx.x].missing = all;
  if (entry.round == 0) return;
  __threadfence_system();
  __syncthreads();
  if (is_last) ask_or_go_on(entry, all, count);
}

// Brings rows that were missing to their places, and keeps them. All rows of a gather that failed become zeros.
extern "C" __global__ void penstock_rows_place(const RowsEntry* entries, unsigned count) {
  __shared__ __align__(16) RowsEntry entry;
  if (blockIdx.x >= count) return;
  load_entry(entry, entries);
  const unsigned lane = threadIdx.x % warp_lanes;
  const unsigned warp = threadIdx.x / warp_lanes;
  if (entry.first == 0 && entry.status != 0 && threadIdx.x == 0) *at<std::uint32_t>(entry.status) = entry.code;
  if (entry.code != 0) {
    if (entry.round != 0 && threadIdx.x == 0) atomicExch(&at<RowsRound>(entry.round)->failed, 1);
    auto* const to = at<unsigned char>(entry.memory + entry.first * entry.row_bytes);
    for (std::uint64_t i = threadIdx.x; i < entry.count * entry.row_bytes; i += blockDim.x) to[i] = 0;
    return;
  }
  with_word(entry, [&](auto word) {
    for (unsigned i = warp; i < entry.missing; i += blockDim.x / warp_lanes) {
      place_row<decltype(word)>(entry, i, lane);
    }
  });
}
