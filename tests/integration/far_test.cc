// Stores that are far away, and wide.
#include <gtest/gtest.h>

#include "api/context_builder.h"
#include "penstock/penstock.h"
#include "support/far_engine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

Context make_context(Duration latency, const Options& options = {}) {
  engine::Table table;
  table.push_back(std::make_unique<FarEngine>(latency));
  return ContextBuilder::build(std::move(table), options).value();
}

TEST(Far, more_and_more_is_in_flight_until_all_that_is_allowed_is) {
  constexpr std::size_t mib = 1 << 20;
  Options options;
  options.lanes = 2;
  options.bytes_in_flight = 32 * mib;
  Context context = make_context(5ms, options);
  const Store store = context.open("far:134217728").value();
  std::vector<std::byte> memory(128 * mib);
  std::uint64_t most = 0;
  // How soon depends on the machine; that it comes to be so does not.
  EXPECT_TRUE(eventually([&] {
    const Range range{&store, 0, Region::host(memory.data(), memory.size())};
    const Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
    while (!ticket.wait_for(1ms)) most = std::max(most, context.statistics().bytes_in_flight);
    EXPECT_EQ(ticket.outcome(), Outcome::done);
    return most >= 24 * mib;
  })) << most;
  EXPECT_LE(most, 40 * mib) << "a piece more for each lane at most";
  EXPECT_TRUE(FarEngine::holds_content(memory, 0));
  EXPECT_EQ(context.statistics().bytes_in_flight, 0U);
  EXPECT_EQ(context.statistics().operations_in_flight, 0U);
}

TEST(Far, what_is_read_through_staging_memory_is_not_waited_for_when_it_is_cancelled) {
  Options options;
  options.lanes = 1;
  options.alignment_bytes = 4096;
  Context context = make_context(3s, options);
  const Store store = context.open("far:1000000").value();
  std::vector<std::byte> memory(4000, std::byte{0xc5});
  const Range range{&store, 1, Region::host(memory.data(), memory.size())};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  EXPECT_TRUE(eventually([&] { return context.statistics().operations_in_flight == 1; }));
  EXPECT_EQ(ticket.cancel(), Outcome::cancelled) << "and not abandoned";
  EXPECT_EQ(context.statistics().quarantined_bytes, 0U);
  EXPECT_TRUE(eventually([&] { return context.statistics().operations_in_flight == 0; }));
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0xc5}), 4000) << "what comes late touches nothing";
}

TEST(Far, what_will_be_lent_is_not_waited_for_when_it_is_cancelled) {
  engine::Table table;
  table.push_back(std::make_unique<FarEngine>(3s, true));
  Options options;
  options.lanes = 1;
  Context context = ContextBuilder::build(std::move(table), options).value();
  const Store store = context.open("far:1048576").value();
  Buffer memory = context.allocate(Domain::host(), 1 << 20).value();
  std::fill_n(memory.data(), memory.size_bytes(), std::byte{0xc5});
  const Range range{&store, 0, memory.region()};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  EXPECT_TRUE(eventually([&] { return context.statistics().operations_in_flight != 0; }));
  EXPECT_EQ(ticket.cancel(), Outcome::cancelled) << "and not abandoned";
  EXPECT_EQ(context.statistics().quarantined_bytes, 0U);
  EXPECT_TRUE(eventually([&] { return context.statistics().operations_in_flight == 0; }));
  EXPECT_EQ(std::count(memory.data(), memory.data() + memory.size_bytes(), std::byte{0xc5}), 1 << 20)
      << "what comes late touches nothing";
}

TEST(Far, another_engine_on_the_same_lane_is_served_meanwhile) {
  engine::Table table;
  table.push_back(std::make_unique<FarEngine>(2s));
  struct Near : FarEngine {
    Near() : FarEngine(1ms), description_(FarEngine::description()) {
      description_.name = "near";
      description_.schemes = {"near"};
    }
    const engine::Description& description() const override { return description_; }
    engine::Description description_;
  };
  table.push_back(std::make_unique<Near>());
  Options options;
  options.lanes = 1;
  Context context = ContextBuilder::build(std::move(table), options).value();
  const Store far = context.open("far:2000000").value();
  const Store near = context.open("near:2000000").value();
  std::vector<std::byte> memory(2'000'000);
  std::vector<std::byte> other(2'000'000);
  const Range slow{&far, 0, Region::host(memory.data(), memory.size())};
  const Ticket ticket = context.submit(Direction::read, {&slow, 1}).value();
  for (int i = 0; i < 10; ++i) {
    const Range quick{&near, 0, Region::host(other.data(), other.size())};
    EXPECT_EQ(context.submit(Direction::read, {&quick, 1}).value().wait(), Outcome::done);
  }
  EXPECT_FALSE(ticket.ended()) << "ten quick ones take less than two seconds";
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(FarEngine::holds_content(memory, 0));
}

}  // namespace
}  // namespace penstock::test
