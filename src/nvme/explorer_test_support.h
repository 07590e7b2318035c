// Explorer, for tests: runs every schedule of a few threads with a bounded number of preemptions, or schedules at
// random.
//
// Thread safety: one thread, on which all of its threads are fibers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nvme/fiber_test_support.h"

namespace penstock::nvme::interleavings {

// Runs threads one at a time. At each point of a thread a choice is made: who runs next. Choices are explored depth
// first, by running again with the next one. What departs from the plain course is bounded: taking the processor from a
// thread that could have gone on, a write that arrives late, a completion out of order.
class Explorer {
 public:
  struct Limits {
    int departures = 2;
    std::uint32_t schedules = 100'000;
    std::uint64_t random_seed = 0;  // not 0: choices are drawn instead, and departures are not bounded
  };
  struct Outcome {
    std::uint32_t schedules = 0;
    bool complete = false;  // every schedule within the bound was run
    std::string failure;    // the first one
  };
  struct Abandoned {};

  // `begin` makes the threads of a schedule anew; `end` looks at what they have done.
  Outcome explore(const Limits& limits, const std::function<std::vector<std::function<void()>>()>& begin,
                  const std::function<void()>& end) {
    random_.seed(limits.random_seed);
    is_random_ = limits.random_seed != 0;
    Outcome outcome;
    trail_.clear();
    do {
      next_choice_ = 0;
      departures_left_ = limits.departures;
      failure_.clear();
      run(begin());
      ++outcome.schedules;
      if (failure_.empty()) end();
      outcome.failure = failure_;
    } while (outcome.failure.empty() && outcome.schedules < limits.schedules && advance());
    outcome.complete = !is_random_ && trail_.empty();
    return outcome;
  }

  // Of the running thread: others may come first.
  void point() {
    look_for_failure();
    const std::size_t others = threads_that_can_run() - 1;
    if (const std::size_t chosen = choose(others + 1); chosen != 0) switch_to(other(chosen - 1));
  }
  // The running thread can't go on before another has. In turn, so that none is left out for ever.
  void pause() {
    look_for_failure();
    if (threads_that_can_run() > 1) switch_to(other(0));
  }
  // 0 is the plain course.
  std::size_t choose(std::size_t count) {
    if (count < 2) return 0;
    constexpr std::size_t plain_share = 8;  // of random choices, so that threads get on
    if (is_random_) return std::max(random_() % (count + plain_share), plain_share) - plain_share;
    if (departures_left_ == 0) return 0;
    if (next_choice_ == trail_.size()) trail_.push_back({0, count});
    const std::size_t chosen = trail_[next_choice_++].chosen;
    if (chosen != 0) --departures_left_;
    return chosen;
  }
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
    throw Abandoned{};
  }
  // For `end`, which runs on no thread of ours.
  void note(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

 private:
  static constexpr std::uint32_t most_steps = 20'000;
  struct Choice {
    std::size_t chosen, count;
  };
  struct Thread {
    std::unique_ptr<Fiber> fiber;
    bool ended = false;
  };

  void run(std::vector<std::function<void()>> bodies) {
    threads_.clear();
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      threads_.push_back({std::make_unique<Fiber>([this, i, &body = bodies[i]] {
        try {
          if (failure_.empty()) body();
        } catch (const Abandoned&) {
        }
        end_thread(i);
      })});
    }
    steps_ = 0;
    running_ = 0;
    home_.switch_to(*threads_[0].fiber);
  }
  void end_thread(std::size_t self) {
    threads_[self].ended = true;
    if (threads_that_can_run() == 0) threads_[self].fiber->switch_to(home_, true);
    running_ = other(0);
    threads_[self].fiber->switch_to(*threads_[running_].fiber, true);
  }
  void switch_to(std::size_t next) {
    const std::size_t self = running_;
    running_ = next;
    threads_[self].fiber->switch_to(*threads_[next].fiber);
    look_for_failure();
  }
  void look_for_failure() {
    if (!failure_.empty()) throw Abandoned{};
    if (++steps_ > most_steps) fail("no progress");
  }
  std::size_t threads_that_can_run() const {
    return static_cast<std::size_t>(
        std::count_if(threads_.begin(), threads_.end(), [](const Thread& thread) { return !thread.ended; }));
  }
  // The one after the running thread, or so many further.
  std::size_t other(std::size_t number) const {
    std::size_t at = running_;
    for (std::size_t seen = 0; seen <= number;) {
      at = (at + 1) % threads_.size();
      if (!threads_[at].ended && at != running_) ++seen;
    }
    return at;
  }
  bool advance() {
    if (is_random_) return true;
    while (!trail_.empty() && trail_.back().chosen + 1 == trail_.back().count) trail_.pop_back();
    if (trail_.empty()) return false;
    ++trail_.back().chosen;
    return true;
  }

  Fiber home_;
  std::vector<Thread> threads_;
  std::size_t running_ = 0;
  std::uint32_t steps_ = 0;
  std::vector<Choice> trail_;
  std::size_t next_choice_ = 0;
  int departures_left_ = 0;
  bool is_random_ = false;
  std::mt19937_64 random_;
  std::string failure_;
};

}  // namespace penstock::nvme::interleavings
