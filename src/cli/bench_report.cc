#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "bench.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

using Row = std::vector<std::string>;

std::string number(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string cpu_name(const Machine& machine) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return machine.architecture;
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

Json null_if_empty(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json machine_facts(Domain to) {
  const Machine machine = Machine::detect();
  Json gpu;
  if (!to.host_accessible()) {
    if (const Result<Gpu> found = find_gpu(to); found.ok()) {
      gpu = {
          {"name", found->name}, {"memory_bytes", found->memory_bytes}, {"cuda_version", found->driver_cuda_version}};
    }
  }
  return {{"cpu", cpu_name(machine)},
          {"cpus", machine.usable_cpus},
          {"memory_bytes", machine.memory_bytes},
          {"architecture", machine.architecture},
          {"kernel", machine.kernel},
          {"load_average", load_average()},
          {"gpu", std::move(gpu)}};
}

Json store_facts(const StoreInfo& info, const BenchFacts& facts) {
  Json disks = Json::array();
  if (const Result<StoragePlace> place = describe_path(facts.place); place.ok()) {
    for (const Disk& disk : place->disks) disks.push_back({{"name", disk.name}, {"virtual", disk.is_virtual}});
  }
  return {{"kind", store_kind_name(info.kind)},
          {"locality", locality_name(info.locality)},
          {"file_system", info.file_system},
          {"size_bytes", info.size_bytes},
          {"direct", info.direct},
          {"scratch", facts.scratch},
          {"disks", std::move(disks)}};
}

Json race_json(const Race& race) {
  Json rows = Json::array(), left_out = Json::array();
  for (const RaceRow& row : race.rows) {
    rows.push_back({{"name", row.name},
                    {"setting", null_if_empty(row.setting)},
                    {"plain", row.plain},
                    {"gb_per_s", series_json(row.bytes_per_second, 1e-9)},
                    {"ratio", series_json(row.ratio)},
                    {"cpu_seconds_per_gb", row.cpu_seconds_per_gigabyte},
                    {"pinned_bytes", row.pinned_bytes},
                    {"memory_bytes", row.memory_bytes},
                    {"routes", routes_json(row.routes)},
                    {"reason", null_if_empty(row.reason)},
                    {"bytes_right", row.bytes_right}});
  }
  for (const LeftOut& one : race.left_out) left_out.push_back({{"name", one.name}, {"reason", one.reason}});
  return {{"state", race_state_name(race.state)},
          {"refused", null_if_empty(race.refused)},
          {"conclusive", race.conclusive},
          {"rows", std::move(rows)},
          {"left_out", std::move(left_out)}};
}

Json microseconds(std::optional<double> seconds) {
  return seconds ? Json(*seconds * 1e6) : Json();
}

Json latency_json(const LatencyRace& race) {
  Json curves = Json::array();
  for (const LatencyCurve& curve : race.curves) {
    Json points = Json::array();
    for (const LatencyPoint& point : curve.points) {
      points.push_back({{"depth", point.depth},
                        {"operations", point.operations},
                        {"iops", series_json(point.operations_per_second)},
                        {"p50_us", microseconds(point.p50_seconds)},
                        {"p99_us", microseconds(point.p99_seconds)},
                        {"p999_us", microseconds(point.p999_seconds)},
                        {"conclusive", point.conclusive}});
    }
    curves.push_back({{"name", curve.name}, {"plain", curve.plain}, {"points", std::move(points)}});
  }
  return {{"refused", null_if_empty(race.refused)},
          {"direct", race.direct},
          {"block_bytes", race.block_bytes},
          {"curves", std::move(curves)}};
}

// What a reader should know before believing a number.
Json make_notes(const Json& bench) {
  Json notes = Json::array();
  for (const Json& disk : bench["store"]["disks"]) {
    if (disk["virtual"]) {
      notes.push_back(disk["name"].get<std::string>() +
                      " is a virtual disk: below it is a cache that can't be emptied from here");
    }
  }
  if (bench["store"]["locality"] == "memory")
    notes.push_back("the file system is memory: nothing here measures storage");
  double shortest = 1;
  for (const Json& race : bench["races"]) {
    for (const Json& row : race["rows"]) {
      shortest = std::min(shortest, bench["bytes"].get<double>() / 1e9 / row["gb_per_s"]["median"].get<double>());
    }
  }
  if (shortest < 0.01) {
    notes.push_back("a load lasts only " + format_seconds(shortest) +
                    ": its beginning and end weigh more than in continuous plain reads; more --seconds or "
                    "a larger file would help");
  }
  const double load = bench["machine"]["load_average"];
  if (load > bench["machine"]["cpus"].get<double>() / 2) {
    notes.push_back("the machine is busy: its load average is " + number("%.1f", load) + ", our own work included");
  }
  return notes;
}

// Text.

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : "";
}

const char* state_text(const std::string& state) {
  if (state == "cached") return "cached: every byte in the page cache, verified before each load";
  if (state == "cold") return "cold: no byte in the page cache, verified before each load";
  if (state == "rows") return "rows: random rows of 256 bytes, all in the page cache";
  return "written: over reserved room, synced within the time";
}

std::string spread_text(const Json& series) {
  return number("%.1f %%", series.at("spread").get<double>() * 100);
}

std::string verdict(const Json& race) {
  const Json& yardstick = race.at("rows").at(0);
  const std::string rounds = std::to_string(yardstick.at("gb_per_s").at("rounds").size()) + " rounds; those of " +
                             text_of(yardstick.at("name")) + " differ by " + spread_text(yardstick.at("gb_per_s"));
  return race.at("conclusive").get<bool>() ? rounds : "inconclusive: " + rounds + ", more than 5 %";
}

std::string memory_text(const Json& row) {
  if (row.at("plain").get<bool>()) return "";
  return format_bytes(
      std::max(row.at("pinned_bytes").get<std::uint64_t>(), row.at("memory_bytes").get<std::uint64_t>()));
}

std::string way_text(const Json& row) {
  if (row.at("plain").get<bool>()) return text_of(row.at("setting"));
  std::string ways;
  for (const auto& [route, bytes] : row.at("routes").items()) ways += (ways.empty() ? "" : ", ") + route;
  return row.at("bytes_right").get<bool>() ? ways : ways + ", WRONG BYTES";
}

// Those with the same reason in one line.
void print_left_out(const Output& output, const Json& left_out) {
  std::vector<std::pair<std::string, std::string>> names_by_reason;
  for (const Json& one : left_out) {
    const std::string reason = text_of(one.at("reason"));
    const auto same = std::ranges::find(names_by_reason, reason, &std::pair<std::string, std::string>::first);
    if (same == names_by_reason.end()) {
      names_by_reason.emplace_back(reason, text_of(one.at("name")));
    } else {
      same->second += "; " + text_of(one.at("name"));
    }
  }
  for (const auto& [reason, names] : names_by_reason) output.field("left out", names + ": " + reason);
}

void print_race(const Output& output, const Json& race) {
  output.section(state_text(text_of(race.at("state"))));
  if (race.at("refused").is_string()) {
    output.field("not measured", text_of(race.at("refused")));
    return;
  }
  double most = 0;
  for (const Json& row : race.at("rows")) most = std::max(most, row.at("gb_per_s").at("median").get<double>());
  std::vector<Row> table = {{"", "GB/s", "quartiles", "ratio", "", "CPU s/GB", "memory", ""}};
  for (const Json& row : race.at("rows")) {
    const Json& speed = row.at("gb_per_s");
    const double median = speed.at("median");
    table.push_back({text_of(row.at("name")), number("%6.2f", median),
                     number("%.2f", speed.at("p25")) + "-" + number("%.2f", speed.at("p75")),
                     number("%.3f", row.at("ratio").at("median")), output.bar(median / most),
                     number("%.3f", row.at("cpu_seconds_per_gb")), memory_text(row), way_text(row)});
  }
  output.table(table);
  output.field("verdict", verdict(race));
  print_left_out(output, race.at("left_out"));
}

std::string latency_text(const Json& microseconds) {
  return microseconds.is_null() ? "-" : number("%.0f", microseconds.get<double>());
}

void print_latency(const Output& output, const Json& latency) {
  output.section(latency.at("direct").get<bool>() ? "4 KiB at random places, past the page cache"
                                                  : "4 KiB at random places, out of the page cache");
  if (latency.at("refused").is_string()) {
    output.field("not measured", text_of(latency.at("refused")));
    return;
  }
  double most = 0;
  for (const Json& curve : latency.at("curves")) {
    for (const Json& point : curve.at("points")) most = std::max(most, point.at("iops").at("median").get<double>());
  }
  for (const Json& curve : latency.at("curves")) {
    std::vector<Row> table = {{"depth", "p50 us", "p99 us", "p99.9 us", "k/s", ""}};
    for (const Json& point : curve.at("points")) {
      const double iops = point.at("iops").at("median");
      table.push_back({std::to_string(point.at("depth").get<int>()), latency_text(point.at("p50_us")),
                       latency_text(point.at("p99_us")), latency_text(point.at("p999_us")), number("%.1f", iops / 1e3),
                       output.bar(iops / most), point.at("conclusive").get<bool>() ? "" : "inconclusive"});
    }
    output.heading("  " + text_of(curve.at("name")));
    output.table(table);
  }
}

Row peer_cells(const Json& loader, const std::string& state) {
  const Json& figures = loader.at(state);
  if (figures.is_null()) return {"-", "-"};
  return {number("%.2f", figures.at("gb_per_s").at("median")), number("%.3f", figures.at("ratio").at("median"))};
}

void print_peers(const Output& output, const Json& peers) {
  output.section("loaders of " + text_of(peers.at("python")) + ", to " + text_of(peers.at("device")));
  std::vector<Row> table = {{"", "cached GB/s", "ratio", "cold GB/s", "ratio", "from start", "extra memory", "bytes"}};
  for (const Json& loader : peers.at("loaders")) {
    Row row = {text_of(loader.at("name")) + " " + text_of(loader.at("version"))};
    for (const char* state : {"cached", "cold"}) {
      for (std::string& cell : peer_cells(loader, state)) row.push_back(std::move(cell));
    }
    const std::uint64_t extra =
        loader.at("extra_device_bytes").get<std::uint64_t>() + loader.at("extra_host_bytes").get<std::uint64_t>();
    row.push_back(format_seconds(loader.at("start_seconds")));
    row.push_back(format_bytes(extra));
    row.push_back(loader.at("wrong").empty() ? "right" : "WRONG");
    table.push_back(std::move(row));
  }
  if (table.size() > 1) output.table(table);
  for (const char* state : {"cached", "cold"}) {
    const Json& ceiling = peers.at("ceiling").at(state);
    if (ceiling.is_null() || ceiling.at("gb_per_s").at("spread").get<double>() <= conclusive_spread) continue;
    output.field("verdict", std::string(state) + ", inconclusive: rounds of the ceiling differ by " +
                                spread_text(ceiling.at("gb_per_s")) + ", more than 5 %");
  }
  print_left_out(output, peers.at("missing"));
}

// What Penstock does by itself: the first engine, in the order it prefers them. Not the luckiest of all.
void print_summary(const Output& output, const Json& bench) {
  for (const Json& race : bench.at("races")) {
    const auto usual =
        std::ranges::find_if(race.at("rows"), [](const Json& row) { return !row.at("plain").get<bool>(); });
    if (usual == race.at("rows").end()) {
      output.field(text_of(race.at("state")), "not measured");
      continue;
    }
    output.field(text_of(race.at("state")), number("%.2f GB/s, ", usual->at("gb_per_s").at("median")) +
                                                number("%.3f of ", usual->at("ratio").at("median")) +
                                                text_of(race.at("rows").at(0).at("name")) +
                                                (race.at("conclusive").get<bool>() ? "" : ", inconclusive"));
  }
  for (const Json& curve : bench.at("latency").at("curves")) {
    if (curve.at("plain").get<bool>()) continue;
    const Json &first = curve.at("points").front(), &last = curve.at("points").back();
    output.field("4 KiB", number("%.0f us one at a time, ", first.at("p50_us")) +
                              number("%.1f k/s with ", last.at("iops").at("median").get<double>() / 1e3) +
                              std::to_string(last.at("depth").get<int>()));
  }
}

std::string storage_text(const Json& store) {
  std::string text = text_of(store.at("file_system"));
  for (const Json& disk : store.at("disks")) {
    text += " on " + text_of(disk.at("name")) + (disk.at("virtual").get<bool>() ? " (virtual)" : "");
  }
  return text + (store.at("scratch").get<bool>() ? ", a file made for this and gone again" : "");
}

std::string machine_text(const Json& machine) {
  std::string text = text_of(machine.at("cpu")) + ", " + std::to_string(machine.at("cpus").get<int>()) + " CPUs, " +
                     format_bytes(machine.at("memory_bytes")) + ", Linux " + text_of(machine.at("kernel"));
  if (machine.at("gpu").is_object()) text += ", " + text_of(machine.at("gpu").at("name"));
  return text;
}

}  // namespace

Json series_json(const Series& series, double scale) {
  Json rounds = Json::array();
  for (const double value : series.rounds) rounds.push_back(value * scale);
  return {{"median", series.median * scale},
          {"p25", series.p25 * scale},
          {"p75", series.p75 * scale},
          {"spread", series.spread},
          {"rounds", std::move(rounds)}};
}

Json bench_json(const Measured& measured, const BenchFacts& facts) {
  Json races = Json::array();
  for (const Race& race : measured.races) races.push_back(race_json(race));
  Json bench = {{"schema", "penstock.bench/1"},
                {"path", facts.path},
                {"to", facts.to.name()},
                {"when", utc_now()},
                {"version", version()},
                {"bytes", measured.size_bytes},
                {"seconds", measured.seconds},
                {"machine", machine_facts(facts.to)},
                {"store", store_facts(measured.store, facts)},
                {"races", std::move(races)},
                {"latency", latency_json(measured.latency)},
                {"packed", Json()},
                {"peers", Json()}};
  bench["notes"] = make_notes(bench);
  return bench;
}

void print_bench(const Output& output, const Json& bench) {
  output.heading(text_of(bench.at("path")) + " to " + text_of(bench.at("to")) + ": " + format_bytes(bench.at("bytes")) +
                 " at a time, for " + format_seconds(bench.at("seconds")));
  print_summary(output, bench);
  output.field("storage", storage_text(bench.at("store")));
  output.field("machine", machine_text(bench.at("machine")));
  output.field("version", "penstock " + text_of(bench.at("version")) + ", " + text_of(bench.at("when")));
  for (const Json& note : bench.at("notes")) output.field("mind", text_of(note));
  for (const Json& race : bench.at("races")) print_race(output, race);
  print_latency(output, bench.at("latency"));
  // Earlier results have none.
  if (bench.value("packed", Json()).is_object()) print_packed(output, bench);
  if (bench.at("peers").is_object()) print_peers(output, bench.at("peers"));
}

}  // namespace penstock::cli
