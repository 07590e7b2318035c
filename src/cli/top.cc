// penstock top: the statistics that Contexts of running processes publish, live, or as Prometheus wants them.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <thread>

#include "interrupt.h"
#include "live.h"
#include "output.h"

namespace penstock::cli {

namespace {

struct TopFlags {
  std::string name;
  double interval = 1;
  bool once = false;
  bool prometheus = false;
  OutputFlags output;
};

using Listing = std::vector<Published>;

constexpr const char* nobody =
    "no program publishes statistics; set PENSTOCK_PUBLISH=NAME in the environment of the program, or its option "
    "publish";

Result<Listing> look(const std::string& name) {
  Result<Listing> found = list_published(name);
  if (!found.ok() || !found->empty() || name.empty()) return found;
  return Error{.code = Code::not_found,
               .message = "no running process publishes statistics as " + name,
               .hint = "set PENSTOCK_PUBLISH=" + name + " in its environment, or its option publish"};
}

const RouteStatistics* same_route(const Published* before, const RouteStatistics& route) {
  if (before == nullptr) return nullptr;
  const auto found = std::ranges::find_if(before->statistics.routes, [&](const RouteStatistics& other) {
    return other.engine == route.engine && other.route == route.route;
  });
  return found != before->statistics.routes.end() ? &*found : nullptr;
}

// Counters begin anew when a program resets them.
template <typename Number>
Number growth(Number now, Number before) {
  return now >= before ? now - before : now;
}

// Between the times at which the program wrote, not those at which it was read; since its begin if it is new.
double seconds_between(const Published& now, const Published* before) {
  return growth(now.statistics.seconds, before != nullptr ? before->statistics.seconds : 0);
}

void add_process(const Published& now, const Published* before, std::vector<std::string>& lines) {
  const double seconds = seconds_between(now, before);
  const auto speed = [&](std::uint64_t bytes) { return seconds > 0 ? format_rate(rate(bytes, seconds)) : "silent"; };
  std::vector<std::string> routes;
  std::uint64_t all = 0;
  for (const RouteStatistics& route : now.statistics.routes) {
    const RouteStatistics* earlier = same_route(before, route);
    const std::uint64_t bytes = growth(route.bytes, earlier != nullptr ? earlier->bytes : 0);
    all += bytes;
    routes.push_back("  " + route.engine + " " + std::string(route_name(route.route)) + " " + speed(bytes) + ", p99 " +
                     format_seconds(route.latency_p99_seconds) + ", " + format_bytes(route.bytes) + " in all" +
                     (route.failed == 0 ? "" : ", " + std::to_string(route.failed) + " failed"));
  }
  lines.push_back(now.name + " " + std::to_string(now.pid) + " " + now.command + " " + speed(all));
  lines.insert(lines.end(), routes.begin(), routes.end());
  const std::uint64_t unfreed_bytes = now.statistics.unfreed_pinned_bytes + now.statistics.unfreed_device_bytes;
  lines.push_back(
      "  " + std::to_string(now.statistics.requests) + " requests" +
      (now.statistics.requests_failed == 0 ? "" : ", " + std::to_string(now.statistics.requests_failed) + " failed") +
      ", " + format_bytes(now.statistics.pinned_bytes) + " pinned" +
      (now.statistics.operations_in_flight == 0
           ? ""
           : ", " + format_bytes(now.statistics.bytes_in_flight) + " in flight in " +
                 std::to_string(now.statistics.operations_in_flight) + " operations") +
      (now.statistics.quarantined_bytes == 0 ? ""
                                             : ", " + format_bytes(now.statistics.quarantined_bytes) + " quarantined") +
      (unfreed_bytes == 0 ? "" : ", " + format_bytes(unfreed_bytes) + " not freed yet"));
}

const Published* find(const Listing& listing, const std::string& file) {
  const auto found = std::ranges::find(listing, file, &Published::file);
  return found != listing.end() ? &*found : nullptr;
}

std::vector<std::string> describe(const Listing& now, const Listing& before) {
  std::vector<std::string> lines;
  for (const Published& one : now) add_process(one, find(before, one.file), lines);
  if (lines.empty()) lines.emplace_back(nobody);
  return lines;
}

bool is_silent(const Published& now, const Listing& before) {
  const Published* earlier = find(before, now.file);
  return earlier != nullptr && seconds_between(now, earlier) == 0;
}

// After the interval; later by what programs need to write again on a busy machine, but not for one that is stopped.
Result<Listing> look_after(double interval, const std::string& name, const Listing& before) {
  constexpr double patience_seconds = 1;
  const Stopwatch stopwatch;
  Result<Listing> now = before;
  while (!interrupted() && now.ok() && stopwatch.seconds() < interval + patience_seconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (stopwatch.seconds() < interval) continue;
    now = list_published(name);
    if (now.ok() && std::ranges::none_of(*now, [&](const Published& one) { return is_silent(one, before); })) break;
  }
  return now;
}

Exit print_once(const TopFlags& flags, const Output& output) {
  const Result<Listing> before = look(flags.name);
  if (!before.ok()) return output.fail(before.error());
  const Result<Listing> now = before->empty() ? *before : look_after(flags.interval, flags.name, *before);
  if (interrupted()) return output.fail(interrupted_error());
  if (!now.ok()) return output.fail(now.error());
  for (const std::string& line : describe(*now, *before)) output.heading(line);
  return Exit::ok;
}

// Whoever looks ends it when they have seen enough: that is no failure.
Exit print_live(const TopFlags& flags, const Output& output) {
  LiveText text(stdout, LiveText::End::keep);
  Result<Listing> before = look(flags.name);
  if (!before.ok()) return output.fail(before.error());
  while (!interrupted()) {
    Result<Listing> now = look_after(flags.interval, flags.name, *before);
    if (!now.ok()) return output.fail(now.error());
    text.show(describe(*now, *before));
    before = std::move(now);
  }
  return Exit::ok;
}

Json listing_json(const Listing& listing) {
  Json processes = Json::array();
  for (const Published& one : listing) {
    processes.push_back({{"name", one.name},
                         {"pid", one.pid},
                         {"command", one.command},
                         {"file", one.file},
                         {"statistics", Json::parse(one.statistics.to_json())}});
  }
  return {{"schema", "penstock.top/1"}, {"processes", std::move(processes)}};
}

Exit run(const TopFlags& flags) {
  const Output output(flags.output);
  if (!flags.output.json && !flags.prometheus) {
    const bool live = !flags.once && LiveText(stdout, LiveText::End::keep).visible();
    return live ? print_live(flags, output) : print_once(flags, output);
  }
  const Result<Listing> listing = look(flags.name);
  if (!listing.ok()) return output.fail(listing.error());
  if (flags.prometheus) {
    std::fputs(to_prometheus(*listing).c_str(), stdout);
  } else {
    output.object(listing_json(*listing));
  }
  return Exit::ok;
}

}  // namespace

Command add_top(CLI::App& tool) {
  auto flags = std::make_shared<TopFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("top", "Show the statistics of running programs, live");
  parser->add_option("NAME", flags->name, "show only programs that publish under this name; default: all");
  parser->add_option("--interval", flags->interval, "seconds between updates")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number(0.25, 3600));
  auto* once = parser->add_flag("--once", flags->once, "print one interval and exit, as without a terminal");
  auto* prometheus =
      parser->add_flag("--prometheus", flags->prometheus, "print all counters in Prometheus's text format");
  parser->add_flag("--json", flags->output.json, "print one JSON object")->excludes(prometheus);
  prometheus->excludes(once);
  parser->footer(
      "Examples:\n"
      "  PENSTOCK_PUBLISH=train python3 train.py &\n"
      "  penstock top train\n"
      "  penstock top --prometheus > /var/lib/node_exporter/penstock.prom");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
