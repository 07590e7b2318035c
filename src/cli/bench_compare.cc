// penstock bench --compare: two results, row by row. They may be of `penstock bench --json` or of bench/run.py --json.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bench.h"

namespace penstock::cli {

namespace {

// What two runs of the same thing may always differ by, as `penstock tune` has it.
constexpr double least_noise = 0.03;

// A row of a result, whichever program made it.
struct Contestant {
  std::string group, name, unit;
  double median = 0, p25 = 0, p75 = 0;
  bool conclusive = true;
  bool is_yardstick = false;
  bool less_is_better = false;

  double spread() const { return median > 0 ? (p75 - p25) / median : 0; }
};

void set_series(const Json& series, Contestant& row) {
  row.median = series.at("median").get<double>();
  row.p25 = series.at("p25").get<double>();
  row.p75 = series.at("p75").get<double>();
}

void add_races(const Json& bench, std::vector<Contestant>& rows) {
  for (const Json& race : bench.at("races")) {
    for (const Json& row : race.at("rows")) {
      Contestant one{.group = race.at("state"), .name = row.at("name"), .unit = "GB/s"};
      one.conclusive = race.at("conclusive").get<bool>();
      one.is_yardstick = row.at("plain").get<bool>();
      set_series(row.at("gb_per_s"), one);
      rows.push_back(std::move(one));
    }
  }
}

void add_latency(const Json& bench, std::vector<Contestant>& rows) {
  for (const Json& curve : bench.at("latency").at("curves")) {
    for (const Json& point : curve.at("points")) {
      const std::string depth = std::to_string(point.at("depth").get<int>());
      Contestant one{.group = "4 KiB, " + depth + " at a time", .name = curve.at("name"), .unit = "a second"};
      one.conclusive = point.at("conclusive").get<bool>();
      one.is_yardstick = curve.at("plain").get<bool>();
      set_series(point.at("iops"), one);
      rows.push_back(std::move(one));
    }
  }
}

void add_loaders(const Json& bench, std::vector<Contestant>& rows) {
  const Json& peers = bench.at("peers");
  if (peers.is_null()) return;
  for (const char* state : {"cached", "cold"}) {
    const Json& ceiling = peers.at("ceiling").at(state);
    if (ceiling.is_null()) continue;
    const std::string group = "loaders, " + std::string(state);
    const bool conclusive = ceiling.at("gb_per_s").at("spread").get<double>() <= conclusive_spread;
    const auto add = [&](const std::string& name, const Json& figures, bool is_yardstick) {
      if (figures.is_null()) return;
      Contestant one{.group = group, .name = name, .unit = "GB/s", .conclusive = conclusive};
      one.is_yardstick = is_yardstick;
      set_series(figures.at("gb_per_s"), one);
      rows.push_back(std::move(one));
    };
    add("ceiling", ceiling, true);
    for (const Json& loader : peers.at("loaders")) add(loader.at("name"), loader.at(state), false);
  }
}

// Of bench/run.py: a row is Penstock beside its own yardstick.
void add_ratios(const Json& report, std::vector<Contestant>& rows) {
  const double limit = report.at("settings").at("spread_limit").get<double>();
  for (const auto& [name, result] : report.at("results").items()) {
    for (const Json& row : result.at("rows")) {
      if (row.at("kind") != "ratio") continue;
      for (const char* side : {"peer", "ours"}) {
        Contestant one{.group = row.at("title"), .name = row.at(std::string(side) + "_name"), .unit = row.at("unit")};
        one.is_yardstick = side == std::string_view("peer");
        one.conclusive = row.at("peer").at("spread").get<double>() <= limit;
        one.less_is_better = row.at("lower_is_better").get<bool>();
        set_series(row.at(side), one);
        rows.push_back(std::move(one));
      }
    }
  }
}

std::vector<Contestant> rows_of(const Json& result) {
  std::vector<Contestant> rows;
  if (result.at("schema") == run_schema) {
    add_ratios(result, rows);
    return rows;
  }
  add_races(result, rows);
  add_latency(result, rows);
  add_loaders(result, rows);
  return rows;
}

const Contestant* find_same(const std::vector<Contestant>& rows, const Contestant& wanted) {
  const auto same = std::ranges::find_if(
      rows, [&](const Contestant& row) { return row.group == wanted.group && row.name == wanted.name; });
  return same != rows.end() ? &*same : nullptr;
}

struct Pair {
  const Contestant* before = nullptr;
  const Contestant* after = nullptr;

  const Contestant& any() const { return after != nullptr ? *after : *before; }
  bool whole() const { return before != nullptr && after != nullptr && before->median > 0 && after->median > 0; }
  double ratio() const { return after->median / before->median; }
  double noise() const { return std::max({before->spread(), after->spread(), least_noise}); }
  bool moved() const { return std::abs(ratio() - 1) > noise(); }
};

// A yardstick that moved tells of the machine, not of Penstock: then nothing that ran beside it is comparable.
std::string verdict_on(const Pair& pair, const std::vector<Pair>& pairs) {
  if (!pair.whole()) return pair.before == nullptr ? "only in the new" : "only in the old";
  if (!pair.before->conclusive || !pair.after->conclusive) return "inconclusive";
  const bool other_machine = std::ranges::any_of(pairs, [&](const Pair& other) {
    return other.any().is_yardstick && other.any().group == pair.any().group && other.whole() && other.moved();
  });
  if (other_machine) return "inconclusive";
  if (!pair.moved()) return "same within noise";
  return (pair.ratio() > 1) != pair.any().less_is_better ? "better" : "worse";
}

Json row_json(const Pair& pair, const std::vector<Pair>& pairs) {
  const auto median = [](const Contestant* row) { return row != nullptr ? Json(row->median) : Json(); };
  const Contestant& any = pair.any();
  return {{"group", any.group},
          {"name", any.name},
          {"unit", any.unit},
          {"yardstick", any.is_yardstick},
          {"less_is_better", any.less_is_better},
          {"old", median(pair.before)},
          {"new", median(pair.after)},
          {"ratio", pair.whole() ? Json(pair.ratio()) : Json()},
          {"spread", pair.whole() ? Json(pair.noise()) : Json()},
          {"verdict", verdict_on(pair, pairs)}};
}

Json differences(const Json& before, const Json& after) {
  Json notes = Json::array();
  const auto note = [&](const char* key, const char* what) {
    if (before.value(key, Json()) != after.value(key, Json())) notes.push_back(std::string(what) + " differ");
  };
  if (before.at("schema") != run_schema) {
    note("to", "the memories that were loaded into");
    note("bytes", "the sizes of a load");
  }
  const auto cpu = [](const Json& result) { return result.value("machine", Json::object()).value("cpu", Json()); };
  if (cpu(before) != cpu(after)) notes.push_back("the machines differ");
  return notes;
}

std::string text(const char* pattern, double value) {
  char made[64];
  std::snprintf(made, sizeof made, pattern, value);
  return made;
}

std::string figure(const Json& value) {
  return value.is_null() ? "-" : text("%.4g", value.get<double>());
}

}  // namespace

Json compare_results(const Json& before, const Json& after) {
  const std::vector<Contestant> old_rows = rows_of(before), new_rows = rows_of(after);
  std::vector<Pair> pairs;
  for (const Contestant& row : old_rows) pairs.push_back({&row, find_same(new_rows, row)});
  for (const Contestant& row : new_rows) {
    if (find_same(old_rows, row) == nullptr) pairs.push_back({nullptr, &row});
  }
  Json rows = Json::array();
  std::size_t worse = 0, better = 0;
  for (const Pair& pair : pairs) {
    rows.push_back(row_json(pair, pairs));
    const Json& verdict = rows.back().at("verdict");
    if (pair.any().is_yardstick) continue;
    worse += verdict == "worse" ? 1 : 0;
    better += verdict == "better" ? 1 : 0;
  }
  return {{"schema", "penstock.compare/1"},
          {"better", better},
          {"worse", worse},
          {"notes", differences(before, after)},
          {"rows", std::move(rows)}};
}

void print_comparison(const Output& output, const Json& comparison) {
  output.heading(std::to_string(comparison.at("worse").get<int>()) + " worse, " +
                 std::to_string(comparison.at("better").get<int>()) + " better of " +
                 std::to_string(comparison.at("rows").size()) + " rows");
  for (const Json& note : comparison.at("notes")) output.field("mind", note.get<std::string>());
  std::vector<std::vector<std::string>> table = {{"", "", "old", "new", "", "ratio", "spread", ""}};
  for (const Json& row : comparison.at("rows")) {
    table.push_back({row.at("group"), row.at("name"), figure(row.at("old")), figure(row.at("new")), row.at("unit"),
                     row.at("ratio").is_null() ? "-" : text("%.3f", row.at("ratio").get<double>()),
                     row.at("spread").is_null() ? "-" : text("%.1f %%", row.at("spread").get<double>() * 100),
                     row.at("verdict").get<std::string>() + (row.at("yardstick").get<bool>() ? ", yardstick" : "")});
  }
  output.table(table);
}

}  // namespace penstock::cli
