#include "measure.h"

#include <CLI/Option.hpp>

#include "interrupt.h"

namespace penstock::cli {

void add_measure_flags(CLI::App& parser, MeasureFlags& flags, const std::string& size_help) {
  parser.add_option("--to", flags.domain, "the memory to load into: host, pinned or cuda:N")
      ->type_name("DOMAIN")
      ->capture_default_str();
  parser.add_option("--seconds", flags.seconds, "roughly how long to measure")
      ->type_name("N")
      ->capture_default_str()
      ->check(number(0.1, 3600));
  add_size(parser, "--size", flags.size, size_help);
  parser.add_flag("--json", flags.output.json, "print one JSON object");
}

void MeasureProgress::say(std::string step) {
  step_ = std::move(step);
  line_.say(format_seconds(stopwatch_.seconds()) + ": " + step_);
}

bool MeasureProgress::keep_going() {
  say(step_);
  return !interrupted();
}

}  // namespace penstock::cli
