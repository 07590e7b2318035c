// bench_kinds: scattered records of a kind to host memory in one request, by Kinds::read ("run"), as the same ranges of
// the file given to the Context ("direct"), and by their numbers as Rows ("rows").
#include <penstock/penstock.h>

#include <filesystem>
#include <optional>
#include <random>
#include <vector>

#include "arguments.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;

struct Settings {
  std::string file;
  std::uint64_t record_bytes = 512;
  std::uint64_t reads = 100'000;
  std::uint32_t threads = 2;
};

// A dictionary of the whole file that vanishes with the program.
class Dictionary {
 public:
  explicit Dictionary(const std::string& file) : path_(file + ".bench.kinds.json") { std::filesystem::remove(path_); }
  Dictionary(const Dictionary&) = delete;
  Dictionary& operator=(const Dictionary&) = delete;
  ~Dictionary() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Reads scattered records of a file; answers commands on its standard input.");
  arguments.add("file", settings.file).required();
  arguments.add("--record-bytes", settings.record_bytes).positive();
  arguments.add("--reads", settings.reads).positive();
  arguments.add("--threads", settings.threads, "lanes").between(1, 1024);
  arguments.parse(argc, argv);

  auto context = bench::context_with(settings.threads);
  const auto store = bench::value_of(context.open(settings.file));
  const std::uint64_t records = store.info().size_bytes / settings.record_bytes;
  const Dictionary dictionary(settings.file);
  const auto kinds = bench::value_of(
      penstock::Kinds::create(context, settings.file, {.dictionary = dictionary.path(), .writing = {}}));
  const penstock::Kind kind = bench::value_of(kinds.add({.name = "records",
                                                         .start_byte = 0,
                                                         .capacity = records,
                                                         .record_bytes = settings.record_bytes,
                                                         .records = records}));

  const bench::Memory memory(settings.reads * settings.record_bytes);
  const penstock::Region region = penstock::Region::host(memory.bytes().data(), settings.reads * settings.record_bytes);
  std::vector<penstock::RecordsRead> reads;
  std::vector<penstock::Range> ranges;
  std::vector<std::uint64_t> numbers;
  std::mt19937_64 random(1);
  for (std::uint64_t i = 0; i < settings.reads; ++i) {
    const std::uint64_t number = random() % records;
    const penstock::Region part = region.part(i * settings.record_bytes, settings.record_bytes);
    reads.push_back({{.kind = kind.id, .index = number}, part});
    ranges.push_back({&store, number * settings.record_bytes, part});
    numbers.push_back(number);
  }

  const auto ok = [](const auto& report) {
    if (!report.ok()) bench::fail(report.error->message);
  };
  const auto by_kind = [&] { ok(kinds.read(reads)); };
  const auto directly = [&] { ok(context.transfer(penstock::Direction::read, ranges)); };
  std::optional<penstock::Rows> rows;  // opened when asked for: what it maps can't be made cold
  const auto as_rows = [&] {
    if (!rows) rows = bench::value_of(kinds.rows(kind.id));
    ok(rows->gather(numbers, region));
  };
  const auto checksum_after = [&](const auto& read) {
    std::ranges::fill(memory.bytes(), std::byte{});
    read();
    return bench::checksum_of(memory.bytes());
  };
  const bench::Amount amount{settings.reads * settings.record_bytes, settings.reads};
  bench::converse({{"version", penstock::version()}, {"records", records}},
                  {{"run", [&](double seconds) { return bench::repeat(seconds, amount, by_kind); }},
                   {"direct", [&](double seconds) { return bench::repeat(seconds, amount, directly); }},
                   {"rows", [&](double seconds) { return bench::repeat(seconds, amount, as_rows); }},
                   {"check", [&](double) -> Json {
                      return {{"checksum", checksum_after(by_kind)}, {"expected", checksum_after(directly)}};
                    }}});
}
