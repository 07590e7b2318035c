// Callbacks: where they run, what they may do, and what they can not hold up.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

class Callbacks : public ContextTest {};

TEST_F(Callbacks, run_once_each_on_one_thread_that_is_not_the_callers) {
  std::atomic<int> calls{0};
  std::vector<std::thread::id> threads;  // written by one thread at a time, if the promise holds
  {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(64 * 4096);
    RequestOptions options;
    options.on_end = [&](const Report& report) {
      EXPECT_TRUE(report.ok());
      EXPECT_EQ(report.bytes, 4096U);
      ++calls;
      threads.push_back(std::this_thread::get_id());
    };
    for (std::size_t i = 0; i < 64; ++i) {
      submit_read(context, store, Region::host(&memory[i * 4096], 4096), options).wait();
    }
  }
  EXPECT_EQ(calls, 64);
  for (const auto id : threads) {
    EXPECT_EQ(id, threads[0]);
    EXPECT_NE(id, std::this_thread::get_id());
  }
}

TEST_F(Callbacks, tell_of_each_range_once_and_before_the_end) {
  Context context = make_context();
  const Store file = context.open(make_file("file")).value();
  const Store broken = context
                           .open(Recipe{"broken", 8 << 20,
                                        [](std::uint64_t offset, std::span<std::byte>) -> Status {
                                          if (offset < (4 << 20)) return {};
                                          return Error{Code::io_error, 0, "broken", ""};
                                        }})
                           .value();
  std::vector<std::byte> memory(size_bytes + (8 << 20) + 100);
  std::byte* const data = memory.data();
  const std::vector<Range> ranges = {{&file, 0, Region::host(data, size_bytes)},
                                     {&broken, 0, Region::host(data + size_bytes, 8 << 20)},
                                     {&file, 7, Region::host(data + size_bytes + (8 << 20), 0)},
                                     {&file, 7, Region::host(data + size_bytes + (8 << 20), 100)}};
  std::array<std::atomic<int>, 4> calls{};
  std::atomic<bool> has_ended{false};
  RequestOptions options;
  options.on_range = [&](std::uint64_t range, Code code) {
    ++calls[range];
    EXPECT_EQ(code, range == 1 ? Code::io_error : Code::ok);
    EXPECT_FALSE(has_ended);
  };
  options.on_end = [&](const Report&) { has_ended = true; };
  const Ticket ticket = context.submit(Direction::read, ranges, options).value();
  EXPECT_EQ(ticket.wait(), Outcome::failed);
  EXPECT_TRUE(eventually([&] { return has_ended.load(); }));
  EXPECT_EQ(calls[0], 1);
  EXPECT_EQ(calls[1], 1);
  EXPECT_EQ(calls[2], 0) << "it has no bytes";
  EXPECT_EQ(calls[3], 1);
}

TEST_F(Callbacks, that_take_their_time_do_not_hold_up_requests) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  std::promise<void> go_on;
  std::promise<void> called;
  RequestOptions options;
  options.on_end = [&](const Report&) {
    called.set_value();
    go_on.get_future().wait();
  };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  called.get_future().wait();
  for (int i = 0; i < 8; ++i) {
    Ticket ticket = submit_read(context, store, Region::host(memory.data(), memory.size()));
    EXPECT_TRUE(ticket.wait_for(10s)) << "a lane waits for a user's callback";
  }
  go_on.set_value();
}

TEST_F(Callbacks, may_submit) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(4096);
  std::promise<Report> last;
  int left = 20;
  RequestOptions options;
  options.on_end = [&](const Report& report) {
    if (--left == 0) {
      last.set_value(report);
    } else {
      submit_read(context, store, Region::host(memory.data(), memory.size()), options);
    }
  };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  EXPECT_TRUE(last.get_future().get().ok());
}

TEST_F(Callbacks, can_not_wait) {
  std::vector<std::byte> memory(size_bytes);
  std::vector<std::byte> other(size_bytes);  // outlives the Context: nobody waits for what is read there
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::promise<Code> synchronous;
  std::promise<bool> returned_soon;
  RequestOptions options;
  options.on_end = [&](const Report&) {
    const Report report = context.read(store, 0, Region::host(other.data(), 4096));
    synchronous.set_value(report.error ? report.error->code : Code::ok);
    // Nothing moves without room in the file system's cache or time on the disk, so this is over before the read is.
    const Ticket ticket = submit_read(context, store, Region::host(other.data(), other.size()));
    const auto begun = std::chrono::steady_clock::now();
    ticket.wait();
    ticket.wait_for(1h);
    returned_soon.set_value(std::chrono::steady_clock::now() - begun < 10s);
  };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  EXPECT_EQ(synchronous.get_future().get(), Code::would_deadlock);
  EXPECT_TRUE(returned_soon.get_future().get());
}

TEST_F(Callbacks, run_where_the_executor_says) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(4096);
  std::promise<std::function<void()>> handed;
  std::thread::id ran_on;
  RequestOptions options;
  options.on_end = [&](const Report& report) {
    EXPECT_TRUE(report.ok());
    ran_on = std::this_thread::get_id();
  };
  options.executor = [&](std::function<void()> call) { handed.set_value(std::move(call)); };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  handed.get_future().get()();
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST_F(Callbacks, of_synchronous_requests_run_too) {
  std::atomic<int> calls{0};
  {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(size_bytes);
    RequestOptions options;
    options.on_end = [&](const Report&) { ++calls; };
    static_cast<void>(context.read(store, 0, Region::host(memory.data(), 100), options));
    static_cast<void>(context.read(store, 0, Region::host(memory.data(), memory.size()), options));
  }
  EXPECT_EQ(calls, 2);
}

// In a process of its own, which they end.
class CallbacksDeathTest : public Callbacks {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void read_with(const RequestOptions& options) {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(4096);
    submit_read(context, store, Region::host(memory.data(), memory.size()), options).wait();
  }
};

TEST_F(CallbacksDeathTest, that_throw_end_the_process_with_a_message) {
  RequestOptions options;
  options.on_end = [](const Report&) { throw std::runtime_error("not my day"); };
  EXPECT_DEATH(read_with(options), "penstock: RequestOptions::on_end threw an exception, and must not: not my day");
  options.on_end = [](const Report&) { throw 7; };
  EXPECT_DEATH(read_with(options), "penstock: RequestOptions::on_end threw something, and must not");
  options.on_end = [](const Report&) {};
  options.executor = [](const std::function<void()>&) { throw std::runtime_error("no room"); };
  EXPECT_DEATH(read_with(options), "penstock: RequestOptions::executor threw an exception, and must not: no room");
}

TEST_F(Callbacks, may_destroy_their_context) {
  auto context = std::make_unique<Context>(make_context());
  const Store store = context->open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  std::promise<void> destroyed;
  std::promise<void> go;
  RequestOptions options;
  options.on_end = [&, ready = go.get_future().share()](const Report&) {
    ready.wait();
    context.reset();
    destroyed.set_value();
  };
  const Ticket ticket = submit_read(*context, store, Region::host(memory.data(), memory.size()), options);
  go.set_value();
  ASSERT_EQ(destroyed.get_future().wait_for(30s), std::future_status::ready);
  EXPECT_EQ(ticket.outcome(), Outcome::done);
}

TEST_F(Callbacks, that_go_on_submitting_do_not_keep_a_context_open) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> calls{0};
    std::vector<std::byte> memory(4096);
    RequestOptions options;
    auto context = std::make_unique<Context>(make_context());
    const Context& alive = *context;
    const Store store = context->open(make_file("file", 4096)).value();
    options.on_end = [&](const Report& report) {
      ++calls;
      if (report.ok()) submit_read(alive, store, Region::host(memory.data(), memory.size()), options);
    };
    submit_read(alive, store, Region::host(memory.data(), memory.size()), options);
    while (calls < 3) std::this_thread::yield();
    context.reset();
    const int after = calls;
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(calls, after) << "a callback ran after its Context was gone";
  }
}

}  // namespace
}  // namespace penstock::test
