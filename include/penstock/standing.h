// Standing: a request that stands by, to be carried out again and again inside a CUDA graph. The graph writes a word to
// begin it and waits for another that says it has ended, so that replays need no call of anybody's.
//
//   auto rows = context.stand_by(penstock::Direction::read, penstock::Domain::cuda(0), [&] { return ranges; }).value();
//   // while the stream is captured: what comes before says what to read, what comes after finds it there
//   rows.enqueue({stream});
//   // after each replay, if need be: rows.report()
//
// The words are 32 bits long, in host memory that GPUs see. A stream writes 1 to `begin_word`, waits until `end_word`
// is 1, and writes 0 to it: that is what enqueue puts on it. Rounds of one Standing must not overlap; take one for each
// graph that may run at the same time.
//
// As long as there is a Standing, a stream may wait for it at any time: GPU memory that is freed meanwhile is kept for
// later, and many small copies take a little longer. A thread looks at the words: all the time shortly after a round,
// then every 20 µs, after a second without one every 200 µs.
//
// Thread safety: any thread. Lifetime: destroyed, or with its Context, it ends a round that runs, whose stream goes on
// when that has ended, and begins no other: a graph that is launched then waits for ever. So graphs go first.
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/cuda.h"
#include "penstock/request.h"
#include "penstock/result.h"

namespace penstock {

namespace core {
class StandingRequest;
}

// Made by default, or moved from, it stands for nothing: words are 0, and the report says so.
class PENSTOCK_EXPORT Standing {
 public:
  Standing();
  explicit Standing(std::shared_ptr<core::StandingRequest> request);
  Standing(Standing&&) noexcept;
  Standing& operator=(Standing&&) noexcept;
  ~Standing();

  // Puts a round on a stream, which may be one that is captured.
  Status enqueue(CudaStream stream);
  // Addresses of the words, as GPUs see them.
  std::uint64_t begin_word() const;
  std::uint64_t end_word() const;
  // Rounds that have begun.
  std::uint64_t rounds() const;
  // Of the last round; Outcome::pending while it runs, and before the first.
  Report report() const;

 private:
  std::shared_ptr<core::StandingRequest> request_;  // shared with who looks at the words
};

}  // namespace penstock
