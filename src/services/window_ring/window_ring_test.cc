#include "penstock/window_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

namespace penstock {
namespace {

constexpr std::uint64_t window_bytes = 1000;

// Reads a store of bytes that count, a window at a time.
class WindowRingTest : public testing::Test {
 protected:
  static std::byte byte_at(std::uint64_t offset) { return static_cast<std::byte>(offset * 7 ^ offset >> 8); }

  WindowRingTest() {
    const auto make = [](std::uint64_t offset, std::span<std::byte> memory) {
      for (std::byte& byte : memory) byte = byte_at(offset++);
      return offset <= 9'000 ? Status() : Status(Error{Code::io_error, 0, "nothing beyond", ""});
    };
    store_ = context_.open(Recipe{"bytes", 10'000, make}).value();
  }

  WindowRing ring(std::size_t count) {
    return WindowRing::create(context_, {.count = count, .size_bytes = window_bytes}).value();
  }

  WindowRing::Begin read_up_to(std::uint64_t end) {
    return [this, end](const Window& window) -> Result<Ticket> {
      if (next_ >= end) return Ticket();
      const std::uint64_t length = std::min(window.memory.size_bytes, end - next_);
      const Range range{&store_, next_, window.memory.part(0, length)};
      next_ += length;
      ++begun_;
      return context_.submit(Direction::read, {&range, 1});
    };
  }

  // How many bytes came in order.
  std::uint64_t drain(WindowRing& ring, const WindowRing::Begin& begin, std::uint64_t from, std::uint64_t end) {
    std::uint64_t at = from;
    for (auto window = ring.next(begin); window.ok() && window->has_value(); window = ring.next(begin)) {
      const std::uint64_t length = std::min(window_bytes, end - at);
      for (std::uint64_t i = 0; i < length; ++i) {
        if ((*window)->memory.data[i] != byte_at(at + i)) return at - from;
      }
      at += length;
    }
    return at - from;
  }

  Context context_ = Context::create().value();
  Store store_;
  std::uint64_t next_ = 0;
  std::size_t begun_ = 0;
};

TEST_F(WindowRingTest, gives_all_windows_in_order_and_may_be_used_again) {
  for (const std::size_t count : {1, 2, 3, 50}) {
    next_ = 0;
    WindowRing windows = ring(count);
    EXPECT_EQ(drain(windows, read_up_to(4'500), 0, 4'500), 4'500U);
    EXPECT_EQ(drain(windows, read_up_to(8'700), 4'500, 8'700), 4'200U);
  }
}

TEST_F(WindowRingTest, has_begun_the_others_when_it_gives_one) {
  WindowRing windows = ring(3);
  const WindowRing::Begin begin = read_up_to(9'000);
  EXPECT_EQ(windows.next(begin).value()->number, 0U);
  EXPECT_EQ(begun_, 3U);
  EXPECT_EQ(windows.next(begin).value()->number, 1U);  // the first is begun again once the caller is done with it
  EXPECT_EQ(begun_, 4U);
}

TEST_F(WindowRingTest, gives_what_was_begun_before_it_tells_that_beginning_failed) {
  WindowRing windows = ring(3);
  const WindowRing::Begin two = read_up_to(2'000);
  const WindowRing::Begin begin = [&](const Window& window) -> Result<Ticket> {
    if (next_ == 2'000) return Error{Code::permission_denied, 0, "no more", ""};
    return two(window);
  };
  EXPECT_EQ(drain(windows, begin, 0, 2'000), 2'000U);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(windows.next(begin).error().code, Code::permission_denied);
}

TEST_F(WindowRingTest, asks_again_for_what_could_not_begin_yet) {
  WindowRing windows = ring(2);
  const WindowRing::Begin all = read_up_to(3'000);
  std::size_t given = 0;
  const WindowRing::Begin one_at_a_time = [&](const Window& window) -> Result<Ticket> {
    return begun_ == given ? all(window) : Ticket();
  };
  const WindowRing::Await await = [&](Ticket& ticket, const Window& window) {
    ++given;
    return WindowRing::wait_for_end(ticket, window);
  };
  while (windows.next(one_at_a_time, await).value()) EXPECT_EQ(begun_, given);
  EXPECT_EQ(given, 3U);
}

TEST_F(WindowRingTest, tells_what_failed_and_ends_the_rest) {
  next_ = 8'500;
  WindowRing windows = ring(2);
  const WindowRing::Begin begin = read_up_to(10'000);
  EXPECT_EQ(windows.next(begin).error().code, Code::io_error);
  EXPECT_FALSE(windows.next(begin).ok());
}

TEST_F(WindowRingTest, takes_turns_without_memory_too) {
  WindowRing turns = WindowRing::create(context_, {.count = 2}).value();
  std::string memory(3'000, '\0');
  const WindowRing::Begin begin = [&](const Window& window) -> Result<Ticket> {
    EXPECT_EQ(window.memory.size_bytes, 0U);
    if (next_ == memory.size()) return Ticket();
    const Range range{&store_, next_, Region::host(memory.data() + next_, window_bytes)};
    next_ += window_bytes;
    return context_.submit(Direction::read, {&range, 1});
  };
  while (turns.next(begin).value()) continue;
  for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(static_cast<std::byte>(memory[i]), byte_at(i));
}

TEST_F(WindowRingTest, needs_the_memory_for_its_windows) {
  const Result<WindowRing> refused = WindowRing::create(context_, {.count = 2, .size_bytes = std::uint64_t{1} << 60});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::out_of_memory);
}

}  // namespace
}  // namespace penstock
