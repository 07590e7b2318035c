// ControlMemory: small pinned cells that GPUs see: words that streams wait on, tables for kernels.
//
// Pages are never freed: a stream may look at its word long after the request, or the Context, has ended.
//
// Thread safety: any thread. Lifetime: the process's.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"

namespace penstock::cuda {

class ControlMemory {
 public:
  static constexpr std::size_t smallest_bytes = 64;  // a cache line: two users should not poll one
  static constexpr std::size_t largest_bytes = 64 << 10;
  // Cells of the smallest size are words of StreamOrder's, which only grow: a stream may look at one long after. A word
  // that begins anew each time takes this size.
  static constexpr std::size_t other_word_bytes = 2 * smallest_bytes;
  static constexpr std::size_t page_bytes = 1 << 20;

  static ControlMemory& of_process();

  struct Cell {
    std::byte* host = nullptr;
    CuDevicePtr device = 0;  // the same cell, as GPUs see it
    std::size_t size_bytes = 0;
  };
  // Zeros, or what the last user left. `size_bytes` at most `largest_bytes`.
  Result<Cell> take(Device& device, std::size_t size_bytes);
  void give_back(const Cell& cell);

 private:
  std::optional<Cell> take_free(std::size_t which);
  // REQUIRES: adding_mutex_ is held.
  Status add_page(Device& device, std::size_t which);

  // Held while the driver registers a page. It may wait for a stream that goes on only when a cell was given back, so
  // that never waits for this one.
  std::mutex adding_mutex_;
  std::array<std::size_t, 11> made_{};  // how many there are, by size: 64 bytes, 128, … 64 KiB; guarded by it
  std::mutex mutex_;
  std::array<std::vector<Cell>, 11> free_;
};

}  // namespace penstock::cuda
