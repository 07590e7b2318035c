// What the gate does without a stream: tests/gpu has streams.
#include "core/stream_gate.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "core/environment.h"
#include "core/test_scripted_engine.h"

namespace penstock::core {
namespace {

using namespace std::chrono_literals;

class StreamGateTest : public testing::Test {
 protected:
  StreamGateTest() {
    script_.name = "scripted";
    script_.info = {.name = "x", .size_bytes = 4096, .direct = true};
    script_.size_now = script_.info.size_bytes;
    auto table = std::make_shared<engine::Table>();
    table->push_back(std::make_unique<ScriptedEngine>(script_));
    environment_ = std::make_shared<Environment>(table, Options{}, Machine{});
    store_ = client::Access::store(StoreEntry::open(*environment_, "x", {}).value());
  }
  // As a Context does: what the gate's thread has last would end it from within.
  ~StreamGateTest() override { environment_->streams.close(); }

  std::shared_ptr<Request> read(const RequestOptions& options = {}) {
    const Range range{&store_, 0, Region::host(memory_.data(), memory_.size())};
    return Request::create(environment_, {&range, 1}, {}, options).value();
  }
  static bool must_not_start() {
    ADD_FAILURE() << "a request that was stopped is started";
    return true;
  }

  Script script_;
  std::shared_ptr<Environment> environment_;
  penstock::Store store_;
  std::array<std::byte, 512> memory_{};
};

TEST_F(StreamGateTest, ends_a_request_whose_deadline_has_passed) {
  const auto request = read({.deadline_seconds = -1});
  ASSERT_TRUE(environment_->streams.add(request, must_not_start).ok());
  ASSERT_TRUE(request->wait_until(Clock::now() + 20s));
  EXPECT_EQ(request->outcome(), Outcome::failed);
  EXPECT_EQ(request->report().error->code, Code::timed_out);
}

TEST_F(StreamGateTest, ends_a_request_that_was_stopped_with_the_reason) {
  for (const Code code : {Code::cancelled, Code::would_deadlock}) {
    const auto request = read();
    request->stop(code);
    ASSERT_TRUE(environment_->streams.add(request, must_not_start).ok());
    ASSERT_TRUE(request->wait_until(Clock::now() + 20s));
    EXPECT_EQ(request->report().error->code, code);
  }
}

TEST_F(StreamGateTest, ends_what_is_in_it_when_it_is_closed) {
  // Those that it has not come to are closed; the others had a reason of their own.
  for (int round = 0; round < 20; ++round) {
    StreamGate gate;
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; i < 5; ++i) {
      requests.push_back(read({.deadline_seconds = -1}));
      ASSERT_TRUE(gate.add(requests.back(), must_not_start).ok());
    }
    gate.close();
    for (const auto& request : requests) {
      ASSERT_TRUE(request->ended());
      const Code code = request->report().error->code;
      EXPECT_TRUE(code == Code::closed || code == Code::timed_out) << static_cast<int>(code);
    }
  }
}

TEST_F(StreamGateTest, is_not_broken_again_before_what_waits_since_has_had_its_time) {
  StreamGate gate;
  const TimePoint first = Clock::now();
  const Duration patience = std::chrono::seconds(1);
  EXPECT_FALSE(gate.break_all(first, patience)) << "there are none";
  std::vector<std::shared_ptr<Request>> requests;
  const auto add = [&] {
    requests.push_back(read());
    ASSERT_TRUE(gate.add(requests.back(), [] { return true; }).ok());
  };
  add();
  EXPECT_TRUE(gate.break_all(first, patience));
  add();
  EXPECT_FALSE(gate.break_all(first + patience / 2, patience)) << "another lane's copies were stuck as well";
  EXPECT_TRUE(gate.break_all(first + patience, patience));
  for (const auto& request : requests) EXPECT_EQ(request->stop_code(), Code::would_deadlock);
  gate.close();
}

TEST_F(StreamGateTest, takes_nothing_once_it_is_closed) {
  StreamGate gate;
  gate.close();
  const auto request = read();
  const Status refused = gate.add(request, must_not_start);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::closed);
  EXPECT_FALSE(request->ended()) << "it is the caller's";
  EXPECT_EQ(request.use_count(), 1);
  gate.close();
}

}  // namespace
}  // namespace penstock::core
