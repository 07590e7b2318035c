#include "engines/fault/queue.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>

#include "engines/fault/engine.h"
#include "engines/posix/engine.h"
#include "files/test_queue.h"

namespace penstock::fault {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using engine::Path;
using namespace std::chrono_literals;

constexpr std::size_t length = 8192;
constexpr std::size_t operations = 200;

class Faults : public testing::Test {
 protected:
  void make(const FaultPlan& plan, const OpenOptions& options = {}) {
    store_.reset();
    engine_ = make_engine(posix::make_engine(), plan, control_);
    store_ = std::move(engine_->open(file_.name(), options).value());
  }
  std::unique_ptr<engine::Queue> queue(std::uint32_t depth = operations) {
    return std::move(engine_->make_queue({.depth = depth, .threads = 2}).value());
  }
  Op op(std::size_t index) { return file_.read(*store_, index, Path::buffered); }
  // What became of `count` reads, by cookie.
  std::map<std::uint64_t, Done> run(engine::Queue& queue, std::size_t count = operations) {
    std::vector<Op> ops;
    for (std::size_t i = 0; i < count; ++i) ops.push_back(op(i));
    EXPECT_EQ(queue.submit(ops), count);
    std::map<std::uint64_t, Done> outcome;
    for (const Done& one : files::collect(queue, count)) {
      EXPECT_TRUE(outcome.emplace(one.cookie, one).second) << "came home twice";
      order_.push_back(one.cookie);
    }
    return outcome;
  }

  const files::BlockFile file_{length, operations};
  std::shared_ptr<FaultControl> control_ = std::make_shared<FaultControl>();
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Store> store_;
  std::vector<std::uint64_t> order_;
};

constexpr FaultPlan everything{.seed = 7,
                               .short_transfer = 300,
                               .io_error = 50,
                               .again = 50,
                               .interrupted = 50,
                               .delay = 100,
                               .max_delay = 2ms,
                               .reorder = true};

std::string summary(const std::map<std::uint64_t, Done>& outcome) {
  std::string text;
  for (const auto& [cookie, done] : outcome) {
    text += std::to_string(cookie) + ":" + std::to_string(done.bytes) + "/" + std::to_string(done.system_error) + " ";
  }
  return text;
}

TEST_F(Faults, are_the_same_for_the_same_seed_and_queue) {
  std::array<std::string, 2> first;
  std::array<std::string, 2> second;
  for (auto* summaries : {&first, &second}) {
    make(everything);
    for (std::string& text : *summaries) text = summary(run(*queue()));
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first[0], first[1]) << "each queue has a seed of its own";
}

TEST_F(Faults, differ_with_the_seed) {
  make(everything);
  const std::string first = summary(run(*queue()));
  FaultPlan plan = everything;
  plan.seed = 8;
  make(plan);
  EXPECT_NE(summary(run(*queue())), first);
}

TEST_F(Faults, come_as_planned) {
  make(everything);
  std::map<int, int> errors;
  int short_transfers = 0;
  for (const auto& [cookie, done] : run(*queue())) {
    ++errors[done.system_error];
    if (done.code != Code::ok) {
      EXPECT_EQ(done.bytes, 0U);
      continue;
    }
    EXPECT_GT(done.bytes, 0U);
    if (done.bytes < length) ++short_transfers;
    EXPECT_TRUE(files::has_pattern(file_.memory() + cookie * length, cookie * length, done.bytes));
  }
  EXPECT_GT(short_transfers, 20);
  EXPECT_GT(errors[EIO], 0);
  EXPECT_GT(errors[EAGAIN], 0);
  EXPECT_GT(errors[EINTR], 0);
  EXPECT_GT(errors[0], 100);
}

TEST_F(Faults, keep_direct_transfers_aligned) {
  make({.short_transfer = 1000});
  if (!store_->info().direct) GTEST_SKIP() << "no direct transfers on " << store_->info().file_system;
  const auto lane = queue();
  for (std::size_t i = 0; i < operations; ++i) {
    Op direct = op(i);
    direct.path = Path::direct;
    ASSERT_EQ(lane->submit({&direct, 1}), 1U);
    std::array<Done, 1> done{};
    ASSERT_EQ(lane->poll(done, Clock::now() + 10s), 1U);
    EXPECT_EQ(done[0].code, Code::ok) << done[0].system_error;
    EXPECT_GT(done[0].bytes, 0U);
    EXPECT_LT(done[0].bytes, length);
  }
}

TEST_F(Faults, shorten_what_has_no_memory_too) {
  make({.short_transfer = 1000}, {.access = Access::write});
  const auto lane = queue();
  for (const OpKind kind : {OpKind::zero, OpKind::deallocate}) {
    const Op op{.kind = kind, .store = store_.get(), .offset = 4096, .length = 4 * length};
    ASSERT_EQ(lane->submit({&op, 1}), 1U);
    std::array<Done, 1> done{};
    ASSERT_EQ(lane->poll(done, Clock::now() + 10s), 1U);
    EXPECT_EQ(done[0].code, Code::ok) << done[0].system_error;
    EXPECT_GT(done[0].bytes, 0U);
    EXPECT_LT(done[0].bytes, 4 * length);
  }
}

TEST_F(Faults, reorder_completions) {
  make({.reorder = true});
  run(*queue());
  EXPECT_FALSE(std::is_sorted(order_.begin(), order_.end()));
}

TEST_F(Faults, delay_completions) {
  make({.delay = 1000, .max_delay = 20ms});
  const TimePoint begin = Clock::now();
  EXPECT_EQ(run(*queue()).size(), operations);
  EXPECT_GT(Clock::now() - begin, 5ms);
}

TEST_F(Faults, none_leave_everything_as_it_is) {
  make({});
  EXPECT_EQ(engine_->description().name, "fault");
  EXPECT_FALSE(engine_->description().inline_queue);
  EXPECT_EQ(run(*queue()).size(), operations);
  EXPECT_TRUE(file_.all_read());
}

TEST_F(Faults, that_never_end_can_not_be_cancelled_and_come_home_late) {
  make({.never = 1000}, {.access = Access::write});
  const auto lane = queue(4);
  std::array<Done, 4> done{};
  Op write = op(1);
  write.kind = OpKind::write;
  std::fill_n(write.memory, length, std::byte{5});
  ASSERT_EQ(lane->submit({&write, 1}), 1U);
  lane->cancel(write.cookie);
  EXPECT_EQ(lane->poll(done, Clock::now() + 10ms), 0U);
  EXPECT_EQ(control_->stuck(), 1U);
  EXPECT_EQ(static_cast<std::byte>(file_.folder().read("a")[length]), files::pattern_at(length));

  std::thread device([&] { control_->release_stuck(); });
  EXPECT_EQ(lane->poll(done, Clock::now() + 10s), 1U);
  device.join();
  EXPECT_EQ(done[0].cookie, write.cookie);
  EXPECT_EQ(done[0].bytes, length);
  EXPECT_EQ(control_->stuck(), 0U);
  EXPECT_EQ(file_.folder().read("a")[length], 5);
}

TEST_F(Faults, that_never_end_count_as_in_flight) {
  make({.never = 1000});
  const auto lane = queue(2);
  const std::array<Op, 3> ops{op(0), op(1), op(2)};
  EXPECT_EQ(lane->submit(ops), 2U);
  EXPECT_EQ(lane->submit({&ops[2], 1}), 0U);
  control_->release_stuck();
  std::array<Done, 4> done{};
  EXPECT_EQ(lane->poll(done, Clock::now() + 10s), 2U);
  EXPECT_EQ(lane->submit({&ops[2], 1}), 1U);
  control_->release_stuck();
  EXPECT_EQ(lane->poll(done, Clock::now() + 10s), 1U);
}

TEST_F(Faults, let_a_poll_be_woken) {
  make({.never = 1000});
  const auto lane = queue();
  std::array<Done, 1> done{};
  lane->wake();
  EXPECT_EQ(lane->poll(done, TimePoint::max()), 0U);
}

}  // namespace
}  // namespace penstock::fault
