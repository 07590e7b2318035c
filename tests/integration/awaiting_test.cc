// Who wants to know of the end of a request without waiting for it: Ticket::then and co_await.
#include <gtest/gtest.h>

#include <coroutine>
#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "api/context_builder.h"
#include "integration/context_fixture.h"
#include "penstock/await.h"
#include "support/gated_engine.h"

namespace penstock::test {
namespace {

// A coroutine whose result others wait for.
struct Coroutine {
  struct promise_type {
    std::promise<std::uint64_t> result;
    Coroutine get_return_object() { return {result.get_future()}; }
    std::suspend_never initial_suspend() { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_value(std::uint64_t bytes) { result.set_value(bytes); }
    void unhandled_exception() { std::terminate(); }
  };
  std::future<std::uint64_t> result;
};

class Awaiting : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    write_file(folder_.path("file"), content(1, 0, size));
  }
  static constexpr std::size_t size = 3 << 20;
};

Coroutine read_twice(const Context& context, const Store& store, Region memory) {
  const Range range{&store, 0, memory};
  const Report first = co_await context.submit(Direction::read, {&range, 1}).value();
  const Report second = co_await context.submit(Direction::read, {&range, 1}).value();
  co_return first.ok() && second.ok() ? first.bytes + second.bytes : 0;
}

TEST_F(Awaiting, a_coroutine_goes_on_with_the_report_and_may_submit_again) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  std::vector<std::byte> memory(size);
  Coroutine reading = read_twice(context, store, Region::host(memory.data(), size));
  EXPECT_EQ(reading.result.get(), 2 * size);
  EXPECT_TRUE(holds_content(memory, 1, 0));
}

TEST_F(Awaiting, small_requests_end_too_although_nobody_waits_for_them) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  std::vector<std::byte> memory(4096);
  EXPECT_EQ(read_twice(context, store, Region::host(memory.data(), memory.size())).result.get(), 8192U);
}

TEST_F(Awaiting, everyone_who_asks_is_called_once_whenever_they_ask) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  std::vector<std::byte> memory(size);
  const Range range{&store, 0, Region::host(memory.data(), size)};
  for (int round = 0; round < 50; ++round) {
    const Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
    std::array<std::promise<bool>, 3> called;
    ticket.then([&] { called[0].set_value(ticket.ended()); });
    ticket.then([&] { called[1].set_value(ticket.ended()); });
    ticket.wait();
    ticket.then([&] { called[2].set_value(ticket.ended()); });
    for (auto& one : called) EXPECT_TRUE(one.get_future().get());
  }
}

TEST_F(Awaiting, every_look_at_a_ticket_makes_progress) {
  using namespace std::chrono_literals;
  const std::vector<std::function<void(const Ticket&)>> looks = {
      [](const Ticket& ticket) { static_cast<void>(ticket.ended()); },
      [](const Ticket& ticket) { static_cast<void>(ticket.outcome()); },
      [](const Ticket& ticket) { static_cast<void>(ticket.bytes_done()); },
      [](const Ticket& ticket) { static_cast<void>(ticket.wait_for(0s)); },
      [](const Ticket& ticket) { static_cast<void>(Ticket::wait_any({&ticket, 1}, 0s)); },
  };
  for (std::size_t i = 0; i < looks.size(); ++i) {
    const auto gate = std::make_shared<Gate>("file");
    engine::Table engines;
    engines.push_back(std::make_unique<GatedEngine>(std::vector{gate}));
    Context context = ContextBuilder::build(std::move(engines), options_).value();
    const Store store = context.open(folder_.path("file")).value();
    std::vector<std::byte> memory(4096);
    const Range range{&store, 0, Region::host(memory.data(), memory.size())};
    gate->close();
    const Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
    // On a thread that did not submit it.
    std::jthread poller([&] {
      EXPECT_TRUE(eventually([&] {
        looks[i](ticket);
        return gate->was_polled_here();
      })) << i;
    });
    poller.join();
    gate->open();
    EXPECT_EQ(ticket.wait(), Outcome::done);
  }
}

TEST_F(Awaiting, a_ticket_that_stands_for_nothing_has_ended) {
  bool called = false;
  Ticket().then([&] { called = true; });
  EXPECT_TRUE(called);
}

}  // namespace
}  // namespace penstock::test
