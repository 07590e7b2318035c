// The parts of `penstock bench`: what is measured becomes one JSON object, and that object becomes text or a page. So
// an earlier result is shown exactly as a fresh one.
#pragma once

#include <functional>
#include <string>

#include "measure.h"
#include "penstock/measuring.h"

namespace penstock::cli {

struct BenchFlags : MeasureFlags {
  BenchFlags() { seconds = 30; }

  std::string html, python = "python3", from;
  std::vector<std::string> compare;  // two results
  bool peers = false;
  bool write = false;
  bool layers = false;
  std::optional<std::uint64_t> budget;
  std::vector<std::string> groups;  // patterns
  double compute_ms = 0;            // of a group
};

// What is known beside what was measured.
struct BenchFacts {
  std::string path;  // as it was given
  Domain to;
  bool scratch = false;  // measured with a file that was made for it
  std::string place;     // a path on the same storage, to look for its disks
};
Json bench_json(const Measured& measured, const BenchFacts& facts);
Json series_json(const Series& series, double scale = 1);
void print_bench(const Output& output, const Json& bench);

// What bench/run.py calls its results.
inline constexpr const char* run_schema = "penstock-bench-1";
// Two results of one kind, row by row. Throws Json::exception if one is not whole.
Json compare_results(const Json& before, const Json& after);
void print_comparison(const Output& output, const Json& comparison);

// Passes over the groups of a model through a budget of memory.
Result<Json> bench_layers(const BenchFlags& flags);
void print_layers(const Output& output, const Json& result);

// Loads of the tensors of a packed model, by decoded bytes; null for any other file.
struct PackedJob {
  std::string path;
  Domain to;
  std::uint64_t size_bytes = 0;  // of tensors at a time, about
  double seconds = 0;            // for each state of the page cache, about
  std::function<bool()> keep_going;
};
Result<Json> bench_packed(const PackedJob& job);
// Of a result that has some.
void print_packed(const Output& output, const Json& bench);

// One page that needs nothing else, with the object inside.
std::string bench_page(const Json& bench);

// Runs the comparison of loaders that comes with the tool on a model, and returns its table.
struct PeersJob {
  std::string path;  // a safetensors file, or a directory of them
  Domain to;
  std::string python;
  OutputFlags output;
};
Result<Json> compare_peers(const PeersJob& job);

}  // namespace penstock::cli
