// bench_gpu: everything that is measured on a GPU, one subcommand a process:
//   describe        what the GPU is
//   load            a file, or a part of it, to the GPU as one request
//   store           GPU memory to a file, durable
//   scatter         one request of many small ranges of a file to scattered places of GPU memory
//   latency         single reads of 4 KiB, with Penstock and by hand
//   first           the first request of a process, with everything that it has to make
//   copies          pinned memory to the GPU: the ceiling
//   staged-threads  plain threads that read and copy
#include <fcntl.h>
#include <penstock/penstock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "cuda/stream_order.h"
#include "gpu_by_hand.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using bench::Tally;
using bench::value_of;
using penstock::Domain;
using penstock::Region;

struct Settings {
  std::string file;
  std::string options_json = "{}";
  std::uint64_t size_bytes = 0;
  std::uint64_t ranges = 1'000'000;
  std::uint32_t threads = 4;
  bool without_kernels = false;
  bool watch_memory = false;
};

constexpr std::size_t small_bytes = 4096;

bench::DeviceRange range_of(Region memory) {
  return {memory.data, memory.size_bytes};
}

// A Context with an open file and memory on the GPU.
struct Session {
  Session(const Settings& settings, std::uint64_t memory_bytes)
      : context(value_of(penstock::Context::create(value_of(penstock::Options::from_json(settings.options_json))))),
        store(value_of(context.open(settings.file))),
        buffer(value_of(context.allocate(Domain::cuda(0), memory_bytes))) {}

  Json ready(double start) const {
    return {{"setup_seconds", bench::now() - start},
            {"version", std::string(penstock::version())},
            {"options", Json::parse(context.options().to_json())},
            {"explain", context.explain(store)},
            {"file_system", store.info().file_system}};
  }

  penstock::Context context;
  penstock::Store store;
  penstock::Buffer buffer;
};

class Load {
 public:
  Load(const bench::Gpu& gpu, const Settings& settings)
      : gpu_(gpu), session_(settings, settings.size_bytes), spots_(gpu, range_of(session_.buffer.region())) {}

  Json run(double seconds) {
    spots_.spoil();
    const Json result = read_part(seconds, 0, session_.buffer.size_bytes());
    spots_.compare(bench::content_of_file(0));
    return result;
  }

  // Parts go to where they belong in the whole.
  Json read_part(double seconds, std::uint64_t offset, std::size_t size_bytes) {
    Tally tally;
    std::uint64_t loads = 0;
    const double start = bench::now();
    do {
      tally.add(session_.context.read(session_.store, offset, session_.buffer.region().part(offset, size_bytes)));
      ++loads;
    } while (bench::now() - start < seconds);
    return tally.json(bench::now() - start, loads);
  }

  Json check() {
    bench::fill(gpu_, range_of(session_.buffer.region()), bench::spoiled);
    Json result = run(0);
    result.update(bench::compare(gpu_, range_of(session_.buffer.region()), bench::content_of_file(0)));
    return result;
  }

  void converse(double start) {
    const std::size_t half = session_.buffer.size_bytes() / 2;
    bench::converse(session_.ready(start),
                    {{"run", [&](double seconds) { return run(seconds); }},
                     {"first-half", [&](double seconds) { return read_part(seconds, 0, half); }},
                     {"second-half", [&](double seconds) { return read_part(seconds, half, half); }},
                     {"check", [&](double) { return check(); }}});
  }

 private:
  const bench::Gpu& gpu_;
  Session session_;
  bench::Spots spots_;
};

class StoreToFile {
 public:
  StoreToFile(const bench::Gpu& gpu, const Settings& settings)
      : settings_(settings), session_(prepared(settings), settings.size_bytes) {
    bench::fill(gpu, range_of(session_.buffer.region()), bench::content_of_file(0));
  }

  Json run(double seconds) {
    Tally tally;
    double spent = 0;
    double unmeasured_cpu = 0;
    std::uint64_t writes = 0;
    do {
      const double cpu_start = bench::cpu_seconds();
      bench::preallocate(settings_.file, settings_.size_bytes);
      penstock::Store store = value_of(session_.context.open(settings_.file, {.access = penstock::Access::write}));
      unmeasured_cpu += bench::cpu_seconds() - cpu_start;
      const double start = bench::now();
      tally.add(session_.context.write(store, 0, session_.buffer.region(), {.durable = true}));
      spent += bench::now() - start;
      ++writes;
    } while (spent < seconds);
    Json result = tally.json(spent, writes);
    result["cpu_seconds"] = result["cpu_seconds"].get<double>() - unmeasured_cpu;
    bench::compare_spots_of_file(settings_.file, settings_.size_bytes, bench::content_of_file(0));
    return result;
  }

  // The file was empty before, so what is in it was written by this run.
  Json check() {
    Json result = run(0);
    result.update(bench::compare_file(settings_.file, settings_.size_bytes, bench::content_of_file(0)));
    return result;
  }

  void converse(double start) {
    bench::converse(session_.ready(start), {{"run", [&](double seconds) { return run(seconds); }},
                                            {"check", [&](double) { return check(); }}});
  }

 private:
  static const Settings& prepared(const Settings& settings) {
    bench::preallocate(settings.file, settings.size_bytes);
    return settings;
  }

  const Settings settings_;
  Session session_;
};

class Scatter {
 public:
  Scatter(const bench::Gpu& gpu, const Settings& settings)
      : gpu_(gpu),
        session_(settings, settings.ranges * small_bytes),
        spots_(gpu, range_of(session_.buffer.region())),
        places_(settings.size_bytes / small_bytes),
        order_(settings.ranges),
        sources_(settings.ranges),
        ranges_(settings.ranges) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  Json run(double seconds) {
    spots_.spoil();
    Json requests = Json::array();
    double spent = 0;
    double unmeasured_cpu = 0;
    Tally tally;
    do {
      const double cpu_start = bench::cpu_seconds();
      draw();
      unmeasured_cpu += bench::cpu_seconds() - cpu_start;
      const double start = bench::now();
      tally.add(session_.context.transfer(penstock::Direction::read, ranges_));
      requests.push_back(bench::now() - start);
      spent += requests.back().get<double>();
    } while (spent < seconds);
    Json result = tally.json(spent, requests.size() * ranges_.size());
    spots_.compare(content());
    result["request_seconds"] = requests;
    result["cpu_seconds"] = result["cpu_seconds"].get<double>() - unmeasured_cpu;
    return result;
  }

  Json check() {
    bench::fill(gpu_, range_of(session_.buffer.region()), bench::spoiled);
    Json result = run(0);
    result.update(bench::compare(gpu_, range_of(session_.buffer.region()), content()));
    return result;
  }

  void converse(double start) {
    bench::converse(session_.ready(start), {{"run", [&](double seconds) { return run(seconds); }},
                                            {"check", [&](double) { return check(); }}});
  }

 private:
  // Random places of the file to every place of memory, in random order.
  void draw() {
    std::ranges::shuffle(order_, random_);
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const std::uint64_t target = order_[i];
      sources_[target] = random_() % places_ * small_bytes;
      ranges_[i] = {&session_.store, sources_[target],
                    session_.buffer.region().part(target * small_bytes, small_bytes)};
    }
  }

  bench::Content content() const {
    return [this](std::uint64_t position, std::span<std::byte> bytes) {
      for (std::size_t done = 0; done < bytes.size();) {
        const std::uint64_t at = position + done;
        const std::size_t length = std::min(small_bytes - at % small_bytes, bytes.size() - done);
        bench::fill_content(sources_[at / small_bytes] + at % small_bytes, bytes.subspan(done, length));
        done += length;
      }
    };
  }

  const bench::Gpu& gpu_;
  Session session_;
  bench::Spots spots_;
  const std::uint64_t places_;
  std::vector<std::uint64_t> order_;
  std::vector<std::uint64_t> sources_;  // by destination
  std::vector<penstock::Range> ranges_;
  std::mt19937_64 random_{std::random_device{}()};
};

class Latency {
 public:
  Latency(const bench::Gpu& gpu, const Settings& settings)
      : session_(settings, small_bytes),
        spot_(gpu, range_of(session_.buffer.region())),
        pinned_(gpu, small_bytes),
        stream_(gpu),
        idler_(gpu),
        places_(settings.size_bytes / small_bytes),
        descriptor_(open(settings.file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {
    if (descriptor_ < 0) bench::fail_errno("open " + settings.file + " for direct reads");
  }
  ~Latency() { close(descriptor_); }
  Latency(const Latency&) = delete;
  Latency& operator=(const Latency&) = delete;

  Json by_penstock(double seconds) {
    penstock::Report last;
    Json result = measure(seconds, [&](std::uint64_t offset) {
      last = session_.context.read(session_.store, offset, session_.buffer.region());
      if (!last.ok()) bench::fail(last.error->message);
    });
    Tally tally;
    tally.add(last);
    result["routes"] = tally.json(0, 1)["routes"];
    return result;
  }

  Json by_hand(double seconds) {
    const auto bytes = pinned_.bytes().first(small_bytes);
    return measure(seconds, [&](std::uint64_t offset) {
      if (pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)) != ssize_t{small_bytes}) {
        bench::fail_errno("direct read");
      }
      stream_.copy_to_device(session_.buffer.data(), bytes);
      stream_.synchronize();
    });
  }

  // From the call to the moment at which the caller's stream has gone on.
  Json in_stream_order(double seconds) {
    penstock::RequestOptions options;
    options.stream = penstock::CudaStream{stream_.handle()};
    return measure(seconds, [&](std::uint64_t offset) {
      const penstock::Range range{&session_.store, offset, session_.buffer.region()};
      const penstock::Ticket ticket =
          value_of(session_.context.submit(penstock::Direction::read, {&range, 1}, options));
      stream_.synchronize();
      if (ticket.wait() != penstock::Outcome::done) bench::fail(ticket.report().error->message);
    });
  }

  // How long the call alone takes while the stream is busy with what came before: a kernel of 100 ms, or, where there
  // is none, a wait that ends when we say so.
  Json call_behind_work(double seconds) {
    auto& device = *value_of(value_of(penstock::cuda::Driver::get())->device(0));
    penstock::RequestOptions options;
    options.stream = penstock::CudaStream{stream_.handle()};
    std::vector<double> calls;
    bool behind_kernel = true;
    for (const double end = bench::now() + seconds; bench::now() < end || calls.empty();) {
      std::unique_ptr<penstock::cuda::StreamOrder> wait;
      behind_kernel = idler_.start(stream_, 100'000'000);
      if (!behind_kernel)
        wait = value_of(
            penstock::cuda::StreamOrder::begin(device, stream_.handle(), penstock::cuda::StreamHold::until_release));
      const penstock::Range range{&session_.store, 0, session_.buffer.region()};
      const double begin = bench::now();
      const penstock::Ticket ticket =
          value_of(session_.context.submit(penstock::Direction::read, {&range, 1}, options));
      calls.push_back(bench::now() - begin);
      if (wait) wait->release();
      if (ticket.wait() != penstock::Outcome::done) bench::fail(ticket.report().error->message);
    }
    std::ranges::sort(calls);
    return {{"operations", calls.size()},
            {"behind", behind_kernel ? "behind a kernel of 100 ms" : "behind a wait"},
            {"p50_seconds", calls[calls.size() / 2]},
            {"p99_seconds", calls[calls.size() * 99 / 100]}};
  }

  void converse(double start) {
    bench::converse(session_.ready(start), {{"penstock", [&](double seconds) { return by_penstock(seconds); }},
                                            {"call", [&](double seconds) { return call_behind_work(seconds); }},
                                            {"hand", [&](double seconds) { return by_hand(seconds); }},
                                            {"stream", [&](double seconds) { return in_stream_order(seconds); }}});
  }

 private:
  template <typename Read>
  Json measure(double seconds, const Read& read) {
    std::vector<double> latencies;
    const double cpu_start = bench::cpu_seconds();
    const double start = bench::now();
    double end = start;
    std::uint64_t offset = 0;
    do {
      offset = random_() % places_ * small_bytes;
      const double begin = bench::now();
      read(offset);
      end = bench::now();
      latencies.push_back(end - begin);
    } while (end - start < seconds);
    const double cpu = bench::cpu_seconds() - cpu_start;
    check(read);
    std::ranges::sort(latencies);
    return {{"operations", latencies.size()},
            {"bytes", latencies.size() * small_bytes},
            {"seconds", end - start},
            {"cpu_seconds", cpu},
            {"p50_seconds", latencies[latencies.size() / 2]},
            {"p99_seconds", latencies[latencies.size() * 99 / 100]}};
  }

  template <typename Read>
  void check(const Read& read) {
    const std::uint64_t offset = random_() % places_ * small_bytes;
    spot_.spoil();
    read(offset);
    spot_.compare(bench::content_of_file(offset));
  }

  Session session_;
  bench::Spots spot_;
  bench::PinnedMemory pinned_;
  bench::Stream stream_;
  bench::Idler idler_;
  const std::uint64_t places_;
  const int descriptor_;
  std::mt19937_64 random_{std::random_device{}()};
};

// The least free memory of the GPU while something happens; all processes of the GPU count.
class FreeMemoryWatch {
 public:
  explicit FreeMemoryWatch(const bench::Gpu& gpu)
      : lowest_(gpu.free_bytes()), thread_([this, &gpu](const std::stop_token& stop) {
          gpu.make_current();
          while (!stop.stop_requested()) {
            lowest_ = std::min(lowest_.load(), gpu.free_bytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}

  std::uint64_t lowest() const { return lowest_; }

 private:
  std::atomic<std::uint64_t> lowest_;
  std::jthread thread_;  // last: it uses the above
};

// All that Penstock makes for its first request, timed apart from the CUDA context, which exists already.
class First {
 public:
  First(const bench::Gpu& gpu, const Settings& settings) : gpu_(gpu), settings_(settings) {}

  Json run() {
    const std::uint64_t free_before = gpu_.free_bytes();
    std::optional<FreeMemoryWatch> watch;
    if (settings_.watch_memory) watch.emplace(gpu_);
    Tally tally;
    const double start = bench::now();
    context_.emplace(
        value_of(penstock::Context::create(value_of(penstock::Options::from_json(settings_.options_json)))));
    store_ = value_of(context_->open(settings_.file));
    const double opened = bench::now();
    buffer_ = value_of(context_->allocate(Domain::cuda(0), settings_.size_bytes));
    const double allocated = bench::now();
    tally.add(context_->read(store_, 0, buffer_.region()));
    const double end = bench::now();

    Json result = tally.json(end - allocated, 1);
    result["open_seconds"] = opened - start;
    result["allocate_seconds"] = allocated - opened;
    result["request_seconds"] = end - allocated;
    result["beyond_context_seconds"] = end - start;
    result["pinned_bytes"] = context_->statistics().pinned_bytes;
    if (watch) result["device_bytes"] = free_before - std::min({free_before, watch->lowest(), gpu_.free_bytes()});
    return result;
  }

  void converse(const Json& ready) {
    bench::converse(ready, {{"run", [&](double) { return run(); }},
                            {"check", [&](double) {
                               return bench::compare(gpu_, range_of(buffer_.region()), bench::content_of_file(0));
                             }}});
  }

 private:
  const bench::Gpu& gpu_;
  const Settings settings_;
  std::optional<penstock::Context> context_;
  penstock::Store store_;
  penstock::Buffer buffer_;
};

Json describe() {
  const std::vector<penstock::Gpu> gpus = value_of(penstock::list_gpus());
  if (gpus.empty()) bench::fail("there is no GPU");
  const penstock::Gpu& gpu = gpus.front();
  return {{"version", std::string(penstock::version())},
          {"name", gpu.name},
          {"pci_address", gpu.pci_address},
          {"memory_bytes", gpu.memory_bytes},
          {"copy_engines", gpu.copy_engines},
          {"cuda_version", gpu.driver_cuda_version},
          {"kernels", gpu.kernels}};
}

void run(const std::string& what, const Settings& settings) {
  const double start = bench::now();
  bench::Gpu gpu;
  if (settings.without_kernels) gpu.refuse_kernels();
  const Json ready = {{"driver_and_context_seconds", bench::now() - start}};
  if (what == "describe") return bench::converse(describe(), {});
  if (what == "load") return Load(gpu, settings).converse(start);
  if (what == "store") return StoreToFile(gpu, settings).converse(start);
  if (what == "scatter") return Scatter(gpu, settings).converse(start);
  if (what == "latency") return Latency(gpu, settings).converse(start);
  if (what == "first") return First(gpu, settings).converse(ready);
  if (what == "copies") {
    bench::Copies copies(gpu, settings.size_bytes);
    return bench::converse(ready, {{"run", [&](double seconds) { return copies.run(seconds); }}});
  }
  bench::StagedThreads threads(gpu, {settings.file, settings.size_bytes, settings.threads});
  bench::converse(ready, {{"run", [&](double seconds) { return threads.run(seconds, true); }},
                          {"read", [&](double seconds) { return threads.run(seconds, false); }},
                          {"check", [&](double) { return threads.check(); }}});
}

bench::Arguments add_command(bench::Arguments& arguments, Settings& settings, const std::string& name,
                             const std::string& summary) {
  bench::Arguments command = arguments.add_command(name, summary);
  command.add("--size", settings.size_bytes, "bytes from the start of the file").required().positive();
  if (name == "copies") return command;
  command.add("file", settings.file).required();
  if (name == "staged-threads") {
    command.add("--threads", settings.threads).between(1, 256);
    return command;
  }
  command.add("--options", settings.options_json, "of the Context, as JSON");
  command.add_flag("--without-kernels", settings.without_kernels, "as where they are not built in");
  return command;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Measures transfers to and from the first GPU; answers commands on its standard input.");
  arguments.add_command("describe", "the GPU");
  add_command(arguments, settings, "load", "a file to the GPU");
  add_command(arguments, settings, "store", "GPU memory to a file, which is overwritten");
  add_command(arguments, settings, "scatter", "small ranges of a file to scattered places of GPU memory")
      .add("--ranges", settings.ranges, "in a request")
      .positive();
  add_command(arguments, settings, "latency", "single reads of 4 KiB");
  add_command(arguments, settings, "first", "the first request of a process")
      .add_flag("--watch-memory", settings.watch_memory, "also the most GPU memory that was in use");
  add_command(arguments, settings, "copies", "pinned memory to the GPU");
  add_command(arguments, settings, "staged-threads", "plain threads that read and copy");
  arguments.parse(argc, argv);
  run(arguments.command(), settings);
}
