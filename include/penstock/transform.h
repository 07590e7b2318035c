// Transform: makes bytes in memory from bytes that are stored in another form: packed, compressed, quantized.
//
//   struct Doubled : penstock::Transform {  // each stored byte stands for two
//     penstock::Status by_cpu(const Piece& piece) const override {
//       for (std::size_t i = 0; i < piece.memory.size(); ++i) piece.memory[i] = piece.stored[i / 2];
//       return {};
//     }
//   };
//   const penstock::Stored stored{.transform = std::make_shared<Doubled>(), .bytes = 4096};
//   const penstock::Range range{&store, 0, memory.region().part(0, 8192), &stored};
//   auto report = context.transfer(penstock::Direction::read, {&range, 1});  // mixed with plain ranges, if there are
//   any
//
// A lane reads the stored bytes of a range as a whole into pinned memory. From there the transform fills host memory;
// or they are copied to scratch memory on the GPU, and kernels on the copy's stream fill GPU memory. So a model that
// is stored in fewer bytes takes less time on the disk and the bus.
//
// Thread safety: called by several lanes at once. Lifetime: shared by the requests that use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/cuda.h"
#include "penstock/gpu.h"
#include "penstock/result.h"

namespace penstock {

class PENSTOCK_EXPORT Transform {
 public:
  struct Piece {
    std::uint64_t tag = 0;              // Stored::tag
    std::span<const std::byte> stored;  // all of it
    std::span<std::byte> memory;        // to be filled
  };
  struct OnGpu {
    Domain gpu;
    CudaStream stream;
    std::uint32_t* status = nullptr;  // 0, where kernels can write: another number is a failure
  };

  virtual ~Transform() = default;

  // Fills the memory. Lanes call it, which other requests need too: it must not wait, nor throw, which ends the process
  // with a message. An Error fails the range.
  virtual Status by_cpu(const Piece& piece) const = 0;

  // Whether by_gpu works there. Otherwise by_cpu makes the bytes, and they are copied. That also happens while a stream
  // waits for a request, since a kernel could get stuck behind that stream.
  virtual bool is_for(const Gpu&) const { return false; }
  // Puts kernels on the stream that fill the memory. Both spans are addresses of the GPU's: the memory is its own, and
  // the stored bytes lie there too or, where scratch memory is short, in pinned memory that it reads over the bus. They
  // stay until the stream has passed the kernels. The GPU's context is current. Like by_cpu, it must not wait or throw.
  virtual Status by_gpu(const Piece& piece, const OnGpu& gpu) const;
  // The meaning of a status that a kernel wrote.
  virtual Error failure_of(std::uint64_t tag, std::uint32_t status) const;
};

// How the bytes of a Range are stored.
struct Stored {
  std::shared_ptr<const Transform> transform;
  std::uint64_t bytes = 0;  // from Range::offset on; at most Options::staging_slot_bytes
  std::uint64_t tag = 0;    // the transform's: which piece it is
};

}  // namespace penstock
