// penstock tier: folders on disks of different speed, what lies on which, and moving it. Here are the flags.
#include "tier.h"

#include <algorithm>

#include "tier_names.h"

namespace penstock::cli {
namespace tier {

std::string count_of_units(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " unit" : " units");
}

Json head(const char* verb) {
  return {{"schema", "penstock.tier/1"}, {"command", verb}};
}

// The end of what has nothing to tell but that it was done.
Exit done(const Flags& flags, const char* verb, const Status& status, const std::string& text) {
  const Output output(flags.output);
  if (!status.ok()) return output.fail(status.error());
  if (output.json()) output.object(head(verb));
  output.heading(text);
  return Exit::ok;
}

namespace {

using Run = std::function<Exit(const Flags&, const Output&, Tiers&)>;

// A verb that does one thing to one unit or tier.
Run simple(const char* verb, const char* told, std::function<Status(Tiers&, const Flags&)> act) {
  return [=](const Flags& flags, const Output&, Tiers& tiers) {
    return done(flags, verb, act(tiers, flags), told + shown_name(flags.name));
  };
}

}  // namespace
}  // namespace tier

Command add_tier(CLI::App& tool) {
  auto flags = std::make_shared<tier::Flags>();  // shared by the parser's options and by run
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
    tier::Run run;
    bool of_unit = false;  // the name is that of a unit
  };
  auto verbs = std::make_shared<std::vector<Verb>>();
  const auto add = [&](const char* name, const char* help, tier::Run run) {
    CLI::App* verb = parser->add_subcommand(name, help);
    verb->add_option("--catalog", flags->catalog, "the catalog, instead of that of PENSTOCK_TIERS")->type_name("FILE");
    verb->add_flag("--json", flags->output.json, "print one JSON object");
    verb->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
    verbs->push_back({verb, std::move(run)});
    return verb;
  };
  const auto add_unit = [&](CLI::App* verb) {
    std::ranges::find(*verbs, verb, &Verb::parser)->of_unit = true;
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

  CLI::App* showing = add("status", "Show the tiers and how full they are", tier::status);
  showing->add_option("--html", flags->html, "also write a page with a picture of what lies where")
      ->type_name("FILE")
      ->check(some_name());
  showing->add_flag("--prometheus", flags->prometheus, "print the text format of Prometheus instead");

  CLI::App* listing = add("list", "List units, sorted by name", tier::list_units);
  listing->add_option("--tier", flags->tier, "only those of one tier")->type_name("TIER");
  listing->add_option("--prefix", flags->prefix, "only names that begin so")->type_name("TEXT");
  listing->add_option("--after", flags->after, "only names greater than this")->type_name("NAME");
  listing->add_option("--limit", flags->limit, "at most so many")
      ->type_name("N")
      ->capture_default_str()
      ->transform(whole_number(1, 1'000'000'000));

  add_unit(add("where", "Print the path where a unit lies", tier::where));
  add_unit(add("why", "Explain where a unit belongs", tier::why));

  CLI::App* importing = add("import", "Take files that lie on a tier into the catalog, where they are", tier::import);
  importing->add_option("NAME", flags->names, "paths below the folder of a tier; a directory is one unit");
  importing->add_flag("--all", flags->all, "every file that is no unit yet, each as one");
  importing->add_option("--tier", flags->tier, "with --all: only those on this tier")->type_name("TIER");
  importing->add_option("--below", flags->below, "with --all: only those in this folder")->type_name("PATH");
  importing->add_flag("--checksum", flags->checksum, "read them now, instead of when they first move");

  CLI::App* adding = add("add", "Copy a file or directory into a tier", tier::add);
  adding->add_option("PATH", flags->path, "what to copy")->required();
  adding->add_option("NAME", flags->name, "the name of the unit")->required();
  adding->add_option("--tier", flags->tier, "where to; default: the fastest with room")->type_name("TIER");
  add_moving(adding);

  add_unit(
      add("remove", "Delete a unit and its bytes",
          tier::simple("remove", "removed ", [](Tiers& tiers, const tier::Flags& f) { return tiers.remove(f.name); })));
  add_unit(
      add("forget", "Take a unit out of the catalog; its file stays",
          tier::simple("forget", "forgot ", [](Tiers& tiers, const tier::Flags& f) { return tiers.forget(f.name); })));
  CLI::App* pinning =
      add("pin", "Keep a unit on a tier",
          tier::simple("pin", "pinned ", [](Tiers& tiers, const tier::Flags& f) { return tiers.pin(f.name, f.tier); }));
  add_unit(pinning);
  pinning->add_option("TIER", flags->tier, "where it is to stay")->required();
  add_unit(add(
      "unpin", "Let a unit move again",
      tier::simple("unpin", "unpinned ", [](Tiers& tiers, const tier::Flags& f) { return tiers.pin(f.name, {}); })));

  CLI::App* moving = add("move", "Move a unit to a tier", tier::move);
  add_unit(moving);
  moving->add_option("TIER", flags->tier, "where to")->required();
  add_moving(moving);
  CLI::App* balancing = add("rebalance", "Move every unit to where it belongs", tier::rebalance);
  balancing->add_flag("--dry-run", flags->dry_run, "only print what would move, and why");
  add_moving(balancing);
  CLI::App* running = add("run", "Rebalance again and again, until it is interrupted", tier::run_mover);
  running->add_option("--interval", flags->interval, "how long to wait in between")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number(0, 1e7));
  add_moving(running);
  add("pause", "Hold all movers of the catalog",
      tier::simple("pause", "paused", [](Tiers& tiers, const tier::Flags&) { return tiers.set_paused(true); }));
  add("resume", "Let movers go on",
      tier::simple("resume", "resumed", [](Tiers& tiers, const tier::Flags&) { return tiers.set_paused(false); }));

  CLI::App* checking =
      add("check", "Compare the catalog with the tiers; finish or undo what was interrupted", tier::check);
  checking->add_flag("--bytes", flags->bytes, "read every byte, and compare checksums");
  checking->add_flag("--no-strays", flags->no_strays, "don't look for files that are no units");

  CLI::App* probing =
      add("probe", "Measure a tier, and ask whether GPU memory is reached without staging",
          tier::simple("probe", "measured ", [](Tiers& tiers, const tier::Flags& f) { return tiers.probe(f.name); }));
  probing->add_option("TIER", flags->name, "which")->required();
  CLI::App* changing = add("change", "Change a tier, or what decides where units belong", tier::change);
  changing->add_option("TIER", flags->name, "which");
  changing->add_option("--path", flags->path, "where its folder is now")->type_name("PATH");
  changing->add_flag("--adopt", flags->adopt, "the folder is the tier's: write its marker anew if it is lost");
  changing->add_flag("--writable", flags->writable, "no longer read-only");
  add_marks(changing);
  add_policy(changing);
  CLI::App* growing = add("add-tier", "Add a tier", tier::add_tier);
  growing->add_option("TIER", flags->name, "NAME=PATH")->required();
  auto* behind = growing->add_option("--behind", flags->behind, "the tier that is just faster; default: the slowest");
  behind->type_name("TIER");
  growing->add_flag("--first", flags->first, "as the fastest of all")->excludes(behind);
  growing->add_flag("--adopt", flags->adopt, "take a folder that belongs to another catalog");
  add_marks(growing);
  CLI::App* shrinking = add("remove-tier", "Take a tier without units out of the catalog; its folder stays",
                            tier::simple("remove-tier", "removed ",
                                         [](Tiers& tiers, const tier::Flags& f) { return tiers.remove_tier(f.name); }));
  shrinking->add_option("TIER", flags->name, "which")->required();

  return {parser, [flags, verbs] {
            for (const Verb& verb : *verbs) {
              if (!verb.parser->parsed()) continue;
              const Output output(flags->output);
              if (!verb.run) return tier::init(*flags, output);
              Result<Tiers> tiers = Tiers::open({.catalog = flags->catalog});
              if (!tiers.ok()) return output.fail(tiers.error());
              if (verb.of_unit) flags->name = meant(*tiers, flags->name);
              return verb.run(*flags, output, *tiers);
            }
            return Exit::usage;
          }};
}

}  // namespace penstock::cli
