// The search for better options, apart from what measures them, so that it can be tested with speeds that are made up.
//
// Thread safety: pure functions of what they are handed.
#pragma once

#include <functional>
#include <vector>

#include "penstock/machine.h"
#include "penstock/tuning.h"

namespace penstock::tuning {

// The speeds of rounds that were taken in turns, in bytes a second. Empty: not measurable.
struct Rounds {
  std::vector<double> before, after;

  std::optional<TuningSpeed> medians() const;
};
struct Comparison {
  Rounds cached, cold;

  // How many times as fast the later options are: the geometric mean of both, by medians.
  double gain() const;
};

struct Verdict {
  bool better = false;
  double noise = 0;  // of the noisier of the two
};
// Better is what gains more than 3 % and more than the noise, cached or cold, and loses no such amount in the other.
Verdict judge(const Comparison& comparison);

struct Climb {
  Machine machine;
  bool staged = false;  // whether staging slots matter
  std::function<Result<Comparison>(const Options& before, const Options& after)> compare;
  std::function<bool()> in_time;
  std::function<void(const TuningTrial&)> on_trial;
};
// Doubles and halves one option after the other for as long as that helps.
Result<Options> climb(const Climb& job);

}  // namespace penstock::tuning
