// StreamPool: our own streams on a GPU. Once there are many streams, the driver may wait with making another for all
// that the GPU does, and lets no other call through meanwhile (seen with driver 580 and 64 streams of which each
// waited). So some are made before any stream can wait for us, and more only while none does; later users share.
//
// Thread safety: any thread. Lifetime: its GPU's. Streams are never destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/relaxed.h"

namespace penstock::cuda {

class StreamPool {
 public:
  // Those that are there from the beginning, usually, and the most there ever are.
  static constexpr std::size_t first_streams = 16;
  static constexpr std::size_t streams_most = 64;

  // REQUIRES, for both: a current context.
  // As many as there are from the beginning, or as there can be; where a stream waits, one has to be enough. An error
  // only where there is none.
  CuResult fill(const RelaxedApi& api);
  // One with the fewest users, none if possible. REQUIRES: fill was a success.
  CuStream take(const RelaxedApi& api);
  void give_back(CuStream stream);

 private:
  struct Entry {
    CuStream stream = nullptr;
    std::uint32_t users = 0;
  };
  CuResult add(const RelaxedApi& api);

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace penstock::cuda
