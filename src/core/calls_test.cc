#include "core/calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <thread>
#include <vector>

#include "core/test_scripted_engine.h"

namespace penstock::core {
namespace {

using namespace std::chrono_literals;

class CallsTest : public testing::Test {
 protected:
  CallsTest() {
    script_.make_queue = [this](const engine::QueueOptions&) {
      ++queues_;
      return std::make_unique<CallQueue>();
    };
    engine::Table table;
    table.push_back(std::make_unique<ScriptedEngine>(script_));
    calls_ = std::make_shared<Calls>(std::make_shared<engine::Table>(std::move(table)), Deadlines{.stall_seconds = 30});
  }
  ~CallsTest() override {
    answer();
    calls_->close();
  }

  // What a server is asked that answers when it is told to.
  auto question() {
    return [server = server_, token = token_]() -> Result<std::shared_ptr<int>> {
      std::unique_lock lock(server->mutex);
      server->changed.wait(lock, [&] { return server->answers; });
      return token;
    };
  }
  void answer() {
    const std::lock_guard lock(server_->mutex);
    server_->answers = true;
    server_->changed.notify_all();
  }
  auto ask(Duration time) { return calls_->run(0, "it", Clock::now() + time, question()); }
  template <typename Condition>
  static bool soon(Condition condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
    return condition();
  }

  struct Server {
    std::mutex mutex;
    std::condition_variable changed;
    bool answers = false;
  };
  const std::shared_ptr<Server> server_ = std::make_shared<Server>();
  const std::shared_ptr<int> token_ = std::make_shared<int>(7);
  Script script_;
  int queues_ = 0;
  std::shared_ptr<Calls> calls_;
};

TEST_F(CallsTest, bring_the_answer) {
  answer();
  EXPECT_EQ(**ask(30s), 7);
  EXPECT_EQ(**ask(30s), 7);
  EXPECT_EQ(queues_, 1) << "a queue is used again";
}

TEST_F(CallsTest, end_by_the_deadline_and_say_of_what) {
  const auto answered = ask(10ms);
  ASSERT_FALSE(answered.ok());
  EXPECT_EQ(answered.error().code, Code::timed_out);
  EXPECT_EQ(answered.error().message.substr(0, 4), "it: ");
  EXPECT_FALSE(answered.error().hint.empty());
}

TEST_F(CallsTest, let_go_of_an_answer_that_comes_too_late) {
  EXPECT_FALSE(ask(10ms).ok());
  answer();
  const auto is_let_go_of = [&] {
    const bool answered = ask(30s).ok();  // the rest goes when the next one asks
    return answered && token_.use_count() == 1;
  };
  EXPECT_TRUE(soon(is_let_go_of));
}

TEST_F(CallsTest, are_refused_at_once_when_too_many_are_away) {
  for (std::uint32_t i = 0; i < Calls::away_most; ++i) EXPECT_FALSE(ask(Duration::zero()).ok());
  EXPECT_EQ(queues_, static_cast<int>(Calls::away_most));
  EXPECT_EQ(ask(30s).error().code, Code::timed_out);
  EXPECT_EQ(queues_, static_cast<int>(Calls::away_most));
  answer();
  EXPECT_TRUE(soon([&] { return ask(30s).ok(); }));
}

TEST_F(CallsTest, that_are_away_when_all_is_closed_let_go_when_they_are_home) {
  EXPECT_FALSE(ask(10ms).ok());
  calls_->close();
  answer();
  EXPECT_TRUE(soon([&] { return server_.use_count() == 1; }));
}

}  // namespace
}  // namespace penstock::core
