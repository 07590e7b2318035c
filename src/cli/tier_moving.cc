// penstock tier: what moves units, and what it says meanwhile and in the end.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "interrupt.h"
#include "tier.h"
#include "tier_names.h"

namespace penstock::cli::tier {
namespace {

// Moves, with one line that says how far it is.
class Moving {
 public:
  explicit Moving(const Flags& flags)
      : line_(std::nullopt, flags.output), tells_pause_(!flags.output.quiet && isatty(STDERR_FILENO) == 0) {
    options_.bytes_per_second = flags.rate.value_or(0);
    options_.keep_going = [] { return !interrupted(); };
    options_.on_progress = [this](const MoveProgress& progress) { show(progress); };
  }
  const MoveOptions& options() const { return options_; }

 private:
  void show(const MoveProgress& progress) {
    if (progress.step == MoveStep::done) ++units_;
    if (progress.step == MoveStep::paused && tells_pause_) {
      std::fputs("paused; `penstock tier resume` goes on\n", stderr);
      tells_pause_ = false;
    }
    const char* step = progress.step == MoveStep::verifying ? ", comparing "
                       : progress.step == MoveStep::paused  ? ", paused at "
                                                            : ", ";
    line_.say(std::to_string(units_) + " moved; " + std::string(progress.name) + " to " + std::string(progress.to) +
              step + format_bytes(progress.bytes) + " of " + format_bytes(progress.total_bytes));
  }
  Progress line_;
  bool tells_pause_;  // where nobody sees the line, once
  MoveOptions options_;
  std::uint64_t units_ = 0;
};

Json report_json(const MoveReport& report) {
  Json json = {{"unit_count", report.units},
               {"bytes", report.bytes},
               {"resumed_bytes", report.resumed_bytes},
               {"seconds", report.seconds},
               {"gb_per_s", rate(report.bytes, report.seconds) / 1e9},
               {"busy", report.busy},
               {"failed", report.failure_count},
               {"failures", Json::array()}};
  for (const MoveFailure& failure : report.failures) {
    json["failures"].push_back({{"name", name_json(failure.name)}, {"error", error_json(failure.error)}});
  }
  return json;
}

Exit moved(const char* verb, const Output& output, const Result<MoveReport>& report) {
  if (!report.ok()) return output.fail(report.error());
  const bool stopped = report->error.has_value();
  if (output.json()) {
    Json json = head(verb);
    json.update(report_json(*report));
    if (stopped) json["error"] = error_json(*report->error);
    output.object(json);
  } else {
    for (const MoveFailure& failure : report->failures) {
      Error error = failure.error;
      error.message = failure.name + ": " + error.message;
      static_cast<void>(output.fail(error));
    }
    if (stopped) static_cast<void>(output.fail(*report->error));
    output.verdict(count_of_units(report->units) + ", " + format_bytes(report->bytes) + " in " +
                   format_seconds(report->seconds) + ": " + format_rate(rate(report->bytes, report->seconds)));
    if (report->resumed_bytes != 0) output.field("resumed", format_bytes(report->resumed_bytes));
    if (report->busy != 0) output.field("busy", count_of_units(report->busy) + ", with other processes");
    if (report->failure_count != 0) output.field("failed", std::to_string(report->failure_count));
  }
  if (interrupted()) return Exit::interrupted;
  if (stopped) return exit_for(report->error->code);
  return report->failure_count == 0 ? Exit::ok : exit_for(report->failures.front().error.code);
}

Exit show_plan(const Output& output, Tiers& tiers) {
  const auto plan = tiers.plan();
  if (!plan.ok()) return output.fail(plan.error());
  if (output.json()) {
    Json json = head("plan");
    json["unit_count"] = plan->units;
    json["bytes"] = plan->bytes;
    json["moves"] = Json::array();
    for (const PlannedMove& one : plan->moves) {
      json["moves"].push_back({{"name", name_json(one.name)},
                               {"from", one.from},
                               {"to", one.to},
                               {"bytes", one.size_bytes},
                               {"heat", one.heat},
                               {"reason", one.reason}});
    }
    output.object(json);
    return Exit::ok;
  }
  for (const PlannedMove& one : plan->moves) {
    output.heading(one.from + " to " + one.to + ": " + one.name + ", " + format_bytes(one.size_bytes));
    output.detail(one.reason);
  }
  output.heading(std::to_string(plan->moves.size()) + " of " + count_of_units(plan->units) + " would move, " +
                 format_bytes(plan->bytes));
  return Exit::ok;
}

}  // namespace

Exit add(const Flags& flags, const Output&, Tiers& tiers) {
  const Moving moving(flags);
  const std::string name = name_from(flags.name);
  return done(flags, "add", tiers.add(flags.path, name, flags.tier, moving.options()), "added " + shown_name(name));
}

Exit move(const Flags& flags, const Output& output, Tiers& tiers) {
  const Moving moving(flags);
  return moved("move", output, tiers.move(flags.name, flags.tier, moving.options()));
}

Exit rebalance(const Flags& flags, const Output& output, Tiers& tiers) {
  if (flags.dry_run) return show_plan(output, tiers);
  const Moving moving(flags);
  return moved("rebalance", output, tiers.rebalance(moving.options()));
}

Exit run_mover(const Flags& flags, const Output& output, Tiers& tiers) {
  for (bool told = false; !interrupted();) {
    const auto paused = tiers.paused();
    if (!paused.ok()) return output.fail(paused.error());
    if (*paused && !told) {
      output.heading("moving is paused; `penstock tier resume` goes on");
      std::fflush(stdout);
    }
    told = *paused;
    if (!*paused) {
      const Moving moving(flags);
      const auto report = tiers.rebalance(moving.options());
      const bool later =
          !report.ok() && (report.error().code == Code::timed_out || report.error().code == Code::in_use);
      if (!report.ok() && !later) return output.fail(report.error());
      if (report.ok() && (report->units != 0 || report->failure_count != 0)) {
        static_cast<void>(moved("run", output, report));
        std::fflush(stdout);
      }
    }
    const Stopwatch since;
    while (!interrupted() && since.seconds() < flags.interval)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return Exit::interrupted;
}

}  // namespace penstock::cli::tier
