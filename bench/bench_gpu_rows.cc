// bench_gpu_rows: random rows of a table to GPU memory, by Rows::gather and RowsPlan, and as a careful program does it
// without a library ("hand": threads that copy rows from a populated mapping into two pinned slots each, and the slots
// to the GPU; "direct": threads that read rows past the page cache).
#include <dlfcn.h>
#include <fcntl.h>
#include <penstock/penstock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "arguments.h"
#include "gpu_by_hand.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using penstock::Region;
using penstock::RowNumbers;

struct Settings {
  std::string file;
  std::string options_json = "{}";
  std::uint64_t row_bytes = 256;
  std::uint64_t count = 1'000'000;
  std::uint32_t threads = 16;
  std::uint64_t cache_bytes = 64 << 20;
  bool is_half_cached = false;
};

using Numbers = std::vector<std::int64_t>;

// Whole gathers until `seconds` have passed. `gather` gives how many rows were cold.
template <typename Gather>
Json repeat(double seconds, std::uint64_t row_bytes, std::uint64_t rows, const Gather& gather) {
  const double start = bench::now();
  const double cpu_start = bench::cpu_seconds();
  std::uint64_t gathers = 0;
  std::uint64_t cold_rows = 0;
  do {
    cold_rows += gather();
    ++gathers;
  } while (bench::now() - start < seconds);
  return {{"bytes", gathers * rows * row_bytes},
          {"operations", gathers * rows},
          {"loads", gathers},
          {"seconds", bench::now() - start},
          {"cpu_seconds", bench::cpu_seconds() - cpu_start},
          {"cold_rows", cold_rows}};
}

class ByHand {
 public:
  ByHand(const bench::Gpu& gpu, const Settings& settings, std::byte* memory)
      : gpu_(gpu), settings_(settings), memory_(memory), slots_(gpu, settings.threads * 2 * slot_bytes) {
    const int descriptor = open(settings.file.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (descriptor < 0 || fstat(descriptor, &status) != 0) bench::fail_errno("open " + settings.file);
    size_bytes_ = static_cast<std::size_t>(status.st_size);
    void* const data = mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (data == MAP_FAILED) bench::fail_errno("map " + settings.file);
    close(descriptor);
    table_ = static_cast<const std::byte*>(data);
  }
  ByHand(const ByHand&) = delete;
  ByHand& operator=(const ByHand&) = delete;
  ~ByHand() { munmap(const_cast<std::byte*>(table_), size_bytes_); }

  // The threads and their streams live as long as the round, and wait for each other between gathers.
  Json run(double seconds, const Numbers& numbers) {
    double start = 0;
    double end = 0;
    double cpu_start = 0;
    std::uint64_t gathers = 0;
    bool running = true;
    std::barrier between(static_cast<std::ptrdiff_t>(settings_.threads), [&]() noexcept {
      end = bench::now();
      if (start == 0) {
        start = end;
        cpu_start = bench::cpu_seconds();
      } else {
        ++gathers;
        running = end - start < seconds;
      }
      next_ = 0;
    });
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < settings_.threads; ++i) {
      threads.emplace_back([&, i] {
        gpu_.make_current();
        const Streams streams = {bench::Stream(gpu_), bench::Stream(gpu_)};
        between.arrive_and_wait();
        while (running) {
          copy_pieces(numbers, i, streams);
          between.arrive_and_wait();
        }
      });
    }
    threads.clear();
    return {{"bytes", gathers * numbers.size() * settings_.row_bytes},
            {"operations", gathers * numbers.size()},
            {"loads", gathers},
            {"seconds", end - start},
            {"cpu_seconds", bench::cpu_seconds() - cpu_start}};
  }

 private:
  static constexpr std::size_t slot_bytes = 1 << 20;
  using Streams = std::array<bench::Stream, 2>;

  void copy_pieces(const Numbers& numbers, std::uint32_t thread, const Streams& streams) {
    constexpr std::size_t ahead = 16;
    const std::size_t row_bytes = settings_.row_bytes;
    const std::size_t rows_a_piece = slot_bytes / row_bytes;
    std::size_t turn = 0;
    for (std::size_t first = next_.fetch_add(rows_a_piece); first < numbers.size();
         first = next_.fetch_add(rows_a_piece), ++turn) {
      const std::size_t end = std::min(first + rows_a_piece, numbers.size());
      const auto slot = slots_.bytes().subspan((thread * 2 + turn % 2) * slot_bytes, (end - first) * row_bytes);
      streams[turn % 2].synchronize();
      for (std::size_t i = first; i < end; ++i) {
        if (i + ahead < end) {
          const std::byte* const coming = table_ + static_cast<std::size_t>(numbers[i + ahead]) * row_bytes;
          for (std::size_t at = 0; at < std::min<std::size_t>(row_bytes, 1024); at += 64) {
            __builtin_prefetch(coming + at);
          }
        }
        std::memcpy(slot.data() + (i - first) * row_bytes, table_ + static_cast<std::size_t>(numbers[i]) * row_bytes,
                    row_bytes);
      }
      streams[turn % 2].copy_to_device(memory_ + first * row_bytes, slot);
    }
    for (const bench::Stream& stream : streams) stream.synchronize();
  }

  const bench::Gpu& gpu_;
  const Settings& settings_;
  std::byte* const memory_;
  const bench::PinnedMemory slots_;
  const std::byte* table_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::atomic<std::size_t> next_{0};
};

// The blocks that rows need, read by so many threads with O_DIRECT: what the disk gives at that depth.
class DirectReads {
 public:
  DirectReads(const Settings& settings) : settings_(settings) {
    descriptor_ = open(settings.file.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (descriptor_ < 0) bench::fail_errno("open " + settings.file);
  }
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;
  ~DirectReads() { close(descriptor_); }

  // At the depth that was the best one in the first call: the best of several in each would be the luckiest.
  Json at_best_depth(double seconds, const Numbers& numbers) {
    if (best_depth_ == 0) {
      double best = 0;
      for (const std::uint32_t depth : {16U, 64U, 128U, 256U}) {
        const Json found = run(seconds, numbers, depth);
        const double speed = found["bytes"].get<double>() / found["seconds"].get<double>();
        if (speed > best) best_depth_ = depth;
        best = std::max(best, speed);
      }
    }
    Json result = run(seconds, numbers, best_depth_);
    result["depth"] = best_depth_;
    return result;
  }

 private:
  static constexpr std::size_t block_bytes = 4096;

  Json run(double seconds, const Numbers& numbers, std::uint32_t depth) {
    const std::size_t length = (settings_.row_bytes + block_bytes - 1) / block_bytes * block_bytes;
    const double start = bench::now();
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint64_t> rows{0};
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < depth; ++i) {
      threads.emplace_back([&] {
        auto* const memory = static_cast<std::byte*>(std::aligned_alloc(block_bytes, length));
        for (std::size_t at = next.fetch_add(1); at < numbers.size() && bench::now() - start < seconds;
             at = next.fetch_add(1)) {
          const auto offset = static_cast<std::uint64_t>(numbers[at]) * settings_.row_bytes / block_bytes * block_bytes;
          if (pread(descriptor_, memory, length, static_cast<off_t>(offset)) < 0) bench::fail_errno("read");
          ++rows;
        }
        std::free(memory);
      });
    }
    threads.clear();
    return {{"bytes", rows * settings_.row_bytes},
            {"operations", rows.load()},
            {"seconds", bench::now() - start},
            {"cpu_seconds", 0}};
  }

  const Settings& settings_;
  int descriptor_ = -1;
  std::uint32_t best_depth_ = 0;  // 0: not known yet
};

// Numbers of rows of which a part is asked for again and again, as words are: the k-th of 16,384 with a probability
// proportional to 1/k (Zipf). All others are drawn from the whole table.
class Draw {
 public:
  static constexpr std::uint64_t hot_rows = 16384;

  Draw(std::uint64_t table_rows, unsigned hot_percent) : table_rows_(table_rows), hot_percent_(hot_percent) {}
  std::int64_t operator()() {
    if (random_() % 100 >= hot_percent_) return static_cast<std::int64_t>(random_() % table_rows_);
    const double even = std::uniform_real_distribution<double>()(random_);
    return hot(static_cast<std::uint64_t>(std::exp(even * std::log(hot_rows))) - 1);
  }
  // They lie all over the table.
  std::int64_t hot(std::uint64_t rank) const {
    return static_cast<std::int64_t>(rank * 0x9E3779B97F4A7C15 % table_rows_);
  }

 private:
  std::uint64_t table_rows_;
  unsigned hot_percent_;
  std::mt19937_64 random_{7};
};

// A graph that takes numbers, as if it computed them, and gathers by them; replayed one by one.
class Replays {
 public:
  Replays(const bench::Gpu& gpu, const penstock::Context& context, const penstock::Rows& table, std::size_t rows,
          const penstock::RowsPlanOptions& options)
      : gpu_(gpu),
        plan_(bench::value_of(penstock::RowsPlan::make(penstock::Domain::cuda(0), {&table, 1}, rows, options))),
        asked_(gpu, rows * sizeof(std::int64_t)),
        numbers_(bench::value_of(context.allocate(penstock::Domain::cuda(0), rows * sizeof(std::int64_t)))),
        memory_(bench::value_of(context.allocate(penstock::Domain::cuda(0), rows * table.info().row_bytes))),
        stream_(gpu) {
    void* const library = dlopen(bench::cuda::library_name, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) bench::fail("the CUDA driver is not loaded");
#define FIND(member, symbol, arguments) \
  captures_.member = reinterpret_cast<decltype(captures_.member)>(dlsym(library, #symbol));
    PENSTOCK_CUDA_CAPTURES(FIND)
#undef FIND
    gpu_.check(captures_.begin(stream_.handle(), bench::cuda::cu_capture_mode_global), "begin a capture");
    stream_.copy_to_device(numbers_.data(), asked_.bytes().first(numbers_.size_bytes()));
    const penstock::Status status = plan_.enqueue(
        {stream_.handle()}, {.numbers = {RowNumbers::Type::i64, numbers_.region()}, .memory = memory_.region()});
    if (!status.ok()) bench::fail(status.error().message);
    bench::cuda::CuGraph graph = nullptr;
    gpu_.check(captures_.end(stream_.handle(), &graph), "end a capture");
    gpu_.check(captures_.instantiate(&executable_, graph, 0), "instantiate a graph");
    gpu_.check(captures_.destroy(graph), "destroy a graph");
  }
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;
  ~Replays() { captures_.destroy_executable(executable_); }

  // Asks for all that is asked for often, once.
  void warm(const Draw& draw) {
    const std::span<std::int64_t> asked = this->asked();
    for (std::uint64_t rank = 0; rank < Draw::hot_rows;) {
      for (std::int64_t& number : asked) number = draw.hot(rank++ % Draw::hot_rows);
      replay();
    }
  }

  Json run(double seconds, Draw& draw) {
    const std::span<std::int64_t> asked = this->asked();
    const penstock::RowsPlanReport before = plan_.report();
    std::vector<double> times;
    const double start = bench::now();
    do {
      for (std::int64_t& number : asked) number = draw();
      const double begin = bench::now();
      replay();
      times.push_back(bench::now() - begin);
    } while (bench::now() - start < seconds);
    if (const penstock::Status status = plan_.check(); !status.ok()) bench::fail(status.error().message);
    std::ranges::sort(times);
    const penstock::RowsPlanReport after = plan_.report();
    return {
        {"replays", times.size()},
        {"hits", static_cast<double>(after.hit_rows - before.hit_rows) / static_cast<double>(after.rows - before.rows)},
        {"cache_rows", after.cache_rows},
        {"unasked_rounds", after.unasked_rounds - before.unasked_rounds},
        {"bytes", times.size() * memory_.size_bytes()},
        {"seconds", bench::now() - start},
        {"p50_seconds", times[times.size() / 2]},
        {"p99_seconds", times[times.size() * 99 / 100]}};
  }

 private:
  std::span<std::int64_t> asked() const {
    return {reinterpret_cast<std::int64_t*>(asked_.bytes().data()), numbers_.size_bytes() / sizeof(std::int64_t)};
  }
  void replay() {
    gpu_.check(captures_.launch(executable_, stream_.handle()), "launch a graph");
    stream_.synchronize();
  }

  const bench::Gpu& gpu_;
  penstock::RowsPlan plan_;
  bench::PinnedMemory asked_;
  penstock::Buffer numbers_;
  penstock::Buffer memory_;
  bench::Stream stream_;
  bench::cuda::CaptureApi captures_;
  bench::cuda::CuGraphExecutable executable_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Gathers random rows of a file to GPU memory; answers commands on its standard input.");
  arguments.add("file", settings.file).required();
  arguments.add("--row-bytes", settings.row_bytes).positive();
  arguments.add("--rows", settings.count, "in one gather").positive();
  arguments.add("--threads", settings.threads, "by hand, and lanes").between(1, 1024);
  arguments.add("--options", settings.options_json, "of the Context, as JSON; what is not there is as always");
  arguments.add("--cache-bytes", settings.cache_bytes, "GPU memory that keeps rows of replayed graphs");
  arguments.add_flag("--half-cached", settings.is_half_cached,
                     "the first half of the file is cached: a tenth of the rows is taken from the other");
  arguments.parse(argc, argv);

  const bench::Gpu gpu;
  penstock::Options options = bench::value_of(penstock::Options::from_json(settings.options_json));
  if (settings.options_json == "{}") options.lanes = settings.threads;
  auto context = bench::value_of(penstock::Context::create(options));
  const std::uint64_t rows = bench::value_of(context.open(settings.file)).info().size_bytes / settings.row_bytes;
  const auto table = bench::value_of(
      penstock::Rows::open_raw(context, settings.file, {.row_bytes = settings.row_bytes, .count = rows}));
  std::mt19937_64 random(1);
  Numbers numbers;  // of all rows, or of the cached ones and a tenth that are not
  Numbers cold;
  for (std::uint64_t i = 0; i < settings.count; ++i) {
    const std::uint64_t half = rows / 2;
    const bool is_cold = settings.is_half_cached && i % 10 == 0;
    const std::uint64_t row = !settings.is_half_cached ? random() % rows
                              : is_cold                ? half + 1 + random() % (half - 1)
                                                       : random() % (half - 1);
    numbers.push_back(static_cast<std::int64_t>(row));
    if (is_cold) cold.push_back(numbers.back());
  }
  const auto domain = penstock::Domain::cuda(0);
  const std::uint64_t all_bytes = numbers.size() * settings.row_bytes;
  const auto ours = bench::value_of(context.allocate(domain, all_bytes));
  const auto on_gpu = bench::value_of(context.allocate(domain, numbers.size() * sizeof(std::int64_t)));
  const Region host_numbers = Region::host(numbers.data(), numbers.size() * sizeof(std::int64_t));
  if (const auto status = penstock::copy(on_gpu.region(), host_numbers); !status.ok()) {
    bench::fail(status.error().message);
  }
  std::optional<bench::DeviceMemory> theirs;
  std::optional<ByHand> by_hand;
  std::optional<DirectReads> direct;
  if (settings.is_half_cached) {
    direct.emplace(settings);
  } else {
    theirs.emplace(gpu, all_bytes);
    by_hand.emplace(gpu, settings, theirs->data());
  }

  const auto gather = [&](const RowNumbers& wanted) {
    const penstock::RowsReport report = table.gather(wanted, ours.region().part(0, wanted.size() * settings.row_bytes));
    if (!report.ok()) bench::fail(report.error->message);
    return report.cold_rows;
  };
  const auto run_of = [&](const RowNumbers& wanted) {
    return [&, wanted](double seconds) {
      return repeat(seconds, settings.row_bytes, wanted.size(), [&] { return gather(wanted); });
    };
  };
  const auto bytes_of = [&](const std::byte* device) {
    std::vector<std::byte> bytes(all_bytes);
    const Region from{const_cast<std::byte*>(device), all_bytes, domain};
    if (const auto status = penstock::copy(Region::host(bytes.data(), bytes.size()), from); !status.ok()) {
      bench::fail(status.error().message);
    }
    penstock::Checksum checksum;
    checksum.add(bytes);
    return checksum.hex();
  };
  std::map<std::string, bench::Command> commands = {{"run", run_of(numbers)},
                                                    {"indices", run_of({RowNumbers::Type::i64, on_gpu.region()})}};
  if (settings.is_half_cached) {
    commands["cold"] = run_of(cold);
    commands["direct"] = [&](double seconds) { return direct->at_best_depth(seconds, cold); };
  } else {
    commands["hand"] = [&](double seconds) { return by_hand->run(seconds, numbers); };
    commands["check"] = [&](double) -> Json {
      gather(numbers);
      by_hand->run(0, numbers);
      return {{"checksum", bytes_of(ours.data())}, {"expected", bytes_of(theirs->data())}};
    };
    for (const std::size_t count : {std::size_t{64}, std::size_t{1024}}) {
      commands["replay" + std::to_string(count)] = [&, count, draw = Draw(rows, 0),
                                                    replays = std::shared_ptr<Replays>()](double seconds) mutable {
        if (!replays) replays = std::make_shared<Replays>(gpu, context, table, count, penstock::RowsPlanOptions());
        return replays->run(seconds, draw);
      };
      const auto with_cache = [&](unsigned percent, double unasked_seconds) {
        const penstock::RowsPlanOptions cached{.cache_bytes = settings.cache_bytes, .unasked_seconds = unasked_seconds};
        return [&, count, cached, draw = Draw(rows, percent),
                replays = std::shared_ptr<Replays>()](double seconds) mutable {
          if (!replays) {
            replays = std::make_shared<Replays>(gpu, context, table, count, cached);
            replays->warm(draw);
          }
          return replays->run(seconds, draw);
        };
      };
      for (const unsigned percent : {0U, 50U, 90U, 100U}) {
        commands["cache" + std::to_string(count) + "at" + std::to_string(percent)] = with_cache(percent, 0);
      }
      commands["unasked" + std::to_string(count)] = with_cache(100, 1);
    }
  }
  bench::converse({{"version", penstock::version()}, {"rows", rows}}, commands);
}
