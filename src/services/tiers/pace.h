// Pace: how fast a move goes, and whether it goes on. Asked between two pieces of it.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "penstock/tiers.h"

namespace penstock::tiers {

class Catalog;

// The same callbacks, of which only one runs at a time, whichever thread calls.
MoveOptions one_at_a_time(MoveOptions options);

class Pace {
 public:
  // `may_go_on` says why not, and is asked a few times a second.
  Pace(Catalog& catalog, const MoveOptions& options);

  // Waits as long as the rate wants it after so many bytes, and while movers are paused. Code::cancelled: it is to end.
  Status after(std::uint64_t bytes);
  // What ends it, besides.
  void set_check(std::function<Status()> check) { check_ = std::move(check); }
  // What is told while movers are paused.
  void set_pause(std::function<MoveProgress()> pause) { pause_ = std::move(pause); }
  // What only reads is not held with the movers.
  void ignore_pause() { heeds_pause_ = false; }
  void tell(const MoveProgress& progress, bool at_once = false);

 private:
  Status ask();
  Status ask_often();

  Catalog& catalog_;
  const MoveOptions& options_;
  std::function<Status()> check_;
  std::function<MoveProgress()> pause_;
  bool heeds_pause_ = true;
  TimePoint begin_ = Clock::now();
  TimePoint asked_at_{};
  TimePoint told_at_{};
  std::uint64_t bytes_ = 0;  // since begin_
};

}  // namespace penstock::tiers
