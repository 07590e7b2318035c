// Requests: what a caller asks for, the Ticket that stands for it, and the Report that it ends with.
//
// A request ends exactly once: done, failed, cancelled or abandoned. A deadline ends a wait, never ownership: an
// *abandoned* request has ended while the kernel or a device may still touch its memory, so that memory must outlive
// the Context. Memory of a penstock::Buffer needs no such care: whatever becomes of the Buffer, it stays until the
// request has ended, and nothing of it can touch the memory any more.
//
// Thread safety: a Ticket may be used from any thread. Lifetime: tickets may be dropped at any time; the request runs
// on. Tickets outlive their Context: closing ends every request. In a forked child, what had not ended before the fork
// counts as cancelled, and nothing waits for it.
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
#include "penstock/region.h"
#include "penstock/result.h"
#include "penstock/route.h"
#include "penstock/store.h"
#include "penstock/transform.h"

namespace penstock {

namespace core {
class Request;
}

// One contiguous transfer between a store and memory. Its length is the size of `memory`. What it points to needs to
// live only until the call that takes it returns.
struct Range {
  const Store* store = nullptr;
  std::uint64_t offset = 0;
  Region memory;
  const Stored* stored = nullptr;  // reads only: the store has other bytes, which make those of the memory
};

// Ranges that are known only when a request begins. It must not wait, nor throw.
using RangeSource = std::function<Result<std::vector<Range>>()>;

enum class Direction : std::uint8_t { read, write };

enum class Outcome : std::uint8_t { pending, done, failed, cancelled, abandoned };
PENSTOCK_EXPORT std::string_view outcome_name(Outcome outcome);

// An operation that failed. Bytes of its range are unspecified; those of all other ranges are right, unless the request
// was stopped early (Code::timed_out, cancelled, closed or abandoned): then no range is vouched for.
struct Failure {
  std::uint64_t range = 0;   // its index in the request
  std::uint64_t offset = 0;  // in the store: where the failed operation began
  std::uint64_t bytes = 0;   // of that operation
  Code code = Code::internal;
  int system_error = 0;
};

// What the time went into, as far as it can be told.
enum class Limit : std::uint8_t { unknown, storage, copy, cpu };
PENSTOCK_EXPORT std::string_view limit_name(Limit limit);

struct PENSTOCK_EXPORT Report {
  Outcome outcome = Outcome::pending;
  std::uint64_t bytes = 0;         // that arrived
  double seconds = 0;              // from the call to the end
  RouteBytes routes{};             // the way they took
  std::uint64_t extra_bytes = 0;   // that were read beside them, since disks give whole blocks
  std::uint64_t stored_bytes = 0;  // that were read to make some of them (Range::stored)
  std::string engine;
  std::string reason;  // why that way
  Limit limit = Limit::unknown;
  double storage_seconds = 0;  // summed over lanes: waiting for storage with nothing else to do
  double copy_seconds = 0;     // summed over lanes: waiting for copies to or from a GPU with nothing else to do
  // Summed over lanes: submitting, copying, finishing; with bytes that were in memory already, also waiting for a CPU.
  double cpu_seconds = 0;
  std::vector<Failure> failures;    // the first 64
  std::uint64_t failure_count = 0;  // all of them
  std::optional<Error> error;       // set unless done

  bool ok() const { return outcome == Outcome::done; }
  // The routes that bytes took, the one with the most first.
  std::vector<RouteShare> routes_taken() const;
  // For people: bytes, time, speed, routes and the reason, in two lines; or what went wrong, and what helps.
  std::string to_string() const;
  // Adds what another request did; the worse outcome and the first error stay. Only `seconds` is the caller's: it
  // knows whether they ran at the same time.
  void add(const Report& other);
};

struct RequestOptions {
  bool durable = false;  // writes: synced before the request ends
  // Overrides the Context's request deadline; 0: the Context's. One below 0, or NaN, has passed already; infinity is
  // none.
  double deadline_seconds = 0;
  // Runs once, on the Context's completion thread or on `executor`. It may submit; it must not wait. Neither of them
  // may throw: that ends the process with a message.
  std::function<void(const Report&)> on_end;
  std::function<void(std::function<void()>)> executor;
  // Runs once for each range that has bytes: when all of them are there (Code::ok), or the first of them failed; others
  // of that range may still be on their way then. On the lane that moved them, so it must not wait, nor take a lock
  // that is held for long, nor throw. Ranges of a request that is stopped early may not be told of.
  std::function<void(std::uint64_t range, Code code)> on_range;
  // Stream order: the request begins when work that is on the stream already is done, and what is put on the stream
  // later begins when the request has ended, also by failure or cancellation: look at the ticket. All memory must be of
  // the stream's device. Asynchronous requests only. A stream that is being captured into a graph is refused.
  std::optional<CudaStream> stream;
};

// Made by default, or moved from, it stands for no request: it has ended as failed, and the report says so.
class PENSTOCK_EXPORT Ticket {
 public:
  Ticket();
  explicit Ticket(std::shared_ptr<core::Request> request);
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
  // Waits until the request ends or the time is over, which a time below 0 is at once; says whether it has ended.
  bool wait_for(std::chrono::nanoseconds time) const;
  // Waits until the request ends, and tells how; report() tells more. Inside a completion callback it does not wait,
  // and Outcome::pending may come back.
  Outcome wait() const;
  // Waits until at least one of the tickets' requests has ended or the time is over; says whether one has.
  // REQUIRES: all are of one Context.
  static bool wait_any(std::span<const Ticket> tickets, std::chrono::nanoseconds time);
  // What is known now; complete once the request has ended.
  Report report() const;
  // Calls it once, on the Context's completion thread, when the request has ended; at once if it has. (Here and now
  // where there is no such thread: for an empty Ticket, in a forked child, after the Context.) It may submit; it must
  // not wait, and not throw. A small request that nobody waits for may end a millisecond later than it could, unless it
  // was given a callback.
  void then(std::function<void()> call) const;
  // Asks the request to end; waits until it has, at most the cancel grace and a little. Ends it as cancelled, or as
  // abandoned if operations don't come home, unless it was done first.
  Outcome cancel();

 private:
  std::shared_ptr<core::Request> request_;  // shared: by the lanes that work on it
};

}  // namespace penstock
