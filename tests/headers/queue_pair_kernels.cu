// Compiled and not run: that the queue pair is device code, with most functions of it in use.
#include "penstock/cuda_platform.cuh"

#include "penstock/prp.h"

using penstock::nvme::CudaPlatform;
using penstock::nvme::Poison;
using penstock::nvme::QueuePair;
using penstock::nvme::QueuePairState;
using penstock::nvme::Submission;
using penstock::nvme::Token;
using penstock::nvme::Waited;

// Each thread submits one command of its own and waits for it.
extern "C" __global__ void penstock_queue_pair(QueuePairState* state, const Submission* submissions, unsigned count,
                                               std::uint64_t deadline, unsigned* failures) {
  // Blocks of any shape: a warp may go over several rows of one.
  const unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned thread = blockIdx.x * blockDim.x * blockDim.y * blockDim.z + in_block;
  if (thread >= count) return;
  CudaPlatform platform;
  QueuePair<CudaPlatform> queue(*state, platform);
  const Submission& mine = submissions[thread];
  const bool submitted = queue.submit(&mine, 1, deadline) == platform.size();
  const bool done = submitted && queue.wait(*mine.token, deadline) == Waited::done;
  if (!done || !queue.status_of(*mine.token).ok()) atomicAdd(failures, 1U);
}

extern "C" __global__ void penstock_reset_queue_pair(QueuePairState* state) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  CudaPlatform platform;
  QueuePair<CudaPlatform> queue(*state, platform);
  queue.poison(Poison::reset);
  queue.end_in_flight(penstock::nvme::status::queue_deleted);
  queue.initialize();
}

// Commands of 1 MiB, with the lists of their pages.
extern "C" __global__ void penstock_long_commands(Submission* submissions, std::uint64_t* lists,
                                                  std::uint64_t address) {
  constexpr std::uint64_t page_bytes = 4096;
  constexpr std::uint64_t command_bytes = 1 << 20;
  constexpr std::uint64_t list_bytes = penstock::nvme::prp_list_bytes(command_bytes, page_bytes);
  std::uint64_t* const list = lists + threadIdx.x * list_bytes / sizeof *lists;
  const auto prps = penstock::nvme::make_prps(address + threadIdx.x * command_bytes, command_bytes, page_bytes,
                                              {list, reinterpret_cast<std::uint64_t>(list)});
  submissions[threadIdx.x].command.prp1 = prps.first;
  submissions[threadIdx.x].command.prp2 = prps.second;
}
