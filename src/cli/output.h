// Output: results for a person or for a program, on standard output; errors and progress on standard error.
//
// Text for a person is wrapped to the terminal, and coloured there unless NO_COLOR is set. JSON is one object on one
// line.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common.h"
#include "penstock/penstock.h"

namespace penstock::cli {

using Json = nlohmann::ordered_json;

std::string format_bytes(std::uint64_t bytes);
std::string format_rate(double bytes_per_second);
std::string format_seconds(double seconds);
// "2026-11-15T17:13:08Z"
std::string utc_now();
// "direct 1.07 GB, cached 4.1 kB"
std::string format_routes(const RouteBytes& routes);
Json routes_json(const RouteBytes& routes);
// Whether it moved so much that bytes a second are a speed, and not how long a request takes to begin and end.
bool tells_speed(const Report& report);
// Bytes a second; 0 where no time passed.
double rate(std::uint64_t bytes, double seconds);

// "1.2 GB of 4.3 GB, 3.1 GB/s, 1 s left"
std::string format_progress(std::uint64_t bytes, std::optional<std::uint64_t> total_bytes, double seconds);
// Without characters that a terminal would obey: names may hold some, and texts of other users.
std::string printable(std::string_view text);
// So much of a text as fits into so many columns.
std::string cut_to(std::string_view text, std::size_t columns);

// "waiting for storage 12 ms, for copies 130 ms, working 40 ms, summed over lanes"
std::string format_lanes(const Report& report);
// "copy; waiting for storage 12 ms, …"
std::string format_limit(const Report& report);

struct OutputFlags {
  bool json = false;
  bool quiet = false;
};

// What comparing the bytes that arrived with those that were meant to gave.
struct Verified {
  std::string checksum;  // xxh3
  std::optional<Error> error;
};

struct Fact {
  std::string label, value;
};
struct Transfer {
  Json head;              // what is the command's own in its JSON
  std::vector<Fact> own;  // and in its text
  Report report;
  double setup_seconds = 0;
  std::optional<Verified> verified;
};

// In one line. File names need not be UTF-8; JSON must be.
std::string json_text(const Json& value);
Json error_json(const Error& error);

// Whether colours and the like are welcome there: a terminal that understands them, and no NO_COLOR.
bool may_paint(int fd);

enum class Mark { good, bad, unknown };

class Output {
 public:
  explicit Output(const OutputFlags& flags);

  bool json() const { return flags_.json; }
  void object(const Json& value) const;

  // For a person; nothing if --json or --quiet was given.
  void heading(std::string_view text) const;
  void section(std::string_view title) const;
  void field(std::string_view label, std::string_view value) const;
  // What matters most.
  void verdict(std::string_view text) const;
  // One of a list, with its mark; what more there is to say about it.
  void item(Mark mark, std::string_view text) const;
  void detail(std::string_view text) const;
  // How many lines a text takes at most, however it is printed.
  std::size_t lines_of(std::string_view text) const;
  // Rows in columns, as far as they fit; else each row is wrapped by itself.
  void table(const std::vector<std::vector<std::string>>& rows) const;
  // Each row is made when it is needed; the first ones twice.
  void table(std::size_t count,
             const std::function<void(std::size_t index, std::vector<std::string>& row)>& make) const;
  bool on_terminal() const;
  // A check mark or a cross, as far as the locale can show them.
  std::string_view mark(Mark mark) const;
  // A bar for a share from 0 to 1, a dozen columns at most.
  std::string bar(double share) const;
  // What joins a line of a tree to its parent, and what stands in that place in the lines below it.
  std::string_view branch(bool is_last) const;
  std::string_view branch_gap(bool is_last) const;
  // What joins two lines that follow each other, and what points back at one.
  std::string_view pipe() const { return utf8_ ? "\u2502" : "|"; }
  std::string_view pointer() const { return utf8_ ? "\u2190" : "<-"; }

  // The end of a command that moved bytes.
  Exit transfer(const Transfer& transfer) const;

  // Say what went wrong, and which exit code that is.
  Exit fail(const Error& error) const;
  Exit fail(const Report& report) const;

 private:
  bool silent() const { return flags_.json || flags_.quiet; }
  // `text` as it is, or between the codes that make a terminal show it so.
  std::string paint(std::string_view text, std::string_view code) const;

  OutputFlags flags_;
  std::size_t columns_;
  bool utf8_;
  bool painted_;
};

// One line on a terminal that says how far a transfer is. Silent where nobody watches; gone when destroyed.
class Progress {
 public:
  Progress(std::optional<std::uint64_t> total_bytes, const OutputFlags& flags);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::uint64_t bytes);
  // The same line for work that is not counted in bytes.
  void say(std::string line);

 private:
  std::optional<std::uint64_t> total_bytes_;
  bool visible_;
  Stopwatch since_start_;
  std::optional<double> drawn_at_seconds_;
};

}  // namespace penstock::cli
