// Standing: a request that a CUDA graph runs again and again. The graph writes a word to start it and waits for another
// word that marks its end, so replays need no call from the program.
//
//   auto rows = context.stand_by(penstock::Direction::read, penstock::Domain::cuda(0), [&] { return ranges; }).value();
//   // while the stream is captured: what comes before says what to read, what comes after finds it there
//   rows.enqueue({stream});
//   // after each replay, if need be: rows.report()
//
// The words have 32 bits, in host memory that GPUs see. A stream writes 1 to `begin_word`, waits until `end_word` is 1,
// and writes 0 to it: enqueue puts these three on it. Rounds of one Standing must not overlap; use one for each graph
// that may run at the same time.
//
// While a Standing exists, a stream may wait for it at any time: GPU memory that is freed meanwhile is kept for later,
// and many small copies take a little longer. A thread watches the words: all the time shortly after a round, then
// every 20 µs, and after a second without a round every 200 µs.
//
// Thread safety: any thread. Lifetime: its destruction, or that of its Context, lets a running round and its stream
// finish and starts no other: a graph launched later waits forever. So destroy graphs first.
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/cuda.h"
#include "penstock/request.h"
#include "penstock/result.h"

namespace penstock {

namespace client {
class StandingRequest;
struct Access;
}  // namespace client

// Default-constructed or moved from, it is empty: the words are 0, and the report says so.
class PENSTOCK_EXPORT Standing {
 public:
  Standing();
  Standing(Standing&&) noexcept;
  Standing& operator=(Standing&&) noexcept;
  ~Standing();

  // Puts a round on a stream, which may be capturing.
  Status enqueue(CudaStream stream);
  // Addresses of the words, as GPUs see them.
  std::uint64_t begin_word() const;
  std::uint64_t end_word() const;
  // Rounds that have begun.
  std::uint64_t rounds() const;
  // Of the last round; Outcome::pending while it runs, and before the first.
  Report report() const;

 private:
  friend struct client::Access;
  explicit Standing(std::shared_ptr<client::StandingRequest> request);

  std::shared_ptr<client::StandingRequest> request_;  // shared with the thread that watches the words
};

}  // namespace penstock
