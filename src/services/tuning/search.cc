#include "services/tuning/search.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace penstock::tuning {

namespace {

constexpr double worthwhile = 0.03;
// What a step must gain to be kept: less than what is worthwhile, since several small ones may add up.
constexpr double step_gain = 1.01;

// An option, and how far a search goes with it.
struct Knob {
  std::variant<std::uint32_t Options::*, std::uint64_t Options::*> member;
  std::uint64_t least;
  std::uint64_t most;
  bool staging = false;
};
constexpr Knob knobs[] = {
    {&Options::lanes, 1, 64},
    {&Options::storage_chunk_bytes, 64 << 10, 64 << 20},
    {&Options::operations_in_flight, 1, 1024},
    {&Options::staging_slot_bytes, 256 << 10, 64 << 20, true},
    {&Options::staging_slots_per_lane, 1, 16, true},
};

double at(const std::vector<double>& sorted, double part) {
  return sorted[static_cast<std::size_t>(std::lround(part * static_cast<double>(sorted.size() - 1)))];
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return at(values, 0.5);
}

double noise_of(std::vector<double> values) {
  std::ranges::sort(values);
  return (at(values, 0.75) - at(values, 0.25)) / at(values, 0.5);
}

double ratio(const TuningSpeed& speed) {
  return speed.after_bytes_per_second / speed.before_bytes_per_second;
}

// The options with one knob turned, or nothing where it does not go further or the machine would not let it.
std::optional<Options> turned(const Options& options, const Knob& knob, bool up, const Machine& machine) {
  return std::visit(
      [&](auto member) -> std::optional<Options> {
        const std::uint64_t now = options.resolved(machine).*member;
        const std::uint64_t value = up ? now * 2 : now / 2;
        if (value < knob.least || value > knob.most) return std::nullopt;
        Options next = options;
        next.*member = static_cast<std::remove_reference_t<decltype(next.*member)>>(value);
        if (!next.validate()) return std::nullopt;
        // A budget may make slots smaller that were left at their default, but nothing that was chosen.
        const auto holds = tuned_options(next.resolved(machine));
        const auto chosen = tuned_options(next);
        const bool all =
            std::ranges::all_of(chosen, [&](const auto& one) { return std::ranges::count(holds, one) == 1; });
        return all ? std::optional(next) : std::nullopt;
      },
      knob.member);
}

// Turns a knob in one direction while that helps; says whether it did.
Result<bool> turn(const Climb& job, const Knob& knob, bool up, Options& best) {
  bool helped = false;
  while (job.in_time()) {
    const std::optional<Options> next = turned(best, knob, up, job.machine);
    if (!next) break;
    const Result<Comparison> comparison = job.compare(best, *next);
    if (!comparison) return comparison.error();
    const double gain = comparison->gain();
    job.on_trial({*next, comparison->cached.medians(), comparison->cold.medians(), gain});
    if (gain < step_gain) break;
    best = *next;
    helped = true;
  }
  return helped;
}

}  // namespace

std::optional<TuningSpeed> Rounds::medians() const {
  if (before.empty() || after.empty()) return std::nullopt;
  return TuningSpeed{median(before), median(after)};
}

double Comparison::gain() const {
  double product = 1;
  int count = 0;
  for (const Rounds& rounds : {cached, cold}) {
    if (const auto speed = rounds.medians()) {
      product *= ratio(*speed);
      ++count;
    }
  }
  return count == 2 ? std::sqrt(product) : product;
}

Verdict judge(const Comparison& comparison) {
  Verdict verdict;
  bool loses = false;
  for (const Rounds& rounds : {comparison.cached, comparison.cold}) {
    const auto speed = rounds.medians();
    if (!speed) continue;
    const double noise = noise_of(rounds.before);
    const double margin = std::max(worthwhile, noise);
    verdict.noise = std::max(verdict.noise, noise);
    verdict.better = verdict.better || ratio(*speed) > 1 + margin;
    loses = loses || ratio(*speed) < 1 - margin;
  }
  verdict.better = verdict.better && !loses;
  return verdict;
}

Result<Options> climb(const Climb& job) {
  Options best;
  for (bool improved = true; improved && job.in_time();) {
    improved = false;
    for (const Knob& knob : knobs) {
      if (knob.staging && !job.staged) continue;
      for (const bool up : {true, false}) {
        const Result<bool> helped = turn(job, knob, up, best);
        if (!helped) return helped.error();
        improved = improved || *helped;
        if (*helped) break;
      }
    }
  }
  return best;
}

}  // namespace penstock::tuning
