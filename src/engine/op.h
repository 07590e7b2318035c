// Op and Done: what goes into a Queue and what comes out. Plain data, no strings, no ownership.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/error.h"
#include "penstock/route.h"

namespace penstock::engine {

class Attached;
class Store;

enum class OpKind : std::uint8_t {
  read,
  write,
  flush,
  zero,        // reads as zeros from now on; makes files longer as a write does
  deallocate,  // the store need not keep the range any more. A file reads as zeros there; a disk as zeros or as before
  call,        // runs Op::call
};

// Whether an Op of this kind has memory.
constexpr bool moves_bytes(OpKind kind) {
  return kind == OpKind::read || kind == OpKind::write;
}

// How core wants a store reached. Engines without a page cache ignore it.
enum class Path : std::uint8_t {
  cached,    // the bytes are thought to be in the page cache: copy them, don't expect to wait
  direct,    // past the page cache; offset, length and memory are aligned
  buffered,  // through the page cache, may wait
  device,    // straight between the store and GPU memory (Description::reaches_device); offset and length are aligned
};

// The way that bytes take on a path, for engines that know only these.
constexpr Route route_of(Path path) {
  switch (path) {
    case Path::cached:
      return Route::cached;
    case Path::direct:
      return Route::direct;
    case Path::buffered:
    case Path::device:  // the engine knows better
      break;
  }
  return Route::buffered;
}

// What is asked of an engine or a store, and may have to wait for another machine or program: to open, to tell a state,
// to make room, to commit, to close. It knows what it is about, and takes the answer.
class Call {
 public:
  virtual ~Call() = default;
  // Once, where waiting holds up no other Op. Throws nothing.
  virtual void run() = 0;
};

struct Op {
  OpKind kind = OpKind::read;
  Path path = Path::buffered;
  Store* store = nullptr;  // of the same engine as the Queue; outlives the Op. Null for a call
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::byte* memory = nullptr;         // null where no bytes are moved
  const Attached* attached = nullptr;  // by the same engine, to memory that this is within; null: nothing was
  Call* call = nullptr;                // of OpKind::call
  std::uint64_t cookie = 0;            // the caller's; unique among the Ops in flight on a Queue
  bool is_shared = false;              // a long read, which several threads may make (Description::shares_reads)
  bool starts_writeback = false;       // a buffered write, after which a sync follows: writeback need not wait for that
};

// Memory of an engine's own in which a read has brought its bytes.
class Loan {
 public:
  virtual ~Loan() = default;
  // The first byte of the operation.
  virtual const std::byte* data() const = 0;
  // Whether CUDA knows it, at the same address for GPUs, so that they can copy from there.
  virtual bool is_pinned() const { return false; }
  // Once, by the thread that polls: it is the engine's again.
  virtual void give_back() = 0;
};

struct Done {
  std::uint64_t cookie = 0;
  std::uint64_t bytes = 0;  // may be fewer than asked for; with an error: 0
  Code code = Code::ok;
  std::int32_t system_error = 0;  // errno or a vendor's number; EAGAIN and EINTR are for core to retry
  Route route = Route::buffered;
  // Of a failure, where more is known than numbers say. Until the queue is used again.
  const Error* cause = nullptr;
  Loan* loan = nullptr;  // of a read into host memory: the bytes are there, and Op::memory is for core to fill
};

}  // namespace penstock::engine
