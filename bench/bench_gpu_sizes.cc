// bench_gpu_sizes: single synchronous transfers of one size, as programs make them: with Penstock, by hand (a pool of
// spinning threads, each with two pinned slots and a stream; the best of several settings), and one copy from pinned
// memory. Answers: penstock, stream (a read that comes after work on a stream), hand, pinned, threads and
// threads_by_hand (four threads that read one after another), check.
#include <fcntl.h>
#include <penstock/penstock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "base/spin.h"
#include "content.h"
#include "gpu_by_hand.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using bench::value_of;
using penstock::Domain;

struct Settings {
  std::string file;
  std::uint64_t file_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::string options_json = "{}";
  bool write = false;
  bool direct = false;  // by hand past the page cache; Penstock with cache=bypass
};

struct PoolSettings {
  std::size_t threads = 0;
  std::size_t piece_bytes = 0;
};

// Threads that spin while they are in use, and sleep otherwise.
class Pool {
 public:
  Pool(const bench::Gpu& gpu, int descriptor, const PoolSettings& settings, bool write)
      : gpu_(gpu), descriptor_(descriptor), settings_(settings), write_(write) {
    for (std::size_t i = 0; i < settings.threads; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~Pool() {
    stop_ = true;
    wake();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void wake() {
    awake_ = true;
    awake_.notify_all();
  }
  void sleep() { awake_ = false; }
  void transfer(std::byte* device, std::uint64_t offset, std::uint64_t size_bytes) {
    device_ = device;
    offset_ = offset;
    size_bytes_ = size_bytes;
    next_ = 0;
    done_ = 0;
    round_.fetch_add(1, std::memory_order_release);
    while (done_.load(std::memory_order_acquire) != settings_.threads) penstock::relax_processor();
  }

 private:
  struct Slot {
    std::unique_ptr<bench::PinnedMemory> memory;
    std::unique_ptr<bench::Stream> stream;
  };

  void serve() {
    gpu_.make_current();
    Slot slots[2];
    for (Slot& slot : slots) {
      slot.memory = std::make_unique<bench::PinnedMemory>(gpu_, settings_.piece_bytes);
      slot.stream = std::make_unique<bench::Stream>(gpu_);
    }
    std::uint64_t seen = 0;
    while (true) {
      while (round_.load(std::memory_order_acquire) == seen) {
        if (stop_) return;
        if (!awake_.load(std::memory_order_relaxed)) awake_.wait(false);
        penstock::relax_processor();
      }
      ++seen;
      work(slots);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work(Slot (&slots)[2]) {
    std::size_t used = 0;
    while (true) {
      const std::uint64_t at = next_.fetch_add(settings_.piece_bytes);
      if (at >= size_bytes_) break;
      const std::size_t length = std::min<std::uint64_t>(settings_.piece_bytes, size_bytes_ - at);
      Slot& slot = slots[used++ % 2];
      const auto bytes = slot.memory->bytes().first(length);
      const auto offset = static_cast<off_t>(offset_ + at);
      slot.stream->synchronize();
      if (write_) {
        slot.stream->copy_to_host(bytes, device_ + at);
        slot.stream->synchronize();
        if (pwrite(descriptor_, bytes.data(), length, offset) != static_cast<ssize_t>(length)) {
          bench::fail_errno("write by hand");
        }
      } else {
        if (pread(descriptor_, bytes.data(), length, offset) != static_cast<ssize_t>(length)) {
          bench::fail_errno("read by hand");
        }
        slot.stream->copy_to_device(device_ + at, bytes);
      }
    }
    for (Slot& slot : slots) slot.stream->synchronize();
  }

  const bench::Gpu& gpu_;
  const int descriptor_;
  const PoolSettings settings_;
  const bool write_;
  std::byte* device_ = nullptr;
  std::uint64_t offset_ = 0;
  std::uint64_t size_bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> awake_{true};
  alignas(64) std::atomic<std::uint64_t> round_{0};
  alignas(64) std::atomic<std::uint64_t> next_{0};
  alignas(64) std::atomic<std::size_t> done_{0};
  std::vector<std::jthread> threads_;  // last: they use the above
};

using Pools = std::vector<std::unique_ptr<Pool>>;

class Sizes {
 public:
  explicit Sizes(const Settings& settings)
      : settings_(settings),
        context_(value_of(penstock::Context::create(value_of(penstock::Options::from_json(settings.options_json))))),
        store_(value_of(context_.open(settings.file,
                                      {.access = settings.write ? penstock::Access::write : penstock::Access::read}))),
        buffer_(value_of(context_.allocate(Domain::cuda(0), settings.size_bytes))),
        copied_bytes_(std::min<std::uint64_t>(settings.size_bytes, 256 << 20)),
        pinned_(gpu_, copied_bytes_),
        stream_(gpu_),
        places_((settings.file_bytes - settings.size_bytes) / 4096 + 1),
        descriptor_(open(settings.file.c_str(),
                         (settings.write ? O_RDWR : O_RDONLY) | O_CLOEXEC | (settings.direct ? O_DIRECT : 0))) {
    if (descriptor_ < 0) bench::fail_errno("open " + settings.file);
    bench::fill(gpu_, memory(), bench::content_of_file(0));
    choose_pool();
  }
  ~Sizes() { close(descriptor_); }
  Sizes(const Sizes&) = delete;
  Sizes& operator=(const Sizes&) = delete;

  void converse() {
    const Json ready{{"version", std::string(penstock::version())},
                     {"by_hand", {{"threads", chosen_.threads}, {"piece_bytes", chosen_.piece_bytes}}}};
    bench::converse(
        ready,
        {{"penstock", [&](double seconds) { return by_penstock(seconds, {}); }},
         {"stream", [&](double seconds) { return by_penstock(seconds, penstock::CudaStream{stream_.handle()}); }},
         {"hand", [&](double seconds) { return by_hand(seconds); }},
         {"pinned", [&](double seconds) { return by_copy(seconds); }},
         {"threads", [&](double seconds) { return threads_by_penstock(seconds); }},
         {"threads_by_hand", [&](double seconds) { return threads_by_hand(seconds); }},
         {"check", [&](double) { return check(); }}});
  }

 private:
  bench::DeviceRange memory() const { return {buffer_.data(), buffer_.size_bytes()}; }

  // Writes keep to the beginning, whose bytes the memory has.
  std::uint64_t draw() { return settings_.write ? 0 : random_() % places_ * 4096; }

  penstock::Report transfer(std::uint64_t offset, std::optional<penstock::CudaStream> stream) {
    penstock::RequestOptions options;
    options.stream = stream;
    if (settings_.direct) options.cache = penstock::Cache::bypass;
    penstock::Report report = settings_.write ? context_.write(store_, offset, buffer_.region(), options)
                                              : context_.read(store_, offset, buffer_.region(), options);
    if (!report.ok()) bench::fail(report.error->message);
    return report;
  }

  template <typename Call>
  Json measure(double seconds, const Call& call) {
    std::vector<double> times;
    const double cpu_start = bench::cpu_seconds();
    const double start = bench::now();
    do {
      const std::uint64_t offset = draw();
      const double begin = bench::now();
      call(offset);
      times.push_back(bench::now() - begin);
    } while (bench::now() - start < seconds || times.size() < 5);
    const double cpu = bench::cpu_seconds() - cpu_start;
    const double spent = bench::now() - start;
    const double first = times.front();
    std::ranges::sort(times);
    return {{"operations", times.size()},
            {"bytes", times.size() * settings_.size_bytes},
            {"seconds", spent},
            {"cpu_seconds", cpu},
            {"first_seconds", first},
            {"p50_seconds", times[times.size() / 2]},
            {"p99_seconds", times[times.size() * 99 / 100]}};
  }

  Json by_penstock(double seconds, std::optional<penstock::CudaStream> stream) {
    return measure(seconds, [&](std::uint64_t offset) { static_cast<void>(transfer(offset, stream)); });
  }
  Json by_hand(double seconds) {
    pool_->wake();
    Json result =
        measure(seconds, [&](std::uint64_t offset) { pool_->transfer(buffer_.data(), offset, settings_.size_bytes); });
    pool_->sleep();
    return result;
  }
  Json by_copy(double seconds) {
    return measure(seconds, [&](std::uint64_t) {
      for (std::uint64_t done = 0; done < settings_.size_bytes; done += copied_bytes_) {
        const auto bytes = pinned_.bytes().first(std::min(copied_bytes_, settings_.size_bytes - done));
        if (settings_.write) {
          stream_.copy_to_host(bytes, buffer_.data() + done);
        } else {
          stream_.copy_to_device(buffer_.data() + done, bytes);
        }
      }
      stream_.synchronize();
    });
  }

  // Four threads, each with a quarter of the memory.
  template <typename Transfer>
  Json by_threads(double seconds, const Transfer& read) {
    const std::size_t quarter = settings_.size_bytes / reading_threads;
    std::atomic<std::uint64_t> bytes{0};
    const double cpu_start = bench::cpu_seconds();
    const double start = bench::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < reading_threads; ++i) {
        threads.emplace_back([&, i] {
          std::mt19937_64 random(i);
          while (bench::now() - start < seconds) {
            read(i, random() % places_ * 4096, quarter);
            bytes += quarter;
          }
        });
      }
    }
    const double spent = bench::now() - start;
    return {{"bytes", bytes.load()},
            {"operations", bytes / quarter},
            {"seconds", spent},
            {"cpu_seconds", bench::cpu_seconds() - cpu_start}};
  }
  Json threads_by_penstock(double seconds) {
    return by_threads(seconds, [&](std::size_t thread, std::uint64_t offset, std::size_t bytes) {
      const auto report = context_.read(store_, offset, buffer_.region().part(thread * bytes, bytes));
      if (!report.ok()) bench::fail(report.error->message);
    });
  }
  Json threads_by_hand(double seconds) {
    if (pools_.empty()) choose_pools();
    return by_pools(pools_, seconds);
  }
  Json by_pools(const Pools& pools, double seconds) {
    for (const auto& pool : pools) pool->wake();
    Json result = by_threads(seconds, [&](std::size_t thread, std::uint64_t offset, std::size_t bytes) {
      pools[thread]->transfer(buffer_.data() + thread * bytes, offset, bytes);
    });
    for (const auto& pool : pools) pool->sleep();
    return result;
  }

  Json check() {
    const std::uint64_t offset = draw();
    if (settings_.write) {
      static_cast<void>(transfer(0, {}));
      bench::compare_spots_of_file(settings_.file, settings_.size_bytes, bench::content_of_file(0));
      return {{"checksum", "equal"}, {"expected", "equal"}};
    }
    bench::fill(gpu_, memory(), bench::spoiled);
    const penstock::Report report = transfer(offset, penstock::CudaStream{stream_.handle()});
    Json result = bench::compare(gpu_, memory(), bench::content_of_file(offset));
    result["report"] = report.to_string();
    return result;
  }

  void choose_pool() {
    double best = 0;
    for (const std::size_t threads : {1, 2, 4, 8, 12}) {
      if (threads > std::max(2U, std::thread::hardware_concurrency())) continue;
      for (const std::size_t piece : {128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20}) {
        const bool is_one = threads == 1 && piece >= settings_.size_bytes;
        if (!is_one && (piece * 2 > settings_.size_bytes || threads == 1)) continue;
        auto pool = std::make_unique<Pool>(gpu_, descriptor_,
                                           PoolSettings{threads, std::min<std::size_t>(piece, settings_.size_bytes)},
                                           settings_.write);
        std::swap(pool, pool_);
        by_hand(0.005);
        const double p50 = by_hand(settings_.size_bytes >= (64 << 20) ? 0.06 : 0.02)["p50_seconds"].get<double>();
        if (best == 0 || p50 < best) {
          best = p50;
          chosen_ = {threads, std::min<std::size_t>(piece, settings_.size_bytes)};
        } else {
          std::swap(pool, pool_);
        }
        if (is_one) break;
      }
    }
  }

  // A pool for each of the four threads.
  void choose_pools() {
    double best = 0;
    for (const std::size_t threads : {1, 2, 3, 4}) {
      for (const std::size_t piece : {512 << 10, 1 << 20, 2 << 20, 4 << 20}) {
        Pools pools;
        for (std::size_t i = 0; i < reading_threads; ++i) {
          pools.push_back(std::make_unique<Pool>(gpu_, descriptor_, PoolSettings{threads, piece}, false));
        }
        by_pools(pools, 0.01);
        const Json result = by_pools(pools, 0.05);
        const double speed = result["bytes"].get<double>() / result["seconds"].get<double>();
        if (speed <= best) continue;
        best = speed;
        pools_ = std::move(pools);
      }
    }
  }

  static constexpr std::size_t reading_threads = 4;

  const Settings settings_;
  const bench::Gpu gpu_;
  penstock::Context context_;
  penstock::Store store_;
  penstock::Buffer buffer_;
  const std::uint64_t copied_bytes_;
  bench::PinnedMemory pinned_;
  bench::Stream stream_;
  const std::uint64_t places_;
  const int descriptor_;
  PoolSettings chosen_;
  std::unique_ptr<Pool> pool_;
  Pools pools_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Measures single transfers of one size between a file and GPU memory");
  arguments.add("file", settings.file, "the file, made by make_file").required();
  arguments.add("--file-bytes", settings.file_bytes, "its size").required();
  arguments.add("--size", settings.size_bytes, "of each transfer, in bytes").required();
  arguments.add("--options", settings.options_json, "of the Context, as JSON");
  arguments.add_flag("--write", settings.write, "from GPU memory to the file");
  arguments.add_flag("--direct", settings.direct, "past the page cache");
  arguments.parse(argc, argv);
  if (settings.size_bytes == 0 || settings.size_bytes > settings.file_bytes) bench::fail("--size exceeds the file");
  Sizes(settings).converse();
}
