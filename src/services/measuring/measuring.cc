#include "penstock/measuring.h"

#include <filesystem>

#include "base/callback.h"
#include "base/clock.h"
#include "services/measuring/races.h"

namespace penstock {

namespace {

// What each part may take, of all the time; the rest goes into reading and checking.
struct Shares {
  double cached, cold, latency, rows, written;
};
constexpr Shares reading{.cached = 0.22, .cold = 0.38, .latency = 0.22, .rows = 0.08, .written = 0};
constexpr Shares writing{.cached = 0.18, .cold = 0.28, .latency = 0.18, .rows = 0.06, .written = 0.2};

}  // namespace

Result<Measured> measure(const MeasuringJob& given) {
  if (Status status = check_seconds("MeasuringJob::seconds", given.seconds); !status) return std::move(status).error();
  const double start = measuring::now();
  MeasuringJob job = given;
  // Absolute, it is a path to everybody, whatever it looks like.
  std::error_code ignored;
  job.path = std::filesystem::absolute(given.path, ignored).string();
  job.keep_going = keep_going_by("MeasuringJob::keep_going", given.keep_going);
  Result<std::unique_ptr<measuring::Session>> session = measuring::Session::create(job);
  if (!session) return session.error();

  const Shares& shares = job.write_path.empty() ? reading : writing;
  Measured result{.store = (*session)->info(), .size_bytes = (*session)->size_bytes()};
  // What can't be measured here does not keep the rest from it.
  const auto add = [&](RaceState state, Result<Race> race) -> Status {
    if (!race && race.error().code == Code::cancelled) return race.error();
    result.races.push_back(race ? std::move(*race) : Race{.state = state, .refused = race.error().message});
    return {};
  };
  for (const auto& [state, share] : {std::pair(RaceState::cached, shares.cached), {RaceState::cold, shares.cold}}) {
    Status added = add(state, measuring::race_loads(**session, state, job.seconds * share));
    if (!added) return std::move(added).error();
  }
  Result<LatencyRace> latency = measuring::race_latency(**session, job.seconds * shares.latency);
  if (!latency && latency.error().code == Code::cancelled) return latency.error();
  result.latency = latency ? std::move(*latency) : LatencyRace{.refused = latency.error().message};
  // Behind all that wants the store out of the page cache, which does not let go of what is mapped.
  if (Status added = add(RaceState::rows, measuring::race_rows(**session, job.seconds * shares.rows)); !added) {
    return std::move(added).error();
  }
  if (!job.write_path.empty()) {
    Status added = add(RaceState::written, measuring::race_writes(**session, job.seconds * shares.written));
    if (!added) return std::move(added).error();
  }
  result.seconds = measuring::now() - start;
  return result;
}

}  // namespace penstock
