// For tests of requests that lack memory on threads of the library's own.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <span>

#include "integration/allocations.h"
#include "support/environment.h"
#include "support/support.h"

namespace penstock::test {

// What became of it, by its code.
inline Code told_by(const Report& report) {
  return report.ok() ? Code::ok : report.error->code;
}

// All that can be told of a request is told, once; what its report says is what its callback was told.
inline Code carry_out(const Context& context, Direction direction, std::span<const Range> ranges,
                      RequestOptions options = {}) {
  struct Told {
    std::atomic<int> ends{0};
    std::atomic<int> thens{0};
    std::atomic<int> ranges{0};
    std::atomic<Code> code{Code::internal};
  };
  const auto told = std::make_shared<Told>();
  options.on_range = [told](std::uint64_t, Code) { ++told->ranges; };
  options.on_end = [told](const Report& report) {
    told->code = told_by(report);
    ++told->ends;
  };
  const Ticket ticket = context.submit(direction, ranges, options).value();
  ticket.then([told] { ++told->thens; });
  EXPECT_TRUE(ticket.wait_for(std::chrono::seconds(20)));
  EXPECT_TRUE(eventually([&] { return told->ends == 1 && told->thens == 1; }));
  const Report report = ticket.report();
  EXPECT_EQ(told->code, told_by(report));
  EXPECT_FALSE(report.error && report.error->message.empty());
  EXPECT_LE(told->ranges, static_cast<int>(ranges.size()));
  EXPECT_TRUE(!report.ok() || told->ranges == static_cast<int>(ranges.size()));
  return told->code;
}

struct Trial {
  FailingAllocation::Which which = FailingAllocation::Which::one;
  std::set<Code> with_memory = {Code::ok};  // what the action gives
  std::function<void()> before;             // with memory, as after
  std::function<Code()> action;
  std::function<void()> after;
};

// Has each allocation that the action takes on other threads fail, one after the other; under the thread sanitizer
// every third, or one in PENSTOCK_ALLOCATION_STEP. It gives a code: the one that it gives with memory, or
// Code::out_of_memory. Returns how often it gave that.
inline int try_every_allocation_elsewhere(const Trial& trial) {
  constexpr std::uint64_t most = 2000;
  const std::uint64_t step = from_environment("PENSTOCK_ALLOCATION_STEP", under_thread_sanitizer ? 3 : 1);
  int refused = 0;
  for (std::uint64_t after = 0; after < most && !testing::Test::HasFailure(); after += step) {
    SCOPED_TRACE(after);
    trial.before();
    Code code = Code::internal;
    bool happened = false;
    {
      const FailingAllocation failing(after, trial.which, FailingAllocation::Threads::others);
      code = trial.action();
      happened = failing.happened();
    }
    refused += code == Code::out_of_memory ? 1 : 0;
    EXPECT_TRUE(trial.with_memory.contains(code) || (happened && code == Code::out_of_memory)) << code_name(code);
    trial.after();
    if (!happened) return refused;
  }
  ADD_FAILURE() << "there is no end to it";
  return refused;
}

}  // namespace penstock::test
