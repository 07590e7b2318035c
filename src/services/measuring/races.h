// Races: contenders that take turns, and the kinds of them. Random reads are in latency.cc.
//
// Thread safety: one thread.
#pragma once

#include <functional>
#include <vector>

#include "services/measuring/session.h"

namespace penstock::measuring {

struct Contender {
  RaceRow row;
  std::function<Result<Sample>(double seconds)> round;
};

struct Schedule {
  int rounds = 7;
  int fewest = 3;       // that are made even when the time is over
  double seconds = 30;  // for all of them
};

// Each runs once a round, in an order that rotates, so that none is always first. One that fails leaves the race with
// its reason; without the yardstick, which is the first, there is none. REQUIRES: not empty.
Result<Race> run_race(RaceState state, std::vector<Contender> contenders, const Schedule& schedule,
                      const std::function<void(const std::string&)>& say);

Result<Race> race_loads(Session& session, RaceState state, double seconds);
Result<Race> race_writes(Session& session, double seconds);
Result<Race> race_rows(Session& session, double seconds);
Result<LatencyRace> race_latency(Session& session, double seconds);

}  // namespace penstock::measuring
