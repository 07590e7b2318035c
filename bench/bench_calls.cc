// bench_calls: single calls as an ordinary program makes them, on a file that make_file made, and the same by plain
// code. Each command runs both, one after the other, and answers with the seconds of both:
//   hot       4 KiB at a time from few blocks of a file that is not in the page cache
//   hot_rows  64 rows of 4 KiB at a time of such a table; by plain code a read each
//   cached    4 KiB at a time, in the page cache
//   callers   2 MiB at a time, in the page cache, by eight threads with a buffer each
//   rows      64 rows of 8 KiB at a time of a table in the page cache; by plain code copied from a mapping
//   direct    4 KiB at a time, past the page cache
//   write     4 KiB at a time, past the page cache; write_short: 100 bytes; durable: 4 KiB, each synced
#include <fcntl.h>
#include <penstock/penstock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using bench::value_of;
using penstock::Region;

constexpr std::size_t page = 4096;

struct Settings {
  std::string file;
  std::string scratch;
  std::uint64_t calls = 20'000;
  std::string options_json = "{}";
};

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : number_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (number_ < 0) bench::fail_errno("open " + path);
  }
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int operator*() const { return number_; }

 private:
  const int number_;
};

void read_all(int descriptor, std::uint64_t offset, std::span<std::byte> memory) {
  for (std::size_t done = 0; done < memory.size();) {
    const ssize_t got =
        pread(descriptor, memory.data() + done, memory.size() - done, static_cast<off_t>(offset + done));
    if (got <= 0) bench::fail_errno("read");
    done += static_cast<std::size_t>(got);
  }
}

void check(std::uint64_t offset, std::span<const std::byte> memory) {
  std::vector<std::byte> expected(memory.size());
  bench::fill_content(offset, expected);
  if (std::memcmp(expected.data(), memory.data(), memory.size()) != 0) bench::fail("wrong bytes were read");
}

class Calls {
 public:
  Calls(const Settings& settings, penstock::Context context)
      : settings_(settings),
        context_(std::move(context)),
        store_(value_of(context_.open(settings.file))),
        buffered_(settings.file, O_RDONLY),
        direct_(settings.file, O_RDONLY | O_DIRECT),
        written_(settings.scratch, O_RDWR | O_CREAT),
        written_direct_(settings.scratch, O_RDWR | O_DIRECT),
        memory_(callers * long_bytes) {
    if (ftruncate(*written_, 64 << 20) != 0 || posix_fallocate(*written_, 0, 64 << 20) != 0) bench::fail("no room");
    const std::vector<std::byte> zeros(64 << 20);
    if (pwrite(*written_, zeros.data(), zeros.size(), 0) != std::ssize(zeros)) bench::fail_errno("write");
    if (fsync(*written_) != 0) bench::fail_errno("sync");
    scratch_ = value_of(context_.open(settings.scratch, {.access = penstock::Access::write}));
    blocks_ = store_.info().size_bytes / page;
  }

  Json hot() {
    const auto offsets = offsets_from(hot_blocks, settings_.calls);
    return both([&] { bench::evict(settings_.file); },
                [&] {
                  for (const auto offset : offsets) read(offset, memory(page));
                },
                [&] {
                  for (const auto offset : offsets) read_all(*buffered_, offset, memory(page));
                },
                [&] { check(offsets.back(), memory(page)); });
  }

  Json hot_rows() {
    const auto offsets = offsets_from(hot_blocks, settings_.calls / 10 * row_count);
    const auto table =
        value_of(penstock::Rows::open_raw(context_, settings_.file, {.row_bytes = page, .count = blocks_}));
    return both([&] { bench::evict(settings_.file); }, [&] { gather(table, offsets, page); },
                [&] {
                  for (std::size_t i = 0; i < offsets.size(); ++i) {
                    read_all(*buffered_, offsets[i], memory(page, i % row_count * page));
                  }
                },
                [&] { check(offsets.back(), memory(page, (row_count - 1) * page)); });
  }

  Json rows() {
    constexpr std::size_t row_bytes = 8192;
    warm(cached_bytes);
    auto offsets = offsets_from(0, settings_.calls / 4 * row_count, cached_bytes / row_bytes, row_bytes);
    const auto table = value_of(penstock::Rows::open_raw(context_, settings_.file,
                                                         {.row_bytes = row_bytes, .count = cached_bytes / row_bytes}));
    const void* const mapped = mmap(nullptr, cached_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, *buffered_, 0);
    if (mapped == MAP_FAILED) bench::fail_errno("map");
    gather(table, std::span(offsets).first(row_count), row_bytes);
    Json result = both([] {}, [&] { gather(table, offsets, row_bytes); },
                       [&] {
                         for (std::size_t i = 0; i < offsets.size(); ++i) {
                           std::memcpy(memory(row_bytes, i % row_count * row_bytes).data(),
                                       static_cast<const std::byte*>(mapped) + offsets[i], row_bytes);
                         }
                       },
                       [&] { check(offsets.back(), memory(row_bytes, (row_count - 1) * row_bytes)); });
    munmap(const_cast<void*>(mapped), cached_bytes);
    return result;
  }

  Json cached() {
    warm(cached_bytes);
    const auto offsets = offsets_from(0, settings_.calls * 10, cached_bytes / page);
    return both([] {},
                [&] {
                  for (const auto offset : offsets) read(offset, memory(page));
                },
                [&] {
                  for (const auto offset : offsets) read_all(*buffered_, offset, memory(page));
                },
                [&] { check(offsets.back(), memory(page)); });
  }

  Json by_callers() {
    warm(cached_bytes);
    const auto offsets = offsets_from(0, settings_.calls / 100, cached_bytes / long_bytes, long_bytes);
    const auto run = [&](auto read_one) {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < callers; ++i) {
        threads.emplace_back([&, i] {
          for (const auto offset : offsets) read_one(offset, memory(long_bytes, i * long_bytes));
        });
      }
    };
    return both([] {}, [&] { run([&](auto offset, auto memory) { read(offset, memory); }); },
                [&] { run([&](auto offset, auto memory) { read_all(*buffered_, offset, memory); }); },
                [&] { check(offsets.back(), memory(long_bytes, (callers - 1) * long_bytes)); });
  }

  Json direct() {
    const auto offsets = offsets_from(0, settings_.calls / 4);
    return both([&] { bench::evict(settings_.file); },
                [&] {
                  for (const auto offset : offsets) read(offset, memory(page), {.cache = penstock::Cache::bypass});
                },
                [&] {
                  for (const auto offset : offsets) read_all(*direct_, offset, memory(page));
                },
                [&] { check(offsets.back(), memory(page)); });
  }

  Json write(std::size_t bytes, bool durable) {
    const auto offsets = offsets_from(0, settings_.calls / (durable ? 40 : 4), (64 << 20) / page);
    const bool is_direct = bytes % page == 0;
    bench::fill_content(0, memory(bytes));
    // Pages that parts are written to need not be read first.
    const auto warm_scratch = [&] {
      for (std::size_t at = 0; !is_direct && at < (64 << 20); at += long_bytes) {
        read_all(*written_, at, memory(long_bytes, long_bytes));
      }
    };
    return both(
        warm_scratch,
        [&] {
          for (const auto offset : offsets) {
            const auto report = context_.write(scratch_, offset, region(memory(bytes)), {.durable = durable});
            if (!report.ok()) bench::fail(report.error->message);
          }
        },
        [&] {
          const int descriptor = is_direct ? *written_direct_ : *written_;
          for (const auto offset : offsets) {
            if (pwrite(descriptor, memory(bytes).data(), bytes, static_cast<off_t>(offset)) !=
                static_cast<ssize_t>(bytes))
              bench::fail_errno("write");
            if (durable && fdatasync(*written_) != 0) bench::fail_errno("sync");
          }
        },
        [&] {
          read_all(*written_, offsets.back(), memory(bytes, long_bytes));
          check(0, memory(bytes, long_bytes));
        });
  }

 private:
  static constexpr std::size_t callers = 8;
  static constexpr std::size_t long_bytes = 2 << 20;
  static constexpr std::size_t cached_bytes = 64 << 20;
  static constexpr std::size_t hot_blocks = 2048;
  static constexpr std::size_t row_count = 64;

  std::span<std::byte> memory(std::size_t bytes, std::size_t offset = 0) {
    return memory_.bytes().subspan(offset, bytes);
  }
  static Region region(std::span<std::byte> memory) { return Region::host(memory.data(), memory.size()); }

  // Of `few` blocks, or of all that there are.
  std::vector<std::uint64_t> offsets_from(std::size_t few, std::size_t count, std::uint64_t all = 0,
                                          std::size_t block_bytes = page) {
    if (all == 0) all = blocks_;
    std::vector<std::uint64_t> chosen(few);
    for (auto& offset : chosen) offset = random_() % all * block_bytes;
    std::vector<std::uint64_t> offsets(count);
    for (auto& offset : offsets) offset = few != 0 ? chosen[random_() % few] : random_() % all * block_bytes;
    return offsets;
  }

  void warm(std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += long_bytes) read_all(*buffered_, at, memory(long_bytes));
  }

  void read(std::uint64_t offset, std::span<std::byte> memory, const penstock::RequestOptions& options = {}) {
    const auto report = context_.read(store_, offset, region(memory), options);
    if (!report.ok()) bench::fail(report.error->message);
  }

  void gather(const penstock::Rows& table, std::span<const std::uint64_t> offsets, std::size_t row_bytes) {
    std::vector<std::int64_t> numbers(row_count);
    for (std::size_t i = 0; i < offsets.size(); i += row_count) {
      for (std::size_t row = 0; row < row_count; ++row) {
        numbers[row] = static_cast<std::int64_t>(offsets[i + row] / row_bytes);
      }
      const auto report = table.gather(numbers, region(memory(row_count * row_bytes)));
      if (!report.ok()) bench::fail(report.error->message);
    }
  }

  template <typename Prepare, typename Ours, typename Plain, typename Check>
  Json both(Prepare prepare, Ours ours, Plain plain, Check check_bytes) {
    Json result;
    const auto run = [&](const char* name, auto work) {
      prepare();
      const double cpu = bench::cpu_seconds();
      const double start = bench::now();
      work();
      result[name] = {{"seconds", bench::now() - start}, {"cpu_seconds", bench::cpu_seconds() - cpu}};
      check_bytes();
    };
    // Whoever comes second may find something of the first in some cache.
    is_ours_first_ = !is_ours_first_;
    if (is_ours_first_) run("ours", ours);
    run("plain", plain);
    if (!is_ours_first_) run("ours", ours);
    return result;
  }

  const Settings settings_;
  penstock::Context context_;
  penstock::Store store_;
  penstock::Store scratch_;
  Descriptor buffered_;
  Descriptor direct_;
  Descriptor written_;
  Descriptor written_direct_;
  bench::Memory memory_;
  std::uint64_t blocks_ = 0;
  std::mt19937_64 random_{1};
  bool is_ours_first_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Makes single calls, and the same by plain code; answers commands on its standard input.");
  arguments.add("file", settings.file).required();
  arguments.add("scratch", settings.scratch, "a file that is written").required();
  arguments.add("--calls", settings.calls).positive();
  arguments.add("--options", settings.options_json, "of the Context, as JSON");
  arguments.parse(argc, argv);

  const auto options = value_of(penstock::Options::from_json(settings.options_json));
  Calls calls(settings, value_of(penstock::Context::create(options)));
  bench::converse({{"version", penstock::version()}}, {{"hot", [&](double) { return calls.hot(); }},
                                                       {"hot_rows", [&](double) { return calls.hot_rows(); }},
                                                       {"cached", [&](double) { return calls.cached(); }},
                                                       {"callers", [&](double) { return calls.by_callers(); }},
                                                       {"rows", [&](double) { return calls.rows(); }},
                                                       {"direct", [&](double) { return calls.direct(); }},
                                                       {"write", [&](double) { return calls.write(page, false); }},
                                                       {"write_short", [&](double) { return calls.write(100, false); }},
                                                       {"durable", [&](double) { return calls.write(page, true); }}});
}
