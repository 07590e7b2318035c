// bench_gpu_array: a store in host memory that kernels index through a cache in GPU memory.
//
//   resident   the cache has room for all of it, and every word counts in a sum: read page by page ("pages") and by
//              element ("elements"), and plain GPU memory the same way ("plain_pages", "plain_elements")
//   uniform    the store is twice as large as the cache: pages at random by warps ("array"), plain reads of the same
//              pages by the same queues ("reads"), and elements at random by threads ("random_elements")
#include <penstock/penstock.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "arguments.h"
#include "gpu_by_hand.h"
#include "rounds.h"
#include "tally.h"

extern "C" const char penstock_bench_gpu_array[];

namespace {

using bench::Json;
using penstock::Domain;
using penstock::Region;

constexpr std::uint64_t word_factor = 0x9e3779b97f4a7c15ULL;
constexpr std::uint32_t page_bytes = 4096;

struct Settings {
  std::uint64_t size_bytes = 1ULL << 30;
  std::uint32_t server_threads = 8;
  std::uint32_t blocks = 132 * 4;
};

// As in the kernels.
struct Job {
  std::uint64_t handle = 0, plain = 0, sum = 0, bad = 0, pages = 0;
  std::uint32_t page_bytes = 0, rounds = 0;
  std::uint64_t seed = 0;
};

template <typename T>
std::uint64_t address_of(T* data) {
  return reinterpret_cast<std::uint64_t>(data);
}

class Kernels {
 public:
  static constexpr unsigned block_threads = 256;

  explicit Kernels(const bench::Gpu& gpu) : gpu_(gpu), stream_(gpu) {
    bench::cuda::CuFunction function = nullptr;
    are_there_ = penstock_bench_gpu_array[0] != '\0' &&
                 gpu_.api().module_load_data(&module_, penstock_bench_gpu_array) == bench::cuda::cu_success &&
                 gpu_.api().module_get_function(&function, module_, "bench_array_pages") == bench::cuda::cu_success;
  }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  double run(const char* name, unsigned blocks, Job job) const {
    bench::cuda::CuFunction function = nullptr;
    gpu_.check(gpu_.api().module_get_function(&function, module_, name), "find a kernel");
    void* parameters[] = {&job};
    const double start = bench::now();
    gpu_.check(
        gpu_.api().launch_kernel(function, blocks, 1, 1, block_threads, 1, 1, 0, stream_.handle(), parameters, nullptr),
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

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        kernels_(gpu_),
        context_(bench::value_of(penstock::Context::create())),
        store_(settings.size_bytes),
        words_(gpu_, 16) {
    for (std::uint64_t i = 0; i < settings.size_bytes / 8; ++i) {
      const std::uint64_t word = i * word_factor;
      std::memcpy(store_.bytes().data() + 8 * i, &word, sizeof word);
      sum_ += word;
    }
    server_ = bench::value_of(penstock::GpuServer::start(context_, {.threads = settings.server_threads, .hot = true}));
    queues_ = bench::value_of(
        server_.open({.stores = {{.memory = Region::host(store_.bytes().data(), store_.bytes().size())}}}));
  }

  bool has_kernels() const { return kernels_.are_there(); }

  void serve_resident() {
    const auto array = open(settings_.size_bytes + settings_.size_bytes / 256 + (64 << 20));
    if (array.frame_count() != array.page_count()) bench::fail("the cache has no room for all pages");
    const bench::DeviceMemory plain(gpu_, settings_.size_bytes);
    kernels_.stream().copy_to_device(plain.data(), store_.bytes());
    kernels_.stream().synchronize();
    const auto all = [&](const char* kernel) {
      return [&, kernel](double seconds) {
        return repeat(seconds, settings_.size_bytes, [&] {
          clear();
          Job job{.handle = address_of(array.handle()),
                  .plain = address_of(plain.data()),
                  .sum = address_of(words_.data()),
                  .bad = address_of(words_.data()) + 8,
                  .pages = settings_.size_bytes / page_bytes,
                  .page_bytes = page_bytes};
          const double spent = kernels_.run(kernel, settings_.blocks, job);
          check(sum_);
          return spent;
        });
      };
    };
    all("bench_array_pages")(0);  // brings everything
    bench::converse({{"kernels", true}, {"pages", array.page_count()}},
                    {{"plain_pages", all("bench_plain_pages")},
                     {"pages", all("bench_array_pages")},
                     {"plain_elements", all("bench_plain_elements")},
                     {"elements", all("bench_array_elements")}});
  }

  void serve_uniform() {
    auto array = open(settings_.size_bytes / 2);
    const std::uint64_t warps = std::uint64_t{settings_.blocks} * Kernels::block_threads / 32;
    const bench::DeviceMemory memory(gpu_, warps * page_bytes);
    const auto at_random = [&](const char* kernel, std::uint64_t handle, std::uint64_t lanes) {
      return [&, kernel, handle, lanes](double seconds) {
        const auto before = bench::value_of(array.statistics());
        std::uint32_t rounds = 32;
        Json json = repeat(seconds, warps * lanes * rounds * (lanes == 1 ? page_bytes : 8), [&] {
          clear();
          const Job job{.handle = handle,
                        .plain = address_of(memory.data()),
                        .sum = address_of(words_.data()),
                        .bad = address_of(words_.data()) + 8,
                        .pages = settings_.size_bytes / page_bytes,
                        .page_bytes = page_bytes,
                        .rounds = rounds,
                        .seed = (++launches_) * 0x9e3779b97f4a7c15ULL};
          const double spent = kernels_.run(kernel, settings_.blocks, job);
          check(0);
          return spent;
        });
        const auto after = bench::value_of(array.statistics());
        json["operations"] = json["loads"].get<std::uint64_t>() * warps * lanes * rounds;
        json["hits"] = after.hits - before.hits;
        json["fetched"] = after.fetched - before.fetched;
        json["joined"] = after.joined - before.joined;
        json["passed"] = after.passed - before.passed;
        return json;
      };
    };
    const auto reads = at_random("bench_reads_random", address_of(queues_.handle()), 1);
    const auto pages = at_random("bench_array_random", address_of(array.handle()), 1);
    const auto elements = at_random("bench_array_random_elements", address_of(array.handle()), 32);
    bench::converse({{"kernels", true}, {"pages", array.page_count()}, {"frames", array.frame_count()}},
                    {{"reads", reads}, {"array", pages}, {"random_elements", elements}});
  }

 private:
  penstock::GpuArray open(std::uint64_t memory_bytes) {
    return bench::value_of(
        penstock::GpuArray::open(context_, queues_, {.memory_bytes = memory_bytes, .page_bytes = page_bytes}));
  }
  // Whole kernels until the seconds have passed. `run` gives the seconds of one.
  template <typename Run>
  static Json repeat(double seconds, std::uint64_t bytes, const Run& run) {
    double spent = 0;
    std::uint64_t runs = 0;
    do {
      spent += run();
      ++runs;
    } while (spent < seconds);
    return {{"bytes", runs * bytes}, {"seconds", spent}, {"loads", runs}};
  }
  void clear() const {
    const std::uint64_t zeros[2] = {};
    kernels_.stream().copy_to_device(words_.data(), std::as_bytes(std::span(zeros)));
    kernels_.stream().synchronize();
  }
  void check(std::uint64_t sum) const {
    std::uint64_t words[2] = {};
    kernels_.stream().copy_to_host(std::as_writable_bytes(std::span(words)), words_.data());
    kernels_.stream().synchronize();
    if (words[1] != 0) bench::fail(std::to_string(words[1]) + " operations were wrong");
    if (words[0] != sum) bench::fail("the sum of all words is wrong");
  }

  const Settings settings_;
  bench::Gpu gpu_;
  Kernels kernels_;
  penstock::Context context_;
  bench::Memory store_;
  bench::DeviceMemory words_;
  std::uint64_t sum_ = 0;
  std::uint64_t launches_ = 0;
  penstock::GpuServer server_;
  penstock::GpuQueues queues_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Arrays that kernels index; answers commands on its standard input.");
  auto resident = arguments.add_command("resident", "everything is in the cache");
  auto uniform = arguments.add_command("uniform", "half of it is");
  for (bench::Arguments each : {resident, uniform}) {
    each.add("--size", settings.size_bytes).positive();
    each.add("--server-threads", settings.server_threads).between(1, 256);
    each.add("--blocks", settings.blocks, "of 256 threads").positive();
  }
  arguments.parse(argc, argv);
  Bench bench(settings);
  if (!bench.has_kernels()) {
    bench::converse({{"kernels", false}}, {});
  } else if (arguments.command() == "resident") {
    bench.serve_resident();
  } else {
    bench.serve_uniform();
  }
}
