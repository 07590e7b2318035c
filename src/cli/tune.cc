// penstock tune: measures which options load fastest from a file system into a memory, and keeps them for load and
// write.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apart.h"
#include "measure.h"
#include "scratch.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

struct TuneFlags : MeasureFlags {
  TuneFlags() { seconds = 60; }

  std::string file;
  bool scratch = false;
  bool dry_run = false;
  bool forget = false;
};

std::string describe(const Options& options) {
  std::string text;
  for (const auto& [key, value] : tuned_options(options)) {
    text += (text.empty() ? "" : ", ") + std::string(key) + " " + std::to_string(value);
  }
  return text.empty() ? "the same" : text;
}

std::string format_percent(double gain) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", (gain - 1) * 100);
  return text;
}

std::string format_speed(const TuningSpeed& speed) {
  return format_rate(speed.before_bytes_per_second) + " before, " + format_rate(speed.after_bytes_per_second) +
         " after";
}

Json speed_json(const std::optional<TuningSpeed>& speed) {
  if (!speed) return {};
  return {{"before_gb_per_s", speed->before_bytes_per_second / 1e9},
          {"after_gb_per_s", speed->after_bytes_per_second / 1e9}};
}

Json options_json(const Options& options) {
  Json object = Json::object();
  for (const auto& [key, value] : tuned_options(options)) object[std::string(key)] = value;
  return object;
}

Json search_json(const TuningResult& result) {
  Json trials = Json::array();
  for (const TuningTrial& trial : result.trials) {
    trials.push_back({{"options", options_json(trial.options)},
                      {"cached", speed_json(trial.cached)},
                      {"cold", speed_json(trial.cold)},
                      {"gain", trial.gain}});
  }
  return {{"bytes", result.size_bytes},
          {"seconds", result.seconds},
          {"better", result.better},
          {"options", options_json(result.options)},
          {"cached", speed_json(result.cached)},
          {"cold", speed_json(result.cold)},
          {"noise", result.noise},
          {"trials", std::move(trials)}};
}

// What the command did, as one object or as text.
struct Tuned {
  TuningKey key;
  std::string file;
  bool written = false;
  bool forgotten = false;
  std::optional<std::string> old{};  // when what was kept before was found
  std::optional<TuningResult> result{};
};

Json tuned_json(const TuneFlags& flags, const Tuned& outcome) {
  return {{"schema", "penstock.tune/1"},
          {"path", flags.path},
          {"to", flags.domain},
          {"for",
           {{"file_system", outcome.key.file_system},
            {"source", outcome.key.source},
            {"mount_point", outcome.key.mount_point},
            {"memory", outcome.key.memory}}},
          {"file", outcome.file.empty() ? Json() : Json(outcome.file)},
          {"written", outcome.written},
          {"forgotten", outcome.forgotten},
          {"search", outcome.result ? search_json(*outcome.result) : Json()}};
}

void print_search(const Output& output, const TuningResult& result) {
  output.heading(
      (result.better ? "better than the defaults: " : "the defaults are as good as the best options found: ") +
      describe(result.options));
  output.field("measured", format_bytes(result.size_bytes) + ", for " + format_seconds(result.seconds));
  if (result.cached) output.field("cached", format_speed(*result.cached));
  if (result.cold) output.field("cold", format_speed(*result.cold));
  if (!result.cold)
    output.field("cold", "not measured: the file can't be evicted, or the kernel does not say whether it was");
  char noise[32];
  std::snprintf(noise, sizeof noise, "%.1f %%", result.noise * 100);
  output.field("noise", std::string(noise) + " between rounds of the defaults");
  output.section("tried");
  for (const TuningTrial& trial : result.trials) output.field(format_percent(trial.gain), describe(trial.options));
}

std::string key_text(const TuningKey& key) {
  return key.file_system + " " + key.source + (key.mount_point.empty() ? "" : " at " + key.mount_point) + " to " +
         key.memory;
}

Exit finish(const Output& output, const TuneFlags& flags, const Tuned& outcome) {
  if (output.json()) {
    output.object(tuned_json(flags, outcome));
    return Exit::ok;
  }
  if (outcome.result) {
    print_search(output, *outcome.result);
    output.section(outcome.written ? "kept in " + outcome.file : "nothing was written");
    if (outcome.old) {
      output.field("before",
                   "the tuning of " + *outcome.old + (outcome.written ? " is gone" : " stays; --forget removes it"));
    }
  } else {
    output.heading(outcome.forgotten ? "forgotten, in " + outcome.file : "there is no tuning to forget");
  }
  output.field("for", key_text(outcome.key));
  return Exit::ok;
}

Result<TuningResult> search(const TuneFlags& flags, Domain domain) {
  const std::string path = local_path(flags.path);
  std::uint64_t size = flags.size.value_or(default_measured_bytes);
  std::error_code unknown;  // of a block device, and of what is missing
  const std::uintmax_t all = std::filesystem::file_size(path, unknown);
  if (!flags.scratch && !unknown) size = std::min<std::uint64_t>(size, all);
  if (Status room = check_room(domain, size); !room.ok()) return room.error();
  std::optional<Scratch> scratch;
  if (flags.scratch) {
    Result<Scratch> made = Scratch::create(path, size);
    if (!made.ok()) return made.error();
    scratch.emplace(std::move(*made));
  }
  MeasureProgress progress(flags.output, "measuring");
  return search_tuning({.path = scratch ? scratch->path() : path,
                        .memory = domain,
                        .size_bytes = size,
                        .seconds = flags.seconds,
                        .keep_going = [&] { return progress.keep_going(); },
                        .on_trial =
                            [&](const TuningTrial& trial) {
                              progress.say(format_percent(trial.gain) + " " + describe(trial.options));
                            }});
}

Exit run(const TuneFlags& flags) {
  const Output output(flags.output);
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return output.fail(domain.error());
  const Result<TuningKey> key = tuning_key(local_path(flags.path), *domain);
  if (!key.ok()) return output.fail(key.error());
  const Status apart = check_apart({"--file", flags.file}, {{flags.given}, {}});
  if (!apart.ok()) return output.fail(apart.error());
  Tuned outcome{.key = *key, .file = flags.file.empty() ? default_tuning_file() : flags.file};

  if (flags.forget) {
    const Result<bool> forgotten = remove_tuning(*key, outcome.file);
    if (!forgotten.ok()) return output.fail(forgotten.error());
    outcome.forgotten = *forgotten;
    return finish(output, flags, outcome);
  }
  // That a file is broken or missing must not be found out after a minute of measuring.
  const Result<std::optional<Tuning>> old = find_tuning(local_path(flags.path), *domain, outcome.file);
  if (!old.ok()) return output.fail(old.error());
  if (outcome.file.empty() && !flags.dry_run) {
    return output.fail({.code = Code::invalid_argument,
                        .message = "there is no file for tunings: PENSTOCK_TUNING is empty, or HOME is not set",
                        .hint = "name one with --file, or measure with --dry-run"});
  }
  if (*old) outcome.old = (*old)->when;
  const Result<TuningResult> result = search(flags, *domain);
  if (!result.ok()) return output.fail(result.error());
  outcome.result = *result;
  if (result->better && !flags.dry_run) {
    const Tuning tuning{.key = *key,
                        .options = result->options,
                        .when = utc_now(),
                        .version = std::string(version()),
                        .cached = result->cached,
                        .cold = result->cold};
    if (Status saved = save_tuning(tuning, outcome.file); !saved.ok()) return output.fail(saved.error());
    outcome.written = true;
  }
  return finish(output, flags, outcome);
}

}  // namespace

Command add_tune(CLI::App& tool) {
  auto flags = std::make_shared<TuneFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("tune", "Find the options that load fastest here, and keep them");
  parser->add_option("PATH", flags->path, "a large file or block device; with --scratch also a folder")->required();
  add_measure_flags(*parser, *flags, "how much of PATH to load, or the size of the scratch file; default: 1 GiB");
  parser->add_flag("--scratch", flags->scratch, "measure with a temporary file beside PATH");
  parser->add_option("--file", flags->file, "the file to keep tunings in; default: ~/.config/penstock/tuning.json")
      ->type_name("FILE")
      ->check(some_name());
  auto* dry_run = parser->add_flag("--dry-run", flags->dry_run, "measure, but write nothing");
  parser->add_flag("--forget", flags->forget, "measure nothing; forget the tuning for PATH and the memory")
      ->excludes(dry_run);
  parser->footer(
      "Examples:\n"
      "  penstock tune weights.bin --to cuda:0\n"
      "  penstock tune /mnt/fast --scratch\n"
      "  penstock tune weights.bin --to cuda:0 --forget");
  return {parser, [flags] {
            flags->given = flags->path;
            if (Status named = name_by_path(flags->path); !named.ok()) return Output(flags->output).fail(named.error());
            return run(*flags);
          }};
}

}  // namespace penstock::cli
