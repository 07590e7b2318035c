#include "engines/made/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "engines/made/queue.h"
#include "penstock/penstock.h"

namespace penstock::made {
namespace {

using engine::Done;
using engine::Op;

std::byte byte_at(std::uint64_t offset) {
  return static_cast<std::byte>(offset * 7 + offset / 251);
}

Recipe counting(std::uint64_t size) {
  return {.name = "counted", .size_bytes = size, .make = [](std::uint64_t offset, std::span<std::byte> memory) {
            for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = byte_at(offset + i);
            return Status();
          }};
}

bool holds(std::span<const std::byte> memory, std::uint64_t offset) {
  return std::all_of(memory.begin(), memory.end(), [&](const std::byte& byte) { return byte == byte_at(offset++); });
}

TEST(MadeQueue, ends_each_operation_once_and_no_more_than_it_holds) {
  const auto store = make_store(counting(1000)).value();
  Queue queue(4);
  std::vector<std::byte> memory(1200);
  std::vector<Op> ops;
  for (std::uint64_t i = 0; i < 6; ++i) {
    ops.push_back({.store = store.get(), .offset = i * 200, .length = 200, .memory = &memory[i * 200], .cookie = i});
  }
  EXPECT_EQ(queue.submit(ops), 4U);
  std::array<Done, 3> done;
  EXPECT_EQ(queue.poll(done, TimePoint::max()), 3U);
  EXPECT_EQ(queue.submit(std::span(ops).subspan(4)), 2U);
  EXPECT_EQ(queue.poll(done, TimePoint::max()), 3U);
  EXPECT_EQ(done[2].cookie, 5U);
  EXPECT_EQ(done[2].bytes, 0U) << "there is nothing behind the end";
  EXPECT_EQ(done[1].bytes, 200U);
  EXPECT_EQ(done[1].route, Route::made);
  EXPECT_TRUE(holds(std::span(memory).first(1000), 0));
  queue.wake();
  EXPECT_EQ(queue.poll(done, TimePoint::max()), 0U);
}

TEST(MadeQueue, changes_nothing) {
  const auto store = make_store(counting(1000)).value();
  EXPECT_EQ(store->writer(), nullptr);
  Queue queue(1);
  std::byte memory{};
  const Op op{.kind = engine::OpKind::write, .store = store.get(), .length = 1, .memory = &memory};
  EXPECT_EQ(queue.submit({&op, 1}), 1U);
  Done done;
  EXPECT_EQ(queue.poll({&done, 1}, TimePoint::max()), 1U);
  EXPECT_EQ(done.code, Code::read_only);
}

TEST(Made, bytes_of_any_range_are_those_that_the_function_makes) {
  for (const std::uint32_t lanes : {1U, 4U}) {
    Context context = Context::create({.lanes = lanes}).value();
    const penstock::Store store = context.open(counting(20'000'003)).value();
    EXPECT_EQ(store.info().kind, StoreKind::made);
    for (const std::uint64_t offset : {0U, 1U, 4096U, 19'999'999U}) {
      std::vector<std::byte> memory(std::min<std::uint64_t>(3'000'001, store.info().size_bytes - offset));
      const Report report = context.read(store, offset, Region::host(memory.data(), memory.size()));
      ASSERT_TRUE(report.ok()) << report.error->message;
      EXPECT_TRUE(holds(memory, offset));
      EXPECT_EQ(report.routes[static_cast<std::size_t>(Route::made)], memory.size());
      EXPECT_NE(report.reason.find("made by a function"), std::string::npos) << report.reason;
    }
  }
}

TEST(Made, ranges_are_mixed_with_those_of_files_whatever_routes_are_allowed) {
  Context context = Context::create({.allowed_routes = {Route::cached, Route::direct, Route::buffered}}).value();
  const penstock::Store made = context.open(counting(100'000)).value();
  const penstock::Store file = context.open("/proc/self/exe").value();
  std::vector<std::byte> memory(8192);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 8; ++i) {
    ranges.push_back({i % 2 == 0 ? &made : &file, i * 1024, Region::host(&memory[i * 1024], 1024)});
  }
  const Ticket ticket = context.submit(Direction::read, ranges).value();
  ASSERT_EQ(ticket.wait(), Outcome::done);
  for (std::size_t i = 0; i < 8; i += 2) EXPECT_TRUE(holds(std::span(memory).subspan(i * 1024, 1024), i * 1024));
}

TEST(Made, what_the_function_says_about_a_failure_is_told_and_the_rest_arrives) {
  Context context = Context::create({.lanes = 1, .storage_chunk_bytes = 64 << 10}).value();
  Recipe recipe = counting(4 << 20);
  recipe.make = [make = recipe.make](std::uint64_t offset, std::span<std::byte> memory) -> Status {
    if (offset <= 1'000'000 && offset + memory.size() > 1'000'000) {
      return Error{Code::invalid_argument, 0, "row 42 is not in the table", "look it up before"};
    }
    return make(offset, memory);
  };
  const penstock::Store store = context.open(recipe).value();
  std::vector<std::byte> memory(4 << 20);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error->message.find("row 42 is not in the table"), std::string::npos) << report.error->message;
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_EQ(report.failures[0].code, Code::invalid_argument);
  EXPECT_EQ(report.bytes, memory.size() - report.failures[0].bytes);
}

TEST(Made, is_refused_without_a_function_and_not_written_to) {
  Context context = Context::create({}).value();
  EXPECT_EQ(context.open(Recipe{.name = "nothing", .size_bytes = 1}).error().code, Code::invalid_argument);
  const penstock::Store store = context.open(counting(10)).value();
  std::byte memory{};
  EXPECT_EQ(context.write(store, 0, Region::host(&memory, 1)).error->code, Code::read_only);
  EXPECT_EQ(context.read(store, 10, Region::host(&memory, 1)).error->code, Code::out_of_range);
}

TEST(MadeDeathTest, a_function_that_throws_ends_the_process_with_its_name) {
  const auto store =
      make_store({.name = "bad",
                  .size_bytes = 1,
                  .make = [](std::uint64_t, std::span<std::byte>) -> Status { throw std::runtime_error("no"); }})
          .value();
  std::byte memory{};
  EXPECT_DEATH((void)static_cast<const Store&>(*store).make(0, {&memory, 1}), "Recipe::make threw an exception");
}

}  // namespace
}  // namespace penstock::made
