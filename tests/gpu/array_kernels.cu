// Kernels that index arrays, for array_test.cc. Word number w of a store is w times the factor, of 64 bits. What a
// thread finds is counted: how its operations ended, by IoStatus, and how many were wrong.
#include <penstock/device_array.cuh>

using penstock::device::Array;
using penstock::device::IoResult;

namespace {

using Word = unsigned long long;

constexpr Word factor = 0x9e3779b97f4a7c15ULL;
constexpr unsigned wrong = 15;  // behind the counts by IoStatus

struct Job {
  Word handle;
  Word* memory;  // so many words for each warp
  Word* counts;  // 16 of them
  Word first;    // word of the store that the array begins with
  Word size;     // of the array, in words
  Word most;     // words of a stretch
  unsigned rounds;
  unsigned way;  // 0 elements, 1 stretches in place, 2 stretches copied, 3 elements of 16 bytes
};

__device__ unsigned thread_number() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ Word next(Word& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 24;
}

}  // namespace

extern "C" __global__ void penstock_index_at_random(Job job) {
  const Array<Word> array(job.handle);
  const bool by_warps = job.way == 1 || job.way == 2;
  const unsigned lane = threadIdx.x % 32;
  Word random = (by_warps ? thread_number() / 32 : thread_number()) * 7919 + 12345;
  Word bad = 0;
  if (array.size() != job.size && array.size() != 0) ++bad;
  for (unsigned round = 0; round < job.rounds; ++round) {
    IoResult result;
    if (!by_warps && next(random) % 4 == 0) continue;  // some threads of a warp stay away
    const Word index = next(random) % job.size;
    if (job.way == 0) {
      Word value = 0;
      result = array.get(index, value);
      if (result.ok() && value != (job.first + index) * factor) ++bad;
    } else if (job.way == 3) {
      ulonglong2 value{};
      result = Array<ulonglong2>(job.handle).get(index / 2, value);
      if (result.ok() && value.y != (job.first + index / 2 * 2 + 1) * factor) ++bad;
    } else {
      const Word left = job.size - index;
      const Word count = 1 + next(random) % (left < job.most ? left : job.most);
      if (job.way == 1) {
        Word seen = 0;
        result = array.visit_warp(index, count, [&](const Word* elements, Word done, unsigned length) {
          if (done != seen) ++bad;
          for (unsigned i = lane; i < length; i += 32) bad += elements[i] != (job.first + index + done + i) * factor;
          seen += length;
        });
        if (result.ok() && seen != count) ++bad;
      } else {
        Word* const to = job.memory + thread_number() / 32 * job.most;
        result = array.read_warp(index, count, to);
        for (Word i = lane; result.ok() && i < count; i += 32) bad += to[i] != (job.first + index + i) * factor;
        __syncwarp();
      }
    }
    if (!by_warps || lane == 0) atomicAdd(job.counts + static_cast<unsigned>(result.status), 1ULL);
  }
  if (bad != 0) atomicAdd(job.counts + wrong, bad);
}

// Behind the end.
extern "C" __global__ void penstock_index_outside(Job job) {
  const Array<Word> array(job.handle);
  Word value = 7;
  const IoResult result = array.get(job.size + thread_number(), value);
  atomicAdd(job.counts + static_cast<unsigned>(result.status), 1ULL);
  if (value != 7 || array[~0ULL] != 0) atomicAdd(job.counts + wrong, 1ULL);
  const auto never = [&](const Word*, Word, unsigned) { atomicAdd(job.counts + wrong, 1ULL); };
  if (array.visit_warp(job.size, 1, never).ok()) atomicAdd(job.counts + wrong, 1ULL);
}
