// Kernels that read and write stores by themselves, for queues_test.cc. Word number w of a store is w times the factor,
// of 64 bits. What a thread finds is counted: how its operations ended, by IoStatus, and how many were wrong.
#include <penstock/device.cuh>

using penstock::device::Extent;
using penstock::device::IoResult;
using penstock::device::Pending;
using penstock::device::Queues;

namespace {

using Word = unsigned long long;

constexpr Word factor = 0x9e3779b97f4a7c15ULL;
constexpr Word guard = 0xa5a5a5a5a5a5a5a5ULL;
// Behind the counts by IoStatus.
constexpr unsigned broken_guards = 11;
constexpr unsigned team_of_wrong = 12;
constexpr unsigned offset_of_wrong = 13;
constexpr unsigned word_of_wrong = 14;  // below its bytes
constexpr unsigned wrong = 15;

struct Job {
  Queues queues;
  Word* memory;  // so many bytes for each thread, warp or block, and guards of 64 bytes around them
  Word* counts;  // 16 of them
  Word store_bytes;
  Word most_bytes;  // of one operation
  unsigned rounds;
  unsigned way;  // 0 read, 1 ahead, 2 warp, 3 block, 4 visit
};

__device__ unsigned thread_number() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ Word next(Word& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 24;
}

__device__ Word check(const Job& job, const Word* to, const Extent& extent, bool ok, unsigned first, unsigned step) {
  Word bad = 0;
  for (Word i = first; i < extent.bytes / 8; i += step) {
    if (!ok || to[i] == (extent.offset / 8 + i) * factor) continue;
    if (bad == 0) {
      job.counts[team_of_wrong] = thread_number() / step;
      job.counts[offset_of_wrong] = extent.offset;
      job.counts[word_of_wrong] = extent.bytes << 32 | i;
    }
    bad = 1;
  }
  return bad;
}

}  // namespace

extern "C" __global__ void penstock_read_at_random(Job job) {
  const unsigned lanes = job.way == 2 ? 32 : job.way == 3 ? blockDim.x : 1;  // that act together
  const unsigned member = thread_number() % lanes;
  const Word team = thread_number() / lanes;
  Word* const area = job.memory + team * (job.most_bytes / 8 + 16);
  Word* const to = area + 8;
  for (unsigned i = member; i < 8; i += lanes) area[i] = to[job.most_bytes / 8 + i] = guard;
  Word random = team * 7919 + 12345;
  Word bad = 0;
  for (unsigned round = 0; round < job.rounds; ++round) {
    const Word bytes = 512 * (1 + next(random) % (job.most_bytes / 512));
    const Extent extent{512 * (next(random) % ((job.store_bytes - bytes) / 512 + 1)), bytes};
    IoResult result;
    if (job.way == 0) result = job.queues.read(extent, to);
    if (job.way == 1) {
      Pending pending = job.queues.begin_read(extent);
      result = job.queues.finish(pending, to);
    }
    if (job.way == 2) result = job.queues.read_warp(extent, to);
    if (job.way == 3) result = job.queues.read_block(extent, to);
    if (job.way == 4) {
      result = job.queues.visit(extent, [&](const unsigned char* place, bool ok) {
        bad += check(job, reinterpret_cast<const Word*>(place), extent, ok, 0, 1);
      });
    } else {
      bad += check(job, to, extent, result.ok(), member, lanes);
    }
    if (member == 0) atomicAdd(job.counts + static_cast<unsigned>(result.status), 1ULL);
    if (job.way == 2) __syncwarp();
    if (job.way == 3) __syncthreads();
  }
  for (unsigned i = member; i < 8; i += lanes) {
    if (area[i] != guard || to[job.most_bytes / 8 + i] != guard) {
      atomicAdd(job.counts + broken_guards, 1ULL);
      ++bad;
    }
  }
  if (bad != 0) atomicAdd(job.counts + wrong, bad);
}

// Each thread its own block: written, with other words than were there, and read again into memory of its own.
extern "C" __global__ void penstock_write_and_read(Job job) {
  const Extent extent{512ULL * thread_number(), 512};
  Word* const from = job.memory + 64ULL * thread_number();
  for (unsigned i = 0; i < 64; ++i) from[i] = ~((extent.offset / 8 + i) * factor);
  const IoResult written = job.queues.write(extent, from);
  atomicAdd(job.counts + static_cast<unsigned>(written.status), 1ULL);
  Word own[64];
  const IoResult read = job.queues.read(extent, own);
  atomicAdd(job.counts + static_cast<unsigned>(read.status), 1ULL);
  bool same = true;
  for (unsigned i = 0; i < 64; ++i) same = same && own[i] == from[i];
  if (read.ok() && written.ok() && !same) atomicAdd(job.counts + wrong, 1ULL);
}

// Extents that are wrong, one kind a thread: each finds out what is wrong with its own.
extern "C" __global__ void penstock_ask_for_what_is_not_there(Job job) {
  const unsigned kind = threadIdx.x % 8;
  Extent extent{0, 512};
  if (kind == 1) extent.offset = job.store_bytes;
  if (kind == 2) extent.offset = ~0ULL - 511;
  if (kind == 3) extent.offset = 8;
  if (kind == 4) extent.store = 7;
  unsigned char to[512];
  IoResult result;
  if (kind == 5) {
    result = job.queues.write(extent, to);
  } else {
    result = job.queues.read(extent, kind == 6 ? nullptr : to);
  }
  atomicAdd(job.counts + static_cast<unsigned>(result.status), 1ULL);
}

// Reads until it is told to stop.
extern "C" __global__ void penstock_until_closed(Job job) {
  Word* const to = job.memory + 64ULL * thread_number();
  Word random = thread_number();
  IoResult result;
  while (result.ok() && !job.queues.is_closed()) {
    const Extent extent{512 * (next(random) % (job.store_bytes / 512)), 512};
    result = job.queues.read(extent, to);
    if (check(job, to, extent, result.ok(), 0, 1) != 0) atomicAdd(job.counts + wrong, 1ULL);
    atomicAdd(job.counts + static_cast<unsigned>(result.status), 1ULL);
  }
}
