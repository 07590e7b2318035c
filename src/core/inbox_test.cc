#include "core/inbox.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include "core/request.h"

namespace penstock::core {
namespace {

using namespace std::chrono_literals;

// Much longer than a wake takes on any machine; reached only where one was lost.
constexpr Duration too_long = 20s;

// Nothing ever ends on it; it sleeps as a Queue should.
class IdleQueue : public engine::Queue {
 public:
  std::size_t submit(std::span<const engine::Op>) override { return 0; }
  std::size_t poll(std::span<engine::Done>, TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [this] { return woken_; });
    woken_ = false;
    return 0;
  }
  void wake() override {
    const std::scoped_lock lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }
  void cancel(std::uint64_t) override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

UniqueFd make_event() {
  return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}
void tell(const UniqueFd& event) {
  const std::uint64_t one = 1;
  EXPECT_EQ(::write(event.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

class InboxTest : public testing::Test {
 protected:
  void sleep_in_inbox(TimePoint until) { inbox_.sleep(until); }
  void poll(TimePoint until) {
    engine::Done done;
    EXPECT_EQ(inbox_.poll(queue_, {&done, 1}, until), 0U);
  }
  void sleep_on_event(TimePoint until) {
    std::array<pollfd, 2> events{};
    events[1] = {event_.get(), POLLIN, 0};
    EXPECT_TRUE(inbox_.sleep_on(events, until));
  }
  using Sleep = void (InboxTest::*)(TimePoint until);
  static constexpr std::array<Sleep, 3> all_sleeps{&InboxTest::sleep_in_inbox, &InboxTest::poll,
                                                   &InboxTest::sleep_on_event};

  Inbox inbox_;
  IdleQueue queue_;
  const UniqueFd event_ = make_event();
  std::array<Part, 3> parts_;
};

TEST_F(InboxTest, gives_what_was_posted_once_the_oldest_first) {
  EXPECT_EQ(inbox_.take(), nullptr);
  EXPECT_FALSE(inbox_.has_mail());
  for (Part& part : parts_) EXPECT_TRUE(inbox_.post(part));
  EXPECT_TRUE(inbox_.has_mail());
  const Part* taken = inbox_.take();
  for (const Part& part : parts_) {
    ASSERT_EQ(taken, &part);
    taken = taken->next_in_lane;
  }
  EXPECT_EQ(taken, nullptr);
  EXPECT_EQ(inbox_.take(), nullptr);
  EXPECT_FALSE(inbox_.has_mail());
}

TEST_F(InboxTest, takes_nothing_more_once_it_is_closed) {
  EXPECT_TRUE(inbox_.post(parts_[0]));
  EXPECT_EQ(inbox_.take_last(), &parts_[0]) << "what came before is not lost";
  EXPECT_FALSE(inbox_.has_mail());
  EXPECT_FALSE(inbox_.post(parts_[1]));
  EXPECT_EQ(inbox_.take_last(), nullptr);
  EXPECT_EQ(inbox_.take(), nullptr);
  EXPECT_FALSE(inbox_.post(parts_[2])) << "looking into it does not open it";
  EXPECT_FALSE(inbox_.has_mail());
  inbox_.attend();
  EXPECT_TRUE(inbox_.take_attention()) << "attention is no mail";
}

TEST_F(InboxTest, wants_attention_once_however_often_it_was_asked) {
  EXPECT_FALSE(inbox_.take_attention());
  inbox_.attend();
  inbox_.attend();
  EXPECT_TRUE(inbox_.has_news());
  EXPECT_FALSE(inbox_.has_mail());
  EXPECT_TRUE(inbox_.take_attention());
  EXPECT_FALSE(inbox_.take_attention());
  EXPECT_FALSE(inbox_.has_news());
}

TEST_F(InboxTest, does_not_sleep_while_there_is_news) {
  for (const Sleep sleep : all_sleeps) {
    const TimePoint until = Clock::now() + too_long;
    inbox_.attend();
    (this->*sleep)(until);
    EXPECT_TRUE(inbox_.take_attention()) << "nobody else takes it";
    EXPECT_TRUE(inbox_.post(parts_[0]));
    (this->*sleep)(until);
    EXPECT_EQ(inbox_.take(), &parts_[0]);
    EXPECT_LT(Clock::now(), until);
  }
}

TEST_F(InboxTest, sleeps_until_the_time_has_come) {
  for (const Sleep sleep : all_sleeps) {
    const TimePoint until = Clock::now() + 2ms;
    (this->*sleep)(until);
    EXPECT_GE(Clock::now(), until);
  }
}

TEST_F(InboxTest, wakes_its_worker_wherever_that_sleeps) {
  constexpr int rounds = 40;
  for (const Sleep sleep : all_sleeps) {
    std::atomic<int> attended{0};
    std::thread worker([&] {
      for (int round = 0; round < rounds; ++round) {
        const TimePoint until = Clock::now() + too_long;
        while (!inbox_.take_attention() && Clock::now() < until) (this->*sleep)(until);
        EXPECT_LT(Clock::now(), until);
        attended.store(round + 1);
        attended.notify_one();
      }
    });
    for (int round = 0; round < rounds; ++round) {
      // Now and then it is asleep by then, now and then it is about to be.
      if (round % 2 == 0) std::this_thread::sleep_for(200us);
      inbox_.attend();
      attended.wait(round);
    }
    worker.join();
  }
}

TEST_F(InboxTest, hands_over_what_many_threads_post_to_a_worker_that_sleeps) {
  constexpr std::size_t posters = 3;
  constexpr std::size_t parts_each = 100;
  for (const Sleep sleep : all_sleeps) {
    std::vector<std::unique_ptr<Part[]>> posted;
    for (std::size_t i = 0; i < posters; ++i) posted.push_back(std::make_unique<Part[]>(parts_each));
    std::vector<std::thread> threads;
    for (const auto& mine : posted) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < parts_each; ++i) EXPECT_TRUE(inbox_.post(mine[i]));
      });
    }
    std::array<std::size_t, posters> taken{};
    std::size_t count = 0;
    const TimePoint until = Clock::now() + too_long;
    while (count < posters * parts_each && Clock::now() < until) {
      const Part* part = inbox_.take();
      if (part == nullptr) (this->*sleep)(until);
      for (; part != nullptr; part = part->next_in_lane, ++count) {
        for (std::size_t i = 0; i < posters; ++i) {
          if (part < posted[i].get() || part >= posted[i].get() + parts_each) continue;
          EXPECT_EQ(part, posted[i].get() + taken[i]++) << "each poster's in its order";
        }
      }
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::size_t of_one : taken) EXPECT_EQ(of_one, parts_each);
  }
}

TEST_F(InboxTest, sleeps_until_one_of_several_events_happens) {
  const UniqueFd other = make_event();
  for (const UniqueFd* told : {&event_, &other}) {
    std::array<pollfd, 3> events{};
    events[1] = {event_.get(), POLLIN, 0};
    events[2] = {other.get(), POLLIN, 0};
    tell(*told);
    const TimePoint until = Clock::now() + too_long;
    EXPECT_TRUE(inbox_.sleep_on(events, until));
    EXPECT_LT(Clock::now(), until);
    EXPECT_EQ(events[1].revents != 0, told == &event_);
    EXPECT_EQ(events[2].revents != 0, told == &other);
    std::uint64_t times = 0;
    EXPECT_EQ(::read(told->get(), &times, sizeof times), static_cast<ssize_t>(sizeof times));
  }
}

// Whoever wakes it stays at that until it is let go of; polls last until then.
class QueueThatHoldsWakers : public IdleQueue {
 public:
  std::size_t poll(std::span<engine::Done>, TimePoint) override {
    wakes_.wait(false);
    return 0;
  }
  void wake() override {
    wakes_ = true;
    wakes_.notify_all();
    let_go_.wait(false);
  }
  bool wakes() const { return wakes_; }
  void let_go() {
    let_go_ = true;
    let_go_.notify_all();
  }

 private:
  std::atomic<bool> wakes_{false};
  std::atomic<bool> let_go_{false};
};

// A lane that was woken by something else is told of a wake that it does not need any more.
TEST_F(InboxTest, sleeps_again_after_a_wake_that_came_late) {
  sleep_on_event(TimePoint::min());  // makes its event
  QueueThatHoldsWakers queue;
  std::thread first([&] {
    while (!queue.wakes()) inbox_.attend();
  });
  engine::Done done;
  EXPECT_EQ(inbox_.poll(queue, {&done, 1}, TimePoint::max()), 0U);
  // From here on who wants to wake it waits for the first.
  std::atomic<bool> enough{false};
  std::thread second([&] {
    while (!enough) inbox_.attend();
  });
  for (int i = 0; i < 4; ++i) {
    inbox_.take_attention();
    sleep_on_event(Clock::now() + 2ms);
  }
  enough = true;
  queue.let_go();
  first.join();
  second.join();
  inbox_.take_attention();
  sleep_on_event(Clock::now() + 2ms);  // may end early
  const TimePoint until = Clock::now() + 2ms;
  sleep_on_event(until);
  EXPECT_GE(Clock::now(), until) << "but not again and again";
}

}  // namespace
}  // namespace penstock::core
