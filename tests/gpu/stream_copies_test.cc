// Requests in the order of a stream, whose copies stand on that stream: whatever else is in the hardware's queues, they
// get done, and so does the rest.
#include <atomic>
#include <numeric>
#include <thread>

#include "core/slot_pool.h"
#include "cuda/control_memory.h"
#include "cuda/stream_steps.h"
#include "gpu/stream_order_test.h"
#include "support/gated_engine.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

class StreamCopies : public InStreamOrder {
 protected:
  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    options_.lanes = 4;
    options_.deadlines.stream_seconds = 0.5;
    one_queue_of_each_kind();
    if (gpu().api().stream_write_value == nullptr) GTEST_SKIP() << "this driver has no words for streams";
  }
  // The real driver has as many as the environment says.
  void one_queue_of_each_kind() {
    if (fake_) fake_->set_connections(1);
  }

  // Copies of the caller's of all kinds, between memory of its own.
  class Copies {
   public:
    Copies(StreamCopies& test, const Context& context)
        : test_(test),
          device_(context.allocate(Domain::cuda(0), 2 * mib).value()),
          pinned_(context.allocate(Domain::pinned(), 2 * mib).value()) {}

    void put(cuda::CuStream stream) {
      const cuda::Current current(test_.gpu());
      const auto& api = test_.driver_->api();
      const auto device = cuda::device_address(device_.data());
      ASSERT_EQ(api.copy_to_device(device, pinned_.data(), mib, stream), cuda::cu_success);
      ASSERT_EQ(api.copy_from_device(pinned_.data() + mib, device, mib, stream), cuda::cu_success);
      ASSERT_EQ(api.copy_to_device(device, pinned_.data(), 64, stream), cuda::cu_success);
      ASSERT_EQ(api.copy_from_device(pinned_.data() + mib, device, 64, stream), cuda::cu_success);
      ASSERT_EQ(api.copy_between_devices(device + mib, device, 4096, stream), cuda::cu_success);
      const cuda::CuMemcpy2d rows{.source_type = cuda::cu_memory_type_host,
                                  .source_host = pinned_.data(),
                                  .source_pitch = 4096,
                                  .destination_type = cuda::cu_memory_type_device,
                                  .destination_device = device,
                                  .destination_pitch = 4096,
                                  .width_bytes = 4096,
                                  .rows = 2};
      ASSERT_EQ(api.copy_2d(&rows, stream), cuda::cu_success);
    }

   private:
    StreamCopies& test_;
    const Buffer device_;
    const Buffer pinned_;
  };

  static Result<Ticket> submit(const Context& context, Direction direction, std::span<const Range> ranges,
                               cuda::CuStream stream, RequestOptions options = {}) {
    options.stream = CudaStream{stream};
    return context.submit(direction, ranges, options);
  }
  static void expect_done(const Ticket& ticket) {
    ASSERT_TRUE(ticket.wait_for(60s));
    ASSERT_EQ(ticket.outcome(), Outcome::done) << ticket.report().error->message;
  }
};

TEST_F(StreamCopies, of_callers_before_and_behind_reads_and_writes_don_t_stand_in_their_way) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Store out = context.open(folder_.path("out"), {.access = Access::create, .size_bytes = 8 * mib}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 8 * mib).value();
  Copies copies(*this, context);
  const cuda::CuStream streams[] = {make_stream(), make_stream(cuda::cu_stream_non_blocking), cuda::CuStream{}};
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, std::size_t{70001}, std::size_t{4 * mib}}) {
    std::vector<Ticket> tickets;
    for (const cuda::CuStream stream : streams) {
      copies.put(stream);
      const Range range{&store, 0, memory.region().part(0, bytes)};
      tickets.push_back(submit(context, Direction::read, {&range, 1}, stream).value());
      copies.put(stream);
      const Range written{&out, 0, memory.region().part(0, bytes)};
      tickets.push_back(submit(context, Direction::write, {&written, 1}, stream).value());
      copies.put(stream);
    }
    for (const Ticket& ticket : tickets) expect_done(ticket);
    for (const cuda::CuStream stream : streams) EXPECT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_TRUE(holds_content(read_file(folder_.path("out"), 0, bytes), 1, 0)) << bytes;
  }
}

// While a call of the driver's waits for a stream, it may let no other through. The stream may go on only when its
// request has given something back.
class WhileTheDriverRegisters : public StreamCopies {
 protected:
  void SetUp() override {
    StreamCopies::SetUp();
    if (!IsSkipped() && !fake_) GTEST_SKIP() << "a real GPU can't be made to do this";
  }
  // `take` registers memory, and `give_back` must not wait for that.
  template <typename Take, typename GiveBack>
  void expect_goes_back(Take take, GiveBack give_back) {
    fake_->delay_call("cuMemHostRegister_v2", 500);
    const std::uint64_t before = fake_->calls("cuMemHostRegister_v2");
    std::atomic<bool> is_taken = false;
    std::jthread other([&] {
      take();
      is_taken = true;
    });
    ASSERT_TRUE(eventually([&] { return fake_->calls("cuMemHostRegister_v2") != before; }));
    give_back();
    EXPECT_FALSE(is_taken) << "it waited for the driver";
    other.join();
    fake_->delay_call("cuMemHostRegister_v2", 0);
  }
};

TEST_F(WhileTheDriverRegisters, slots_go_back) {
  const auto budget = std::make_shared<memory::Budget>(std::uint64_t{1} << 30);
  const auto pool = std::make_shared<core::SlotPool>(budget, 0);
  const core::SlotPool::Wish wish{.count = 4, .bytes = 2 * mib};
  const auto until = Clock::now() + 10s;
  core::SlotPool::Slots slots = pool->take(gpu(), wish, until);
  ASSERT_EQ(slots.blocks.size(), 4U);
  core::SlotPool::Slots others;
  expect_goes_back([&] { others = pool->take(gpu(), wish, until); }, [&] { pool->give_back(slots); });
  EXPECT_EQ(others.blocks.size(), 4U);
  pool->give_back(others);
}

TEST_F(WhileTheDriverRegisters, words_go_back) {
  cuda::ControlMemory& memory = cuda::ControlMemory::of_process();
  constexpr std::size_t bytes = cuda::ControlMemory::largest_bytes;
  std::vector<cuda::ControlMemory::Cell> cells{memory.take(gpu(), bytes).value()};
  std::vector<cuda::ControlMemory::Cell> others;
  const auto take_a_page = [&] {
    for (std::size_t i = 0; i < cuda::ControlMemory::page_bytes / bytes; ++i) {
      others.push_back(memory.take(gpu(), bytes).value());
    }
  };
  take_a_page();
  expect_goes_back(take_a_page, [&] { memory.give_back(cells[0]); });
  for (const auto& cell : others) memory.give_back(cell);
}

TEST_F(StreamCopies, of_sixty_four_streams_and_two_contexts_get_past_each_other) {
  Context contexts[] = {make_context(), make_context()};
  std::vector<Store> stores;
  for (const Context& context : contexts) stores.push_back(context.open(folder_.path("file")).value());
  constexpr std::size_t streams_most = 64;
  std::vector<cuda::CuStream> streams;
  for (std::size_t i = 0; i < streams_most; ++i) {
    streams.push_back(make_stream(i % 2 == 0 ? 0 : cuda::cu_stream_non_blocking));
  }
  const Buffer memory = contexts[0].allocate(Domain::cuda(0), streams_most * 128 << 10).value();
  Buffer back = contexts[0].allocate(Domain::pinned(), streams_most * 128 << 10).value();
  for (const std::size_t count : {std::size_t{1}, std::size_t{9}, streams_most}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, std::size_t{128} << 10}) {
      std::vector<Ticket> tickets;
      std::fill(back.data(), back.data() + count * bytes, std::byte{0});
      for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < count; ++i) {
          const Range range{&stores[i % 2], i * bytes % (4 * mib - bytes), memory.region().part(i * bytes, bytes)};
          tickets.push_back(submit(contexts[i % 2], Direction::read, {&range, 1}, streams[i]).value());
          const cuda::Current current(gpu());
          ASSERT_EQ(driver_->api().copy_from_device(back.data() + i * bytes,
                                                    cuda::device_address(memory.data() + i * bytes), bytes, streams[i]),
                    cuda::cu_success);
        }
      }
      for (const Ticket& ticket : tickets) expect_done(ticket);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(wait_for(streams[i]), cuda::cu_success);
        ASSERT_TRUE(holds_content({back.data() + i * bytes, bytes}, 1, i * bytes % (4 * mib - bytes))) << i;
      }
    }
  }
}

TEST_F(StreamCopies, of_long_requests_use_slots_again_in_order) {
  constexpr std::size_t size = 25 * mib + 777;
  write_file(folder_.path("long"), content(2, 0, size));
  if (fake_) fake_->set_delays(1, 300);
  Context context = make_context();
  const Store store = context.open(folder_.path("long")).value();
  const Store out = context.open(folder_.path("out"), {.access = Access::create, .size_bytes = size}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  const cuda::CuStream stream = make_stream();
  for (const std::size_t from : {0, 1, 4096}) {
    fill(memory.region(), std::vector<std::byte>(size));
    const Range read{&store, from, memory.region().part(from, size - from)};
    const Ticket reads = submit(context, Direction::read, {&read, 1}, stream).value();
    const Range written{&out, from, memory.region().part(from, size - from)};
    const Ticket writes = submit(context, Direction::write, {&written, 1}, stream, {.durable = true}).value();
    expect_done(reads);
    expect_done(writes);
    EXPECT_EQ(reads.report().bytes, size - from);
    EXPECT_TRUE(holds_content(bytes_of(memory.region().part(from, size - from)), 2, from));
    EXPECT_TRUE(holds_content(read_file(folder_.path("out"), from, size - from), 2, from));
  }
}

TEST_F(StreamCopies, that_are_over_leave_their_slots_to_others) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const cuda::CuStream stream = make_stream();
  const Range range{&store, 0, memory.region()};
  const auto read = [&] {
    expect_done(submit(context, Direction::read, {&range, 1}, stream).value());
    ASSERT_EQ(wait_for(stream), cuda::cu_success);
    std::this_thread::sleep_for(2ms);  // until it is looked at for the last time
  };
  for (int i = 0; i < 3; ++i) read();
  const std::uint64_t of_few = context.statistics().pinned_bytes;
  for (int i = 0; i < 20; ++i) read();
  EXPECT_LE(context.statistics().pinned_bytes, of_few + 12 * mib);
}

TEST_F(StreamCopies, words_are_used_again_once_the_stream_has_passed_them_and_not_before) {
  using cuda::ControlMemory;
  ControlMemory& memory = ControlMemory::of_process();
  const auto next_word = [&] {
    const ControlMemory::Cell cell = memory.take(gpu(), sizeof(std::uint32_t)).value();
    memory.give_back(cell);
    return cell.host;
  };
  const cuda::CuStream stream = make_stream();
  const cuda::Current current(gpu());
  const std::byte* const first = next_word();
  {
    const auto steps = cuda::StreamSteps::begin(gpu(), stream, 2).value();
    ASSERT_NE(next_word(), first);
    ASSERT_EQ(steps->wait(1), cuda::cu_success);
    ASSERT_EQ(steps->mark(2), cuda::cu_success);
    steps->allow_all();
    ASSERT_EQ(wait_for(stream), cuda::cu_success);
  }
  const ControlMemory::Cell passed = memory.take(gpu(), sizeof(std::uint32_t)).value();
  EXPECT_EQ(next_word(), first) << "below the other of the two";
  memory.give_back(passed);
  {
    const auto steps = cuda::StreamSteps::begin(gpu(), stream, 2).value();
    ASSERT_EQ(steps->wait(1), cuda::cu_success);
  }
  EXPECT_NE(next_word(), passed.host) << "nothing says that the stream has passed it";
  EXPECT_NE(next_word(), first);
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(StreamCopies, of_many_short_ranges_are_each_where_they_belong) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Store out = context.open(folder_.path("out"), {.access = Access::create, .size_bytes = 8 * mib}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 8 * mib).value();
  fill(memory.region(), std::vector<std::byte>(8 * mib));
  std::vector<Range> reads;
  std::vector<Range> writes;
  std::size_t at = 0;
  for (std::size_t i = 0; i < 6000; ++i) {
    const std::size_t bytes = 1 + i * 7 % 900;
    reads.push_back({&store, i * 600 % (4 * mib - bytes), memory.region().part(at, bytes)});
    writes.push_back({&out, at, memory.region().part(at, bytes)});
    at += bytes + i % 3;
  }
  std::vector<std::atomic<int>> arrived(reads.size());
  const cuda::CuStream stream = make_stream();
  RequestOptions options;
  options.on_range = [&](std::uint64_t range, Code code) { arrived[range] += code == Code::ok ? 1 : 100; };
  const Ticket read = submit(context, Direction::read, reads, stream, options).value();
  const Ticket write = submit(context, Direction::write, writes, stream, options).value();
  expect_done(read);
  expect_done(write);
  EXPECT_TRUE(std::ranges::all_of(arrived, [](int count) { return count == 2; }));
  const auto there = bytes_of(memory.region());
  const auto written = read_file(folder_.path("out"), 0, 8 * mib);
  for (const auto* bytes : {&there, &written}) {
    for (std::size_t i = 0, place = 0; i < reads.size(); ++i) {
      const std::size_t size = reads[i].memory.size_bytes;
      ASSERT_TRUE(holds_content({bytes->data() + place, size}, 1, reads[i].offset)) << i;
      place += size + i % 3;
    }
  }
}

TEST_F(StreamCopies, are_reported_as_staged_and_counted_once) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Ticket ticket = read_in_order(context, store, memory.region(), make_stream()).value();
  expect_done(ticket);
  const Report report = ticket.report();
  EXPECT_EQ(report.bytes, 4 * mib);
  EXPECT_EQ(std::accumulate(report.routes.begin(), report.routes.end(), std::uint64_t{0}), 4 * mib);
  for (const Route route : {Route::cached, Route::direct, Route::buffered}) {
    EXPECT_EQ(report.routes[static_cast<std::size_t>(route)], 0U) << route_name(route);
  }
  EXPECT_FALSE(report.reason.empty());
  const Statistics statistics = context.statistics();
  for (const RouteStatistics& used : statistics.routes) {
    EXPECT_EQ(report.routes[static_cast<std::size_t>(used.route)], used.bytes) << route_name(used.route);
  }
  EXPECT_EQ(statistics.requests, 1U);
}

TEST_F(StreamCopies, a_range_that_fails_leaves_the_others_right) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  write_file(folder_.path("short"), content(3, 0, 3 * mib));
  const Store shorter = context.open(folder_.path("short")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 6 * mib).value();
  const Range ranges[] = {{&store, 0, memory.region().part(0, 2 * mib)},
                          {&shorter, mib, memory.region().part(2 * mib, 2 * mib)},
                          {&store, 2 * mib, memory.region().part(4 * mib, 2 * mib)}};
  const cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  std::atomic<int> failed{0};
  RequestOptions options;
  options.on_range = [&](std::uint64_t range, Code code) { failed += range == 1 && code != Code::ok ? 1 : 0; };
  const Ticket ticket = submit(context, Direction::read, ranges, stream, options).value();
  std::filesystem::resize_file(folder_.path("short"), 2 * mib);
  earlier.let_go();
  ASSERT_TRUE(ticket.wait_for(20s));
  EXPECT_EQ(ticket.outcome(), Outcome::failed);
  const Report report = ticket.report();
  EXPECT_EQ(report.error->code, Code::truncated) << report.error->message;
  ASSERT_FALSE(report.failures.empty());
  for (const Failure& failure : report.failures) {
    EXPECT_EQ(failure.range, 1U);
    EXPECT_GE(failure.offset, 2 * mib);
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(holds_content(bytes_of(ranges[0].memory), 1, 0));
  EXPECT_TRUE(holds_content(bytes_of(ranges[2].memory), 1, 2 * mib));
}

TEST_F(StreamCopies, a_file_that_changes_between_chunks_is_told) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("changing"), content(1, 0, 16 * mib));
  Context context = make_context();
  const Store store = context.open(folder_.path("changing")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 16 * mib).value();
  const cuda::CuStream stream = make_stream();
  fake_->set_bandwidth(0, 40 * mib);
  const Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
  ASSERT_TRUE(eventually([&] { return ticket.bytes_done() != 0; }));
  std::filesystem::last_write_time(folder_.path("changing"), std::filesystem::file_time_type::clock::now() + 10s);
  fake_->set_bandwidth(0, 0);
  ASSERT_TRUE(ticket.wait_for(20s));
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  ASSERT_EQ(ticket.outcome(), Outcome::failed);
  EXPECT_EQ(ticket.report().error->code, Code::changed);
}

// How a request ends early, and what must be so then.
class StreamCopiesEnd : public StreamCopies {
 protected:
  static constexpr std::size_t size = 16 * mib;

  void SetUp() override {
    StreamCopies::SetUp();
    if (IsSkipped()) return;
    options_.deadlines.cancel_grace_seconds = 0.2;
    options_.deadlines.close_seconds = 2;
    write_file(folder_.path("gated"), content(1, 0, size));
    engine::Table engines;
    engines.push_back(std::make_unique<GatedEngine>(std::vector{disk_}));
    context_.emplace(ContextBuilder::build(std::move(engines), options_).value());
    store_ = context_->open(folder_.path("gated")).value();
    memory_ = context_->allocate(Domain::cuda(0), size).value();
  }
  Ticket read(cuda::CuStream stream, double deadline = 0) {
    return read_in_order(*context_, store_, memory_.region(), stream, deadline).value();
  }
  void expect_another_reads() { expect_another_reads(make_stream()); }
  void expect_another_reads(cuda::CuStream stream) {
    const Ticket ticket = read(stream);
    expect_done(ticket);
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_TRUE(holds_content(bytes_of(memory_.region()), 1, 0));
  }
  void expect_ends(const Ticket& ticket, Outcome outcome, Code code) {
    ASSERT_TRUE(ticket.wait_for(20s));
    EXPECT_EQ(ticket.outcome(), outcome);
    EXPECT_EQ(ticket.report().error->code, code) << ticket.report().error->message;
  }

  const std::shared_ptr<Gate> disk_ = std::make_shared<Gate>("gated");
  std::optional<Context> context_;
  Store store_;
  Buffer memory_;
};

TEST_F(StreamCopiesEnd, before_the_stream_has_come_to_it) {
  if (fake_) fake_->set_connections(0);
  const cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  expect_ends(read(stream, 0.05), Outcome::failed, Code::timed_out);
  Ticket cancelled = read(stream);
  EXPECT_EQ(cancelled.cancel(), Outcome::cancelled);
  if (fake_) expect_another_reads();  // a real stream may stand behind the other in a hardware queue
  const Region region = memory_.region();
  memory_ = Buffer();
  EXPECT_NE(hold_memory(region), nullptr) << "the stream will still copy there";
  earlier.let_go();
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(eventually([&] { return hold_memory(region) == nullptr; }));
}

TEST_F(StreamCopiesEnd, while_storage_is_read) {
  const cuda::CuStream stream = make_stream();
  for (const bool by_deadline : {true, false}) {
    const std::uint64_t before = disk_->counts().ended;
    disk_->close();
    Ticket ticket = read(stream, by_deadline ? 0.3 : 0);
    ASSERT_TRUE(eventually([&] { return disk_->counts().in_flight != 0; }));
    if (!by_deadline) ticket.cancel();
    expect_ends(ticket, by_deadline ? Outcome::failed : Outcome::cancelled,
                by_deadline ? Code::timed_out : Code::cancelled);
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_LT(disk_->counts().ended - before, size / mib) << "the rest is not read";
    disk_->open();
    expect_another_reads();
  }
}

TEST_F(StreamCopiesEnd, with_failures_of_storage) {
  const cuda::CuStream stream = make_stream();
  disk_->fail();
  const Ticket ticket = read(stream);
  expect_ends(ticket, Outcome::failed, Code::io_error);
  EXPECT_EQ(ticket.report().bytes, 0U);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  disk_->open();
  expect_another_reads();
}

TEST_F(StreamCopiesEnd, while_the_gpu_copies) {
  PENSTOCK_NEEDS_FAKE();
  const cuda::CuStream stream = make_stream();
  for (const bool by_deadline : {true, false}) {
    Ticket ticket;
    {
      Blocker earlier(gpu(), stream);
      ticket = read(stream, by_deadline ? 1 : 0);
      disk_->close();
      earlier.let_go();
      ASSERT_TRUE(eventually([&] { return disk_->counts().in_flight != 0; }));
    }
    fake_->hang(0, 1);
    disk_->open();
    ASSERT_TRUE(eventually([&] { return disk_->counts().in_flight == 0; }));
    EXPECT_FALSE(ticket.wait_for(10ms));
    if (!by_deadline) ticket.cancel();
    expect_ends(ticket, by_deadline ? Outcome::failed : Outcome::cancelled,
                by_deadline ? Code::timed_out : Code::cancelled);
    fake_->hang(0, 0);
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
    expect_another_reads();
  }
}

TEST_F(StreamCopiesEnd, at_closing_in_each_phase) {
  for (const int phase : {0, 1, 2}) {
    if (phase == 2 && !fake_) break;
    const cuda::CuStream stream = make_stream();
    std::optional<Blocker> earlier;
    if (phase == 0) earlier.emplace(gpu(), stream);
    if (phase == 1) disk_->close();
    if (phase == 2) fake_->hang(0, 1);
    const Ticket ticket = read(stream);
    if (phase == 1) {
      ASSERT_TRUE(eventually([&] { return disk_->counts().in_flight != 0; }));
    }
    store_ = Store();
    context_.reset();
    expect_ends(ticket, Outcome::cancelled, Code::closed);
    if (phase == 2) fake_->hang(0, 0);
    if (earlier) earlier->let_go();
    disk_->open();
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
    engine::Table engines;
    engines.push_back(std::make_unique<GatedEngine>(std::vector{disk_}));
    context_.emplace(ContextBuilder::build(std::move(engines), options_).value());
    store_ = context_->open(folder_.path("gated")).value();
    expect_another_reads();
  }
}

TEST_F(StreamCopiesEnd, where_operations_never_come_back_their_slots_are_not_used_again) {
  options_.deadlines.cancel_grace_seconds = 0.05;
  const cuda::CuStream stream = make_stream();
  disk_->hang();
  Ticket ticket = read(stream, 0.2);
  expect_ends(ticket, Outcome::failed, Code::timed_out);
  EXPECT_EQ(wait_for(stream), cuda::cu_success) << "it goes on";
  disk_->open();
  expect_another_reads();
  EXPECT_TRUE(eventually([&] { return context_->statistics().quarantined_bytes == 0; }));
}

TEST_F(StreamCopiesEnd, with_the_driver_s_error_where_it_takes_no_more) {
  PENSTOCK_NEEDS_FAKE();
  for (const char* call : {"cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2", "cuMemcpyHtoDAsync_v2"}) {
    for (const unsigned nth : {1U, 2U, 4U}) {
      const cuda::CuStream stream = make_stream();
      fake_->fail_call(call, nth, cuda::cu_invalid_value, 0);
      const auto refused = read_in_order(*context_, store_, memory_.region(), stream);
      ASSERT_FALSE(refused.ok()) << call << nth;
      EXPECT_EQ(refused.error().code, Code::device_error);
      fake_->clear_injections();
      one_queue_of_each_kind();
      EXPECT_EQ(wait_for(stream), cuda::cu_success) << "what stands there gets through";
    }
  }
  expect_another_reads();
}

TEST_F(StreamCopiesEnd, never_for_many_on_one_stream) {
  const cuda::CuStream stream = make_stream();
  std::vector<Ticket> tickets;
  for (int i = 0; i < 100; ++i) {
    const Range range{&store_, 0, memory_.region().part(0, 3 * mib)};
    tickets.push_back(submit(*context_, Direction::read, {&range, 1}, stream).value());
  }
  for (const Ticket& ticket : tickets) expect_done(ticket);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

// Streams that wait for the program keep their slots: others have enough all the same.
TEST_F(StreamCopiesEnd, never_for_others_while_streams_wait_for_the_program) {
  if (fake_) fake_->set_connections(0);
  if (!fake_) GTEST_SKIP() << "streams that wait share hardware queues with others";
  std::vector<cuda::CuStream> streams;
  for (int i = 0; i < 21; ++i) streams.push_back(make_stream());  // the driver makes none while many wait
  const Buffer all = context_->allocate(Domain::cuda(0), 20 * 4 * mib).value();
  std::vector<std::unique_ptr<Blocker>> blockers;
  std::vector<Ticket> waiting;
  for (std::size_t i = 0; i < 20; ++i) {
    blockers.push_back(std::make_unique<Blocker>(gpu(), streams[i]));
    const Range range{&store_, 0, all.region().part(i * 4 * mib, 4 * mib)};
    waiting.push_back(submit(*context_, Direction::read, {&range, 1}, streams[i]).value());
  }
  expect_another_reads(streams.back());
  for (const auto& blocker : blockers) blocker->let_go();
  for (const Ticket& ticket : waiting) expect_done(ticket);
}

}  // namespace
}  // namespace penstock::test
