// What the commands share: exit codes, sizes with units, and the flags that make a Context.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/penstock.h"

namespace penstock::cli {

// The closed list of exit codes; docs/cli.md explains each one.
enum class Exit : int {
  ok = 0,
  failed = 1,
  usage = 2,
  not_found = 3,
  refused = 4,  // by permissions, a read-only store, or a device in use
  no_room = 5,  // on the disk, in memory, or in a budget
  deadline = 124,
  interrupted = 130,
};
Exit exit_for(Code code);

struct ExitMeaning {
  Exit code;
  const char* meaning;
};
inline constexpr ExitMeaning exit_meanings[] = {
    {Exit::ok, "done"},
    {Exit::failed, "the operation failed"},
    {Exit::usage, "usage: wrong arguments or options"},
    {Exit::not_found, "not found"},
    {Exit::refused, "refused: no permission, read-only, or in use"},
    {Exit::no_room, "no room: on the disk, in memory, or in a budget"},
    {Exit::deadline, "a deadline passed"},
    {Exit::interrupted, "interrupted"},
};

struct EnvironmentVariable {
  const char *name, *meaning;
};
inline constexpr EnvironmentVariable environment_variables[] = {
    {"PENSTOCK_ENGINE", "the engine to use; wins over --engine"},
    {"PENSTOCK_PUBLISH", "the name under which penstock top sees the statistics"},
    {"PENSTOCK_TUNING", "the file of tunings; empty: none"},
    {"PENSTOCK_TIERS", "the catalog of tiers"},
    {"PENSTOCK_TIER_PATHS", "the tiers that penstock tier init makes: fast=/mnt/a,slow=/mnt/b"},
    {"PENSTOCK_LOG", "error, warning or info: what is written to standard error"},
    {"NO_COLOR", "if it is not empty, nothing is coloured"},
};

// A command of the tool: its parser, and what to do once that has seen its arguments.
struct Command {
  CLI::App* parser = nullptr;
  std::function<Exit()> run;
};
Command add_load(CLI::App& tool);
Command add_write(CLI::App& tool);
Command add_inspect(CLI::App& tool);
Command add_verify(CLI::App& tool);
Command add_clean(CLI::App& tool);
Command add_pack(CLI::App& tool);
Command add_unpack(CLI::App& tool);
Command add_rows(CLI::App& tool);
Command add_kind(CLI::App& tool);
Command add_sample(CLI::App& tool);
Command add_engines(CLI::App& tool);
Command add_doctor(CLI::App& tool);
Command add_tune(CLI::App& tool);
Command add_bench(CLI::App& tool);
Command add_top(CLI::App& tool);
Command add_completion(CLI::App& tool);
Command add_manual(CLI::App& tool);
Command add_nvme(CLI::App& tool);
Command add_report(CLI::App& tool);
Command add_tier(CLI::App& tool);

// Reads "4096", "64KiB", "64K", "1.5GiB" or "2GB": KiB, MiB, GiB, TiB and K, M, G, T count in 1024s; KB, MB, GB and TB
// in 1000s.
Result<std::uint64_t> parse_size(std::string_view text);
// An option whose value is a size. A malformed one is a usage error.
CLI::Option* add_size(CLI::App& parser, const std::string& name, std::optional<std::uint64_t>& value,
                      const std::string& help);

// Whole numbers, or any, in decimal digits; what is none of them is a usage error that names both ends. Every option
// that is a whole number has the first, as its transform.
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
CLI::Validator number(double least, double most);
// For an option that names what is written: an empty name is a usage error.
CLI::Validator some_name();

// The flags that choose a Context's Options. Those given by name win over --options.
struct ContextFlags {
  std::string options;  // JSON, or @file
  std::string engine;
  std::string cache;
  std::optional<std::uint32_t> lanes;
  std::uint32_t trace_events = 0;  // no flag: what a command itself needs
};
// A text of at most 1 MiB, which is all that options and configurations may have. `what` names it: "the options file".
Result<std::string> read_text(const std::string& path, const std::string& what, const std::string& hint);
void add_context_flags(CLI::App& parser, ContextFlags& flags);
Result<Options> make_options(const ContextFlags& flags);
// Names that begin with "tier:" are units of the usual catalog.
Result<Context> make_context(const ContextFlags& flags);
Result<Context> make_context(const Options& options);
Status serve_tiers(const Context& context);

// Where this tool is.
std::string own_path();

// What stands for itself, with every %XX as the byte that it means.
std::string percent_decoded(std::string_view text);
// The path behind the name of a file store: "file:" and percent-encoding undone.
std::string local_path(const std::string& name);

// Where a unit of tiers lies, or a file within one. Does not count as an access.
Result<std::string> path_of_unit(const Tiers& tiers, const std::string& unit);
// Replaces "tier:NAME" by its path, for commands about the file that is there rather than about its content.
Status name_by_path(std::string& name);

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace penstock::cli
