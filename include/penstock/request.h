// Requests: what a caller asks for, the Ticket as its handle, and the Report at its end.
//
// A request ends exactly once: done, failed, cancelled or abandoned. A deadline ends a wait, never ownership: an
// *abandoned* request has ended while the kernel or a device may still touch its memory, even after the Context is
// gone. That memory must stay until Statistics::quarantined_bytes is 0, or the process ends. Memory of a
// penstock::Buffer needs no such care: it stays until the request has ended and nothing can touch it any longer,
// whatever happens to the Buffer.
//
// Thread safety: a Ticket may be used from any thread. Lifetime: you may drop a ticket at any time; the request goes
// on. Tickets may outlive their Context: closing it ends every request. In a forked child, requests that had not ended
// before the fork count as cancelled, and nothing waits for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/cuda.h"
#include "penstock/options.h"
#include "penstock/region.h"
#include "penstock/result.h"
#include "penstock/route.h"
#include "penstock/store.h"
#include "penstock/transform.h"

namespace penstock {

namespace client {
class PendingRequest;
struct Access;
}  // namespace client

// One contiguous transfer between a store and memory. Its length is the size of `memory`. What it points to must live
// only until the call that takes it returns.
struct Range {
  const Store* store = nullptr;
  std::uint64_t offset = 0;
  Region memory;
  const Stored* stored = nullptr;  // reads only: the store has other bytes, from which those in memory are made
};

// Ranges that are known only when a request begins. It must not wait or throw.
using RangeSource = std::function<Result<std::vector<Range>>()>;

enum class Direction : std::uint8_t { read, write };

enum class Outcome : std::uint8_t { pending, done, failed, cancelled, abandoned };
PENSTOCK_EXPORT std::string_view outcome_name(Outcome outcome);

// A failed operation. The bytes of its range are unspecified; all other ranges are right, unless the request was
// stopped early (Code::timed_out, cancelled, closed or abandoned): then no range is guaranteed.
struct Failure {
  std::uint64_t range = 0;   // its index in the request
  std::uint64_t offset = 0;  // in the store: where the failed operation began
  std::uint64_t bytes = 0;   // of that operation
  Code code = Code::internal;
  int system_error = 0;
};

// Where the time went, as far as known.
enum class Limit : std::uint8_t { unknown, storage, copy, cpu };
PENSTOCK_EXPORT std::string_view limit_name(Limit limit);

struct [[nodiscard]] PENSTOCK_EXPORT Report {
  Outcome outcome = Outcome::pending;
  std::uint64_t bytes = 0;         // that arrived
  double seconds = 0;              // from the call to the end
  RouteBytes routes{};             // the routes they took
  std::uint64_t extra_bytes = 0;   // read beside them, since disks deliver whole blocks
  std::uint64_t stored_bytes = 0;  // read to make some of them (Range::stored)
  std::uint64_t made_bytes = 0;    // those that were made of the stored bytes
  std::string engine;
  std::string reason;  // why these routes
  Limit limit = Limit::unknown;
  double storage_seconds = 0;  // summed over lanes: waiting for storage with nothing else to do
  double copy_seconds = 0;     // summed over lanes: waiting for copies to or from a GPU with nothing else to do
  // Summed over lanes: submitting, copying, finishing; if the bytes were already in memory, also waiting for a CPU.
  double cpu_seconds = 0;
  std::vector<Failure> failures;    // the first 64
  std::uint64_t failure_count = 0;  // all of them
  std::optional<Error> error;       // set unless done

  bool ok() const { return outcome == Outcome::done; }
  // The routes that bytes took, the largest first.
  std::vector<RouteShare> routes_taken() const;
  // For people: bytes, time, speed, routes and the reason in two lines; or what went wrong, and what helps.
  std::string to_string() const;
  // Adds the report of another request; the worse outcome and the first error stay. Set `seconds` yourself: only you
  // know whether the two ran at the same time.
  void add(const Report& other);
};

struct RequestOptions {
  bool durable = false;  // writes: synced before the request ends
  // Overrides the Context's request deadline; 0: the Context's. A value below 0, or NaN, has already passed; infinity
  // means none.
  double deadline_seconds = 0;
  // Reads: how to use the page cache; nothing: as the Context does.
  std::optional<Cache> cache = {};
  // Reads: Code::changed if a store that is open for reading is not what it was when it was opened; below 1 MiB no
  // server is asked about that. Otherwise requests of at least 1 MiB compare what it was when they began.
  bool as_opened = false;
  // Runs once, on the Context's completion thread or on `executor`. It may submit and must not wait. Neither may throw:
  // that ends the process with a message.
  std::function<void(const Report&)> on_end = {};
  std::function<void(std::function<void()>)> executor = {};
  // Runs once per range that has bytes: when all of them have arrived (Code::ok), or when the first of them failed;
  // others may then still be on their way. It runs on the lane that moved them, or in stream order on the thread that
  // watches streams, so it must not wait, hold a lock for long, or throw. If a request is stopped early, it may not run
  // for all ranges.
  std::function<void(std::uint64_t range, Code code)> on_range = {};
  // Stream order: the request begins when earlier work on the stream is done. All memory must be on the stream's
  // device. A stream that is being captured into a graph is refused.
  std::optional<CudaStream> stream = {};
  // Asynchronous requests with a stream: later work on the stream begins when the bytes are there, or the request has
  // failed or was cancelled: wait for the ticket, which ends a moment later, and check it. One that is stopped before
  // the stream has come to it has ended, but the stream may still copy: Buffers are held until it has passed; other
  // memory must stay as long. Without it, the caller waits for the ticket before it enqueues work that needs the bytes.
  // Synchronous transfers never make the stream wait: their return orders them before later work.
  bool stream_waits = true;
  // Synchronous transfers: called on the calling thread about every 60 ms while the call waits; false cancels the
  // request. It must not throw.
  std::function<bool()> keep_going = {};
};

// Default-constructed or moved from, it has no request: it has ended as failed, and the report says so.
//
// Each call that looks at a request, such as ended() or wait_for(0), also makes progress on it, so a thread that polls
// sees the end as soon as one that waits. A request that no thread looks at ends within a millisecond after its last
// operation.
class PENSTOCK_EXPORT Ticket {
 public:
  Ticket();
  Ticket(const Ticket&);
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(const Ticket&);
  Ticket& operator=(Ticket&&) noexcept;
  ~Ticket();

  explicit operator bool() const { return request_ != nullptr; }
  bool ended() const;
  Outcome outcome() const;
  // Bytes that have arrived so far.
  std::uint64_t bytes_done() const;
  // Waits until the request ends or the time is over (at once if below 0); returns whether it has ended.
  bool wait_for(std::chrono::nanoseconds time) const;
  // Waits until the request ends, and returns how; report() has more. Inside a completion callback it does not wait,
  // and may return Outcome::pending.
  Outcome wait() const;
  // Waits until at least one of the requests has ended or the time is over; returns whether one has. REQUIRES: all
  // belong to one Context.
  static bool wait_any(std::span<const Ticket> tickets, std::chrono::nanoseconds time);
  // What is known now; complete once the request has ended.
  Report report() const;
  // Calls it once when the request has ended, or at once if it has, on the Context's completion thread. (On this thread
  // if there is no such thread: for an empty Ticket, in a forked child, after the Context.) It may submit; it must not
  // wait or throw.
  void then(std::function<void()> call) const;
  // Asks the request to end, and waits for that, at most a little longer than the cancel grace. It ends as cancelled,
  // or as abandoned if operations don't come back, unless it was done first.
  Outcome cancel();

 private:
  friend struct client::Access;
  explicit Ticket(std::shared_ptr<client::PendingRequest> request);

  std::shared_ptr<client::PendingRequest> request_;  // shared with the workers
};

}  // namespace penstock
