#include <algorithm>
#include <cmath>

#include "services/measuring/races.h"

namespace penstock {

namespace {

// Between the two neighbours of the place, as most programs do it.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

}  // namespace

Series Series::of(std::vector<double> rounds) {
  Series series{.rounds = std::move(rounds)};
  if (series.rounds.empty()) return series;
  std::vector<double> sorted = series.rounds;
  std::sort(sorted.begin(), sorted.end());
  series.median = quantile(sorted, 0.5);
  series.p25 = quantile(sorted, 0.25);
  series.p75 = quantile(sorted, 0.75);
  if (series.median > 0) series.spread = (sorted.back() - sorted.front()) / series.median;
  return series;
}

std::string_view race_state_name(RaceState state) {
  switch (state) {
    case RaceState::cached:
      return "cached";
    case RaceState::cold:
      return "cold";
    case RaceState::written:
      return "written";
    case RaceState::rows:
      return "rows";
  }
  return "unknown";
}

namespace measuring {

namespace {

// A contender and what its rounds gave so far.
struct Runner {
  Contender contender;
  std::vector<double> speeds;
  std::vector<double> cpu;
  std::string failure;
};

RaceRow finish(Runner runner, const std::vector<double>& yardstick) {
  RaceRow row = std::move(runner.contender.row);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < runner.speeds.size(); ++i) ratios.push_back(runner.speeds[i] / yardstick[i]);
  row.bytes_per_second = Series::of(std::move(runner.speeds));
  row.ratio = Series::of(std::move(ratios));
  row.cpu_seconds_per_gigabyte = Series::of(std::move(runner.cpu)).median;
  return row;
}

}  // namespace

Result<Race> run_race(RaceState state, std::vector<Contender> contenders, const Schedule& schedule,
                      const std::function<void(const std::string&)>& say) {
  std::vector<Runner> runners;
  runners.reserve(contenders.size());
  for (Contender& contender : contenders) runners.push_back({.contender = std::move(contender)});
  const double end = now() + schedule.seconds;
  const double turn = std::clamp(
      schedule.seconds / static_cast<double>(runners.size()) / static_cast<double>(schedule.rounds), 0.02, 1.3);
  Race race{.state = state};
  for (int round = 0; round < schedule.rounds && (round < schedule.fewest || now() < end); ++round) {
    for (std::size_t i = 0; i < runners.size(); ++i) {
      Runner& runner = runners[(i + static_cast<std::size_t>(round)) % runners.size()];
      if (!runner.failure.empty()) continue;
      say(std::string(race_state_name(state)) + ", round " + std::to_string(round + 1) + ": " +
          runner.contender.row.name);
      const Result<Sample> sample = runner.contender.round(turn);
      if (!sample && sample.error().code == Code::cancelled) return sample.error();
      if (!sample) {
        runner.failure = sample.error().message;
        continue;
      }
      runner.speeds.push_back(static_cast<double>(sample->bytes) / sample->seconds);
      runner.cpu.push_back(sample->cpu_seconds / static_cast<double>(sample->bytes) * 1e9);
    }
    if (!runners.front().failure.empty()) {
      race.refused = runners.front().contender.row.name + ": " + runners.front().failure;
      return race;
    }
  }
  const std::vector<double> yardstick = runners.front().speeds;
  for (Runner& runner : runners) {
    if (!runner.failure.empty()) {
      race.left_out.push_back({runner.contender.row.name, runner.failure});
    } else {
      race.rows.push_back(finish(std::move(runner), yardstick));
    }
  }
  race.conclusive = race.rows.front().bytes_per_second.spread <= conclusive_spread;
  return race;
}

}  // namespace measuring

}  // namespace penstock
