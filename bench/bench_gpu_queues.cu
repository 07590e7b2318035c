// Kernels of bench_gpu_queues: reads that a kernel starts by itself, by Penstock and by a bare loop of the same kind.
#include <penstock/device.cuh>

using penstock::device::Extent;
using penstock::device::IoResult;
using penstock::device::Pending;
using penstock::device::Queues;

namespace {

using Word = unsigned long long;

// Word 0 of block b of the memory that is read is b times this.
constexpr Word factor = 0x9e3779b97f4a7c15ULL;
constexpr unsigned block_bytes = 512;

__device__ unsigned thread_number() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ Word next(Word& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 20;
}
__device__ Word nanoseconds() {
  Word time = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// How long each round of one thread took, in clocks, and then clocks and nanoseconds of all rounds.
class Laps {
 public:
  __device__ Laps(Word* laps, unsigned rounds)
      : laps_(thread_number() == 0 ? laps : nullptr), rounds_(rounds), begin_(clock64()), begin_ns_(nanoseconds()) {}
  __device__ void begin() { lap_ = clock64(); }
  __device__ void end(unsigned round) {
    if (laps_ != nullptr) laps_[round] = clock64() - lap_;
  }
  __device__ void finish() {
    if (laps_ == nullptr) return;
    laps_[rounds_] = clock64() - begin_;
    laps_[rounds_ + 1] = nanoseconds() - begin_ns_;
  }

 private:
  Word* laps_;
  unsigned rounds_;
  long long begin_;
  Word begin_ns_;
  long long lap_ = 0;
};

struct Job {
  Queues queues;
  unsigned char* memory;
  Word* bad;   // operations that failed or brought something else
  Word* laps;  // or null
  Word units;  // of `unit_bytes`, in the store
  unsigned unit_bytes;
  unsigned rounds;
  unsigned way;    // 1 thread, 2 warp, 3 block
  unsigned loops;  // of computing, beside each read
};

}  // namespace

// Random blocks, of which one word is looked at where it arrived.
extern "C" __global__ void bench_visit(Job job) {
  Word random = thread_number() * 2654435761ULL + 1;
  Word bad = 0;
  Laps laps(job.laps, job.rounds);
  for (unsigned round = 0; round < job.rounds; ++round) {
    laps.begin();
    const Word block = next(random) % job.units;
    bool is_right = false;
    const auto look = [&](const unsigned char* bytes, bool ok) {
      is_right = ok && *reinterpret_cast<const volatile Word*>(bytes) == block * factor;
    };
    if (!job.queues.visit({block * block_bytes, block_bytes}, look).ok() || !is_right) ++bad;
    laps.end(round);
  }
  laps.finish();
  if (bad != 0) atomicAdd(job.bad, bad);
}

// Random units into memory: a team of threads has room for one. With no rounds: unit number t by team t.
extern "C" __global__ void bench_read(Job job) {
  const unsigned lanes = job.way == 3 ? blockDim.x : job.way == 2 ? 32 : 1;
  const Word team = thread_number() / lanes;
  Word random = team * 2654435761ULL + 1;
  Word bad = 0;
  const unsigned rounds = job.rounds == 0 ? 1 : job.rounds;
  for (unsigned round = 0; round < rounds; ++round) {
    const Word unit = job.rounds == 0 ? team % job.units : next(random) % job.units;
    const Extent extent{unit * job.unit_bytes, job.unit_bytes};
    unsigned char* const to = job.memory + team * job.unit_bytes;
    IoResult result;
    if (job.way == 1) result = job.queues.read(extent, to);
    if (job.way == 2) result = job.queues.read_warp(extent, to);
    if (job.way == 3) result = job.queues.read_block(extent, to);
    if (!result.ok()) ++bad;
  }
  if (bad != 0) atomicAdd(job.bad, bad);
}

// Each warp reads two units ahead while it computes; without units it only computes, without loops it only reads.
// REQUIRES: an even number of rounds.
extern "C" __global__ void bench_overlap(Job job) {
  const Word warp = thread_number() / 32;
  const bool reads = job.units != 0 && thread_number() % 32 == 0;
  unsigned char* const to = job.memory + warp * job.unit_bytes;
  Word random = warp * 2654435761ULL + 1;
  // As much as a multiprocessor can compute: a warp that reads leaves room, which the others use.
  float values[4] = {static_cast<float>(warp), 1, 2, 3};
  Word bad = 0;
  const auto any_unit = [&] {
    return reads ? Extent{next(random) % job.units * job.unit_bytes, job.unit_bytes} : Extent{};
  };
  constexpr unsigned depth = 2;
  Pending ahead[depth];
  for (Pending& one : ahead) {
    if (job.units != 0) one = job.queues.begin_read(any_unit());
  }
  for (unsigned round = 0; round < job.rounds; round += depth) {
    for (Pending& one : ahead) {
      if (job.units != 0 && !job.queues.finish(one, to).ok()) ++bad;
      if (job.units != 0 && round + depth < job.rounds) one = job.queues.begin_read(any_unit());
      for (unsigned i = 0; i < job.loops; ++i) {
        for (float& value : values) value = value * 1.0001F + 0.5F;
      }
    }
  }
  if (values[0] + values[1] + values[2] + values[3] == 12345.0F) ++bad;  // so that nothing is left out
  if (bad != 0) atomicAdd(job.bad, bad);
}

// A word to the CPU and back: the least that any request takes.
extern "C" __global__ void bench_signal(Job job) {
  auto* const ask = reinterpret_cast<volatile unsigned*>(job.memory);
  auto* const answer = reinterpret_cast<volatile unsigned*>(job.memory + 128);
  Laps laps(job.laps, job.rounds);
  const unsigned base = *answer;
  const Word begin = nanoseconds();
  for (unsigned round = 0; round < job.rounds; ++round) {
    laps.begin();
    *ask = base + round + 1;
    while (*answer != base + round + 1) {
      if (nanoseconds() - begin > 10'000'000'000ULL) {
        atomicAdd(job.bad, 1ULL);
        return;
      }
    }
    laps.end(round);
  }
  laps.finish();
}

// The bare loop: the steps of a queue pair without anything that could go wrong: no checks, deadlines or windows, the
// data at a fixed place for each slot. Threads of the program serve it (bench_gpu_queues.cc).
struct BareQueue {
  static constexpr unsigned log_entries = 10;
  static constexpr unsigned entries = 1U << log_entries;
  static constexpr unsigned mask = entries - 1;

  uint4* submissions;           // four for each entry
  volatile uint4* completions;  // one for each entry
  volatile unsigned* tail;
  volatile unsigned* head;
  unsigned char* data;
  alignas(128) unsigned tickets;
  alignas(128) unsigned published;
  alignas(128) unsigned draining;
  unsigned drained;
  alignas(128) unsigned free_turn[entries];
  unsigned done_turn[entries];
};

namespace {

namespace word = penstock::nvme::word;

struct BareWarp {
  unsigned mask, lane, leader, rank, count;
};

__device__ void drain(BareQueue& queue, const BareWarp& warp) {
  unsigned unlocked = 0;
  const bool is_leader = warp.lane == warp.leader;
  const bool locked = is_leader && word::compare_exchange(queue.draining, unlocked, 1U);
  if (__shfl_sync(warp.mask, locked, warp.leader) == 0) return;
  const unsigned head =
      __shfl_sync(warp.mask, is_leader ? *const_cast<volatile unsigned*>(&queue.drained) : 0, warp.leader);
  const unsigned at = head + warp.rank;
  const unsigned status = queue.completions[at & BareQueue::mask].w;
  const bool is_new = (status >> 16 & 1) != (at >> BareQueue::log_entries & 1);
  const unsigned missing = warp.mask & ~__ballot_sync(warp.mask, is_new);
  const unsigned taken = missing == 0 ? warp.count : __popc(warp.mask & ((1U << (__ffs(missing) - 1)) - 1));
  if (warp.rank < taken) {
    __threadfence_system();
    unsigned& turn = queue.done_turn[status & 0xffff];
    word::store_release(turn, *const_cast<volatile unsigned*>(&turn) + 1);
  }
  __syncwarp(warp.mask);
  if (!is_leader) return;
  if (taken != 0) {
    *const_cast<volatile unsigned*>(&queue.drained) = head + taken;
    *queue.head = (head + taken) & BareQueue::mask;
    __threadfence_system();
  }
  word::store_release(queue.draining, 0U);
}

}  // namespace

extern "C" __global__ void bench_bare(BareQueue* queues, unsigned queue_count, Job job) {
  BareQueue& queue = queues[thread_number() / 32 % queue_count];
  Word random = thread_number() * 2654435761ULL + 1;
  Word bad = 0;
  Laps laps(job.laps, job.rounds);
  for (unsigned round = 0; round < job.rounds; ++round) {
    const unsigned mask = __activemask();
    const unsigned lane = threadIdx.x % 32;
    const BareWarp warp{mask, lane, static_cast<unsigned>(__ffs(mask) - 1),
                        static_cast<unsigned>(__popc(mask & ((1U << lane) - 1))), static_cast<unsigned>(__popc(mask))};
    const bool is_leader = lane == warp.leader;
    laps.begin();
    const Word block = next(random) % job.units;
    unsigned first = is_leader ? atomicAdd(&queue.tickets, warp.count) : 0;
    first = __shfl_sync(mask, first, warp.leader);
    const unsigned ticket = first + warp.rank;
    const unsigned slot = ticket & BareQueue::mask;
    const unsigned turn = ticket >> BareQueue::log_entries;
    for (unsigned nap = 50;; nap = nap < 2000 ? 2 * nap : nap) {
      const bool is_free =
          word::load_acquire(queue.free_turn[slot]) == turn &&
          word::load_acquire(queue.free_turn[(ticket + 1) & BareQueue::mask]) == (ticket + 1) >> BareQueue::log_entries;
      if (__all_sync(mask, is_free)) break;
      const unsigned behind = ticket - *const_cast<volatile unsigned*>(&queue.published);
      if (__any_sync(mask, behind < 2 * BareQueue::entries)) drain(queue, warp);
      __nanosleep(nap);
    }
    uint4* const entry = queue.submissions + 4 * slot;
    entry[0] = {2U | slot << 16, 1, 0, 0};
    entry[1] = {0, 0, slot * block_bytes, 0};
    entry[2] = {0, 0, static_cast<unsigned>(block), static_cast<unsigned>(block >> 32)};
    entry[3] = {0, 0, 0, 0};
    __syncwarp(mask);
    if (is_leader) {
      __threadfence_system();
      for (unsigned nap = 20; word::load_acquire(queue.published) != first; nap = nap < 200 ? 2 * nap : nap)
        __nanosleep(nap);
      *queue.tail = (first + warp.count) & BareQueue::mask;
      __threadfence_system();
      word::store_release(queue.published, first + warp.count);
    }
    __syncwarp(mask);
    for (unsigned nap = 20;; nap = nap < 1000 ? 2 * nap : nap) {
      if (__all_sync(mask, word::load_acquire(queue.done_turn[slot]) == turn + 1)) break;
      drain(queue, warp);
      if (__all_sync(mask, word::load_acquire(queue.done_turn[slot]) == turn + 1)) break;
      if (warp.count > 1) __nanosleep(nap);
    }
    if (*reinterpret_cast<const volatile Word*>(queue.data + slot * block_bytes) != block * factor) ++bad;
    word::store_release(queue.free_turn[slot], turn + 1);
    __syncwarp(mask);
    laps.end(round);
  }
  laps.finish();
  if (bad != 0) atomicAdd(job.bad, bad);
}
