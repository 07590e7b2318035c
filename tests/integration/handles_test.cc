// Handles that stand for nothing: made by default, or moved from. Every call says so, or has nothing to tell.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

class Handles : public ContextTest {
 protected:
  static void expect_no_request(Ticket& ticket) {
    EXPECT_FALSE(ticket);
    EXPECT_TRUE(ticket.ended());
    EXPECT_EQ(ticket.outcome(), Outcome::failed);
    EXPECT_EQ(ticket.bytes_done(), 0U);
    EXPECT_TRUE(ticket.wait_for(1h));
    EXPECT_EQ(ticket.wait(), Outcome::failed);
    EXPECT_EQ(ticket.cancel(), Outcome::failed);
    const Report report = ticket.report();
    EXPECT_EQ(report.outcome, Outcome::failed);
    expect_misuse(report.error);
    EXPECT_TRUE(Ticket::wait_any({&ticket, 1}, 1h));
  }

  static void expect_not_open(Store& store) {
    EXPECT_FALSE(store);
    EXPECT_EQ(store.info().size_bytes, 0U);
    EXPECT_TRUE(store.info().name.empty());
    expect_misuse(store.size_bytes().error());
    store.await_writers();
    EXPECT_EQ(store.cached_bytes(0, 4096), std::nullopt);
    expect_misuse(store.view().error());
    expect_misuse(store.commit().error());
    expect_misuse(store.abort().error());
  }

  static void expect_misuse(const std::optional<Error>& error) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code, Code::invalid_argument);
    EXPECT_FALSE(error->message.empty());
    EXPECT_FALSE(error->hint.empty());
  }
};

TEST_F(Handles, of_tickets_without_a_request_have_ended_as_failed) {
  Ticket none;
  expect_no_request(none);
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(4096);
  Ticket ticket = submit_read(context, store, Region::host(memory.data(), memory.size()));
  Ticket moved = std::move(ticket);
  expect_no_request(ticket);
  EXPECT_EQ(moved.wait(), Outcome::done);
}

TEST_F(Handles, of_tickets_may_be_among_others) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(4096);
  std::array<Ticket, 2> tickets;
  tickets[1] = submit_read(context, store, Region::host(memory.data(), memory.size()));
  EXPECT_TRUE(Ticket::wait_any(tickets, 10s));
  EXPECT_EQ(tickets[1].wait(), Outcome::done);
}

TEST_F(Handles, of_stores_that_are_not_open_say_so) {
  Store none;
  expect_not_open(none);
  Context context = make_context();
  Store store = context.open(make_file("file")).value();
  const Store moved = std::move(store);
  expect_not_open(store);
  std::byte byte{};
  expect_misuse(context.read(store, 0, Region::host(&byte, 1)).error);
  expect_misuse(context.zero(store, 0, 1).error);
  EXPECT_EQ(context.explain(store), "the Store is not open");
  EXPECT_EQ(moved.info().size_bytes, size_bytes);
}

TEST_F(Handles, of_contexts_that_were_moved_from_say_so) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> bytes(4096);
  const Region memory = Region::host(bytes.data(), bytes.size());
  const Range range{&store, 0, memory};
  Context moved = std::move(context);
  expect_misuse(context.open("file").error());
  expect_misuse(context.allocate(Domain::host(), 10).error());
  expect_misuse(context.prepare(Domain::host()).error());
  expect_misuse(context.attach(memory).error());
  expect_misuse(context.detach(memory).error());
  expect_misuse(context.read(store, 0, memory).error);
  expect_misuse(context.write(store, 0, memory).error);
  expect_misuse(context.zero(store, 0, 10).error);
  expect_misuse(context.deallocate(store, 0, 10).error);
  expect_misuse(context.transfer(Direction::read, {&range, 1}).error);
  expect_misuse(context.submit(Direction::read, {&range, 1}).error());
  RequestOptions in_order;
  in_order.stream = CudaStream{};
  expect_misuse(context.submit(Direction::read, {&range, 1}, in_order).error());
  expect_misuse(context.prefetch({&range, 1}).error());
  EXPECT_TRUE(context.engines().empty());
  EXPECT_FALSE(context.explain(store).empty());
  EXPECT_EQ(context.options(), Options());
  EXPECT_EQ(context.machine().memory_bytes, 0U);
  EXPECT_EQ(context.statistics().requests, 0U);
  EXPECT_TRUE(context.trace().events.empty());
  context.reset_statistics();
  context.count_mapped(1, 1);
  EXPECT_TRUE(moved.read(store, 0, memory).ok());
  context = std::move(moved);
  EXPECT_TRUE(context.read(store, 0, memory).ok()) << "it can be given another one";
}

TEST_F(Handles, of_views_without_a_mapping_have_no_bytes) {
  View none;
  std::byte byte{};
  EXPECT_TRUE(none.bytes().empty());
  EXPECT_EQ(none.copy_to(0, Region::host(&byte, 1)).error().code, Code::out_of_range);
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  View view = store.view().value();
  const std::byte* const mapped = view.bytes().data();
  expect_misuse(view.copy_to(0, Region::host(nullptr, 1)).error());
  none = std::move(view);
  EXPECT_TRUE(view.bytes().empty());
  EXPECT_EQ(none.bytes().data(), mapped);
}

TEST_F(Handles, of_buffers_give_back_what_they_had_when_they_get_another) {
  options_.pinned_budget_bytes = 64 << 20;
  Context context = make_context();
  auto first = context.allocate(Domain::pinned(), 4096);
  if (!first && first.error().code == Code::out_of_memory) GTEST_SKIP() << first.error().message;
  Buffer second = context.allocate(Domain::pinned(), 8192).value();
  *first = std::move(second);
  EXPECT_EQ(context.statistics().pinned_bytes, 8192U);
  EXPECT_EQ(second.size_bytes(), 0U);
  EXPECT_EQ(second.data(), nullptr);
}

TEST_F(Handles, of_checksums_that_were_moved_from_begin_anew) {
  const std::array<std::byte, 3> bytes{};
  Checksum fresh;
  fresh.add(bytes);
  Checksum sum;
  sum.add(bytes);
  sum.add(bytes);
  Checksum moved = std::move(sum);
  EXPECT_EQ(sum.value(), Checksum().value());
  sum.add(bytes);
  EXPECT_EQ(sum.hex(), fresh.hex());
  EXPECT_NE(moved.hex(), fresh.hex());
}

TEST_F(Handles, of_copies_refuse_memory_at_address_0) {
  std::byte byte{};
  expect_misuse(copy(Region::host(nullptr, 1), Region::host(&byte, 1)).error());
  expect_misuse(copy(Region::host(&byte, 1), Region::host(nullptr, 1)).error());
  const RowsCopy rows{.to = {Region::host(nullptr, 1), 1, 1}, .from = {Region::host(&byte, 1), 1, 1}};
  expect_misuse(copy_rows({&rows, 1}).error());
}

}  // namespace
}  // namespace penstock::test
