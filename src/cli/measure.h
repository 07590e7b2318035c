// What the commands that measure for a while have in common: bench and tune.
#pragma once

#include "output.h"

namespace penstock::cli {

inline constexpr std::uint64_t default_measured_bytes = 1 << 30;

struct MeasureFlags {
  std::string path, domain = "host";
  std::string given;  // the path, before "tier:" was looked up
  std::optional<std::uint64_t> size;
  double seconds = 0;
  OutputFlags output;
};
// All but PATH, which each command describes itself.
void add_measure_flags(CLI::App& parser, MeasureFlags& flags, const std::string& size_help);

// A line on the terminal that says what is being measured, and since when.
class MeasureProgress {
 public:
  MeasureProgress(const OutputFlags& flags, std::string step) : line_(std::nullopt, flags) { say(std::move(step)); }

  void say(std::string step);
  // To be asked now and then while it is measured.
  bool keep_going();

 private:
  Progress line_;
  Stopwatch stopwatch_;
  std::string step_;
};

}  // namespace penstock::cli
