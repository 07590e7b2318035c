// Requests in the order of a CUDA stream.
#include "gpu/stream_order_test.h"

#include <atomic>
#include <cstdlib>
#include <thread>

#include "cuda/control_memory.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

TEST_F(InStreamOrder, what_follows_on_the_stream_sees_the_bytes) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Buffer back = context.allocate(Domain::pinned(), 4 * mib).value();
  for (cuda::CuStream stream : {make_stream(), make_stream(cuda::cu_stream_non_blocking), cuda::CuStream{}}) {
    const auto zeros = std::vector<std::byte>(4 * mib);
    fill(memory.region(), zeros);
    Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
    const cuda::Current current(gpu());
    const auto from = reinterpret_cast<cuda::CuDevicePtr>(memory.data());
    ASSERT_EQ(driver_->api().copy_from_device(back.data(), from, 4 * mib, stream), cuda::cu_success);
    ASSERT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_TRUE(holds_content(back.bytes(), 1, 0));
    EXPECT_EQ(ticket.wait(), Outcome::done);
  }
}

TEST_F(InStreamOrder, the_call_returns_while_earlier_work_runs_and_the_request_begins_after_it) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
  EXPECT_FALSE(ticket.wait_for(50ms));
  EXPECT_EQ(ticket.bytes_done(), 0U);
  earlier.let_go();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
}

TEST_F(InStreamOrder, writes_take_what_earlier_work_has_made) {
  Context context = make_context();
  Store store = context.open(folder_.path("out"), {.access = Access::create, .size_bytes = 4 * mib}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Buffer source = context.allocate(Domain::pinned(), 4 * mib).value();
  const auto bytes = content(2, 0, 4 * mib);
  std::copy(bytes.begin(), bytes.end(), source.data());
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  {
    const cuda::Current current(gpu());
    const auto to = reinterpret_cast<cuda::CuDevicePtr>(memory.data());
    ASSERT_EQ(driver_->api().copy_to_device(to, source.data(), 4 * mib, stream), cuda::cu_success);
  }
  const Range range{&store, 0, memory.region()};
  RequestOptions options;
  options.stream = CudaStream{stream};
  Ticket ticket = context.submit(Direction::write, {&range, 1}, options).value();
  earlier.let_go();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(holds_content(read_file(folder_.path("out")), 2, 0));
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(InStreamOrder, a_read_sees_what_a_write_before_it_on_the_stream_has_written) {
  Context context = make_context();
  Store written = context.open(folder_.path("file"), {.access = Access::write}).value();
  Store read = context.open(folder_.path("file")).value();
  const Buffer source = context.allocate(Domain::cuda(0), 2 * mib).value();
  const Buffer target = context.allocate(Domain::cuda(0), 2 * mib).value();
  fill(source.region(), content(3, 0, 2 * mib));
  cuda::CuStream stream = make_stream();
  const Range range{&written, 0, source.region()};
  RequestOptions options;
  options.stream = CudaStream{stream};
  Ticket first = context.submit(Direction::write, {&range, 1}, options).value();
  Ticket second = read_in_order(context, read, target.region(), stream).value();
  EXPECT_EQ(first.wait(), Outcome::done);
  ASSERT_EQ(second.wait(), Outcome::done) << second.report().error->message;
  EXPECT_TRUE(holds_content(bytes_of(target.region()), 3, 0));
}

TEST_F(InStreamOrder, the_stream_runs_on_after_failure_deadline_cancellation_and_close) {
  cuda::CuStream stream = make_stream();
  {
    Context context = make_context();
    Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
    ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
    std::filesystem::resize_file(folder_.path("file"), mib);
    Ticket failed = read_in_order(context, store, memory.region(), stream).value();
    EXPECT_EQ(failed.wait(), Outcome::failed);
    EXPECT_EQ(failed.report().error->code, Code::truncated);
    EXPECT_EQ(wait_for(stream), cuda::cu_success);

    cuda::CuStream busy = make_stream();
    Blocker earlier(gpu(), busy);
    Ticket late = read_in_order(context, store, memory.region().part(0, mib), busy, 0.05).value();
    EXPECT_EQ(late.wait(), Outcome::failed);
    EXPECT_EQ(late.report().error->code, Code::timed_out);
    Ticket cancelled = read_in_order(context, store, memory.region().part(0, mib), busy).value();
    EXPECT_EQ(cancelled.cancel(), Outcome::cancelled);
    Ticket closed = read_in_order(context, store, memory.region().part(0, mib), busy).value();
    { const Context gone = std::move(context); }
    EXPECT_EQ(closed.wait(), Outcome::cancelled);
    EXPECT_EQ(closed.report().error->code, Code::closed);
    earlier.let_go();
    EXPECT_EQ(wait_for(busy), cuda::cu_success);
  }
}

TEST_F(InStreamOrder, what_can_t_be_ordered_is_refused) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  cuda::CuStream stream = make_stream();
  std::vector<std::byte> host(mib);
  EXPECT_EQ(read_in_order(context, store, Region::host(host.data(), mib), stream).error().code, Code::invalid_argument);
  RequestOptions options;
  options.stream = CudaStream{stream};
  EXPECT_EQ(context.read(store, 0, Region::host(host.data(), mib), options).error->code, Code::invalid_argument);
  if (driver_->devices().size() > 1) {
    const Buffer other = context.allocate(Domain::cuda(1), mib).value();
    EXPECT_EQ(read_in_order(context, store, other.region(), stream).error().code, Code::invalid_argument);
  }
}

TEST_F(InStreamOrder, SynchronousReadComesAfterEarlierWorkAndNothingWaitsForIt) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Buffer back = context.allocate(Domain::pinned(), 4 * mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  RequestOptions options;
  options.stream = CudaStream{stream};
  for (const std::size_t size : {std::size_t{4096}, 4 * mib}) {
    Blocker earlier(gpu(), stream);
    const std::uint64_t waits = fake_ ? fake_->calls("cuStreamWaitValue32_v2") : 0;
    std::atomic<bool> is_done{false};
    Report report;
    std::jthread caller([&] {
      report = context.read(store, 0, memory.region().part(0, size), options);
      is_done = true;
    });
    std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(is_done);
    earlier.let_go();
    caller.join();
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_GE(report.seconds, 0.04) << "counts from the call";
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_TRUE(holds_content(bytes_of(memory.region().part(0, size)), 1, 0));
    if (fake_) {
      EXPECT_EQ(fake_->calls("cuStreamWaitValue32_v2"), waits);
    }
  }
}

TEST_F(InStreamOrder, SynchronousReadEndsByItsDeadlineOrByItsCaller) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  RequestOptions options;
  options.stream = CudaStream{stream};
  options.deadline_seconds = 0.05;
  EXPECT_EQ(context.read(store, 0, memory.region(), options).error->code, Code::timed_out);
  options.deadline_seconds = 0;
  int asked = 0;
  options.keep_going = [&] { return ++asked < 2; };
  EXPECT_EQ(context.read(store, 0, memory.region(), options).error->code, Code::cancelled);
  EXPECT_EQ(asked, 2);
  earlier.let_go();
  options.keep_going = nullptr;
  EXPECT_TRUE(context.read(store, 0, memory.region(), options).ok());
}

TEST_F(InStreamOrder, CallersCopiesBesideSynchronousReadsDontHoldThemUp) {
  if (fake_) fake_->set_connections(1);
  options_.lanes = 16;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Buffer pinned = context.allocate(Domain::pinned(), 4 * mib).value();
  cuda::CuStream stream = make_stream();
  RequestOptions options;
  options.stream = CudaStream{stream};
  for (int round = 0; round < 20; ++round) {
    const Report report = context.read(store, 0, memory.region(), options);
    ASSERT_TRUE(report.ok()) << report.error->message;
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().copy_to_device(cuda::device_address(memory.data()), pinned.data(), 4 * mib, stream),
              cuda::cu_success);
  }
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(InStreamOrder, a_stream_that_has_failed_is_told_with_cudas_error_and_what_to_do_about_that) {
  PENSTOCK_NEEDS_FAKE();
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  for (const cuda::CuResult result : {cuda::cu_invalid_value, cuda::cu_illegal_address}) {
    cuda::CuStream stream = make_stream();
    Blocker earlier(gpu(), stream);
    fake_->fail_call("cuEventQuery", 1, result, 0);
    Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
    ASSERT_TRUE(ticket.wait_for(20s));
    ASSERT_EQ(ticket.outcome(), Outcome::failed);
    const Error error = *ticket.report().error;
    EXPECT_EQ(error.code, cuda::code_from_result(result));
    EXPECT_EQ(error.system_error, result);
    EXPECT_NE(error.message.find("the stream"), std::string::npos) << error.message;
    EXPECT_FALSE(error.hint.empty());
    EXPECT_EQ(error.hint == cuda::device_lost_hint, error.code == Code::device_lost) << error.hint;
    earlier.let_go();
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
  }
}

TEST_F(InStreamOrder, where_no_thread_can_be_started_the_request_is_refused_and_the_stream_goes_on) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  Blocker(gpu(), stream).let_go();  // the fake has a thread of its own from then on
  {
    const NoMoreThreads none;
    const auto refused = read_in_order(context, store, memory.region(), stream);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::out_of_memory);
    EXPECT_FALSE(refused.error().hint.empty());
  }
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
  EXPECT_EQ(ticket.wait(), Outcome::done);
}

// Streams that each wait for a request, and for another that waits for the first.
void expect_streams_get_past_each_other(const Context& context, const Store& store, const Buffer& memory,
                                        const std::vector<cuda::CuStream>& streams, std::size_t bytes) {
  std::vector<Ticket> tickets;
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const Range range{&store, i * bytes, memory.region().part(i * bytes, bytes)};
      RequestOptions options;
      options.stream = CudaStream{streams[i]};
      auto ticket = context.submit(Direction::read, {&range, 1}, options);
      ASSERT_TRUE(ticket.ok()) << ticket.error().message;
      tickets.push_back(std::move(*ticket));
    }
  }
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.wait_for(30s));
    EXPECT_EQ(ticket.outcome(), Outcome::done) << ticket.report().error->message;
  }
}

TEST_F(InStreamOrder, sixty_four_streams_and_sixteen_lanes_get_past_each_other) {
  options_.lanes = 16;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  std::vector<cuda::CuStream> streams;
  for (int i = 0; i < 64; ++i) streams.push_back(make_stream(i % 2 == 0 ? 0 : cuda::cu_stream_non_blocking));
  // From those that a driver carries in its commands to those that are worth a copy engine.
  for (const std::size_t bytes : {2, 4095, 16384, 65536}) {
    expect_streams_get_past_each_other(context, store, memory, streams, bytes);
    for (cuda::CuStream stream : streams) EXPECT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_TRUE(holds_content(bytes_of(memory.region().part(0, bytes * streams.size())), 1, 0)) << bytes;
  }
}

TEST_F(InStreamOrder, one_hardware_queue_of_each_kind_is_enough_because_copies_go_to_the_copy_engines) {
  PENSTOCK_NEEDS_FAKE();
  fake_->set_connections(1);
  options_.lanes = 16;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  std::vector<cuda::CuStream> streams;
  for (int i = 0; i < 64; ++i) streams.push_back(make_stream());
  for (const std::size_t bytes : {4095, 16384}) {
    expect_streams_get_past_each_other(context, store, memory, streams, bytes);
  }
}

TEST_F(InStreamOrder, late_ranges_that_a_copy_stands_in_the_way_of_end_with_a_named_error) {
  PENSTOCK_NEEDS_FAKE();
  fake_->set_connections(1);
  options_.deadlines.stream_seconds = 0.2;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  const Buffer other = context.allocate(Domain::cuda(0), mib).value();
  Buffer pinned = context.allocate(Domain::pinned(), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  // The copy waits for the request in the only queue of the copy engine, and ours comes behind it.
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  RequestOptions options;
  options.stream = CudaStream{stream};
  const auto ranges = [&]() -> Result<std::vector<Range>> { return std::vector{Range{&store, 0, memory.region()}}; };
  Ticket late = context.submit(Direction::read, Domain::cuda(0), ranges, options).value();
  Ticket plain = read_in_order(context, store, other.region(), stream).value();
  {
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().copy_to_device(cuda::device_address(other.data()), pinned.data(), mib, stream),
              cuda::cu_success);
  }
  earlier.let_go();
  ASSERT_TRUE(late.wait_for(20s));
  EXPECT_NE(late.outcome(), Outcome::done);
  EXPECT_EQ(late.report().error->code, Code::would_deadlock);
  EXPECT_NE(late.report().error->message.find("could not get past"), std::string::npos);
  EXPECT_FALSE(late.report().error->hint.empty());
  EXPECT_EQ(plain.wait(), Outcome::done) << "its copies stand on the stream";
  EXPECT_EQ(wait_for(stream), cuda::cu_success) << "the stream runs on";
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
  EXPECT_TRUE(context.read(store, 0, memory.region()).ok()) << "and the Context goes on";
}

TEST_F(InStreamOrder, more_than_a_thousand_waits_may_be_pending) {
  PENSTOCK_NEEDS_FAKE();
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  std::vector<std::unique_ptr<Blocker>> earlier;
  std::vector<Ticket> tickets;
  std::vector<cuda::CuStream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(make_stream());
  for (std::uint64_t i = 0; i < streams.size(); ++i) {
    const cuda::CuStream stream = streams[i];
    const Region own = memory.region().part(i * mib, mib);
    tickets.push_back(read_in_order(context, store, own, stream).value());
    for (int wait = 0; wait < 300; ++wait) earlier.push_back(std::make_unique<Blocker>(gpu(), stream));
    tickets.push_back(read_in_order(context, store, own, stream).value());
  }
  EXPECT_FALSE(tickets.back().wait_for(0s));
  for (const auto& blocker : earlier) blocker->let_go();
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.wait_for(30s));
    EXPECT_EQ(ticket.outcome(), Outcome::done) << ticket.report().error->message;
  }
}

TEST_F(InStreamOrder, more_words_are_made_while_a_stream_waits_where_all_are_in_use) {
  PENSTOCK_NEEDS_FAKE();
  using cuda::ControlMemory;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  std::vector<ControlMemory::Cell> cells;
  for (int i = 0; i < 40'000; ++i) {
    cells.push_back(ControlMemory::of_process().take(gpu(), ControlMemory::smallest_bytes).value());
  }
  Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
  earlier.let_go();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  for (const auto& each : cells) ControlMemory::of_process().give_back(each);
}

TEST_F(InStreamOrder, small_requests_behind_one_that_waits_go_past_it) {
  if (!fake_ && std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr) {
    GTEST_SKIP() << "copies stand behind those of the first request in its hardware queue";
  }
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  const Buffer other = context.allocate(Domain::cuda(0), mib).value();
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  Ticket ordered = read_in_order(context, store, memory.region(), stream).value();
  const Report report = context.read(store, 0, other.region().part(0, 4096));
  ASSERT_TRUE(report.ok()) << report.error->message;
  const Range range{&store, 4096, other.region().part(4096, 4096)};
  Ticket small = context.submit(Direction::read, {&range, 1}).value();
  EXPECT_EQ(small.wait(), Outcome::done);
  EXPECT_FALSE(ordered.wait_for(0s));
  if (fake_) {
    EXPECT_EQ(fake_->counters().breaches, 0U) << last_breach();
  }
  earlier.let_go();
  EXPECT_EQ(ordered.wait(), Outcome::done);
  EXPECT_TRUE(holds_content(bytes_of(other.region().part(0, 8192)), 1, 0));
}

TEST_F(InStreamOrder, a_context_that_is_not_prepared_works_while_a_stream_waits) {
  if (fake_) {
    fake_->set_connections(0);
  } else if (std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr) {
    GTEST_SKIP() << "the second stream stands behind the first in its hardware queue";
  }
  Blocker earlier(gpu(), make_stream());
  for (const bool in_order : {true, false}) {
    Context context = make_context();
    Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
    if (in_order) {
      cuda::CuStream stream = make_stream();
      const Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
      ASSERT_TRUE(ticket.wait_for(20s));
      EXPECT_EQ(ticket.outcome(), Outcome::done) << ticket.report().error->message;
      EXPECT_EQ(wait_for(stream), cuda::cu_success);
    } else {
      const Report report = context.read(store, 0, memory.region());
      EXPECT_TRUE(report.ok()) << report.error->message;
    }
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
    EXPECT_TRUE(context.prepare(Domain::cuda(0)).ok());
  }
  earlier.let_go();
}

TEST_F(InStreamOrder, is_refused_by_name_where_the_driver_has_no_waits) {
  if (gpu().api().stream_wait_value != nullptr) GTEST_SKIP() << "this driver has them";
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  const auto refused = read_in_order(context, store, memory.region(), make_stream());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_NE(refused.error().hint, "");
  EXPECT_TRUE(context.read(store, 0, memory.region()).ok());
}

TEST_F(InStreamOrder, a_lane_that_took_the_place_of_a_stuck_one_serves_requests_in_order) {
  PENSTOCK_NEEDS_FAKE();
  options_.lanes = 1;
  options_.deadlines.cancel_grace_seconds = 0.05;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  const Buffer other = context.allocate(Domain::cuda(0), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  Ticket ordered = read_in_order(context, store, memory.region(), stream).value();
  fake_->hang(0, 1);
  const Report stuck = past_deadline(
      [&](double seconds) { return context.read(store, 0, other.region(), {.deadline_seconds = seconds}); });
  EXPECT_EQ(stuck.outcome, Outcome::abandoned);
  ASSERT_TRUE(eventually([&] { return context.statistics().lanes_replaced == 1; }));
  earlier.let_go();
  fake_->hang(0, 0);
  ASSERT_TRUE(ordered.wait_for(20s));
  EXPECT_EQ(ordered.outcome(), Outcome::done) << ordered.report().error->message;
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
}

// All but the slots of one lane is the user's at first.
TEST_F(InStreamOrder, where_there_were_no_slots_there_are_some_once_there_is_room_also_while_a_stream_waits) {
  PENSTOCK_NEEDS_FAKE();
  fake_->set_connections(0);
  options_.staging_slot_bytes = mib;
  options_.staging_slots_per_lane = 2;
  options_.pinned_budget_bytes = 16 * mib;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const auto expect_read = [&] {
    const Ticket ticket = read_in_order(context, store, memory.region(), make_stream()).value();
    ASSERT_TRUE(ticket.wait_for(20s));
    EXPECT_EQ(ticket.outcome(), Outcome::done) << ticket.report().error->message;
  };
  auto pinned = context.allocate(Domain::pinned(), 13 * mib);
  if (!pinned) GTEST_SKIP() << pinned.error().message;
  expect_read();
  *pinned = Buffer();
  EXPECT_TRUE(eventually([&] { return context.statistics().pinned_bytes == 2 * mib; })) << "of one lane";
  Blocker earlier(gpu(), make_stream());
  expect_read();
  EXPECT_GT(context.statistics().pinned_bytes, 2 * mib) << "also of requests in stream order";
  earlier.let_go();
}

TEST_F(InStreamOrder, a_buffer_that_is_destroyed_meanwhile_stays_until_its_request_has_ended) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  Buffer other = context.allocate(Domain::cuda(0), mib).value();
  const Region region = memory.region();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  Ticket ticket = read_in_order(context, store, region, stream).value();
  memory = Buffer();
  other = Buffer();
  other = context.allocate(Domain::cuda(0), mib).value();
  EXPECT_NE(other.data(), region.data) << "the pool gives away what a request is to fill";
  earlier.let_go();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(eventually([&] { return hold_memory(region) == nullptr; })) << "the ticket alone keeps no memory";
}

TEST_F(InStreamOrder, memory_that_is_given_back_while_a_stream_waits_goes_when_none_does) {
  PENSTOCK_NEEDS_FAKE();
  Context context = make_context();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  const FakeCudaCounters before = fake_->counters();
  const std::uint64_t pinned_before = context.statistics().pinned_bytes;
  Buffer large = context.allocate(Domain::cuda(0), 64 * mib).value();
  Buffer pinned = context.allocate(Domain::pinned(), mib).value();
  std::optional<Context> closed = make_context();
  ASSERT_TRUE(closed->prepare(Domain::cuda(0)).ok());
  Blocker earlier(gpu(), make_stream());
  const std::byte* const place = large.data();
  large = Buffer();
  large = context.allocate(Domain::cuda(0), 64 * mib).value();
  EXPECT_EQ(large.data(), place) << "what is kept is used again";
  large = Buffer();
  pinned = Buffer();
  closed.reset();
  EXPECT_EQ(fake_->counters().allocations, before.allocations + 1);
  EXPECT_GT(fake_->counters().registrations, before.registrations);
  EXPECT_EQ(fake_->counters().breaches, 0U) << last_breach();
  const Statistics unfreed = context.statistics();
  EXPECT_GE(unfreed.unfreed_calls, 4U) << "of each Buffer, and of each lane of the other Context";
  EXPECT_EQ(unfreed.unfreed_device_bytes, 64 * mib);
  EXPECT_GT(unfreed.unfreed_pinned_bytes, mib);
  earlier.let_go();
  EXPECT_TRUE(eventually([&] {
    const FakeCudaCounters now = fake_->counters();
    return now.allocations == before.allocations && now.registrations == before.registrations;
  }));
  EXPECT_TRUE(eventually([&] { return context.statistics().pinned_bytes == pinned_before; }));
  EXPECT_TRUE(eventually([&] { return context.statistics().unfreed_calls == 0; }));
  EXPECT_EQ(context.statistics().unfreed_pinned_bytes, 0U);
  EXPECT_EQ(context.statistics().unfreed_device_bytes, 0U);
}

}  // namespace
}  // namespace penstock::test
