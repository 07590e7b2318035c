// penstock tier: which tiers there are, what lies on which, and what the catalog is told.
#include <algorithm>

#include "apart.h"
#include "interrupt.h"
#include "report_file.h"
#include "tier.h"
#include "tier_names.h"
#include "tier_page.h"

namespace penstock::cli::tier {
namespace {

Error tier_usage(std::string message, std::string hint) {
  return {.code = Code::invalid_argument, .message = std::move(message), .hint = std::move(hint)};
}

Result<NewTier> tier_from(const std::string& text, const Flags& flags) {
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

void choose_policy(const Flags& flags, TierPolicy& policy) {
  policy.half_life_seconds = flags.half_life.value_or(policy.half_life_seconds);
  policy.cooling = flags.cooling.value_or(policy.cooling);
  policy.least_stay_seconds = flags.least_stay.value_or(policy.least_stay_seconds);
}

Json tier_json(const TierInfo& tier) {
  Json json = {{"name", tier.name},
               {"path", path_json(tier.path)},
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
          {"path", path_json(unit.path)},
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
          {"path", path_json(finding.path)},
          {"text", finding.text},
          {"repaired", finding.repaired},
          {"harmless", finding.harmless}};
}

std::string finding_line(const TierFinding& finding) {
  const std::string& place = finding.path.empty() ? finding.name : finding.path;
  return place.empty() ? finding.text : place + ": " + finding.text;
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
    if (!tier.problem) continue;
    const std::string& hint = tier.problem->hint;
    output.item(Mark::bad, tier.problem->message + (hint.empty() ? "" : "; " + hint));
  }
}

}  // namespace

Exit init(const Flags& flags, const Output& output) {
  Tiers::Configuration configuration;
  if (!flags.configuration.empty()) {
    if (!flags.names.empty())
      return output.fail(tier_usage("tiers are given by --config and by name", "give one of both"));
    const auto text = read_text(flags.configuration, "the configuration", "docs/tiers.md has an example");
    if (!text.ok()) return output.fail(text.error());
    auto parsed = Tiers::parse_configuration(*text);
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
  auto tiers = Tiers::create(configuration.tiers, configuration.policy, {.catalog = flags.catalog});
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

Exit add_tier(const Flags& flags, const Output& output, Tiers& tiers) {
  auto tier = tier_from(flags.name, flags);
  if (!tier.ok()) return output.fail(tier.error());
  return done(flags, "add-tier", tiers.add_tier(*tier, flags.behind), "added " + tier->name);
}

Exit change(const Flags& flags, const Output& output, Tiers& tiers) {
  const bool of_tier = flags.capacity || flags.low || flags.high || flags.from_heat || flags.read_only ||
                       flags.writable || flags.adopt || !flags.path.empty();
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
                        .read_only = (now->read_only || flags.read_only) && !flags.writable,
                        .adopt = flags.adopt};
  return done(flags, "change", tiers.change_tier(changed), "changed " + flags.name);
}

Exit status(const Flags& flags, const Output& output, Tiers& tiers) {
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
    const Status apart = check_apart({"--html", flags.html}, {.stores = {}, .arguments = {}, .tiers = &tiers});
    if (!apart.ok()) return output.fail(apart.error());
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

Exit list_units(const Flags& flags, const Output& output, Tiers& tiers) {
  // Not by what there is now: the unit may be gone since its name was printed.
  const auto units = tiers.list(
      {.tier = flags.tier, .prefix = name_from(flags.prefix), .after = name_from(flags.after), .limit = flags.limit});
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
    std::string name = shown_name(unit.name) + (unit.kind == UnitKind::directory ? "/" : "");
    if (!unit.pinned.empty()) name += "  pinned to " + unit.pinned;
    if (!unit.moving_to.empty()) name += "  on its way to " + unit.moving_to;
    if (unit.in_doubt) name += "  in doubt";
    rows.push_back({unit.tier, format_bytes(unit.size_bytes), shown_heat(unit.heat), std::move(name)});
  }
  output.table(rows);
  if (!units->empty() && units->size() == flags.limit)
    output.heading("more: --after '" + shown_name(units->back().name) + "'");
  return Exit::ok;
}

Exit where(const Flags& flags, const Output& output, Tiers& tiers) {
  const auto path = path_of_unit(tiers, flags.name);
  if (!path.ok()) return output.fail(path.error());
  if (output.json()) {
    Json json = head("where");
    json["name"] = name_json(flags.name);
    json["path"] = path_json(*path);
    output.object(json);
  } else if (output.on_terminal()) {
    output.heading(*path);
  } else if (!flags.output.quiet) {
    std::puts(path->c_str());  // for programs: as it is
  }
  return Exit::ok;
}

Exit why(const Flags& flags, const Output& output, Tiers& tiers) {
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

Exit import(const Flags& flags, const Output& output, Tiers& tiers) {
  if (!flags.all) {
    if (flags.names.empty())
      return output.fail(tier_usage("which units?", "name them, or give --all (with --tier TIER for one tier)"));
    for (const std::string& name : flags.names) {
      Status imported = tiers.import(name_from(name), flags.checksum);
      if (!imported.ok() && imported.error().code == Code::not_found && unmarked(name) != name) {
        imported = tiers.import(unmarked(name), flags.checksum);
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
    auto report = tiers.import_all(name, name_from(flags.below));
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
    for (const TierFinding& finding : sum.findings) output.item(Mark::bad, finding_line(finding));
    output.heading("imported " + std::to_string(sum.units) + (sum.units == 1 ? " file" : " files"));
  }
  return sum.findings.empty() ? Exit::ok : Exit::failed;
}

Exit check(const Flags& flags, const Output& output, Tiers& tiers) {
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
    output.item(mark, finding_line(finding));
  }
  output.heading(count_of_units(report->units) + (flags.bytes ? ", " + format_bytes(report->bytes) + " read" : "") +
                 (good ? ": all as they should be" : ""));
  return good ? Exit::ok : Exit::failed;
}

}  // namespace penstock::cli::tier
