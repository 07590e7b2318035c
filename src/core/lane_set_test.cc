#include "core/lane_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/test_scripted_engine.h"
#include "memory/allocation.h"

namespace penstock::core {
namespace {

using namespace std::chrono_literals;

// Ends every operation at once.
class InstantQueue : public engine::Queue {
 public:
  std::size_t submit(std::span<const engine::Op> ops) override {
    for (const engine::Op& op : ops) ended_.push_back({.cookie = op.cookie, .bytes = op.length});
    return ops.size();
  }
  std::size_t poll(std::span<engine::Done> done, TimePoint) override {
    const std::size_t count = std::min(done.size(), ended_.size());
    std::copy_n(ended_.begin(), count, done.begin());
    ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void wake() override {}
  void cancel(std::uint64_t) override {}

 private:
  std::vector<engine::Done> ended_;
};

// What the operations of a HeldQueue wait for: the test, or that they are cancelled. None waits for ever.
class Hold {
 public:
  explicit Hold(bool obeys_cancel) : obeys_cancel_(obeys_cancel) {}

  // To polls of this thread, or of any.
  void release(std::thread::id to = {}) {
    const std::scoped_lock lock(mutex_);
    is_released_ = true;
    to_ = to;
    changed_.notify_all();
  }

 private:
  friend class HeldQueue;
  bool releases() const {
    const bool is_ours = to_ == std::thread::id() || to_ == std::this_thread::get_id();
    return (is_released_ && is_ours) || Clock::now() >= last_;
  }

  const bool obeys_cancel_;
  const TimePoint last_ = Clock::now() + 20s;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_released_ = false;
  std::thread::id to_;
};

class HeldQueue : public engine::Queue {
 public:
  explicit HeldQueue(Hold& hold) : hold_(hold) {}
  std::size_t submit(std::span<const engine::Op> ops) override {
    ops_.insert(ops_.end(), ops.begin(), ops.end());
    return ops.size();
  }
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override {
    std::unique_lock lock(hold_.mutex_);
    const auto has_some = [this] { return !ended_.empty() || (hold_.releases() && !ops_.empty()); };
    hold_.changed_.wait_until(lock, std::min(deadline, hold_.last_), [&] { return is_woken_ || has_some(); });
    is_woken_ = false;
    if (hold_.releases()) {
      for (const engine::Op& op : ops_) ended_.push_back({.cookie = op.cookie, .bytes = op.length});
      ops_.clear();
    }
    const std::size_t count = std::min(done.size(), ended_.size());
    std::copy_n(ended_.begin(), count, done.begin());
    ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void wake() override {
    const std::scoped_lock lock(hold_.mutex_);
    is_woken_ = true;
    hold_.changed_.notify_all();
  }
  void cancel(std::uint64_t cookie) override {
    const auto is_meant = [&](const engine::Op& op) { return op.cookie == cookie; };
    if (!hold_.obeys_cancel_ || std::erase_if(ops_, is_meant) == 0) return;
    ended_.push_back({.cookie = cookie, .code = Code::cancelled});
  }

 private:
  Hold& hold_;
  std::vector<engine::Op> ops_;
  std::vector<engine::Done> ended_;
  bool is_woken_ = false;
};

class LaneSetTest : public testing::Test {
 protected:
  LaneSetTest() {
    script_.name = "instant";
    script_.info = {.name = "x", .size_bytes = 64 << 20, .alignments = {.offset = 512, .memory = 512}, .direct = true};
    script_.size_now = script_.info.size_bytes;
    script_.make_queue = [this](const engine::QueueOptions& options) -> std::unique_ptr<engine::Queue> {
      const std::scoped_lock lock(mutex_);
      depths_.push_back(options.depth);
      if (hold_) return std::make_unique<HeldQueue>(*hold_);
      return std::make_unique<InstantQueue>();
    };
    options_.lanes = 2;
  }

  std::shared_ptr<LaneSet> make_lanes() {
    auto table = std::make_shared<engine::Table>();
    table->push_back(std::make_unique<ScriptedEngine>(script_));
    environment_ = std::make_shared<Environment>(table, options_, Machine{.lockable_bytes = UINT64_MAX});
    store_ = client::Access::store(StoreEntry::open(*environment_, "x", {}).value());
    return std::make_shared<LaneSet>(environment_);
  }
  std::shared_ptr<Request> read(std::uint64_t length, const RequestOptions& options = {}) {
    const Range range{&store_, 0, Region::host(memory_->region().data, length)};
    return Request::create(environment_, {&range, 1}, {.lanes = 2}, options).value();
  }
  std::vector<std::uint32_t> depths() {
    const std::scoped_lock lock(mutex_);
    return depths_;
  }

  // Drives a request that its caller gives up, and whose operation does not come back then.
  std::shared_ptr<Request> drive_in_vain(LaneSet& lanes) {
    auto request = read(4096);
    EXPECT_TRUE(lanes.drive(request, [] { return false; }));
    EXPECT_EQ(request->outcome(), Outcome::abandoned);
    EXPECT_EQ(environment_->orphans.load(), 1U);
    return request;
  }
  bool is_home_soon() const {
    const TimePoint until = Clock::now() + 20s;
    while (environment_->orphans.load() != 0 && Clock::now() < until) std::this_thread::sleep_for(1ms);
    return environment_->orphans.load() == 0 && environment_->quarantined_bytes.load() == 0;
  }

  std::optional<Hold> hold_;  // of all queues that are made; nothing: each operation ends at once
  Script script_;
  Options options_;
  std::shared_ptr<Environment> environment_;
  penstock::Store store_;
  const std::unique_ptr<memory::Allocation> memory_ =
      memory::Allocation::create({.domain = Domain::host(), .size_bytes = 16 << 20}).value();

 private:
  std::mutex mutex_;
  std::vector<std::uint32_t> depths_;
};

TEST_F(LaneSetTest, runs_requests_on_its_threads_and_on_those_of_callers) {
  const auto lanes = make_lanes();
  EXPECT_EQ(lanes->size(), 2U);
  const auto submitted = read(16 << 20);
  lanes->submit(submitted);
  EXPECT_TRUE(submitted->wait_until(Clock::now() + 20s));
  EXPECT_EQ(submitted->outcome(), Outcome::done);
  const auto driven = read(4096);
  EXPECT_TRUE(lanes->drive(driven));
  EXPECT_EQ(driven->outcome(), Outcome::done);
  const auto started = read(4096);
  EXPECT_TRUE(lanes->start(started));
  EXPECT_TRUE(started->wait_until(Clock::now() + 20s));
  EXPECT_EQ(started->outcome(), Outcome::done);
}

TEST_F(LaneSetTest, gives_a_short_request_to_the_lane_that_worked_last_if_that_is_free) {
  const auto lanes = make_lanes();
  const Lane* last = nullptr;
  for (int i = 0; i < 5; ++i) {
    const auto request = read(4096);
    lanes->submit(request);
    EXPECT_TRUE(request->wait_until(Clock::now() + 20s));
    const Lane* const lane = request->parts[0].lane.get();
    ASSERT_NE(lane, nullptr);
    EXPECT_TRUE(last == nullptr || lane == last);
    last = lane;
    const TimePoint until = Clock::now() + 20s;
    while (lane->busy() && Clock::now() < until) std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(lane->busy());
  }
}

TEST_F(LaneSetTest, ends_a_request_at_once_when_it_is_closed) {
  const auto lanes = make_lanes();
  lanes->close();
  const auto request = read(4 << 20);
  lanes->submit(request);
  ASSERT_TRUE(request->ended());
  EXPECT_EQ(request->outcome(), Outcome::cancelled);
  EXPECT_EQ(request->report().error->code, Code::closed);
  const auto small = read(512);
  EXPECT_FALSE(lanes->start(small));
  EXPECT_FALSE(lanes->drive(small));
  EXPECT_FALSE(small->ended()) << "it is the caller's to submit";
  EXPECT_TRUE(depths().empty()) << "no lane was made for it";
  lanes->close();
}

TEST_F(LaneSetTest, asks_the_caller_of_a_driven_request_now_and_then_whether_to_go_on) {
  hold_.emplace(true);
  const auto lanes = make_lanes();
  const auto request = read(4096);
  int asked = 0;
  const auto keep_going = [&, caller = std::this_thread::get_id()] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    return ++asked < 3;
  };
  EXPECT_TRUE(lanes->drive(request, keep_going));
  EXPECT_EQ(asked, 3);
  ASSERT_TRUE(request->ended());
  EXPECT_EQ(request->outcome(), Outcome::cancelled);
  EXPECT_EQ(request->report().error->code, Code::cancelled);
  EXPECT_EQ(environment_->orphans.load(), 0U) << "its operation came back";
}

TEST_F(LaneSetTest, polls_a_driven_lane_whose_operation_is_stuck_until_it_can_be_used_again) {
  hold_.emplace(false);
  options_.deadlines.cancel_grace_seconds = 0.01;
  const auto lanes = make_lanes();
  const auto abandoned = drive_in_vain(*lanes);
  EXPECT_EQ(environment_->quarantined_bytes.load(), 4096U);
  const auto beside = read(4096);
  EXPECT_TRUE(lanes->drive(beside, [] { return false; })) << "on a lane of its own";
  EXPECT_EQ(depths().size(), 2U);
  hold_->release();
  EXPECT_TRUE(is_home_soon()) << "though no caller works on either lane";
  for (int i = 0; i < 3; ++i) {
    const auto next = read(4096);
    EXPECT_TRUE(lanes->drive(next));
    EXPECT_EQ(next->outcome(), Outcome::done);
  }
  EXPECT_EQ(depths().size(), 2U) << "on those lanes";
}

TEST_F(LaneSetTest, waits_at_its_end_for_what_is_stuck_on_a_driven_lane) {
  hold_.emplace(false);
  options_.deadlines.cancel_grace_seconds = 0.01;
  options_.deadlines.close_seconds = 20;
  const auto lanes = make_lanes();
  const auto abandoned = drive_in_vain(*lanes);
  hold_->release(std::this_thread::get_id());  // whoever else polls finds nothing
  lanes->close();
  EXPECT_EQ(environment_->orphans.load(), 0U);
  EXPECT_EQ(environment_->quarantined_bytes.load(), 0U);
}

TEST_F(LaneSetTest, divides_the_operations_in_flight_among_all_its_lanes) {
  options_.operations_in_flight_total = 24;
  const auto lanes = make_lanes();
  const auto submitted = read(16 << 20);
  lanes->submit(submitted);
  EXPECT_TRUE(submitted->wait_until(Clock::now() + 20s));
  const auto started = read(4096);
  EXPECT_TRUE(lanes->start(started));
  EXPECT_TRUE(started->wait_until(Clock::now() + 20s));
  // Two with threads, and two that callers share.
  const std::vector<std::uint32_t> made = depths();
  EXPECT_GE(made.size(), 2U);
  for (const std::uint32_t depth : made) EXPECT_EQ(depth, 6U);
}

TEST_F(LaneSetTest, gives_each_lane_one_operation_at_least) {
  options_.operations_in_flight_total = 1;
  const auto lanes = make_lanes();
  const auto request = read(16 << 20);
  lanes->submit(request);
  EXPECT_TRUE(request->wait_until(Clock::now() + 20s));
  EXPECT_EQ(request->outcome(), Outcome::done);
  for (const std::uint32_t depth : depths()) EXPECT_EQ(depth, 1U);
}

TEST_F(LaneSetTest, takes_no_request_on_a_callers_thread_whose_blocks_do_not_fit_there) {
  script_.info.alignments.offset = 1 << 20;
  const auto lanes = make_lanes();
  const auto request = read(4096);
  EXPECT_FALSE(lanes->start(request));
  EXPECT_FALSE(lanes->drive(request));
}

}  // namespace
}  // namespace penstock::core
