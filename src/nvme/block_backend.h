// BlockBackend: what a controller in software keeps its blocks in.
//
// Thread safety: one thread uses it, except for wake() and the memory, for which any thread may call. Lifetime:
// destroyed only when nothing is in flight on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "nvme/spec.h"

namespace penstock::nvme {

enum class BlockKind : std::uint8_t { read, write, flush, zero, deallocate };

struct BlockOp {
  BlockKind kind = BlockKind::read;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::byte* memory = nullptr;  // of reads and writes
  std::uint64_t cookie = 0;
};
struct BlockDone {
  std::uint64_t cookie = 0;
  bool ok = false;
};

class BlockBackend {
 public:
  virtual ~BlockBackend() = default;
  // Of what can be read and written: a multiple of 4096.
  virtual std::uint64_t size_bytes() const = 0;
  // False when it is full: come again after a poll.
  virtual bool submit(const BlockOp& op) = 0;
  // As engine::Queue::poll: sleeps until there is a completion, a wake, or the deadline.
  virtual std::size_t poll(std::span<BlockDone> done, TimePoint deadline) = 0;
  virtual void wake() = 0;

  // Memory that operations may name from now on, and until it is removed; for backends that prepare it. Operations may
  // name other memory as well.
  virtual void add_memory(std::byte*, std::size_t) {}
  // REQUIRES: as added, and no operation names it any more.
  virtual void remove_memory(std::byte*, std::size_t) {}
};

}  // namespace penstock::nvme
