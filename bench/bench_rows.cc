// bench_rows: random rows of a cached table to host memory, by Rows::gather ("run") and as a careful program does it
// without a library ("hand"): threads that copy from a populated mapping and prefetch the rows to come.
#include <fcntl.h>
#include <penstock/penstock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "arguments.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;

struct Settings {
  std::string file;
  std::uint64_t row_bytes = 256;
  std::uint64_t output_bytes = 64 << 20;
  std::uint32_t threads = 2;
};

class ByHand {
 public:
  ByHand(const Settings& settings, const std::vector<std::int64_t>& numbers, std::span<std::byte> memory)
      : settings_(settings), numbers_(numbers), memory_(memory) {
    const int descriptor = open(settings.file.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (descriptor < 0 || fstat(descriptor, &status) != 0) bench::fail_errno("open " + settings.file);
    void* const data =
        mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (data == MAP_FAILED) bench::fail_errno("map " + settings.file);
    close(descriptor);
    table_ = static_cast<const std::byte*>(data);
  }

  Json run(double seconds) {
    const double start = bench::now();
    const double cpu_start = bench::cpu_seconds();
    std::uint64_t gathers = 0;
    std::atomic<bool> running{true};
    next_ = 0;
    std::barrier between(static_cast<std::ptrdiff_t>(settings_.threads), [&]() noexcept {
      ++gathers;
      next_ = 0;
      running = bench::now() - start < seconds;
    });
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < settings_.threads; ++i) {
      threads.emplace_back([&] {
        while (running) {
          copy_pieces();
          between.arrive_and_wait();
        }
      });
    }
    threads.clear();
    return {{"bytes", gathers * memory_.size()},
            {"operations", gathers * numbers_.size()},
            {"seconds", bench::now() - start},
            {"cpu_seconds", bench::cpu_seconds() - cpu_start}};
  }

 private:
  void copy_pieces() {
    constexpr std::size_t ahead = 16;
    const std::size_t row_bytes = settings_.row_bytes;
    const std::size_t rows_a_piece = std::max<std::size_t>(1, (1 << 20) / row_bytes);
    for (std::size_t first = next_.fetch_add(rows_a_piece); first < numbers_.size();
         first = next_.fetch_add(rows_a_piece)) {
      const std::size_t end = std::min(first + rows_a_piece, numbers_.size());
      for (std::size_t i = first; i < end; ++i) {
        if (i + ahead < end) {
          const std::byte* const coming = table_ + static_cast<std::size_t>(numbers_[i + ahead]) * row_bytes;
          for (std::size_t at = 0; at < std::min<std::size_t>(row_bytes, 1024); at += 64) {
            __builtin_prefetch(coming + at);
          }
        }
        std::memcpy(memory_.data() + i * row_bytes, table_ + static_cast<std::size_t>(numbers_[i]) * row_bytes,
                    row_bytes);
      }
    }
  }

  const Settings& settings_;
  const std::vector<std::int64_t>& numbers_;
  const std::span<std::byte> memory_;
  const std::byte* table_ = nullptr;
  std::atomic<std::size_t> next_{0};
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Gathers random rows of a cached file; answers commands on its standard input.");
  arguments.add("file", settings.file).required();
  arguments.add("--row-bytes", settings.row_bytes).positive();
  arguments.add("--output-bytes", settings.output_bytes).positive();
  arguments.add("--threads", settings.threads, "by hand, and lanes").between(1, 1024);
  arguments.parse(argc, argv);

  auto context = bench::context_with(settings.threads);
  const auto store = bench::value_of(context.open(settings.file));
  const std::uint64_t rows = store.info().size_bytes / settings.row_bytes;
  const auto table = bench::value_of(
      penstock::Rows::open_raw(context, settings.file, {.row_bytes = settings.row_bytes, .count = rows}));
  std::vector<std::int64_t> numbers(settings.output_bytes / settings.row_bytes);
  std::mt19937_64 random(1);
  for (std::int64_t& number : numbers) number = static_cast<std::int64_t>(random() % rows);
  const bench::Memory ours(numbers.size() * settings.row_bytes);
  const bench::Memory theirs(numbers.size() * settings.row_bytes);
  ByHand by_hand(settings, numbers, theirs.bytes());
  const penstock::Region memory = penstock::Region::host(ours.bytes().data(), ours.bytes().size());

  const auto gather = [&] {
    penstock::RowsReport report = table.gather(numbers, memory);
    if (!report.ok()) bench::fail(report.error->message);
    return report;
  };
  const auto run = [&](double seconds) -> Json {
    std::uint64_t cold_rows = 0;
    Json result = bench::repeat(seconds, {memory.size_bytes, numbers.size()}, [&] { cold_rows += gather().cold_rows; });
    result["cold_rows"] = cold_rows;
    return result;
  };
  const auto check = [&](double) -> Json {
    gather();
    by_hand.run(0);
    return {{"checksum", bench::checksum_of(ours.bytes())}, {"expected", bench::checksum_of(theirs.bytes())}};
  };
  bench::converse({{"version", penstock::version()}, {"rows", rows}},
                  {{"run", run}, {"hand", [&](double seconds) { return by_hand.run(seconds); }}, {"check", check}});
}
