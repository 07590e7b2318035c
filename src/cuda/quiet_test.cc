#include "cuda/quiet.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace penstock::cuda {
namespace {

using namespace std::chrono_literals;

template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(5ms);
  return condition();
}

// One that is under way until it is told to end.
class LongCall {
 public:
  explicit LongCall(Quiet& quiet) {
    thread_ = std::thread([this, &quiet] {
      quiet.run([this] {
        begun_.set_value();
        end_.get_future().wait();
      });
    });
    begun_.get_future().wait();
  }

  void end() {
    end_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> begun_, end_;
  std::thread thread_;
};

// Counts its calls, until there have been as many as it was to make.
class Counts : public Deferred {
 public:
  explicit Counts(int calls_left = 1) : calls_left_(calls_left) {}
  int calls() const { return calls_; }

 private:
  bool run() override {
    ++calls_;
    return --calls_left_ > 0;
  }

  int calls_left_;
  std::atomic<int> calls_ = 0;
};

// A call that takes as long as a GPU is busy.
class Blocks : public Deferred {
 public:
  void wait_until_begun() { begun_.get_future().wait(); }
  void end() { end_.set_value(); }

 private:
  bool run() override {
    begun_.set_value();
    end_.get_future().wait();
    return false;
  }

  std::promise<void> begun_, end_;
};

TEST(Quiet, runs_calls_only_while_no_stream_waits) {
  Quiet quiet;
  int calls = 0;
  EXPECT_TRUE(quiet.run([&] { ++calls; }));
  ASSERT_TRUE(quiet.begin_wait());
  EXPECT_FALSE(quiet.run([&] { ++calls; }));
  quiet.end_wait();
  EXPECT_TRUE(quiet.run([&] { ++calls; }));
  EXPECT_EQ(calls, 2);
}

TEST(Quiet, puts_what_is_deferred_off_until_the_last_stream_has_gone_on) {
  Quiet quiet;
  const auto work = std::make_shared<Counts>();
  ASSERT_TRUE(quiet.begin_wait());
  ASSERT_TRUE(quiet.begin_wait());
  quiet.defer(work);
  quiet.catch_up(10s);
  EXPECT_EQ(work->calls(), 0) << "nobody waits for that";
  quiet.end_wait();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(work->calls(), 0);
  quiet.end_wait();
  EXPECT_TRUE(eventually([&] { return work->calls() == 1; }));
}

TEST(Quiet, does_all_of_what_has_more_to_do_in_its_turn) {
  Quiet quiet;
  const auto long_work = std::make_shared<Counts>(100);
  const auto work = std::make_shared<Counts>();
  ASSERT_TRUE(quiet.begin_wait());
  quiet.defer(long_work);
  quiet.defer(long_work);
  quiet.defer(work);
  quiet.end_wait();
  quiet.catch_up(10s);
  EXPECT_EQ(long_work->calls(), 100) << "listed once";
  EXPECT_EQ(work->calls(), 1);
}

TEST(Quiet, what_the_work_owned_may_defer_more) {
  Quiet quiet;
  const auto second = std::make_shared<Counts>();
  class Owner : public Counts {
   public:
    Owner(Quiet& quiet, std::shared_ptr<Counts> owned) : quiet_(quiet), owned_(std::move(owned)) {}
    ~Owner() override { quiet_.defer(owned_); }

   private:
    Quiet& quiet_;
    std::shared_ptr<Counts> owned_;
  };
  quiet.defer(std::make_shared<Owner>(quiet, second));
  quiet.catch_up(10s);
  EXPECT_TRUE(eventually([&] { return second->calls() == 1; }));
}

TEST(Quiet, leaves_undone_what_is_left_when_it_ends) {
  const auto work = std::make_shared<Counts>();
  {
    Quiet quiet;
    ASSERT_TRUE(quiet.begin_wait());
    for (int i = 0; i < 10; ++i) quiet.defer(std::make_shared<Counts>());
    quiet.defer(work);
  }
  EXPECT_EQ(work->calls(), 0);
  EXPECT_EQ(work.use_count(), 1);
}

TEST(Quiet, nobody_waits_long_for_a_call_that_takes_long) {
  Quiet quiet;
  const auto work = std::make_shared<Blocks>();
  const auto behind = std::make_shared<Counts>();
  quiet.defer(work);
  work->wait_until_begun();
  quiet.defer(behind);
  const TimePoint begun = Clock::now();
  for (int i = 0; i < 100; ++i) quiet.catch_up(100ms);
  EXPECT_LT(Clock::now() - begun, 5s) << "the time of the call counts, not that of each who asks";
  EXPECT_EQ(behind->calls(), 0);
  work->end();
  quiet.catch_up(10s);
  EXPECT_EQ(behind->calls(), 1);
}

TEST(Quiet, a_stream_waits_once_the_calls_under_way_have_ended) {
  Quiet quiet;
  LongCall call(quiet);
  const auto work = std::make_shared<Blocks>();
  quiet.defer(work);
  work->wait_until_begun();
  std::atomic<bool> waits = false;
  std::thread stream([&] { waits = quiet.begin_wait(); });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(waits);
  call.end();
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(waits);
  work->end();
  stream.join();
  EXPECT_TRUE(waits);
}

TEST(Quiet, a_stream_does_not_begin_to_wait_behind_a_call_that_does_not_end) {
  Quiet quiet(50ms);
  LongCall call(quiet);
  EXPECT_FALSE(quiet.begin_wait());
  EXPECT_FALSE(quiet.streams_wait());
  call.end();
  EXPECT_TRUE(quiet.begin_wait()) << "now that it has ended";
  quiet.end_wait();
  const auto work = std::make_shared<Blocks>();
  quiet.defer(work);
  work->wait_until_begun();
  EXPECT_FALSE(quiet.begin_wait());
  EXPECT_FALSE(quiet.streams_wait());
  work->end();
  EXPECT_TRUE(eventually([&] { return quiet.begin_wait(); }));
}

TEST(Quiet, counts_what_waits_to_be_freed_by_its_kind) {
  Quiet quiet;
  quiet.note_unfreed(Quiet::Kind::pinned, 10);
  quiet.note_unfreed(Quiet::Kind::device, 100);
  quiet.note_unfreed(Quiet::Kind::device, 1000);
  quiet.note_freed(Quiet::Kind::device, 100);
  EXPECT_EQ(quiet.unfreed().calls, 2U);
  EXPECT_EQ(quiet.unfreed().pinned_bytes, 10U);
  EXPECT_EQ(quiet.unfreed().device_bytes, 1000U);
}

}  // namespace
}  // namespace penstock::cuda
