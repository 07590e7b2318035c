#include "output.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>

namespace penstock::cli {

namespace {

constexpr std::size_t label_columns = 14;
constexpr std::size_t unlimited_columns = SIZE_MAX;
// Select Graphic Rendition, ECMA-48 8.3.117.
constexpr std::string_view bold = "1", red = "31", green = "32", yellow = "33";

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[128];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string with_unit(double value, const char* suffix) {
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t i = 0;
  for (; value >= 999.5 && i + 1 < std::size(prefixes); ++i) value /= 1000;
  const int decimals = i == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return format("%.*f %s%s", decimals, value, prefixes[i], suffix);
}

// The width of a terminal; nothing for anything else.
std::optional<std::size_t> terminal_columns(int fd) {
  if (!isatty(fd)) return std::nullopt;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069: they change the order in which a terminal shows text.
bool is_direction(std::string_view character) {
  if (character.starts_with("\xd8\x9c")) return true;
  if (character.size() < 3 || character[0] != '\xe2') return false;
  const auto last = static_cast<unsigned char>(character[2]);
  if (character[1] == '\x80') return last == 0x8e || last == 0x8f || (last >= 0xaa && last <= 0xae);
  return character[1] == '\x81' && last >= 0xa6 && last <= 0xa9;
}

// Names of files and tensors may hold control characters, also those of more bytes, which a terminal would obey.
void make_printable(std::string& text) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  // Counting goes many bytes at a time, and mostly that is all.
  if (std::ranges::count_if(text, is_control) != 0) std::ranges::replace_if(text, is_control, '?');
  for (std::size_t at = 0; (at = text.find('\xc2', at)) != std::string::npos; ++at) {
    if (at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) < 0xa0) text.replace(at, 2, "?");
  }
  for (std::size_t at = 0; (at = text.find_first_of("\xd8\xe2", at)) != std::string::npos; ++at) {
    if (is_direction(std::string_view(text).substr(at))) text.replace(at, text[at] == '\xe2' ? 3 : 2, "?");
  }
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

// How many bytes of `text` fit into so many columns.
std::size_t bytes_that_fit(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    if (starts_character(text[bytes]) && columns-- == 0) break;
  }
  return bytes;
}

// Breaks text at spaces, and words that are too long anywhere; lines after the first are indented.
std::string wrap(std::string_view text, std::size_t indent, std::size_t columns) {
  if (columns == unlimited_columns) return std::string(text);
  const std::size_t room = columns > indent + 8 ? columns - indent : 8;
  std::string result;
  while (columns_of(text) > room) {
    const std::size_t fits = bytes_that_fit(text, room);
    std::size_t cut = text.rfind(' ', fits);
    if (cut == std::string_view::npos || cut == 0) cut = fits;
    result += std::string(text.substr(0, cut)) + "\n" + std::string(indent, ' ');
    text.remove_prefix(cut);
    if (text.starts_with(' ')) text.remove_prefix(1);
  }
  return result + std::string(text);
}

void print(std::FILE* stream, std::string line) {
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stream);
}

Json failures_json(const Report& report) {
  Json list = Json::array();
  for (const Failure& failure : report.failures) {
    list.push_back({{"range", failure.range},
                    {"offset", failure.offset},
                    {"bytes", failure.bytes},
                    {"code", code_name(failure.code)},
                    {"system_error", failure.system_error}});
  }
  return list;
}

void print_error(const Error& error) {
  print(stderr, "penstock: " + printable(error.message));
  if (!error.hint.empty()) print(stderr, "hint: " + printable(error.hint));
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + " B";
  return with_unit(static_cast<double>(bytes), "B");
}

std::string format_rate(double bytes_per_second) {
  return with_unit(bytes_per_second, "B/s");
}

std::string format_seconds(double seconds) {
  return seconds < 1 ? format("%.3g ms", seconds * 1e3) : format("%.3f s", seconds);
}

std::string utc_now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string format_routes(const RouteBytes& routes) {
  std::string text;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    if (routes[i] == 0) continue;
    if (!text.empty()) text += ", ";
    text += std::string(route_name(static_cast<Route>(i))) + " " + format_bytes(routes[i]);
  }
  return text.empty() ? "none" : text;
}

Json routes_json(const RouteBytes& routes) {
  Json object = Json::object();
  for (std::size_t i = 0; i < routes.size(); ++i) {
    if (routes[i] != 0) object[std::string(route_name(static_cast<Route>(i)))] = routes[i];
  }
  return object;
}

std::string format_limit(const Report& report) {
  return std::string(limit_name(report.limit)) + "; " + format_lanes(report);
}

std::string format_lanes(const Report& report) {
  std::string text = "waiting for storage " + format_seconds(report.storage_seconds);
  if (report.copy_seconds > 0) text += ", for copies " + format_seconds(report.copy_seconds);
  text += report.limit == Limit::cpu ? ", working or waiting for a CPU " : ", working ";
  return text + format_seconds(report.cpu_seconds) + ", summed over lanes";
}

std::string format_progress(std::uint64_t bytes, std::optional<std::uint64_t> total_bytes, double seconds) {
  const double bytes_per_second = rate(bytes, seconds);
  std::string line = format_bytes(bytes);
  if (total_bytes) line += " of " + format_bytes(*total_bytes);
  line += ", " + format_rate(bytes_per_second);
  if (total_bytes && bytes_per_second > 0) {
    const std::uint64_t left = *total_bytes - std::min(bytes, *total_bytes);
    line += format(", %.0f s left", static_cast<double>(left) / bytes_per_second);
  }
  return line;
}

std::string printable(std::string_view text) {
  std::string result(text);
  make_printable(result);
  return result;
}

std::string cut_to(std::string_view text, std::size_t columns) {
  return std::string(text.substr(0, bytes_that_fit(text, columns)));
}

bool may_paint(int fd) {
  const char* unwanted = ::secure_getenv("NO_COLOR");
  const char* terminal = ::secure_getenv("TERM");
  return isatty(fd) && (unwanted == nullptr || *unwanted == '\0') && terminal != nullptr &&
         std::strcmp(terminal, "dumb") != 0;
}

bool tells_speed(const Report& report) {
  constexpr std::uint64_t least_bytes = 1 << 20;  // from here on the limit is judged too
  return report.bytes >= least_bytes;
}

double rate(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

Json error_json(const Error& error) {
  return {{"code", code_name(error.code)}, {"message", error.message}, {"hint", error.hint}};
}

Output::Output(const OutputFlags& flags)
    : flags_(flags),
      columns_(terminal_columns(STDOUT_FILENO).value_or(unlimited_columns)),
      utf8_(std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0),
      painted_(may_paint(STDOUT_FILENO)) {}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Output::object(const Json& value) const {
  print(stdout, json_text(value));
}

std::string Output::paint(std::string_view text, std::string_view code) const {
  return painted_ ? "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m" : std::string(text);
}

void Output::heading(std::string_view text) const {
  if (!silent()) print(stdout, wrap(printable(text), 0, columns_));
}

void Output::verdict(std::string_view text) const {
  if (!silent()) print(stdout, paint(wrap(printable(text), 0, columns_), bold));
}

void Output::section(std::string_view title) const {
  if (!silent()) print(stdout, "");
  verdict(title);
}

void Output::field(std::string_view label, std::string_view value) const {
  if (silent()) return;
  std::string line = "  " + std::string(label);
  line.append(label_columns > columns_of(line) ? label_columns - columns_of(line) : 1, ' ');
  print(stdout, line + wrap(printable(value), label_columns, columns_));
}

void Output::item(Mark mark, std::string_view text) const {
  if (silent()) return;
  const std::string_view sign = this->mark(mark);
  const std::string_view colour = mark == Mark::good ? green : mark == Mark::bad ? red : yellow;
  print(stdout, "  " + paint(sign, colour) + " " + wrap(printable(text), 3 + columns_of(sign), columns_));
}

void Output::detail(std::string_view text) const {
  if (!silent() && !text.empty()) print(stdout, "    " + wrap(printable(text), 4, columns_));
}

std::size_t Output::lines_of(std::string_view text) const {
  const std::string wrapped = wrap(printable(text), label_columns, columns_);
  return 1 + static_cast<std::size_t>(std::ranges::count(wrapped, '\n'));
}

void Output::table(const std::vector<std::vector<std::string>>& rows) const {
  table(rows.size(), [&](std::size_t index, std::vector<std::string>& row) { row = rows[index]; });
}

void Output::table(std::size_t count, const std::function<void(std::size_t, std::vector<std::string>&)>& make) const {
  if (silent()) return;
  constexpr std::size_t gap = 2;
  constexpr std::size_t rows_measured = 10'000;  // nobody sees more of them at once
  std::vector<std::size_t> widths;
  std::vector<std::string> row;
  for (std::size_t index = 0; index < std::min(count, rows_measured); ++index) {
    make(index, row);
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  const bool fits = std::accumulate(widths.begin(), widths.end(), gap * widths.size()) <= columns_;
  std::string line;  // one for all, as the row is: there may be millions
  for (std::size_t index = 0; index < count; ++index) {
    make(index, row);
    line.clear();
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      const std::size_t width = i < widths.size() ? widths[i] : 0;
      const std::size_t rest = width - std::min(width, columns_of(row[i]));
      if (i + 1 < row.size()) line.append(fits ? rest + gap : 1, ' ');
    }
    make_printable(line);
    if (columns_ != unlimited_columns) line = wrap(line, 2 * gap, columns_);
    line += '\n';
    std::fputs("  ", stdout);
    std::fwrite(line.data(), 1, line.size(), stdout);
  }
}

bool Output::on_terminal() const {
  return columns_ != unlimited_columns;
}

std::string_view Output::mark(Mark mark) const {
  if (mark == Mark::unknown) return "?";
  if (utf8_) return mark == Mark::good ? "\u2713" : "\u2717";
  return mark == Mark::good ? "ok" : "no";
}

std::string Output::bar(double share) const {
  constexpr std::size_t steps = 8;  // of a column, as far as there are characters for them
  constexpr const char* parts[steps] = {"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
  const auto eighths = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * 12 * steps));
  std::string text;
  for (std::size_t i = 0; i < eighths / steps; ++i) text += utf8_ ? "\u2588" : "#";
  return utf8_ ? text + parts[eighths % steps] : text;
}

std::string_view Output::branch(bool is_last) const {
  if (utf8_) return is_last ? "\u2514\u2500 " : "\u251c\u2500 ";
  return is_last ? "`- " : "|- ";
}

std::string_view Output::branch_gap(bool is_last) const {
  if (is_last) return "   ";
  return utf8_ ? "\u2502  " : "|  ";
}

Exit Output::transfer(const Transfer& transfer) const {
  const auto& [head, own, report, setup_seconds, verified] = transfer;
  const bool wrong = verified && verified->error;
  if (flags_.json) {
    Json whole = head;
    whole.update({{"bytes", report.bytes},
                  {"seconds", report.seconds},
                  {"gb_per_s", rate(report.bytes, report.seconds) / 1e9},
                  {"routes", routes_json(report.routes)},
                  {"engine", report.engine},
                  {"reason", report.reason},
                  {"limit", limit_name(report.limit)},
                  {"storage_seconds", report.storage_seconds},
                  {"copy_seconds", report.copy_seconds},
                  {"cpu_seconds", report.cpu_seconds},
                  {"setup_seconds", setup_seconds},
                  {"verified", verified ? Json(!wrong) : Json()},
                  {"checksum", verified ? Json(verified->checksum) : Json()}});
    if (wrong) whole["error"] = error_json(*verified->error);
    object(whole);
    return wrong ? exit_for(verified->error->code) : Exit::ok;
  }
  heading(format_bytes(report.bytes) + " in " + format_seconds(report.seconds) +
          (tells_speed(report) ? ": " + format_rate(rate(report.bytes, report.seconds)) : ""));
  field("routes", format_routes(report.routes));
  field("engine", report.engine.empty() ? "none" : report.engine);
  field("reason", report.reason);
  if (report.limit != Limit::unknown) field("limit", format_limit(report));
  field("set-up", format_seconds(setup_seconds) + ", not counted above");
  for (const Fact& fact : own) field(fact.label, fact.value);
  if (wrong) return fail(*verified->error);
  if (verified) field("verified", "yes, xxh3 " + verified->checksum);
  return Exit::ok;
}

Exit Output::fail(const Error& error) const {
  if (flags_.json) {
    object({{"error", error_json(error)}});
  } else {
    print_error(error);
  }
  return exit_for(error.code);
}

Exit Output::fail(const Report& report) const {
  const Error error = report.error.value_or(Error{.message = "the request failed without a reason"});
  if (report.failures.empty()) return fail(error);
  if (flags_.json) {
    Json object_with_failures = {{"error", error_json(error)}};
    object_with_failures["error"]["failures"] = failures_json(report);
    object_with_failures["error"]["failure_count"] = report.failure_count;
    object(object_with_failures);
    return exit_for(error.code);
  }
  print_error(error);
  for (const Failure& failure : report.failures) {
    print(stderr, "  range " + std::to_string(failure.range) + ", offset " + std::to_string(failure.offset) + ", " +
                      std::to_string(failure.bytes) + " bytes: " + std::string(code_name(failure.code)));
  }
  if (report.failure_count > report.failures.size()) {
    print(stderr, "  and " + std::to_string(report.failure_count - report.failures.size()) + " more");
  }
  return exit_for(error.code);
}

Progress::Progress(std::optional<std::uint64_t> total_bytes, const OutputFlags& flags)
    : total_bytes_(total_bytes), visible_(!flags.json && !flags.quiet && isatty(STDERR_FILENO)) {}

Progress::~Progress() {
  if (!drawn_at_seconds_) return;
  const std::size_t columns = terminal_columns(STDERR_FILENO).value_or(80);
  std::fprintf(stderr, "\r%s\r", std::string(columns - 1, ' ').c_str());
}

void Progress::update(std::uint64_t bytes) {
  if (visible_) say(format_progress(bytes, total_bytes_, since_start_.seconds()));
}

void Progress::say(std::string line) {
  const double now = since_start_.seconds();
  if (!visible_ || (drawn_at_seconds_ && now - *drawn_at_seconds_ < 0.1)) return;
  drawn_at_seconds_ = now;
  const std::size_t room = terminal_columns(STDERR_FILENO).value_or(80) - 1;
  line.resize(room, ' ');
  std::fprintf(stderr, "\r%s", line.c_str());
}

}  // namespace penstock::cli
