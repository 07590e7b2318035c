// Rendezvous: a place in a CUDA stream, or in a captured graph, where the GPU asks and a function on the CPU answers.
//
//   auto meeting = penstock::Rendezvous::make(penstock::Domain::cuda(0), [&](const penstock::Crew&) { … }).value();
//   // while the stream is captured: the copies bring what is asked to the CPU, and the answer to the GPU
//   meeting.enqueue({stream}, {question}, {answer});
//
// A round is: the copies `before`, a word that asks, a wait for a word that answers, the copies `after`. Both words are
// reset inside it, so a graph is replayed any number of times without a call of anybody's. Threads of the process look
// at the words of all that there are. After 10 ms without a round they sleep, but for one that looks every 100 µs while
// a graph may ask: the first round after that takes so much longer, and the waiting 2 to 5 % of a processor.
//
// The function must answer soon, since a GPU waits for it, and may call nothing of CUDA's. It must not throw.
//
// Thread safety: any thread; the function is called on threads of the library, once a round. Lifetime: a graph that was
// captured goes on, so the function is called for it, and kept with all that it owns, until the graph is destroyed (or
// the process ends, where the driver can't tell). Without a graph it is kept until its last round is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "penstock/cuda.h"

namespace penstock {

namespace cuda {
class RendezvousState;
}

// Threads that help with an answer.
class PENSTOCK_EXPORT Crew {
 public:
  virtual ~Crew() = default;
  // Calls part(0) … part(count - 1), on this thread and on others that have nothing to do, and returns when all have
  // been. Parts must not throw.
  virtual void share(std::size_t count, const std::function<void(std::size_t)>& part) const = 0;
};

// Addresses as the GPU sees them: its own memory, or pinned memory (gpu_address).
struct GpuCopy {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
};

// One of the library's kernels, as launch_kernel takes it (penstock/cuda.h).
struct GpuKernel {
  std::string_view name;
  std::uint64_t entries = 0;
  std::uint32_t count = 0;
  bool asks = false;  // before the answer: by itself, or it answers by itself (Rendezvous::words)
};

// Words of 32 bits, as the GPU sees them. Who writes 1 to one of them asks, or answers.
struct RendezvousWords {
  std::uint64_t ask = 0;
  std::uint64_t answer = 0;
};

// Made by default, or moved from, there is none: calls fail with Code::invalid_argument.
class PENSTOCK_EXPORT Rendezvous {
 public:
  using Answer = std::function<void(const Crew&)>;
  static constexpr std::size_t copies_limit = 2048;  // of each list

  // The GPU must be in use (Context::prepare).
  static Result<Rendezvous> make(Domain gpu, Answer answer);
  Rendezvous();
  Rendezvous(Rendezvous&&) noexcept;
  Rendezvous& operator=(Rendezvous&&) noexcept;
  ~Rendezvous();

  // Puts a round on a stream, which may be one that is captured. Rounds must not overlap: take another one for each
  // capture, and ask is_idle before the next round on a stream.
  Status enqueue(CudaStream stream, std::span<const GpuCopy> before, std::span<const GpuCopy> after);
  // The same with kernels in place of copies; their tables must stay as long as rounds may run. Code::unsupported if
  // the GPU lacks one.
  Status enqueue_kernels(CudaStream stream, const GpuKernel& before, const GpuKernel& after);
  RendezvousWords words() const;
  // Whether all rounds are over, and none can begin: never while a graph has it.
  bool is_idle() const;
  std::uint64_t rounds() const;  // that were answered by the function

 private:
  explicit Rendezvous(std::shared_ptr<cuda::RendezvousState> state);
  std::shared_ptr<cuda::RendezvousState> state_;  // shared with the threads that answer
};

}  // namespace penstock
