// penstock rows: gathers rows of a table by their numbers, and says how fast.
#include <charconv>
#include <filesystem>
#include <fstream>
#include <random>

#include "apart.h"
#include "bytes_out.h"
#include "interrupt.h"
#include "model_names.h"
#include "output.h"
#include "source.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

struct RowsFlags {
  std::vector<std::string> paths;
  std::string tensor;
  std::string numbers;
  std::string to = "host";
  std::string out;
  std::optional<std::uint64_t> row_bytes, stride, offset, count;
  std::uint64_t seed = 1;
  std::uint32_t repeat = 1;
  bool zeros = false;
  bool no_mapping = false;
  ContextFlags context;
  OutputFlags output;
};

Error rows_usage(std::string message, std::string hint) {
  return {.code = Code::invalid_argument, .message = std::move(message), .hint = std::move(hint)};
}

Result<Rows> open_table(const Context& context, const std::string& path, const RowsFlags& flags) {
  const RowsOptions options{.mapping = !flags.no_mapping};
  if (flags.row_bytes) {
    if (!flags.tensor.empty()) return rows_usage("--row-bytes is for tables without a header", "leave out --tensor");
    if (path.ends_with(".npy") && !flags.offset) {
      return rows_usage(path + " begins with a header, which says how long its rows are",
                        "leave out --row-bytes; or give --offset too, to read rows from there on");
    }
    return Rows::open_raw(context, path,
                          {.offset = flags.offset.value_or(0),
                           .row_bytes = *flags.row_bytes,
                           .stride_bytes = flags.stride.value_or(0),
                           .count = flags.count.value_or(RawRows::all)},
                          options);
  }
  if (flags.offset || flags.stride || flags.count) {
    return rows_usage("--offset, --stride and --count are for tables without a header", "give --row-bytes too");
  }
  if (!flags.tensor.empty() && path.ends_with(".npy")) {
    return rows_usage(path + " is a .npy file, which has no named tensors", "leave out --tensor");
  }
  if (!flags.tensor.empty()) return Rows::open_tensor(context, path, flags.tensor, options);
  if (path.ends_with(".npy")) return Rows::open_npy(context, path, options);
  return rows_usage(path + ": which rows?", "name a tensor of a model with --tensor, or give --row-bytes");
}

Result<Rows> open_tables(const Context& context, const RowsFlags& flags) {
  std::vector<Rows> tables;
  for (const std::string& path : flags.paths) {
    Result<Rows> table = open_table(context, path, flags);
    if (!table.ok()) return table;
    tables.push_back(*table);
  }
  return tables.size() == 1 ? tables.front() : Rows::join(tables);
}

constexpr std::size_t numbers_between_looks = 1 << 20;

// Takes numbers between commas or blanks from a text that comes in pieces.
class NumberList {
 public:
  Status add(std::string_view text) {
    while (!text.empty()) {
      const std::size_t length = std::min(text.find_first_of(between), text.size());
      word_ += text.substr(0, std::min(length, longest_word + 1));
      if (word_.size() > longest_word) return refused();
      text.remove_prefix(length);
      if (text.empty()) return check_begun();
      if (Status ended = end_word(); !ended.ok()) return ended;
      text.remove_prefix(std::min(text.find_first_not_of(between), text.size()));
    }
    return {};
  }
  Result<std::vector<std::int64_t>> end() {
    if (Status ended = end_word(); !ended.ok()) return ended.error();
    return std::move(numbers_);
  }

 private:
  static constexpr std::string_view between = ", \t\r\n";
  static constexpr std::size_t longest_word = 64;

  // What can't become a number is refused before its end.
  Status check_begun() const {
    return word_.find_first_not_of("-0123456789") == std::string::npos ? Status() : refused();
  }

  Status end_word() {
    if (word_.empty()) return {};
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(word_.data(), word_.data() + word_.size(), number);
    if (error != std::errc() || end != word_.data() + word_.size()) return refused();
    word_.clear();
    if (numbers_.size() == numbers_.capacity()) {
      const std::size_t more = std::max<std::size_t>(numbers_.size() * 2, 1024);
      // Those that are there are copied to the new place.
      if (Status room = check_room(Domain::host(), more * sizeof number, "ask for fewer rows"); !room.ok()) return room;
      numbers_.reserve(more);
    }
    numbers_.push_back(number);
    if (numbers_.size() % numbers_between_looks == 0 && interrupted()) return interrupted_error();
    return {};
  }

  Error refused() const {
    return rows_usage("\"" + word_.substr(0, 40) + "\" is not a number of a row",
                      "write whole numbers with commas between them: 1,5,9");
  }

  std::string word_;  // the last one, which may go on
  std::vector<std::int64_t> numbers_;
};

Result<std::vector<std::int64_t>> parse_numbers(std::string_view text) {
  NumberList list;
  if (Status added = list.add(text); !added.ok()) return added.error();
  return list.end();
}

// A pipe or, for "-", standard input is waited for; so is a file whose server takes its time.
Result<std::vector<std::int64_t>> read_list(const std::string& path) {
  constexpr std::size_t window_bytes = 1 << 20;
  const std::string hint = "name a file with numbers of rows, or write them: --indices 1,5,9";
  std::error_code failed;  // of what is not there
  if (std::filesystem::is_directory(path, failed)) return system_error(EISDIR, "read " + path, hint);
  const Result<std::unique_ptr<Source>> stream = open_stream(path, std::nullopt);
  if (!stream.ok()) return stream.error();
  std::ifstream file;
  if (*stream == nullptr) {
    errno = 0;
    file.open(path, std::ios::binary);
    if (!file) return system_error(errno, "open " + path, hint);
  }
  NumberList list;
  std::string window(window_bytes, '\0');
  while (true) {
    if (interrupted()) return interrupted_error();
    std::size_t got = 0;
    if (*stream != nullptr) {
      const auto filled = (*stream)->fill(Region::host(reinterpret_cast<std::byte*>(window.data()), window_bytes));
      if (!filled.ok()) return filled.error();
      got = *filled;
    } else {
      file.read(window.data(), window_bytes);
      if (file.bad()) return system_error(EIO, "read " + path, hint);
      got = static_cast<std::size_t>(file.gcount());
    }
    if (Status added = list.add(std::string_view(window).substr(0, got)); !added.ok()) return added.error();
    if (got < window_bytes) return list.end();
  }
}

std::uint64_t bytes_of(std::uint64_t rows, std::uint64_t row_bytes) {
  std::uint64_t bytes = 0;
  return __builtin_mul_overflow(rows, row_bytes, &bytes) ? UINT64_MAX : bytes;
}

// For the rows, and for their numbers, which are in host memory.
Status check_room_for(std::uint64_t rows, std::uint64_t row_bytes, Domain domain) {
  const std::string hint = "ask for fewer rows";
  if (Status room = check_room(domain, bytes_of(rows, row_bytes), hint); !room.ok()) return room;
  std::uint64_t each = sizeof(std::int64_t);
  if (domain.kind() != Domain::Kind::cuda && __builtin_add_overflow(each, row_bytes, &each)) each = UINT64_MAX;
  return check_room(Domain::host(), bytes_of(rows, each), hint);
}

Result<std::vector<std::int64_t>> make_numbers(const RowsFlags& flags, const TableInfo& table, Domain domain) {
  constexpr std::string_view random = "random:";
  if (flags.numbers.starts_with('@')) return read_list(flags.numbers.substr(1));
  if (!flags.numbers.starts_with(random)) return parse_numbers(flags.numbers);
  const auto count = parse_numbers(std::string_view(flags.numbers).substr(random.size()));
  if (!count.ok() || count->size() != 1 || count->front() < 0) {
    return rows_usage("\"" + flags.numbers + "\" is not random:N", "write how many rows: random:100000");
  }
  if (table.rows == 0 && count->front() != 0) return rows_usage("the table has no rows", "ask for none");
  const auto wanted = static_cast<std::size_t>(count->front());
  if (Status room = check_room_for(wanted, table.row_bytes, domain); !room.ok()) return room.error();
  std::mt19937_64 generator(flags.seed);
  std::vector<std::int64_t> numbers;
  numbers.reserve(wanted);
  while (numbers.size() < wanted) {
    if (numbers.size() % numbers_between_looks == 0 && interrupted()) return interrupted_error();
    numbers.push_back(static_cast<std::int64_t>(generator() % table.rows));
  }
  return numbers;
}

struct Gathering {
  std::span<const std::int64_t> numbers;
  Region memory;
};

// The fastest of all rounds, or the first that failed.
RowsReport gather_rounds(const Rows& table, const Gathering& gathering, const RowsFlags& flags) {
  RowsReport best;
  for (std::uint32_t round = 0; round < flags.repeat; ++round) {
    RowsReport report = table.gather(gathering.numbers, gathering.memory,
                                     {.zeros_for_missing = flags.zeros, .keep_going = [] { return !interrupted(); }});
    if (interrupted()) {
      report.outcome = Outcome::cancelled;
      report.error = interrupted_error();
    }
    if (!report.ok()) return report;
    if (round == 0 || report.seconds < best.seconds) best = std::move(report);
  }
  return best;
}

Json report_json(const RowsFlags& flags, const TableInfo& info, std::size_t rows, const RowsReport& report) {
  return {{"schema", "penstock.rows/1"},
          {"paths", flags.paths},
          {"tensor", flags.tensor.empty() ? Json() : Json(flags.tensor)},
          {"to", flags.to},
          {"table", {{"rows", info.rows}, {"row_bytes", info.row_bytes}, {"dtype", info.dtype}}},
          {"rows", rows},
          {"cached_rows", report.cached_rows},
          {"cold_rows", report.cold_rows},
          {"missing_rows", report.missing_rows},
          {"bytes", report.bytes},
          {"read_bytes", report.read_bytes},
          {"extra_bytes", report.extra_bytes},
          {"seconds", report.seconds},
          {"gb_per_s", rate(report.bytes, report.seconds) / 1e9},
          {"rows_per_s", report.seconds > 0 ? static_cast<double>(rows) / report.seconds : 0.0},
          {"reading_routes", routes_json(report.reading.routes)},
          {"filling_routes", routes_json(report.filling.routes)}};
}

void print_report(const Output& output, std::size_t rows, const RowsReport& report) {
  output.verdict(count_of(rows, "row") + ", " + format_bytes(report.bytes) + " in " + format_seconds(report.seconds) +
                 ": " + format_rate(rate(report.bytes, report.seconds)));
  output.field("cached", count_of(report.cached_rows, "row") + ", copied from a mapping");
  output.field("cold", count_of(report.cold_rows, "row") + "; " + format_bytes(report.read_bytes) + " read, " +
                           format_bytes(report.extra_bytes) + " of it not asked for");
  if (report.missing_rows != 0) output.field("missing", count_of(report.missing_rows, "row") + " of zeros");
  if (report.read_bytes != 0) output.field("routes", format_routes(report.reading.routes));
}

Exit run(const RowsFlags& flags) {
  const Output output(flags.output);
  const Result<Domain> domain = Domain::parse(flags.to);
  if (!domain.ok()) return output.fail(domain.error());
  const Status apart = check_apart({"--out", flags.out}, {flags.paths, {flags.numbers, flags.context.options}});
  if (!apart.ok()) return output.fail(apart.error());
  const Result<BytesOut> bytes_out = BytesOut::to(flags.out);
  if (!bytes_out.ok()) return output.fail(bytes_out.error());
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return output.fail(context.error());
  const Result<Rows> table = open_tables(*context, flags);
  if (!table.ok()) return output.fail(table.error());
  const auto numbers = make_numbers(flags, table->info(), *domain);
  if (!numbers.ok()) return output.fail(numbers.error());
  // A file of 80 bytes can say that its rows have gigabytes; only a table with a row has bytes for one.
  if (flags.zeros && table->info().rows == 0 && !numbers->empty()) {
    return output.fail(
        rows_usage("the table has no rows, so --zeros has no row to fill", "name a table that has rows"));
  }
  const std::uint64_t bytes = bytes_of(numbers->size(), table->info().row_bytes);
  const Status room = check_room(*domain, bytes, "ask for fewer rows");
  if (!room.ok()) return output.fail(room.error());
  Buffer memory;
  if (bytes != 0) {
    Result<Buffer> allocated = context->allocate(*domain, bytes);
    if (!allocated.ok()) return output.fail(allocated.error());
    memory = std::move(*allocated);
  }
  RowsReport best = gather_rounds(*table, {*numbers, memory.region()}, flags);
  if (!best.ok()) {
    if (best.error->code == Code::out_of_range && table->info().rows != 0) {
      best.error->hint = "ask for rows of the table, or give --zeros";
    }
    return output.fail(*best.error);
  }
  const Status written = bytes_out->write(*context, memory.region());
  if (!written.ok()) return output.fail(written.error());
  if (output.json()) {
    output.object(report_json(flags, table->info(), numbers->size(), best));
  } else {
    print_report(output, numbers->size(), best);
  }
  return Exit::ok;
}

}  // namespace

Command add_rows(CLI::App& tool) {
  auto flags = std::make_shared<RowsFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("rows", "Gather rows of a table into host or GPU memory");
  parser
      ->add_option("FILE", flags->paths,
                   "a model, a .npy file or raw rows; several are one table, joined in this order")
      ->required();
  parser->add_option("--tensor", flags->tensor, "the table, in a safetensors or GGUF model")->type_name("NAME");
  parser->add_option("--indices", flags->numbers, "1,5,9, or @FILE with such a list (@-: standard input), or random:N")
      ->type_name("LIST")
      ->required();
  parser->add_option("--to", flags->to, "host, pinned or cuda:N")->type_name("MEMORY")->capture_default_str();
  parser->add_option("--out", flags->out, "write the rows to this file, replaced if it is there; -: standard output")
      ->type_name("FILE")
      ->check(some_name());
  add_size(*parser, "--row-bytes", flags->row_bytes, "raw rows: the size of one");
  add_size(*parser, "--offset", flags->offset, "raw rows: where the first begins");
  add_size(*parser, "--stride", flags->stride, "raw rows: from the beginning of one to that of the next");
  parser->add_option("--count", flags->count, "raw rows: how many there are; default: up to the end")
      ->type_name("N")
      ->transform(whole_number(0, RawRows::all - 1));
  parser->add_option("--seed", flags->seed, "other rows of random:N for another number")
      ->type_name("N")
      ->capture_default_str()
      ->transform(whole_number(0, UINT64_MAX));
  parser->add_option("--repeat", flags->repeat, "gather N times and report the fastest")
      ->type_name("N")
      ->capture_default_str()
      ->transform(whole_number(1, 1'000'000));
  parser->add_flag("--zeros", flags->zeros, "rows of zeros for indices that are out of range, instead of an error");
  parser->add_flag("--no-mapping", flags->no_mapping, "read cached rows too, instead of copying them from a mapping");
  add_context_flags(*parser, flags->context);
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
  parser->footer(
      "Examples:\n"
      "  penstock rows model.safetensors --tensor embed_tokens.weight --indices 1,5,9 --out rows.bin\n"
      "  penstock rows features.npy --indices random:1000000 --to cuda:0 --repeat 5\n"
      "  penstock rows part0.bin part1.bin --row-bytes 256 --indices @wanted.txt --json");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
