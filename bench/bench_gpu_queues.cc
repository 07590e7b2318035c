// bench_gpu_queues: reads that kernels start by themselves.
//
//   memory           random blocks of 512 bytes of host memory: by Penstock ("run"), and by a bare loop of the same
//   kind
//                    without checks or deadlines ("bare"); how long one thread's takes ("latency", "bare_latency"), and
//                    a word to the CPU and back ("signal")
//   file FILE        random units of a cached file, by Penstock's queues ("run") and by requests of the program to the
//                    same memory ("host"); and beside computing ("read", "compute", "both")
#include <penstock/gpu_queues.h>
#include <penstock/penstock.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "arguments.h"
#include "gpu_by_hand.h"
#include "rounds.h"
#include "tally.h"

extern "C" const char penstock_bench_gpu_queues[];

namespace {

using bench::Json;
using penstock::Domain;
using penstock::Region;

constexpr std::uint64_t block_bytes = 512;
constexpr std::uint64_t word_factor = 0x9e3779b97f4a7c15ULL;

struct Settings {
  std::string file;
  std::uint32_t server_threads = 8;
  std::uint32_t gpu_threads = 32 << 10;
  std::uint32_t queues = 0;
  std::uint32_t depth = 256;
  std::uint32_t place_bytes = 4096;
  std::uint32_t unit_bytes = 4096;
  std::uint32_t way = 1;                 // as in the kernel: thread, warp, block
  std::uint64_t run_bytes = 4ULL << 30;  // about so many are read by one kernel
  bool rests = false;                    // the threads of the server, between kernels
};

// As in the kernels.
struct Job {
  std::uint64_t queues = 0, memory = 0, bad = 0, laps = 0, units = 0;
  std::uint32_t unit_bytes = 0, rounds = 0, way = 0, loops = 0;
};
struct Grid {
  unsigned blocks = 1, threads = 1;
};

template <typename T>
std::uint64_t address_of(T* data) {
  return reinterpret_cast<std::uint64_t>(data);
}

Grid grid_of(std::uint32_t threads) {
  const std::uint32_t block = std::min(threads, 128U);
  return {std::max(1U, threads / block), block};
}

class Kernels {
 public:
  explicit Kernels(const bench::Gpu& gpu) : gpu_(gpu), stream_(gpu) {
    bench::cuda::CuFunction function = nullptr;
    are_there_ = penstock_bench_gpu_queues[0] != '\0' &&
                 gpu_.api().module_load_data(&module_, penstock_bench_gpu_queues) == bench::cuda::cu_success &&
                 gpu_.api().module_get_function(&function, module_, "bench_visit") == bench::cuda::cu_success;
  }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  template <typename... Parameters>
  double run(const char* name, Grid grid, Parameters... parameters) const {
    bench::cuda::CuFunction function = nullptr;
    gpu_.check(gpu_.api().module_get_function(&function, module_, name), "find a kernel");
    void* pointers[] = {&parameters...};
    const double start = bench::now();
    gpu_.check(gpu_.api().launch_kernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream_.handle(), pointers,
                                        nullptr),
               "launch a kernel");
    stream_.synchronize();
    return bench::now() - start;
  }
  const bench::Stream& stream() const { return stream_; }
  // False where the build had no nvcc, or the driver can't compile what it made.
  bool are_there() const { return are_there_; }

 private:
  const bench::Gpu& gpu_;
  bench::Stream stream_;
  bench::cuda::CuModule module_ = nullptr;
  bool are_there_ = false;
};

// Counters and times in GPU memory.
class Results {
 public:
  static constexpr std::uint32_t rounds = 4000;

  Results(const bench::Gpu& gpu, const Kernels& kernels) : kernels_(kernels), memory_(gpu, (rounds + 3) * 8) {
    const std::vector<std::uint64_t> zeros(rounds + 3);
    kernels_.stream().copy_to_device(memory_.data(), std::as_bytes(std::span(zeros)));
    kernels_.stream().synchronize();
  }
  std::uint64_t bad() const { return address_of(memory_.data()); }
  std::uint64_t laps() const { return address_of(memory_.data()) + 8; }
  // Ends the program where an operation brought something else.
  void check() const {
    if (const std::uint64_t bad = get()[0]; bad != 0) bench::fail(std::to_string(bad) + " operations were wrong");
  }
  Json latencies() const {
    std::vector<std::uint64_t> words = get();
    const double seconds_per_clock =
        static_cast<double>(words[rounds + 2]) / static_cast<double>(words[rounds + 1]) / 1e9;
    std::sort(words.begin() + 1, words.begin() + 1 + rounds);
    const auto at = [&](double share) {
      return static_cast<double>(words[1 + static_cast<std::size_t>(share * rounds)]);
    };
    return {{"p50_seconds", at(0.5) * seconds_per_clock}, {"p99_seconds", at(0.99) * seconds_per_clock}};
  }

 private:
  std::vector<std::uint64_t> get() const {
    std::vector<std::uint64_t> words(rounds + 3);
    kernels_.stream().copy_to_host(std::as_writable_bytes(std::span(words)), memory_.data());
    kernels_.stream().synchronize();
    return words;
  }
  const Kernels& kernels_;
  bench::DeviceMemory memory_;
};

// Threads that do something until this is destroyed.
class Crew {
 public:
  template <typename Work>
  Crew(std::uint32_t count, const Work& work) {
    for (std::uint32_t i = 0; i < count; ++i) {
      threads_.emplace_back([this, work, i] {
        while (!over_.load(std::memory_order_relaxed)) work(i);
      });
    }
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::vector<std::thread> threads_;
};

std::uint64_t device_address(const bench::Gpu& gpu, const bench::PinnedMemory& memory) {
  bench::cuda::CuDevicePtr address = 0;
  gpu.check(gpu.api().host_get_device_pointer(&address, memory.bytes().data(), 0), "find the GPU's address of memory");
  return address;
}

// The other side of the bare loop, and its memory.
class BareQueues {
 public:
  static constexpr std::uint32_t entries = 1024;

  BareQueues(const bench::Gpu& gpu, const Kernels& kernels, std::uint32_t count, const std::byte* store)
      : count_(count),
        store_(store),
        shared_(gpu, count * shared_bytes),
        own_(gpu, count * sizeof(Own)),
        sides_(count) {
    std::memset(shared_.bytes().data(), 0, shared_.bytes().size());
    const std::uint64_t base = device_address(gpu, shared_);
    std::vector<Own> own(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t at = base + i * shared_bytes;
      own[i].addresses[0] = at + submissions;
      own[i].addresses[1] = at + completions;
      own[i].addresses[2] = at;
      own[i].addresses[3] = at + 256;
      own[i].addresses[4] = at + data;
    }
    kernels.stream().copy_to_device(own_.data(), std::as_bytes(std::span(own)));
    kernels.stream().synchronize();
  }

  std::uint64_t address() const { return address_of(own_.data()); }
  std::uint32_t count() const { return count_; }
  void serve(std::uint32_t thread, std::uint32_t threads) {
    for (std::uint32_t i = thread; i < count_; i += threads) serve_queue(i);
  }

 private:
  // As BareQueue in the kernels.
  struct Own {
    std::uint64_t addresses[5];
    alignas(128) std::uint32_t tickets = 0;
    alignas(128) std::uint32_t published = 0;
    alignas(128) std::uint32_t draining = 0;
    std::uint32_t drained = 0;
    alignas(128) std::uint32_t free_turn[entries] = {};
    std::uint32_t done_turn[entries] = {};
  };
  struct alignas(64) Side {
    std::uint32_t fetched = 0;
  };
  static constexpr std::uint64_t submissions = 4096;
  static constexpr std::uint64_t completions = submissions + entries * 64;
  static constexpr std::uint64_t data = completions + entries * 16;
  static constexpr std::uint64_t shared_bytes = data + entries * block_bytes;

  void serve_queue(std::uint32_t number) {
    std::byte* const base = shared_.bytes().data() + number * shared_bytes;
    const std::uint32_t tail = __atomic_load_n(reinterpret_cast<std::uint32_t*>(base), __ATOMIC_ACQUIRE);
    std::uint32_t& fetched = sides_[number].fetched;
    for (; fetched % entries != tail; ++fetched) {
      const auto* const entry = reinterpret_cast<const std::uint32_t*>(base + submissions + fetched % entries * 64);
      const std::uint32_t slot = entry[0] >> 16;
      const std::uint64_t block = std::uint64_t{entry[11]} << 32 | entry[10];
      std::memcpy(base + data + slot * block_bytes, store_ + block * block_bytes, block_bytes);
      auto* const status = reinterpret_cast<std::uint32_t*>(base + completions + fetched % entries * 16) + 3;
      const std::uint32_t phase = fetched / entries % 2 == 0 ? 1 : 0;
      __atomic_store_n(status, slot | phase << 16, __ATOMIC_RELEASE);
    }
  }

  const std::uint32_t count_;
  const std::byte* const store_;
  bench::PinnedMemory shared_;
  bench::DeviceMemory own_;
  std::vector<Side> sides_;
};

// Whole kernels until the seconds have passed. `run` gives the seconds of one.
template <typename Run>
Json repeat(double seconds, std::uint64_t operations, std::uint64_t bytes, const Run& run) {
  double spent = 0;
  std::uint64_t runs = 0;
  do {
    spent += run();
    ++runs;
  } while (spent < seconds);
  return {{"operations", runs * operations}, {"bytes", runs * operations * bytes}, {"seconds", spent}, {"loads", runs}};
}

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        kernels_(gpu_),
        context_(bench::value_of(penstock::Context::create({.pinned_budget_bytes = 2ULL << 30}))) {
    server_ = bench::value_of(
        penstock::GpuServer::start(context_, {.threads = settings.server_threads, .hot = !settings.rests}));
  }

  bool has_kernels() const { return kernels_.are_there(); }
  penstock::GpuQueues open(const penstock::GpuStore& store) {
    return bench::value_of(server_.open({.stores = {store},
                                         .queues = settings_.queues,
                                         .depth = settings_.depth,
                                         .place_bytes = settings_.place_bytes,
                                         .ahead_places = settings_.place_bytes <= 4096 ? 8192U : 1024U}));
  }

  void serve_memory() {
    constexpr std::uint64_t blocks = 1 << 20;
    const bench::Memory memory(blocks * block_bytes);
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const std::uint64_t word = i * word_factor;
      std::memcpy(memory.bytes().data() + i * block_bytes, &word, sizeof word);
    }
    const auto queues = open({.memory = Region::host(memory.bytes().data(), memory.bytes().size())});
    BareQueues bare(gpu_, kernels_, queues.options().queues, memory.bytes().data());
    const Grid grid = grid_of(settings_.gpu_threads);
    const std::uint32_t threads = grid.blocks * grid.threads;
    // As long as one server thread needs for a million.
    const std::uint32_t rounds = std::max(4U, (1U << 20) * std::min(settings_.server_threads, 4U) / threads);
    const auto job = [&](const Results& results, std::uint32_t count) {
      return Job{.queues = address_of(queues.handle()), .bad = results.bad(), .units = blocks, .rounds = count};
    };
    const auto many = [&](const auto& run) {
      return [&, run](double seconds) {
        const Results results(gpu_, kernels_);
        Json json = repeat(seconds, std::uint64_t{threads} * rounds, block_bytes,
                           [&] { return run(grid, job(results, rounds)); });
        results.check();
        return json;
      };
    };
    const auto lone = [&](const auto& run) {
      return [&, run](double) {
        const Results results(gpu_, kernels_);
        Job one = job(results, Results::rounds);
        one.laps = results.laps();
        run(Grid{}, one);
        results.check();
        return results.latencies();
      };
    };
    const auto ours = [&](Grid on, const Job& what) { return kernels_.run("bench_visit", on, what); };
    const auto theirs = [&](Grid on, const Job& what) {
      const Crew crew(settings_.server_threads, [&](std::uint32_t i) { bare.serve(i, settings_.server_threads); });
      return kernels_.run("bench_bare", on, bare.address(), bare.count(), what);
    };
    const bench::PinnedMemory words(gpu_, 4096);
    const auto signal = [&](Grid on, Job what) {
      auto* const ask = reinterpret_cast<std::uint32_t*>(words.bytes().data());
      const Crew crew(1, [&](std::uint32_t) {
        __atomic_store_n(ask + 32, __atomic_load_n(ask, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
      });
      what.memory = device_address(gpu_, words);
      return kernels_.run("bench_signal", on, what);
    };
    bench::converse({{"queues", queues.options().queues}, {"threads", threads}, {"kernels", true}},
                    {{"run", many(ours)},
                     {"bare", many(theirs)},
                     {"latency", lone(ours)},
                     {"bare_latency", lone(theirs)},
                     {"signal", lone(signal)}});
  }

  void serve_file() {
    const auto store = bench::value_of(context_.open(settings_.file));
    const auto queues = open({.store = store});
    const Grid grid = grid_of(settings_.gpu_threads);
    const std::uint32_t lanes = settings_.way == 3 ? grid.threads : settings_.way == 2 ? 32 : 1;
    const std::uint64_t teams = std::uint64_t{grid.blocks} * grid.threads / lanes;
    const std::uint64_t units = store.info().size_bytes / settings_.unit_bytes;
    const std::uint64_t bytes = teams * settings_.unit_bytes;
    const bench::DeviceMemory memory(gpu_, bytes);
    const auto ours = bench::value_of(context_.allocate(Domain::cuda(0), bytes));
    const std::uint32_t rounds = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, settings_.run_bytes / bytes));
    const auto job = [&](const Results& results) {
      return Job{.queues = address_of(queues.handle()),
                 .memory = address_of(memory.data()),
                 .bad = results.bad(),
                 .units = units,
                 .unit_bytes = settings_.unit_bytes,
                 .rounds = rounds,
                 .way = settings_.way};
    };
    const auto run = [&](double seconds) {
      const Results results(gpu_, kernels_);
      Json json = repeat(seconds, teams * rounds, settings_.unit_bytes,
                         [&] { return kernels_.run("bench_read", grid, job(results)); });
      results.check();
      const auto report = queues.report();
      json["mapped_share"] =
          static_cast<double>(report.mapped_bytes) / static_cast<double>(std::max<std::uint64_t>(report.read_bytes, 1));
      return json;
    };
    // The same by requests, of as many ranges as there are teams.
    std::mt19937_64 random(1);
    const auto host = [&](double seconds) {
      return repeat(seconds, teams, settings_.unit_bytes, [&] {
        std::vector<penstock::Range> ranges;
        for (std::uint64_t i = 0; i < teams; ++i) {
          ranges.push_back({&store, random() % units * settings_.unit_bytes,
                            ours.region().part(i * settings_.unit_bytes, settings_.unit_bytes)});
        }
        const auto report = context_.transfer(penstock::Direction::read, ranges);
        if (!report.ok()) bench::fail(report.to_string());
        return report.seconds;
      });
    };
    const auto check = [&](double) {
      const Results results(gpu_, kernels_);
      Job one = job(results);
      one.rounds = 0;
      kernels_.run("bench_read", grid, one);
      results.check();
      const std::uint64_t whole = std::min(teams, units) * settings_.unit_bytes;
      return bench::compare(gpu_, {memory.data(), whole}, bench::content_of_file(0));
    };
    // Beside computing: a warp has one unit, and so many loops that both take about as long.
    const Grid warps{132, 256};
    const auto overlap = [&](bool reads, bool computes) {
      return [&, reads, computes](double) {
        const Results results(gpu_, kernels_);
        Job both = job(results);
        both.rounds = 200;
        if (!reads) both.units = 0;
        both.loops = computes ? loops_ : 0;
        const double seconds = kernels_.run("bench_overlap", warps, both);
        if (reads && !computes)
          loops_ = std::max(1U, static_cast<std::uint32_t>(seconds / both.rounds * loops_per_second));
        results.check();
        return Json{{"seconds", seconds}, {"loads", 1}, {"bytes", 1}};
      };
    };
    std::map<std::string, bench::Command> commands = {{"run", run}, {"host", host}, {"check", check}};
    if (std::uint64_t{warps.blocks} * warps.threads / 32 * settings_.unit_bytes <= bytes) {
      commands["read"] = overlap(true, false);
      commands["compute"] = overlap(false, true);
      commands["both"] = overlap(true, true);
    }
    bench::converse({{"queues", queues.options().queues}, {"teams", teams}, {"kernels", true}}, commands);
  }

 private:
  // About 8 clocks of 1.8 GHz: a scheduler has two warps, each with four multiplications and additions.
  static constexpr double loops_per_second = 2.25e8;

  const Settings settings_;
  bench::Gpu gpu_;
  Kernels kernels_;
  penstock::Context context_;
  penstock::GpuServer server_;
  std::uint32_t loops_ = 1000;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Reads that kernels start by themselves; answers commands on its standard input.");
  auto memory = arguments.add_command("memory", "random blocks of 512 bytes of host memory");
  auto file = arguments.add_command("file", "random units of a file");
  file.add("file", settings.file).required();
  file.add("--unit-bytes", settings.unit_bytes).positive();
  file.add("--way", settings.way, "1: a thread reads a unit, 2: a warp, 3: a block").between(1, 3);
  file.add("--run-bytes", settings.run_bytes, "about so many are read by one kernel");
  for (bench::Arguments each : {memory, file}) {
    each.add("--server-threads", settings.server_threads).between(1, 256);
    each.add("--gpu-threads", settings.gpu_threads).positive();
    each.add("--queues", settings.queues);
    each.add_flag("--rests", settings.rests, "threads of the server rest between kernels");
    each.add("--depth", settings.depth);
    each.add("--place-bytes", settings.place_bytes);
  }
  arguments.parse(argc, argv);
  Bench bench(settings);
  if (!bench.has_kernels()) {
    bench::converse({{"kernels", false}}, {});
  } else if (arguments.command() == "memory") {
    bench.serve_memory();
  } else {
    bench.serve_file();
  }
}
