// penstock tier: folders on disks of different speed, what lies on which, and moving it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "interrupt.h"
#include "output.h"
#include "report_file.h"
#include "tier_names.h"
#include "tier_page.h"

namespace penstock::cli {

namespace {

struct TierFlags {
  std::string catalog;
  std::vector<std::string> names;
  std::string name, tier, path, configuration, behind, prefix, after, below, html;
  std::optional<std::uint64_t> capacity, rate;
  std::optional<double> low, high, from_heat, half_life, cooling, least_stay;
  std::uint64_t limit = 1000;
  double interval = 60;
  bool adopt = false, first = false, read_only = false, writable = false, checksum = false, all = false,
       dry_run = false;
  bool bytes = false, prometheus = false, no_strays = false;
  OutputFlags output;
};

Error tier_usage(std::string message, std::string hint) {
  return {.code = Code::invalid_argument, .message = std::move(message), .hint = std::move(hint)};
}

TiersOptions options_of(const TierFlags& flags) {
  return {.catalog = flags.catalog};
}

Result<NewTier> tier_from(const std::string& text, const TierFlags& flags) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return tier_usage("\"" + text + "\" is not NAME=PATH", "write it as nvme=/mnt/fast");
  }
  NewTier tier{.name = text.substr(0, equals), .path = text.substr(equals + 1)};
  tier.capacity_bytes = flags.capacity.value_or(0);
  tier.low_water = flags.low.value_or(tier.low_water);
  tier.high_water = flags.high.value_or(tier.high_water);
  tier.from_heat = flags.from_heat;
  tier.read_only = flags.read_only;
  tier.adopt = flags.adopt;
  tier.first = flags.first;
  return tier;
}

void choose_policy(const TierFlags& flags, TierPolicy& policy) {
  policy.half_life_seconds = flags.half_life.value_or(policy.half_life_seconds);
  policy.cooling = flags.cooling.value_or(policy.cooling);
  policy.least_stay_seconds = flags.least_stay.value_or(policy.least_stay_seconds);
}

Json tier_json(const TierInfo& tier) {
  Json json = {{"name", tier.name},
               {"path", name_json(tier.path)},
               {"id", tier.id},
               {"capacity_bytes", tier.capacity_bytes},
               {"used_bytes", tier.used_bytes},
               {"free_bytes", tier.free_bytes},
               {"units", tier.units},
               {"low_water", tier.low_water},
               {"high_water", tier.high_water},
               {"from_heat", tier.from_heat},
               {"read_only", tier.read_only},
               {"read_bytes_per_second", tier.read_bytes_per_second},
               {"write_bytes_per_second", tier.write_bytes_per_second},
               {"gpu_direct", tier.gpu_direct}};
  json["problem"] = tier.problem ? error_json(*tier.problem) : Json();
  return json;
}

Json unit_json(const UnitInfo& unit) {
  return {{"name", name_json(unit.name)},
          {"kind", unit_kind_name(unit.kind)},
          {"tier", unit.tier},
          {"path", name_json(unit.path)},
          {"bytes", unit.size_bytes},
          {"files", unit.files},
          {"checksum", unit.checksum.empty() ? Json() : Json(unit.checksum)},
          {"accesses", unit.accesses},
          {"heat", unit.heat},
          {"accessed_at", unit.accessed_at},
          {"moved_at", unit.moved_at},
          {"pinned", unit.pinned.empty() ? Json() : Json(unit.pinned)},
          {"moving_to", unit.moving_to.empty() ? Json() : Json(unit.moving_to)},
          {"moved_bytes", unit.moved_bytes},
          {"in_doubt", unit.in_doubt}};
}

Json finding_json(const TierFinding& finding) {
  return {{"name", name_json(finding.name)},
          {"path", name_json(finding.path)},
          {"text", finding.text},
          {"repaired", finding.repaired},
          {"harmless", finding.harmless}};
}

Json head(const char* verb) {
  return {{"schema", "penstock.tier/1"}, {"command", verb}};
}

// The end of what has nothing to tell but that it was done.
Exit done(const TierFlags& flags, const char* verb, const Status& status, const std::string& text) {
  const Output output(flags.output);
  if (!status.ok()) return output.fail(status.error());
  if (output.json()) output.object(head(verb));
  output.heading(text);
  return Exit::ok;
}

std::string shown_heat(double heat) {
  std::string text = std::to_string(heat);
  return text.substr(0, text.find('.') + 2);
}

void print_tiers(const Output& output, const std::vector<TierInfo>& tiers) {
  std::vector<std::vector<std::string>> rows = {
      {"tier", "used", "", "of", "units", "from heat", "read", "write", "path"}};
  for (const TierInfo& tier : tiers) {
    const double share =
        tier.capacity_bytes == 0 ? 0 : static_cast<double>(tier.used_bytes) / static_cast<double>(tier.capacity_bytes);
    const auto speed = [](double value) { return value > 0 ? format_rate(value) : std::string("-"); };
    rows.push_back({tier.name + (tier.read_only ? " (read-only)" : ""), output.bar(std::min(share, 1.0)),
                    format_bytes(tier.used_bytes), format_bytes(tier.capacity_bytes), std::to_string(tier.units),
                    shown_heat(tier.from_heat), speed(tier.read_bytes_per_second), speed(tier.write_bytes_per_second),
                    tier.path});
  }
  output.table(rows);
  for (const TierInfo& tier : tiers) {
    if (!tier.gpu_direct.empty()) output.detail(tier.name + ": GPU memory without staging: " + tier.gpu_direct);
    if (tier.problem) output.item(Mark::bad, tier.problem->message + "; " + tier.problem->hint);
  }
}

Exit init(const TierFlags& flags, const Output& output) {
  Tiers::Configuration configuration;
  if (!flags.configuration.empty()) {
    if (!flags.names.empty())
      return output.fail(tier_usage("tiers are given by --config and by name", "give one of both"));
    std::ifstream file(flags.configuration, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) return output.fail(system_error(errno, "read " + flags.configuration));
    auto parsed = Tiers::parse_configuration(text.str());
    if (!parsed.ok()) return output.fail(parsed.error());
    configuration = std::move(*parsed);
  } else if (flags.names.empty()) {
    auto usual = Tiers::usual_tiers();
    if (!usual.ok()) return output.fail(usual.error());
    configuration.tiers = std::move(*usual);
  }
  for (const std::string& text : flags.names) {
    auto tier = tier_from(text, flags);
    if (!tier.ok()) return output.fail(tier.error());
    configuration.tiers.push_back(std::move(*tier));
  }
  if (flags.adopt) {
    for (NewTier& tier : configuration.tiers) tier.adopt = true;
  }
  choose_policy(flags, configuration.policy);
  auto tiers = Tiers::create(configuration.tiers, configuration.policy, options_of(flags));
  if (!tiers.ok()) return output.fail(tiers.error());
  const auto all = tiers->tiers();
  if (!all.ok()) return output.fail(all.error());
  if (output.json()) {
    Json json = head("init");
    json["catalog"] = tiers->catalog();
    for (const TierInfo& tier : *all) json["tiers"].push_back(tier_json(tier));
    output.object(json);
    return Exit::ok;
  }
  output.heading("made " + tiers->catalog());
  print_tiers(output, *all);
  return Exit::ok;
}

Exit status(const TierFlags& flags, const Output& output, Tiers& tiers) {
  if (flags.prometheus) {
    const auto text = tiers.to_prometheus();
    if (!text.ok()) return output.fail(text.error());
    std::fputs(text->c_str(), stdout);
    return Exit::ok;
  }
  const auto all = tiers.tiers();
  if (!all.ok()) return output.fail(all.error());
  const auto paused = tiers.paused();
  if (!paused.ok()) return output.fail(paused.error());
  if (!flags.html.empty()) {
    const auto units = tiers.list({.limit = 2000});
    if (!units.ok()) return output.fail(units.error());
    auto file = ReportFile::create(flags.html);
    if (!file.ok()) return output.fail(file.error());
    if (Status written = file->write(tier_page(*all, *units)); !written.ok()) return output.fail(written.error());
  }
  if (output.json()) {
    Json json = head("status");
    json["catalog"] = tiers.catalog();
    json["paused"] = *paused;
    for (const TierInfo& tier : *all) json["tiers"].push_back(tier_json(tier));
    output.object(json);
  } else {
    print_tiers(output, *all);
    if (*paused) output.heading("moving is paused; `penstock tier resume` goes on");
  }
  return std::ranges::any_of(*all, [](const TierInfo& tier) { return tier.problem.has_value(); }) ? Exit::failed
                                                                                                  : Exit::ok;
}

Exit list_units(const TierFlags& flags, const Output& output, Tiers& tiers) {
  // Not by what there is now: the unit may be gone since its name was printed.
  const std::string after = output.json() ? percent_decoded(flags.after) : flags.after;
  const auto units = tiers.list({.tier = flags.tier, .prefix = flags.prefix, .after = after, .limit = flags.limit});
  if (!units.ok()) return output.fail(units.error());
  if (output.json()) {
    Json json = head("list");
    json["units"] = Json::array();
    for (const UnitInfo& unit : *units) json["units"].push_back(unit_json(unit));
    output.object(json);
    return Exit::ok;
  }
  std::vector<std::vector<std::string>> rows = {{"tier", "size", "heat", "name"}};
  for (const UnitInfo& unit : *units) {
    std::string name = unit.name + (unit.kind == UnitKind::directory ? "/" : "");
    if (!unit.pinned.empty()) name += "  pinned to " + unit.pinned;
    if (!unit.moving_to.empty()) name += "  on its way to " + unit.moving_to;
    if (unit.in_doubt) name += "  in doubt";
    rows.push_back({unit.tier, format_bytes(unit.size_bytes), shown_heat(unit.heat), std::move(name)});
  }
  output.table(rows);
  if (!units->empty() && units->size() == flags.limit) output.heading("more: --after '" + units->back().name + "'");
  return Exit::ok;
}

Exit where(const TierFlags& flags, const Output& output, Tiers& tiers) {
  const auto path = path_of_unit(tiers, flags.name);
  if (!path.ok()) return output.fail(path.error());
  if (output.json()) {
    Json json = head("where");
    json["name"] = name_json(flags.name);
    json["path"] = name_json(*path);
    output.object(json);
  } else if (output.on_terminal()) {
    output.heading(*path);
  } else if (!flags.output.quiet) {
    std::puts(path->c_str());  // for programs: as it is
  }
  return Exit::ok;
}

Exit why(const TierFlags& flags, const Output& output, Tiers& tiers) {
  const auto unit = tiers.find(flags.name);
  if (!unit.ok()) return output.fail(unit.error());
  const auto placement = tiers.why(flags.name);
  if (!placement.ok()) return output.fail(placement.error());
  if (output.json()) {
    Json json = head("why");
    json["unit"] = unit_json(*unit);
    json["belongs_to"] = placement->tier;
    json["reason"] = placement->reason;
    output.object(json);
    return Exit::ok;
  }
  output.heading(unit->name + (placement->tier == unit->tier ? " stays on " : " belongs to ") + placement->tier + ": " +
                 placement->reason);
  output.field("now", unit->tier + ", " + format_bytes(unit->size_bytes) + ", heat " + shown_heat(unit->heat) + ", " +
                          std::to_string(unit->accesses) + " accesses");
  return Exit::ok;
}

Exit import(const TierFlags& flags, const Output& output, Tiers& tiers) {
  if (!flags.all) {
    if (flags.names.empty())
      return output.fail(tier_usage("which units?", "name them, or give --all (with --tier TIER for one tier)"));
    for (const std::string& name : flags.names) {
      Status imported = tiers.import(percent_decoded(name), flags.checksum);
      if (!imported.ok() && imported.error().code == Code::not_found && percent_decoded(name) != name) {
        imported = tiers.import(name, flags.checksum);
      }
      if (!imported.ok()) return output.fail(imported.error());
    }
    return done(flags, "import", {}, "imported " + std::to_string(flags.names.size()));
  }
  std::vector<std::string> names = {flags.tier};
  if (flags.tier.empty()) {
    names.clear();
    const auto all = tiers.tiers();
    if (!all.ok()) return output.fail(all.error());
    for (const TierInfo& tier : *all) names.push_back(tier.name);
  }
  CheckReport sum;
  for (const std::string& name : names) {
    auto report = tiers.import_all(name, flags.below);
    if (!report.ok()) return output.fail(report.error());
    sum.units += report->units;
    std::ranges::move(report->findings, std::back_inserter(sum.findings));
  }
  if (output.json()) {
    Json json = head("import");
    json["unit_count"] = sum.units;
    json["refused"] = Json::array();
    for (const TierFinding& finding : sum.findings) json["refused"].push_back(finding_json(finding));
    output.object(json);
  } else {
    for (const TierFinding& finding : sum.findings) output.item(Mark::bad, finding.path + ": " + finding.text);
    output.heading("imported " + std::to_string(sum.units) + " files");
  }
  return sum.findings.empty() ? Exit::ok : Exit::failed;
}

// Moves, with one line that says how far it is.
class Moving {
 public:
  explicit Moving(const TierFlags& flags)
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
    output.verdict(std::to_string(report->units) + " units, " + format_bytes(report->bytes) + " in " +
                   format_seconds(report->seconds) + ": " + format_rate(rate(report->bytes, report->seconds)));
    if (report->resumed_bytes != 0) output.field("resumed", format_bytes(report->resumed_bytes));
    if (report->busy != 0) output.field("busy", std::to_string(report->busy) + " units, with other processes");
    if (report->failure_count != 0) output.field("failed", std::to_string(report->failure_count));
  }
  if (interrupted()) return Exit::interrupted;
  if (stopped) return exit_for(report->error->code);
  return report->failure_count == 0 ? Exit::ok : exit_for(report->failures.front().error.code);
}

Exit move(const TierFlags& flags, const Output& output, Tiers& tiers) {
  const Moving moving(flags);
  return moved("move", output, tiers.move(flags.name, flags.tier, moving.options()));
}

Exit show_plan(const TierFlags&, const Output& output, Tiers& tiers) {
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
  output.heading(std::to_string(plan->moves.size()) + " of " + std::to_string(plan->units) + " units would move, " +
                 format_bytes(plan->bytes));
  return Exit::ok;
}

Exit rebalance(const TierFlags& flags, const Output& output, Tiers& tiers) {
  if (flags.dry_run) return show_plan(flags, output, tiers);
  const Moving moving(flags);
  return moved("rebalance", output, tiers.rebalance(moving.options()));
}

Exit run_mover(const TierFlags& flags, const Output& output, Tiers& tiers) {
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

Exit check(const TierFlags& flags, const Output& output, Tiers& tiers) {
  const auto report =
      tiers.check({.bytes = flags.bytes, .strays = !flags.no_strays, .keep_going = [] { return !interrupted(); }});
  if (!report.ok()) return output.fail(interrupted() ? interrupted_error() : report.error());
  const auto is_good = [](const TierFinding& finding) { return finding.repaired || finding.harmless; };
  const bool good = std::ranges::all_of(report->findings, is_good);
  if (output.json()) {
    Json json = head("check");
    json["unit_count"] = report->units;
    json["bytes"] = report->bytes;
    json["findings"] = Json::array();
    for (const TierFinding& finding : report->findings) json["findings"].push_back(finding_json(finding));
    output.object(json);
    return good ? Exit::ok : Exit::failed;
  }
  for (const TierFinding& finding : report->findings) {
    const Mark mark = finding.harmless ? Mark::unknown : finding.repaired ? Mark::good : Mark::bad;
    output.item(mark, finding.path + ": " + finding.text);
  }
  output.heading(std::to_string(report->units) + " units" +
                 (flags.bytes ? ", " + format_bytes(report->bytes) + " read" : "") +
                 (good ? ": all as they should be" : ""));
  return good ? Exit::ok : Exit::failed;
}

Exit change(const TierFlags& flags, const Output& output, Tiers& tiers) {
  const bool of_tier = flags.capacity || flags.low || flags.high || flags.from_heat || flags.read_only ||
                       flags.writable || !flags.path.empty();
  const bool of_policy = flags.half_life || flags.cooling || flags.least_stay;
  if (of_tier && flags.name.empty()) {
    return output.fail(tier_usage("which tier?", "name it: penstock tier change nvme --high 0.9"));
  }
  if (!of_tier && !of_policy) return output.fail(tier_usage("what is to change?", "see penstock tier change --help"));
  if (flags.half_life || flags.cooling || flags.least_stay) {
    auto policy = tiers.policy();
    if (!policy.ok()) return output.fail(policy.error());
    choose_policy(flags, *policy);
    if (Status set = tiers.set_policy(*policy); !set.ok()) return output.fail(set.error());
  }
  if (flags.name.empty()) return done(flags, "change", {}, "changed");
  const auto all = tiers.tiers();
  if (!all.ok()) return output.fail(all.error());
  const auto now = std::ranges::find(*all, flags.name, &TierInfo::name);
  if (now == all->end()) {
    return output.fail({.code = Code::not_found,
                        .message = "there is no tier \"" + flags.name + "\"",
                        .hint = "see `penstock tier status` for their names"});
  }
  const NewTier changed{.name = flags.name,
                        .path = flags.path,
                        .capacity_bytes = flags.capacity.value_or(0),
                        .low_water = flags.low.value_or(now->low_water),
                        .high_water = flags.high.value_or(now->high_water),
                        .from_heat = flags.from_heat,
                        .read_only = (now->read_only || flags.read_only) && !flags.writable};
  return done(flags, "change", tiers.change_tier(changed), "changed " + flags.name);
}

using Run = std::function<Exit(const TierFlags&, const Output&, Tiers&)>;

// A verb that does one thing to one unit or tier.
Run simple(const char* verb, const char* told, std::function<Status(Tiers&, const TierFlags&)> act) {
  return [=](const TierFlags& flags, const Output&, Tiers& tiers) {
    return done(flags, verb, act(tiers, flags), std::string(told) + flags.name);
  };
}

}  // namespace

Command add_tier(CLI::App& tool) {
  auto flags = std::make_shared<TierFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("tier", "Keep files on tiers of disks, and move them by use");
  parser->require_subcommand(1);
  parser->footer(
      "Examples:\n"
      "  penstock tier init nvme=/mnt/fast ssd=/mnt/warm hdd=/mnt/cold\n"
      "  penstock tier import --all\n"
      "  penstock tier rebalance --dry-run\n"
      "  penstock tier run --interval 300 --rate 500MB\n"
      "  penstock load tier:models/llama.gguf --to cuda:0");
  struct Verb {
    CLI::App* parser;
    Run run;
  };
  auto verbs = std::make_shared<std::vector<Verb>>();
  const auto add = [&](const char* name, const char* help, Run run) {
    CLI::App* verb = parser->add_subcommand(name, help);
    verb->add_option("--catalog", flags->catalog, "the catalog, instead of that of PENSTOCK_TIERS")->type_name("FILE");
    verb->add_flag("--json", flags->output.json, "print one JSON object");
    verb->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
    verbs->push_back({verb, std::move(run)});
    return verb;
  };
  const auto add_unit = [&](CLI::App* verb) {
    verb->add_option("NAME", flags->name, "a unit: its path below the folder of its tier")->required();
  };
  const auto add_marks = [&](CLI::App* verb) {
    add_size(*verb, "--capacity", flags->capacity, "what the tier may hold; default: what its file system has");
    verb->add_option("--low", flags->low, "the share of the capacity to which a full tier is drained")
        ->type_name("SHARE")
        ->check(number(0, 1));
    verb->add_option("--high", flags->high, "the share above which it is drained")
        ->type_name("SHARE")
        ->check(number(0, 1));
    verb->add_option("--from-heat", flags->from_heat, "units with this heat belong to the tier")
        ->type_name("HEAT")
        ->check(number(0, 1e15));
    verb->add_flag("--read-only", flags->read_only, "nothing moves to or from it");
  };
  const auto add_policy = [&](CLI::App* verb) {
    verb->add_option("--half-life", flags->half_life, "an access counts half after so long; 0: for ever")
        ->type_name("SECONDS")
        ->check(number(0, 1e8));
    verb->add_option("--cooling", flags->cooling, "a unit leaves below this share of its tier's heat")
        ->type_name("SHARE")
        ->check(number(0, 1));
    verb->add_option("--least-stay", flags->least_stay, "a unit stays so long after a move")
        ->type_name("SECONDS")
        ->check(number(0, 1e8));
  };
  const auto add_moving = [&](CLI::App* verb) {
    add_size(*verb, "--rate", flags->rate, "bytes a second to read at most; default: as fast as it goes");
  };

  CLI::App* making = add("init", "Make a catalog and its tiers, the fastest first", nullptr);
  making->add_option("TIER", flags->names, "NAME=PATH; default: nvme=/nvme ssd=/ssd hdd=/hdd, or PENSTOCK_TIER_PATHS");
  making->add_option("--config", flags->configuration, "a JSON file with tiers and policy")->type_name("FILE");
  making->add_flag("--adopt", flags->adopt, "take folders that belong to another catalog");
  add_marks(making);
  add_policy(making);

  CLI::App* showing = add("status", "Show the tiers and how full they are", status);
  showing->add_option("--html", flags->html, "also write a page with a picture of what lies where")->type_name("FILE");
  showing->add_flag("--prometheus", flags->prometheus, "print the text format of Prometheus instead");

  CLI::App* listing = add("list", "List units, sorted by name", list_units);
  listing->add_option("--tier", flags->tier, "only those of one tier")->type_name("TIER");
  listing->add_option("--prefix", flags->prefix, "only names that begin so")->type_name("TEXT");
  listing->add_option("--after", flags->after, "only names greater than this")->type_name("NAME");
  listing->add_option("--limit", flags->limit, "at most so many")
      ->type_name("N")
      ->capture_default_str()
      ->check(number(1, 1e9));

  add_unit(add("where", "Print the path where a unit lies", where));
  add_unit(add("why", "Explain where a unit belongs", why));

  CLI::App* importing = add("import", "Take files that lie on a tier into the catalog, where they are", import);
  importing->add_option("NAME", flags->names, "paths below the folder of a tier; a directory is one unit");
  importing->add_flag("--all", flags->all, "every file that is no unit yet, each as one");
  importing->add_option("--tier", flags->tier, "with --all: only those on this tier")->type_name("TIER");
  importing->add_option("--below", flags->below, "with --all: only those in this folder")->type_name("PATH");
  importing->add_flag("--checksum", flags->checksum, "read them now, instead of when they first move");

  CLI::App* adding =
      add("add", "Copy a file or directory into a tier", [](const TierFlags& f, const Output&, Tiers& tiers) {
        const Moving moving(f);
        return done(f, "add", tiers.add(f.path, f.name, f.tier, moving.options()), "added " + f.name);
      });
  adding->add_option("PATH", flags->path, "what to copy")->required();
  adding->add_option("NAME", flags->name, "the name of the unit")->required();
  adding->add_option("--tier", flags->tier, "where to; default: the fastest with room")->type_name("TIER");
  add_moving(adding);

  add_unit(add("remove", "Delete a unit and its bytes",
               simple("remove", "removed ", [](Tiers& tiers, const TierFlags& f) { return tiers.remove(f.name); })));
  add_unit(add("forget", "Take a unit out of the catalog; its file stays",
               simple("forget", "forgot ", [](Tiers& tiers, const TierFlags& f) { return tiers.forget(f.name); })));
  CLI::App* pinning =
      add("pin", "Keep a unit on a tier",
          simple("pin", "pinned ", [](Tiers& tiers, const TierFlags& f) { return tiers.pin(f.name, f.tier); }));
  add_unit(pinning);
  pinning->add_option("TIER", flags->tier, "where it is to stay")->required();
  add_unit(add("unpin", "Let a unit move again",
               simple("unpin", "unpinned ", [](Tiers& tiers, const TierFlags& f) { return tiers.pin(f.name, {}); })));

  CLI::App* moving = add("move", "Move a unit to a tier", move);
  add_unit(moving);
  moving->add_option("TIER", flags->tier, "where to")->required();
  add_moving(moving);
  CLI::App* balancing = add("rebalance", "Move every unit to where it belongs", rebalance);
  balancing->add_flag("--dry-run", flags->dry_run, "only print what would move, and why");
  add_moving(balancing);
  CLI::App* running = add("run", "Rebalance again and again, until it is interrupted", run_mover);
  running->add_option("--interval", flags->interval, "how long to wait in between")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number(0, 1e7));
  add_moving(running);
  add("pause", "Hold all movers of the catalog",
      simple("pause", "paused", [](Tiers& tiers, const TierFlags&) { return tiers.set_paused(true); }));
  add("resume", "Let movers go on",
      simple("resume", "resumed", [](Tiers& tiers, const TierFlags&) { return tiers.set_paused(false); }));

  CLI::App* checking = add("check", "Compare the catalog with the tiers; finish or undo what was interrupted", check);
  checking->add_flag("--bytes", flags->bytes, "read every byte, and compare checksums");
  checking->add_flag("--no-strays", flags->no_strays, "don't look for files that are no units");

  CLI::App* probing =
      add("probe", "Measure a tier, and ask whether GPU memory is reached without staging",
          simple("probe", "measured ", [](Tiers& tiers, const TierFlags& f) { return tiers.probe(f.name); }));
  probing->add_option("TIER", flags->name, "which")->required();
  CLI::App* changing = add("change", "Change a tier, or what decides where units belong", change);
  changing->add_option("TIER", flags->name, "which");
  changing->add_option("--path", flags->path, "where its folder is now")->type_name("PATH");
  changing->add_flag("--writable", flags->writable, "no longer read-only");
  add_marks(changing);
  add_policy(changing);
  CLI::App* growing = add("add-tier", "Add a tier", [](const TierFlags& f, const Output& output, Tiers& tiers) {
    auto tier = tier_from(f.name, f);
    if (!tier.ok()) return output.fail(tier.error());
    return done(f, "add-tier", tiers.add_tier(*tier, f.behind), "added " + tier->name);
  });
  growing->add_option("TIER", flags->name, "NAME=PATH")->required();
  auto* behind = growing->add_option("--behind", flags->behind, "the tier that is just faster; default: the slowest");
  behind->type_name("TIER");
  growing->add_flag("--first", flags->first, "as the fastest of all")->excludes(behind);
  growing->add_flag("--adopt", flags->adopt, "take a folder that belongs to another catalog");
  add_marks(growing);
  CLI::App* shrinking = add(
      "remove-tier", "Take a tier without units out of the catalog; its folder stays",
      simple("remove-tier", "removed ", [](Tiers& tiers, const TierFlags& f) { return tiers.remove_tier(f.name); }));
  shrinking->add_option("TIER", flags->name, "which")->required();

  return {parser, [flags, verbs] {
            for (const Verb& verb : *verbs) {
              if (!verb.parser->parsed()) continue;
              const Output output(flags->output);
              if (!verb.run) return init(*flags, output);
              Result<Tiers> tiers = Tiers::open(options_of(*flags));
              if (!tiers.ok()) return output.fail(tiers.error());
              flags->name = meant(*tiers, flags->name);
              return verb.run(*flags, output, *tiers);
            }
            return Exit::usage;
          }};
}

}  // namespace penstock::cli
