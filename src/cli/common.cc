#include "common.h"

#include <CLI/Option.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

namespace penstock::cli {

namespace {

constexpr std::size_t text_limit_bytes = 1 << 20;
constexpr std::uint64_t lanes_limit = 1024;  // docs/options.md

struct Unit {
  std::string_view suffix;
  std::uint64_t bytes;
};
constexpr std::array units = {
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"K", 1ull << 10},
    Unit{"KiB", 1ull << 10},
    Unit{"KB", 1000},
    Unit{"M", 1ull << 20},
    Unit{"MiB", 1ull << 20},
    Unit{"MB", 1000ull * 1000},
    Unit{"G", 1ull << 30},
    Unit{"GiB", 1ull << 30},
    Unit{"GB", 1000ull * 1000 * 1000},
    Unit{"T", 1ull << 40},
    Unit{"TiB", 1ull << 40},
    Unit{"TB", 1000ull * 1000 * 1000 * 1000},
};

Error bad_size(std::string_view text, std::string_view why) {
  return {.code = Code::invalid_argument,
          .message = "\"" + std::string(text) + "\" " + std::string(why),
          .hint = "write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB"};
}

Result<std::string> options_text(const std::string& flag) {
  if (!flag.starts_with('@')) return flag;
  return read_text(flag.substr(1), "the options file", "name a file with one JSON object of options");
}

}  // namespace

Result<std::string> read_text(const std::string& path, const std::string& what, const std::string& hint) {
  const std::string reading = "read " + what + " " + path;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return system_error(errno, reading, hint);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return system_error(EISDIR, reading, hint);
  std::string text(text_limit_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) return system_error(EIO, reading, hint);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > text_limit_bytes) {
    return Error{.code = Code::invalid_argument, .message = what + " " + path + " is larger than 1 MiB", .hint = hint};
  }
  return text;
}

Exit exit_for(Code code) {
  switch (code) {
    case Code::ok:
      return Exit::ok;
    case Code::invalid_argument:
    case Code::out_of_range:
    case Code::unknown_engine:
    case Code::unknown_scheme:
      return Exit::usage;
    case Code::not_found:
      return Exit::not_found;
    case Code::permission_denied:
    case Code::read_only:
    case Code::in_use:
      return Exit::refused;
    case Code::no_space:
    case Code::out_of_memory:
    case Code::over_budget:
      return Exit::no_room;
    case Code::timed_out:
    case Code::abandoned:
      return Exit::deadline;
    case Code::cancelled:
      return Exit::interrupted;
    default:
      return Exit::failed;
  }
}

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error == std::errc::result_out_of_range) return bad_size(text, "is too large");
  if (error != std::errc()) return bad_size(text, "is not a size");

  std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  double fraction = 0;
  if (rest.starts_with('.')) {
    const std::size_t digits = rest.find_first_not_of("0123456789", 1);
    const std::string_view decimals = rest.substr(0, digits);
    if (decimals.size() < 2) return bad_size(text, "is not a size");
    fraction = std::strtod(("0" + std::string(decimals)).c_str(), nullptr);
    rest.remove_prefix(decimals.size());
  }

  for (const Unit& unit : units) {
    if (rest != unit.suffix) continue;
    const double part = fraction * static_cast<double>(unit.bytes);
    if (part != std::floor(part)) return bad_size(text, "is not a whole number of bytes");
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(whole, unit.bytes, &bytes) ||
        __builtin_add_overflow(bytes, static_cast<std::uint64_t>(part), &bytes)) {
      return bad_size(text, "is too large");
    }
    return bytes;
  }
  return bad_size(text, "has an unknown unit");
}

CLI::Option* add_size(CLI::App& parser, const std::string& name, std::optional<std::uint64_t>& value,
                      const std::string& help) {
  const auto read = [name, &value](const std::string& text) {
    const Result<std::uint64_t> size = parse_size(text);
    if (!size.ok()) throw CLI::ValidationError(name, size.error().message + ": " + size.error().hint);
    value = *size;
  };
  return parser.add_option_function<std::string>(name, read, help)->type_name("SIZE");
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string ends = std::to_string(least) + " to " + std::to_string(most);
  const auto read = [=](std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool fits = error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
    if (!fits) return "\"" + text + "\" is not a whole number from " + ends;
    text = std::to_string(value);  // with zeros in front, the parser would take it for octal
    return std::string();
  };
  return {read, most >= UINT64_MAX - 1 ? "" : ends};
}

CLI::Validator number(double least, double most) {
  std::ostringstream ends;
  ends << least << " to " << most;
  const auto refusal = [=, ends = ends.str()](const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool fits = error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
    return fits ? "" : "\"" + text + "\" is not a number from " + ends;
  };
  return {refusal, ends.str()};
}

CLI::Validator some_name() {
  return {[](const std::string& text) { return text.empty() ? "the name is empty" : ""; }, ""};
}

void add_context_flags(CLI::App& parser, ContextFlags& flags) {
  parser.add_option("--engine", flags.engine, "use this engine (see `penstock engines`)")->type_name("NAME");
  parser.add_option("--cache", flags.cache, "how to use the page cache: auto, keep or bypass")
      ->type_name("MODE")
      ->check(CLI::IsMember({"auto", "keep", "bypass"}));
  parser.add_option("--lanes", flags.lanes, "how many lanes to use; 0: one per usable CPU, at most 16")
      ->type_name("N")
      ->transform(whole_number(0, lanes_limit));
  parser.add_option("--options", flags.options, "all other options: a JSON object, or @FILE")->type_name("JSON");
}

Result<Options> make_options(const ContextFlags& flags) {
  Options options;
  if (!flags.options.empty()) {
    Result<std::string> text = options_text(flags.options);
    if (!text.ok()) return text.error();
    Result<Options> parsed = Options::from_json(*text);
    if (!parsed.ok()) return parsed.error();
    options = std::move(*parsed);
  }
  if (!flags.engine.empty()) options.engine = flags.engine;
  if (flags.lanes) options.lanes = *flags.lanes;
  options.trace_events = std::max(options.trace_events, flags.trace_events);
  for (const Cache cache : {Cache::automatic, Cache::keep, Cache::bypass}) {
    if (flags.cache == cache_name(cache)) options.cache = cache;
  }
  return options;
}

Result<Context> make_context(const ContextFlags& flags) {
  const Result<Options> options = make_options(flags);
  if (!options.ok()) return options.error();
  return make_context(*options);
}

Result<Context> make_context(const Options& options) {
  Result<Context> context = Context::create(options);
  if (!context.ok()) return context;
  if (Status served = serve_tiers(*context); !served.ok()) return served.error();
  return context;
}

// The catalog is opened when a name first needs it.
Status serve_tiers(const Context& context) {
  struct Lazy {
    std::mutex mutex;
    std::optional<Tiers> tiers;
  };
  auto lazy = std::make_shared<Lazy>();
  return context.redirect("tier", [lazy](std::string_view name, const OpenOptions& options) -> Result<Location> {
    const std::scoped_lock lock(lazy->mutex);
    if (!lazy->tiers) {
      Result<Tiers> opened = Tiers::open();
      if (!opened.ok()) return opened.error();
      lazy->tiers = std::move(*opened);
    }
    return lazy->tiers->locate(name, options);
  });
}

std::string own_path() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).string();
}

std::string percent_decoded(std::string_view rest) {
  std::string path;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    unsigned value = 0;
    const char* digits = rest.data() + i + 1;
    if (rest[i] == '%' && i + 2 < rest.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      path += static_cast<char>(value);
      i += 2;
    } else {
      path += rest[i];
    }
  }
  return path;
}

std::string local_path(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with("file:")) return name;
  rest.remove_prefix(5);
  for (const std::string_view here : {"//localhost/", "///"}) {
    if (rest.starts_with(here)) rest.remove_prefix(here.size() - 1);
  }
  return percent_decoded(rest);
}

Result<std::string> path_of_unit(const Tiers& tiers, const std::string& unit) {
  const Result<UnitInfo> whole = tiers.find(unit);
  if (whole.ok()) return whole->path;
  if (whole.error().code != Code::not_found) return whole.error();
  for (std::size_t slash = unit.rfind('/'); slash != std::string::npos && slash != 0;
       slash = unit.rfind('/', slash - 1)) {
    const Result<UnitInfo> around = tiers.find(unit.substr(0, slash));
    if (around.ok() && around->kind == UnitKind::directory) return around->path + unit.substr(slash);
  }
  return whole.error();
}

Status name_by_path(std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with("tier:")) return {};
  rest.remove_prefix(5);
  if (rest.starts_with("//")) rest.remove_prefix(2);
  const Result<Tiers> tiers = Tiers::open();
  if (!tiers.ok()) return tiers.error();
  // As Tiers do: what is there by that very name first.
  std::error_code failed;
  Result<std::string> path = path_of_unit(*tiers, std::string(rest));
  if (!path.ok() || !std::filesystem::exists(*path, failed)) {
    const bool marked = rest.starts_with("./");
    const Result<std::string> other = path_of_unit(*tiers, percent_decoded(rest.substr(marked ? 2 : 0)));
    if (other.ok() || !path.ok()) path = other;
  }
  if (!path.ok()) return path.error();
  name = std::move(*path);
  return {};
}

}  // namespace penstock::cli
