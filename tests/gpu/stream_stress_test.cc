// Requests of all kinds, and copies, events, kernels and graphs of a program, from several threads and on several
// streams, from a seed: everything gets done, and the bytes are right.
//
// PENSTOCK_STRESS_SECONDS: for how long (2). PENSTOCK_STRESS_SEED: that of an earlier run; otherwise from the clock.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>

#include "cuda/control_memory.h"
#include "cuda/kernels.h"
#include "gpu/stream_order_test.h"
#include "support/graph_capture.h"

namespace penstock::test {
namespace {

using SteadyClock = std::chrono::steady_clock;

double number_from_environment(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atof(text) : otherwise;
}

constexpr std::size_t stressed_bytes = 6 * mib;  // of a stream, in the file, on the GPU and in pinned memory
constexpr std::size_t graph_bytes = 192 << 10;   // that a replay copies, from the beginning of an area
constexpr unsigned kernel_blocks = 4;
constexpr int streams_of_thread = 4;
constexpr int threads_count = 3;

// The longest of what several threads measured.
class Longest {
 public:
  void note(double seconds) {
    double before = seconds_.load();
    while (seconds > before && !seconds_.compare_exchange_weak(before, seconds)) {
    }
  }
  double seconds() const { return seconds_; }

 private:
  std::atomic<double> seconds_{0};
};

struct Times {
  Longest call;     // of the program's own work
  Longest request;  // from the call to the end
};

// One stream, its areas, and what their bytes must be.
class Area {
 public:
  Area(std::size_t index, cuda::CuStream stream, const Context& context, Store& store, cuda::Driver& driver,
       Times& times)
      : base_(index * stressed_bytes),
        stream_(stream),
        context_(context),
        store_(store),
        driver_(driver),
        times_(times),
        device_(context.allocate(Domain::cuda(0), stressed_bytes).value()),
        other_(context.allocate(Domain::cuda(0), stressed_bytes).value()),
        pinned_(context.allocate(Domain::pinned(), stressed_bytes).value()),
        table_(cuda::ControlMemory::of_process().take(gpu(), 2 * kernel_blocks * sizeof(cuda::ScatterEntry)).value()) {
    make_table();
    const cuda::Current current(gpu());
    capture();
  }
  ~Area() {
    const cuda::Current current(gpu());
    EXPECT_EQ(cuda_.captures.destroy_executable(executable_), cuda::cu_success);
    cuda::ControlMemory::of_process().give_back(table_);
  }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;

  void step(std::mt19937_64& random) {
    const auto pick = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most)(random); };
    const std::size_t longest = std::size_t{1} << pick(22);
    const std::size_t bytes = 1 + pick(longest);
    const std::size_t at = pick(stressed_bytes - bytes);
    switch (pick(13)) {
      case 0:
      case 1:
        return read(at, bytes, random);
      case 2:
      case 3:
        return write(at, bytes, random);
      case 4:
        return copy_to_device(at, bytes);
      case 5:
        return copy_back(at, bytes);
      case 6:
        return copy_within(at, bytes);
      case 7:
        return event();
      case 8:
        return read_scattered(random);
      case 9:
      case 10:
        return copy_pageable(at, bytes, random);
      case 11:
        return put([&](const auto&) { return launch_kernel(); });
      case 12:
        return replay();
      default:
        if (pick(3) == 0) check();
    }
  }

  // The stream and all requests are done, and every place has what the model says.
  void check() {
    drain();
    std::vector<std::byte> there(stressed_bytes);
    ASSERT_TRUE(copy(Region::host(there.data(), stressed_bytes), device_.region()).ok());
    ASSERT_TRUE(same_bytes(there, on_device_));
    ASSERT_TRUE(same_bytes(pinned_.bytes(), in_pinned_));
    ASSERT_TRUE(context_.read(store_, base_, Region::host(there.data(), stressed_bytes)).ok());
    ASSERT_TRUE(same_bytes(there, in_file_));
  }
  void drain() {
    for (const Ticket& ticket : tickets_) {
      ASSERT_TRUE(ticket.wait_for(std::chrono::seconds(60)));
      const Report report = ticket.report();
      ASSERT_EQ(report.outcome, Outcome::done) << report.error->message;
      times_.request.note(report.seconds);
    }
    tickets_.clear();
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_.api().stream_synchronize(stream_), cuda::cu_success);
  }

  void begin(std::span<const std::byte> file) {
    in_file_.assign(file.begin() + static_cast<std::ptrdiff_t>(base_),
                    file.begin() + static_cast<std::ptrdiff_t>(base_ + stressed_bytes));
    on_device_.assign(stressed_bytes, std::byte{0});
    in_pinned_ = content(base_ + 1, 0, stressed_bytes);
    std::ranges::copy(in_pinned_, pinned_.data());
    ASSERT_TRUE(copy(device_.region(), Region::host(on_device_.data(), stressed_bytes)).ok());
  }

 private:
  cuda::Device& gpu() const { return *driver_.device(0).value(); }

  // There and back again, as copy_within.
  void make_table() {
    auto* entry = reinterpret_cast<cuda::ScatterEntry*>(table_.host);
    constexpr std::size_t piece = graph_bytes / kernel_blocks;
    for (const bool is_back : {false, true}) {
      for (std::size_t at = 0; at < graph_bytes; at += piece) {
        const auto device = cuda::device_address(device_.data() + at);
        const auto other = cuda::device_address(other_.data() + at);
        *entry++ = {.from = is_back ? other : device, .to = is_back ? device : other, .bytes = piece};
      }
    }
  }
  cuda::CuResult launch_kernel() const {
    for (unsigned half = 0; half < 2; ++half) {
      cuda::CuDevicePtr entries = table_.device + half * kernel_blocks * sizeof(cuda::ScatterEntry);
      unsigned blocks = kernel_blocks;
      void* parameters[] = {&entries, &blocks};
      const cuda::CuResult result =
          cuda_.api.launch_kernel(gpu().kernels()[cuda::Kernel::scatter], blocks, 1, 1, cuda::kernel_threads, 1, 1, 0,
                                  stream_, parameters, nullptr);
      if (result != cuda::cu_success) return result;
    }
    return cuda::cu_success;
  }
  void capture() {
    cuda::CuGraph graph = nullptr;
    EXPECT_EQ(cuda_.captures.begin(stream_, cuda::cu_capture_mode_thread_local), cuda::cu_success);
    EXPECT_EQ(cuda_.api.copy_to_device(cuda::device_address(device_.data()), pinned_.data(), graph_bytes, stream_),
              cuda::cu_success);
    EXPECT_EQ(launch_kernel(), cuda::cu_success);
    EXPECT_EQ(cuda_.captures.end(stream_, &graph), cuda::cu_success);
    EXPECT_EQ(cuda_.captures.instantiate(&executable_, graph, 0), cuda::cu_success);
    EXPECT_EQ(cuda_.captures.destroy(graph), cuda::cu_success);
  }
  void replay() {
    put([&](const auto&) { return cuda_.captures.launch(executable_, stream_); });
    move(on_device_, in_pinned_, 0, graph_bytes);
  }

  // Some calls are synchronous: then what is on the stream is done first, and nothing follows before they return.
  template <typename Call>
  static void timed(Longest& longest, Call call) {
    const auto begun = SteadyClock::now();
    call();
    longest.note(std::chrono::duration<double>(SteadyClock::now() - begun).count());
  }
  void transfer(Direction direction, std::span<const Range> ranges, std::mt19937_64& random) {
    RequestOptions options;
    options.stream = CudaStream{stream_};
    if (random() % 3 == 0) {
      timed(times_.request, [&] {
        const Report report = context_.transfer(direction, ranges, options);
        ASSERT_TRUE(report.ok()) << report.error->message;
      });
    } else {
      timed(times_.call, [&] {
        auto ticket = context_.submit(direction, ranges, options);
        ASSERT_TRUE(ticket.ok()) << ticket.error().message;
        tickets_.push_back(std::move(*ticket));
      });
    }
    if (tickets_.size() > 16) drain();
  }
  static void move(std::vector<std::byte>& to, const std::vector<std::byte>& from, std::size_t at, std::size_t bytes) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), bytes, to.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void read(std::size_t at, std::size_t bytes, std::mt19937_64& random) {
    const Range range{&store_, base_ + at, device_.region().part(at, bytes)};
    transfer(Direction::read, {&range, 1}, random);
    move(on_device_, in_file_, at, bytes);
  }
  void write(std::size_t at, std::size_t bytes, std::mt19937_64& random) {
    const Range range{&store_, base_ + at, device_.region().part(at, bytes)};
    transfer(Direction::write, {&range, 1}, random);
    move(in_file_, on_device_, at, bytes);
  }
  void read_scattered(std::mt19937_64& random) {
    std::vector<Range> ranges;
    for (std::size_t at = random() % 4096; at + 20000 < stressed_bytes && ranges.size() < 200; at += 20000) {
      const std::size_t bytes = 1 + random() % 20000;
      ranges.push_back({&store_, base_ + at, device_.region().part(at, bytes)});
      move(on_device_, in_file_, at, bytes);
    }
    transfer(Direction::read, ranges, random);
  }
  void put(const std::function<cuda::CuResult(const cuda::RelaxedApi&)>& call) {
    const cuda::Current current(gpu());
    timed(times_.call, [&] { ASSERT_EQ(call(driver_.api()), cuda::cu_success); });
  }
  void copy_to_device(std::size_t at, std::size_t bytes) {
    put([&](const auto& api) {
      return api.copy_to_device(cuda::device_address(device_.data() + at), pinned_.data() + at, bytes, stream_);
    });
    move(on_device_, in_pinned_, at, bytes);
  }
  // The driver may copy these at once, or wait until the stream has come to them.
  void copy_pageable(std::size_t at, std::size_t bytes, std::mt19937_64& random) {
    const std::vector<std::byte> source = content(random(), 0, bytes);
    const auto device = cuda::device_address(device_.data() + at);
    put([&](const auto& api) { return api.copy_to_device(device, source.data(), bytes, stream_); });
    std::ranges::copy(source, on_device_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void copy_back(std::size_t at, std::size_t bytes) {
    put([&](const auto& api) {
      return api.copy_from_device(pinned_.data() + at, cuda::device_address(device_.data() + at), bytes, stream_);
    });
    move(in_pinned_, on_device_, at, bytes);
  }
  // There and back again: the bytes stay.
  void copy_within(std::size_t at, std::size_t bytes) {
    const auto device = cuda::device_address(device_.data() + at);
    const auto other = cuda::device_address(other_.data() + at);
    put([&](const auto& api) { return api.copy_between_devices(other, device, bytes, stream_); });
    put([&](const auto& api) { return api.copy_between_devices(device, other, bytes, stream_); });
  }
  void event() {
    const cuda::Current current(gpu());
    const cuda::CuEvent event = gpu().take_event().value();
    put([&](const auto& api) { return api.event_record(event, stream_); });
    put([&](const auto& api) { return api.stream_wait_event(stream_, event, 0); });
    gpu().give_back_event(event);
  }

  const std::size_t base_;
  const cuda::CuStream stream_;
  const Context& context_;
  Store& store_;
  cuda::Driver& driver_;
  Times& times_;
  const PlainCuda cuda_;
  const Buffer device_;
  const Buffer other_;
  Buffer pinned_;
  const cuda::ControlMemory::Cell table_;
  cuda::CuGraphExecutable executable_ = nullptr;
  std::vector<Ticket> tickets_;
  std::vector<std::byte> in_file_;
  std::vector<std::byte> on_device_;
  std::vector<std::byte> in_pinned_;
};

class StreamStress : public InStreamOrder, public testing::WithParamInterface<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Connections, StreamStress, testing::Values(1U, 8U, 32U));

TEST_P(StreamStress, everything_gets_done_and_every_byte_is_right) {
  if (fake_) fake_->set_connections(GetParam());
  if (!fake_ && GetParam() != 1) GTEST_SKIP() << "the real driver has as many as the environment says";
  const auto clock_seed = static_cast<double>(SteadyClock::now().time_since_epoch().count() % 1000000);
  const auto seed = static_cast<std::uint64_t>(number_from_environment("PENSTOCK_STRESS_SEED", clock_seed));
  const double seconds = number_from_environment("PENSTOCK_STRESS_SECONDS", 2) / (fake_ ? 3 : 1);
  std::cout << "seed " << seed << '\n';
  options_.lanes = 4;
  options_.deadlines.stream_seconds = 5;
  constexpr std::size_t areas_count = threads_count * streams_of_thread;
  const auto file = content(seed, 0, areas_count * stressed_bytes);
  write_file(folder_.path("areas"), file);
  Context contexts[] = {make_context(), make_context()};
  std::vector<Store> stores;
  for (const Context& context : contexts) {
    stores.push_back(context.open(folder_.path("areas"), {.access = Access::write}).value());
    ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  }
  Times times;
  std::vector<std::unique_ptr<Area>> areas;
  for (std::size_t i = 0; i < areas_count; ++i) {
    const cuda::CuStream stream = make_stream(i % 2 == 0 ? 0 : cuda::cu_stream_non_blocking);
    areas.push_back(std::make_unique<Area>(i, stream, contexts[i % 2], stores[i % 2], *driver_, times));
    areas.back()->begin(file);
  }
  std::atomic<std::uint64_t> steps{0};
  {
    const auto until = SteadyClock::now() + std::chrono::duration<double>(seconds);
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < threads_count; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937_64 random(seed * threads_count + thread);
        while (SteadyClock::now() < until && !testing::Test::HasFailure()) {
          areas[thread * streams_of_thread + random() % streams_of_thread]->step(random);
          ++steps;
        }
      });
    }
  }
  for (const auto& area : areas) area->check();
  const double call = times.call.seconds();
  const double request = times.request.seconds();
  std::cout << steps << " steps; the longest call took " << call << " s, the longest request " << request << " s\n";
  if (!fake_) {
    EXPECT_LE(call, request + 0.1) << "a call waits for requests before it, and for nothing else";
  }
  areas.clear();
}

}  // namespace
}  // namespace penstock::test
