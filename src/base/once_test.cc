#include "base/once.h"

#include <gtest/gtest.h>

#include <array>
#include <new>
#include <thread>

namespace penstock {
namespace {

TEST(Once, is_tried_again_after_an_exception_and_never_after_it_was_done) {
  Once once;
  int tries = 0;
  const auto fail_first = [&] {
    if (++tries == 1) throw std::bad_alloc();
  };
  EXPECT_THROW(once.run(fail_first), std::bad_alloc);
  once.run(fail_first);
  once.run(fail_first);
  EXPECT_EQ(tries, 2);
}

TEST(Once, all_see_what_one_has_done) {
  Once once;
  int done = 0;
  std::array<int, 8> seen{};
  {
    std::array<std::jthread, 8> threads;
    for (std::size_t i = 0; i < threads.size(); ++i) {
      threads[i] = std::jthread([&, i] {
        once.run([&] { ++done; });
        seen[i] = done;
      });
    }
  }
  for (const int each : seen) EXPECT_EQ(each, 1);
}

}  // namespace
}  // namespace penstock
