// Kernels of bench_gpu_array: all of an array page by page, its elements, and pages at random; and the same of plain
// memory, or by plain reads. Word number w of the store is w times the factor.
#include <penstock/device_array.cuh>

using penstock::device::Array;
using penstock::device::IoResult;
using penstock::device::Queues;

namespace {

using Word = unsigned long long;

constexpr Word factor = 0x9e3779b97f4a7c15ULL;
// With fewer registers than what is rarely called could use: more warps hide more latency.
constexpr unsigned block_threads = 256;
constexpr unsigned blocks_per_processor = 4;

struct Job {
  Word handle;  // of the array or the set
  Word plain;   // memory of the same bytes, or for plain reads to go to
  Word* sum;    // of all words that were read
  Word* bad;    // operations that failed, or brought something else
  Word pages;
  unsigned page_bytes;
  unsigned rounds;
  Word seed;  // another one in each launch, so that all pages come
};

__device__ Word thread_number() {
  return Word{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ Word thread_count() {
  return Word{gridDim.x} * blockDim.x;
}
__device__ Word next(Word& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 20;
}

__device__ void add_up(const ulonglong2* elements, unsigned count, Word& sum) {
#pragma unroll 8
  for (unsigned i = threadIdx.x % 32; i < count; i += 32) {
    const ulonglong2 two = elements[i];
    sum += two.x + two.y;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(block_threads, blocks_per_processor) bench_plain_pages(Job job) {
  const unsigned count = job.page_bytes / sizeof(ulonglong2);
  Word sum = 0;
  for (Word page = thread_number() / 32; page < job.pages; page += thread_count() / 32) {
    add_up(reinterpret_cast<const ulonglong2*>(job.plain) + page * count, count, sum);
  }
  atomicAdd(job.sum, sum);
}

extern "C" __global__ void __launch_bounds__(block_threads, blocks_per_processor) bench_array_pages(Job job) {
  const Array<ulonglong2> array(job.handle);
  const unsigned count = array.per_page();
  Word sum = 0;
  Word bad = 0;
  for (Word page = thread_number() / 32; page < job.pages; page += thread_count() / 32) {
    const IoResult result = array.visit_warp(
        page * count, count, [&](const ulonglong2* elements, Word, unsigned n) { add_up(elements, n, sum); });
    if (!result.ok()) ++bad;
  }
  atomicAdd(job.sum, sum);
  if (bad != 0) atomicAdd(job.bad, bad);
}

// Each thread an element of 8 bytes, neighbours beside each other.
extern "C" __global__ void __launch_bounds__(block_threads, blocks_per_processor) bench_plain_elements(Job job) {
  const Word count = job.pages * job.page_bytes / sizeof(Word);
  Word sum = 0;
  for (Word i = thread_number(); i < count; i += thread_count()) sum += reinterpret_cast<const Word*>(job.plain)[i];
  atomicAdd(job.sum, sum);
}

extern "C" __global__ void __launch_bounds__(block_threads, blocks_per_processor) bench_array_elements(Job job) {
  const Array<Word> array(job.handle);
  const Word count = job.pages * job.page_bytes / sizeof(Word);
  Word sum = 0;
  for (Word i = thread_number(); i < count; i += thread_count()) sum += array[i];
  atomicAdd(job.sum, sum);
}

// Pages at random by warps: of the array, or by plain reads to memory of the warp's own.
extern "C" __global__ void __launch_bounds__(block_threads, blocks_per_processor) bench_array_random(Job job) {
  const Array<ulonglong2> array(job.handle);
  const unsigned count = array.per_page();
  Word random = thread_number() / 32 * 2654435761ULL + job.seed;
  Word bad = 0;
  for (unsigned round = 0; round < job.rounds; ++round) {
    const Word page = next(random) % job.pages;
    Word sum = 0;
    const IoResult result = array.visit_warp(page * count, count, [&](const ulonglong2* elements, Word, unsigned n) {
      add_up(elements, n, sum);
      if (elements[0].y != (page * count * 2 + 1) * factor) ++bad;
    });
    if (!result.ok() || sum == 1) ++bad;
  }
  if (bad != 0) atomicAdd(job.bad, bad);
}

extern "C" __global__ void __launch_bounds__(block_threads, blocks_per_processor) bench_reads_random(Job job) {
  const Queues queues(job.handle);
  const Word warp = thread_number() / 32;
  auto* const to = reinterpret_cast<unsigned char*>(job.plain) + warp * job.page_bytes;
  Word random = warp * 2654435761ULL + job.seed;
  Word bad = 0;
  for (unsigned round = 0; round < job.rounds; ++round) {
    const Word page = next(random) % job.pages;
    const IoResult result = queues.read_warp({page * job.page_bytes, job.page_bytes}, to);
    if (!result.ok() || reinterpret_cast<const Word*>(to)[1] != (page * job.page_bytes / 8 + 1) * factor) ++bad;
    __syncwarp();
  }
  if (bad != 0) atomicAdd(job.bad, bad);
}

// Elements at random by threads: most warps want 32 pages at once.
extern "C" __global__ void __launch_bounds__(block_threads, blocks_per_processor) bench_array_random_elements(Job job) {
  const Array<Word> array(job.handle);
  const Word count = job.pages * job.page_bytes / sizeof(Word);
  Word random = thread_number() * 2654435761ULL + job.seed;
  Word bad = 0;
  for (unsigned round = 0; round < job.rounds; ++round) {
    const Word index = next(random) % count;
    Word value = 0;
    if (!array.get(index, value).ok() || value != index * factor) ++bad;
  }
  if (bad != 0) atomicAdd(job.bad, bad);
}
