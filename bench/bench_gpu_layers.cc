// bench_gpu_layers: passes over the groups of a model through a part of its size in GPU memory, by Layers, beside a
// plain load of all of it; with kernels that take a while; and experts by a Zipf router.
#include <fcntl.h>
#include <penstock/penstock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "gpu_by_hand.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using penstock::Layers;

struct Settings {
  std::string file;
  bool make = false;
  std::uint64_t groups = 50;
  std::uint64_t group_bytes = 400 << 20;
  double budget = 0.2;  // of the model
  std::uint32_t lanes = 0;
};

const penstock::Domain gpu_memory = penstock::Domain::cuda(0);

// A safetensors file whose bytes behind the header are those of every benchmark file at their offsets.
void make_model(const Settings& settings) {
  std::vector<penstock::TensorToSave> tensors;
  for (std::uint64_t i = 0; i < settings.groups; ++i) {
    tensors.push_back({.name = "layers." + std::to_string(i) + ".weight",
                       .dtype = penstock::DType::u8,
                       .shape = {settings.group_bytes},
                       .memory = {nullptr, settings.group_bytes, gpu_memory}});
  }
  const auto head = bench::value_of(penstock::safetensors_head(tensors, {}));
  const int descriptor = open(settings.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) bench::fail_errno("open " + settings.file);
  if (pwrite(descriptor, head.bytes.data(), head.bytes.size(), 0) != static_cast<ssize_t>(head.bytes.size())) {
    bench::fail_errno("write " + settings.file);
  }
  const std::uint64_t end = head.bytes.size() + settings.groups * settings.group_bytes;
  (void)posix_fallocate(descriptor, 0, static_cast<off_t>(end));
  constexpr std::uint64_t block_bytes = 4 << 20;
  std::atomic<std::uint64_t> next{head.bytes.size()};
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back([&] {
        std::vector<std::byte> block(block_bytes);
        for (std::uint64_t at = next.fetch_add(block_bytes); at < end; at = next.fetch_add(block_bytes)) {
          const std::size_t length = std::min(block_bytes, end - at);
          bench::fill_content(at, {block.data(), length});
          if (pwrite(descriptor, block.data(), length, static_cast<off_t>(at)) != static_cast<ssize_t>(length)) {
            bench::fail_errno("write " + settings.file);
          }
        }
      });
    }
  }
  if (fsync(descriptor) != 0 || close(descriptor) != 0) bench::fail_errno("sync " + settings.file);
}

void check(const penstock::Status& status) {
  if (!status.ok()) bench::fail(status.error().message);
}

class Measured {
 public:
  Measured(const bench::Gpu& gpu, const penstock::Context& context, const Settings& settings)
      : gpu_(gpu),
        context_(context),
        model_(bench::value_of(penstock::Model::open(context, settings.file))),
        groups_(bench::value_of(penstock::layer_groups(model_))),
        budget_bytes_(static_cast<std::uint64_t>(static_cast<double>(model_.size_bytes()) * settings.budget)),
        stream_(gpu),
        idler_(gpu) {}

  std::uint64_t model_bytes() const { return model_.size_bytes(); }

  // All of it, as often as the time allows.
  Json plain(double seconds) {
    if (!all_) all_ = bench::value_of(context_.allocate(gpu_memory, model_.size_bytes()));
    std::vector<penstock::TensorPart> parts;
    std::uint64_t offset = 0;
    for (std::uint32_t i = 0; i < model_.tensors().size(); ++i) {
      parts.push_back({.tensor = i, .memory = all_->region().part(offset, model_.tensors()[i].size_bytes)});
      offset += model_.tensors()[i].size_bytes;
    }
    return repeat(seconds, [&] {
      const auto loading = bench::value_of(penstock::load(context_, model_, parts));
      loading.wait();
      if (const auto report = loading.report(); !report.ok()) bench::fail(report.transfer.error->message);
    });
  }
  void forget_plain() { all_.reset(); }

  // Who waits for a group: the caller, or the stream.
  enum class Waits { caller, stream };

  // Passes over all groups; kernels that take `compute_seconds` together go on the stream.
  Json passes(double seconds, double compute_seconds, Waits waits = Waits::caller) {
    if (!layers_) layers_ = open(true);
    const auto each = static_cast<std::uint64_t>(compute_seconds * 1e9 / static_cast<double>(groups_.size()));
    const auto before = layers_->report().all;
    Json result = repeat(seconds, [&] {
      for (std::size_t i = 0; i < groups_.size(); ++i) use(*layers_, i, each, waits);
      stream_.synchronize();
      check(layers_->check());
    });
    const auto after = layers_->report().all;
    result["loaded_bytes"] = after.loaded_bytes - before.loaded_bytes;
    result["waits"] = after.waits - before.waits;
    result["hits"] = after.hits - before.hits;
    return result;
  }

  // One pass, every byte compared.
  Json check_bytes() {
    Layers layers = open(true);
    Json result;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const auto tensors = bench::value_of(layers.acquire(i));
      const penstock::TensorInfo& tensor = model_.tensors()[groups_[i].tensors[0].tensor];
      result = bench::compare(gpu_, {tensors[0].data, tensors[0].size_bytes}, bench::content_of_file(tensor.offset));
      check(layers.release(i, {stream_.handle()}));
      if (result["checksum"] != result["expected"]) break;
    }
    return result;
  }

  // Uses by a Zipf distribution with exponent 1; `hinted`: each time the next one is told.
  Json experts(double seconds, bool hinted) {
    Layers layers = open(false);
    const std::vector<std::size_t> trace = zipf_trace();
    std::size_t done = 0;
    const auto step = [&] {
      if (hinted && done + 1 < trace.size()) check(layers.hint({&trace[done + 1], 1}));
      use(layers, trace[done], 0);
      ++done;
    };
    constexpr std::size_t uses_at_least = 500;
    while (done < trace.size() / 4) step();  // until the cache is full and the frequencies are known
    const auto before = layers.report().all;
    const std::size_t first = done;
    const double begun = bench::now();
    do step();
    while (done < trace.size() && (done < first + uses_at_least || bench::now() - begun < seconds));
    stream_.synchronize();
    const double end = bench::now();
    const auto after = layers.report().all;
    const auto acquires = static_cast<double>(std::max<std::size_t>(done - first, 1));
    return {{"bytes", (done - first) * model_.size_bytes() / groups_.size()},
            {"operations", done - first},
            {"seconds", end - begun},
            {"cpu_seconds", 0},
            {"hit_rate", static_cast<double>(after.hits - before.hits) / acquires},
            {"load_rate", static_cast<double>(after.loads - before.loads) / acquires},
            {"belady_hit_rate", belady_hit_rate({trace.data(), done}, first, slots(layers))}};
  }

  // The caller's time for a group that is there.
  Json resident(double seconds, Waits waits = Waits::caller) {
    Layers layers = open(true);
    use(layers, 0, 0);
    std::vector<double> times;
    const double start = bench::now();
    do {
      const double begin = bench::now();
      const auto tensors = acquire(layers, 0, waits);
      times.push_back(bench::now() - begin);
      if (!tensors.ok()) bench::fail(tensors.error().message);
      check(layers.release(0, {stream_.handle()}));
    } while (bench::now() - start < seconds);
    std::ranges::sort(times);
    return {{"operations", times.size()},
            {"seconds", bench::now() - start},
            {"p50_seconds", times[times.size() / 2]},
            {"p99_seconds", times[times.size() * 99 / 100]}};
  }

 private:
  Layers open(bool in_order) {
    return bench::value_of(Layers::open(context_, model_, groups_,
                                        {.domain = gpu_memory,
                                         .budget_bytes = budget_bytes_,
                                         .cache = context_.options().cache,
                                         .in_order = in_order}));
  }

  static std::size_t slots(const Layers& layers) {
    std::size_t slots = 0;
    for (const auto& each : layers.report().slots) slots += each.slots;
    return slots;
  }

  penstock::Result<std::span<const penstock::Region>> acquire(Layers& layers, std::size_t group, Waits waits) const {
    return waits == Waits::stream ? layers.acquire(group, {stream_.handle()}) : layers.acquire(group);
  }

  void use(Layers& layers, std::size_t group, std::uint64_t nanoseconds, Waits waits = Waits::caller) {
    if (const auto tensors = acquire(layers, group, waits); !tensors.ok()) bench::fail(tensors.error().message);
    if (nanoseconds != 0 && !idler_.start(stream_, nanoseconds)) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
    }
    check(layers.release(group, {stream_.handle()}));
  }

  template <typename Work>
  Json repeat(double seconds, const Work& work) const {
    const double start = bench::now();
    const double cpu_start = bench::cpu_seconds();
    std::uint64_t times = 0;
    do {
      work();
      ++times;
    } while (bench::now() - start < seconds);
    return {{"bytes", times * model_.size_bytes()},
            {"loads", times},
            {"seconds", bench::now() - start},
            {"cpu_seconds", bench::cpu_seconds() - cpu_start}};
  }

  std::vector<std::size_t> zipf_trace() const {
    std::vector<double> weights(groups_.size());
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 1 / static_cast<double>(i + 1);
    std::mt19937_64 random(1);
    std::ranges::shuffle(weights, random);
    std::discrete_distribution<std::size_t> choose(weights.begin(), weights.end());
    std::vector<std::size_t> trace(20'000);
    for (std::size_t& group : trace) group = choose(random);
    return trace;
  }

  // From the use number `first` on, with the best choices from the beginning.
  double belady_hit_rate(std::span<const std::size_t> trace, std::size_t first, std::size_t slots) const {
    std::vector<std::size_t> next(trace.size());
    std::vector<std::size_t> seen(groups_.size(), SIZE_MAX);
    for (std::size_t i = trace.size(); i-- > 0;) next[i] = std::exchange(seen[trace[i]], i);
    std::map<std::size_t, std::size_t> in;  // groups, by their next use
    std::vector<std::size_t> place(groups_.size(), SIZE_MAX);
    std::size_t hits = 0;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const std::size_t group = trace[i];
      if (place[group] != SIZE_MAX) {
        hits += i >= first ? 1 : 0;
        in.erase(place[group]);
      } else if (in.size() == slots) {
        place[in.rbegin()->second] = SIZE_MAX;
        in.erase(std::prev(in.end()));
      }
      place[group] = next[i] == SIZE_MAX ? trace.size() + group : next[i];
      in[place[group]] = group;
    }
    return static_cast<double>(hits) / static_cast<double>(std::max<std::size_t>(trace.size() - first, 1));
  }

  const bench::Gpu& gpu_;
  const penstock::Context& context_;
  const penstock::Model model_;
  const std::vector<penstock::TensorGroup> groups_;
  const std::uint64_t budget_bytes_;
  bench::Stream stream_;
  bench::Idler idler_;
  std::optional<penstock::Buffer> all_;
  std::optional<Layers> layers_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments(
      "Passes over the groups of a model through GPU memory; answers commands on its standard input.");
  arguments.add("file", settings.file).required();
  arguments.add_flag("--make", settings.make, "make the file, and end");
  arguments.add("--groups", settings.groups).between(1, 100'000);
  arguments.add("--group-bytes", settings.group_bytes).positive();
  arguments.add("--budget", settings.budget, "of the model").between(0.0, 1.0);
  arguments.add("--lanes", settings.lanes);
  arguments.parse(argc, argv);
  if (settings.make) {
    make_model(settings);
    return 0;
  }

  const bench::Gpu gpu;
  penstock::Options options;
  options.lanes = settings.lanes;
  auto context = bench::value_of(penstock::Context::create(options));
  check(context.prepare(gpu_memory));
  Measured measured(gpu, context, settings);
  const auto with_compute = [&](double factor) {
    // The time that a plain load takes is found out once; kernels take a part or a multiple of it.
    return [&, factor, loading = 0.0](double seconds) mutable {
      if (loading == 0) {
        measured.plain(0);
        const Json sample = measured.plain(0);
        measured.forget_plain();
        loading = sample["seconds"].get<double>() / sample["loads"].get<double>();
        measured.passes(0, 0);
      }
      Json result = measured.passes(seconds, factor * loading);
      result["loading_seconds"] = loading;
      result["compute_seconds"] = factor * loading;
      return result;
    };
  };
  bench::converse(
      {{"version", penstock::version()}, {"model_bytes", measured.model_bytes()}},
      {{"plain", [&](double seconds) { return measured.plain(seconds); }},
       {"run", [&](double seconds) { return measured.passes(seconds, 0); }},
       {"run_in_order", [&](double seconds) { return measured.passes(seconds, 0, Measured::Waits::stream); }},
       {"compute_tenth", with_compute(0.1)},
       {"compute_half", with_compute(0.5)},
       {"compute_same", with_compute(1)},
       {"compute_double", with_compute(2)},
       {"compute_tenfold", with_compute(10)},
       {"experts", [&](double seconds) { return measured.experts(seconds, false); }},
       {"experts_hinted", [&](double seconds) { return measured.experts(seconds, true); }},
       {"resident", [&](double seconds) { return measured.resident(seconds); }},
       {"resident_in_order", [&](double seconds) { return measured.resident(seconds, Measured::Waits::stream); }},
       {"check", [&](double) { return measured.check_bytes(); }}});
}
