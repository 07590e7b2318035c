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

TEST(Quiet, puts_calls_off_until_the_last_stream_has_gone_on) {
  static Quiet quiet;  // its thread may still be on the way out
  std::atomic<int> calls = 0;
  ASSERT_TRUE(quiet.begin_wait());
  ASSERT_TRUE(quiet.begin_wait());
  quiet.run_later([&] { ++calls; });
  quiet.end_wait();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(calls, 0);
  quiet.end_wait();
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  quiet.run_later([&] { ++calls; });
  EXPECT_EQ(calls, 2) << "at once";
}

TEST(Quiet, what_a_call_owned_may_put_off_more) {
  static Quiet quiet;
  std::atomic<int> calls = 0;
  ASSERT_TRUE(quiet.begin_wait());
  auto owned = std::shared_ptr<int>(new int, [&](const int* memory) {
    delete memory;
    quiet.run_later([&] { ++calls; });
  });
  quiet.run_later([owned = std::move(owned), &calls] { ++calls; });
  quiet.end_wait();
  EXPECT_TRUE(eventually([&] { return calls == 2; }));
}

TEST(Quiet, a_stream_waits_once_the_calls_under_way_have_ended) {
  Quiet quiet;
  LongCall call(quiet);
  std::atomic<bool> waits = false;
  std::thread stream([&] { waits = quiet.begin_wait(); });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(waits);
  call.end();
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
}

}  // namespace
}  // namespace penstock::cuda
