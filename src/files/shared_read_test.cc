#include "files/shared_read.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <vector>

#include "engine/store.h"

namespace penstock::files {
namespace {

using engine::Done;
using engine::Op;

constexpr std::uint64_t stretch = 64 << 10;

class SharedReadTest : public testing::Test {
 protected:
  class Nothing : public engine::Store {
   public:
    Nothing() : Store(StoreInfo{}) {}
    Result<engine::State> state() const override { return engine::State{}; }
  };
  Op op(std::uint64_t length) {
    return {.path = engine::Path::cached, .store = &store_, .offset = 7, .length = length, .cookie = 9};
  }
  static std::vector<Op> take_all(SharedRead& read) {
    std::vector<Op> stretches;
    while (read.has_more()) stretches.push_back(read.take());
    return stretches;
  }
  static Done brought(const Op& part, std::uint64_t bytes) { return {.cookie = part.cookie, .bytes = bytes}; }
  static Done failed(int error) { return {.code = Code::io_error, .system_error = error}; }

  Nothing store_;
};

TEST_F(SharedReadTest, is_cut_into_stretches_one_behind_the_other) {
  std::array<std::byte, 1> memory{};
  Op whole = op(2 * stretch + 5);
  whole.memory = memory.data();
  SharedRead read(whole);
  EXPECT_EQ(read.stretches_left(), 3U);
  std::uint64_t at = 0;
  for (const Op& each : take_all(read)) {
    EXPECT_EQ(each.offset, 7 + at);
    EXPECT_EQ(each.memory, memory.data() + at);
    at += each.length;
  }
  EXPECT_EQ(at, whole.length);
  EXPECT_EQ(read.stretches_left(), 0U);
}

TEST_F(SharedReadTest, has_longer_stretches_the_longer_it_is_within_limits) {
  const auto first = [&](std::uint64_t length) { return SharedRead(op(length)).take().length; };
  EXPECT_EQ(first(1), 1U);
  EXPECT_EQ(first(stretch + 1), stretch);
  EXPECT_EQ(first(48 * stretch + 5), 3 * stretch);
  EXPECT_EQ(first(16 << 20), 1U << 20);
  EXPECT_EQ(first(1 << 30), 1U << 20);
}

TEST_F(SharedReadTest, is_over_when_the_last_stretch_is_in_whichever_that_is) {
  SharedRead read(op(3 * stretch));
  const auto stretches = take_all(read);
  for (const std::size_t i : {2U, 0U}) {
    read.put(stretches[i], brought(stretches[i], stretch));
    EXPECT_FALSE(read.is_over());
  }
  read.put(stretches[1], brought(stretches[1], stretch));
  ASSERT_TRUE(read.is_over());
  EXPECT_EQ(read.done().bytes, 3 * stretch);
  EXPECT_EQ(read.done().cookie, 9U);
  EXPECT_EQ(read.done().route, Route::cached);
}

TEST_F(SharedReadTest, brought_what_came_without_a_gap) {
  SharedRead read(op(4 * stretch));
  const auto stretches = take_all(read);
  read.put(stretches[3], brought(stretches[3], stretch));
  read.put(stretches[2], failed(EIO));
  read.put(stretches[1], brought(stretches[1], 100));
  read.put(stretches[0], brought(stretches[0], stretch));
  ASSERT_TRUE(read.is_over());
  EXPECT_EQ(read.done().bytes, stretch + 100);
  EXPECT_EQ(read.done().code, Code::ok) << "whoever goes on meets the error";
}

TEST_F(SharedReadTest, brought_no_more_where_another_gap_is_found_behind_the_first) {
  SharedRead read(op(4 * stretch));
  const auto stretches = take_all(read);
  read.put(stretches[1], brought(stretches[1], 100));
  read.put(stretches[0], brought(stretches[0], stretch));
  read.put(stretches[2], brought(stretches[2], 200));
  read.put(stretches[3], failed(EIO));
  ASSERT_TRUE(read.is_over());
  EXPECT_EQ(read.done().bytes, stretch + 100);
}

TEST_F(SharedReadTest, gives_nothing_more_to_read_behind_a_gap) {
  SharedRead read(op(4 * stretch));
  const Op first = read.take();
  read.put(first, brought(first, 0));
  EXPECT_TRUE(read.is_over());
  EXPECT_EQ(read.done().bytes, 0U);
  EXPECT_EQ(read.done().code, Code::ok) << "the file ends there";
}

TEST_F(SharedReadTest, fails_as_its_beginning_did) {
  for (const bool is_beginning_first : {false, true}) {
    SharedRead read(op(2 * stretch));
    const auto stretches = take_all(read);
    if (is_beginning_first) read.put(stretches[0], failed(EIO));
    read.put(stretches[1], failed(EAGAIN));
    if (!is_beginning_first) read.put(stretches[0], failed(EIO));
    ASSERT_TRUE(read.is_over());
    EXPECT_EQ(read.done().code, Code::io_error);
    EXPECT_EQ(read.done().system_error, EIO);
    EXPECT_EQ(read.done().cookie, 9U);
    EXPECT_EQ(read.done().bytes, 0U);
  }
}

TEST_F(SharedReadTest, that_is_cancelled_ends_with_what_threads_have_of_it) {
  SharedRead read(op(3 * stretch));
  const Op first = read.take();
  read.cancel();
  read.cancel();
  EXPECT_FALSE(read.has_more());
  EXPECT_FALSE(read.is_over());
  read.put(first, brought(first, 1));
  ASSERT_TRUE(read.is_over());
  EXPECT_EQ(read.done().code, Code::cancelled);
  EXPECT_EQ(read.done().bytes, 0U);
}

TEST_F(SharedReadTest, that_threads_have_all_of_is_not_cancelled_any_more) {
  SharedRead read(op(stretch));
  const Op all = read.take();
  read.cancel();
  read.put(all, brought(all, stretch));
  EXPECT_EQ(read.done().code, Code::ok);
  EXPECT_EQ(read.done().bytes, stretch);
}

}  // namespace
}  // namespace penstock::files
