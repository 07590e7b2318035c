#include "core/publisher.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <iterator>

#include "penstock/published.h"

namespace penstock::core {

namespace {

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PublisherTest : public testing::Test {
 protected:
  const std::string name_ = "unit-test-" + std::to_string(::getpid());
};

TEST_F(PublisherTest, shows_statistics_until_it_is_gone) {
  Statistics statistics{.seconds = 1.5, .requests = 7, .pinned_bytes = 4096};
  statistics.routes.push_back({.engine = "posix", .route = Route::direct, .bytes = 10, .operations = 2});
  const std::string text =
      R"({"name":")" + name_ + R"(","pid":1,"command":"x","statistics":)" + statistics.to_json() + "}";
  auto first = Publisher::create(name_, [&] { return text; });
  if (!first) GTEST_SKIP() << first.error().message;
  auto second = Publisher::create(name_, [&] { return text; });
  ASSERT_TRUE(second.ok());
  EXPECT_NE((*first)->path(), (*second)->path());
  const auto found = list_published(name_);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ(found->front().statistics.to_json(), statistics.to_json());
  EXPECT_EQ(found->front().statistics.routes.front().route, Route::direct);
  first->reset();
  second->reset();
  EXPECT_TRUE(list_published(name_)->empty());
}

TEST_F(PublisherTest, writes_again_what_has_changed) {
  std::atomic<int> calls{0};
  auto publisher = Publisher::create(name_, [&] {
    calls.fetch_add(1);
    calls.notify_all();
    return "call " + std::to_string(calls.load());
  });
  if (!publisher) GTEST_SKIP() << publisher.error().message;
  // The third call begins when the second text is written.
  for (int seen = calls.load(); seen < 3; seen = calls.load()) calls.wait(seen);
  EXPECT_NE(content((*publisher)->path()).find("call "), std::string::npos);
  EXPECT_EQ(content((*publisher)->path()).find("call 1\n"), std::string::npos);
}

// One process publishes and is killed while a child of its own lives on.
TEST_F(PublisherTest, of_a_process_that_died_is_not_taken_for_living_because_of_its_children) {
  std::array<int, 2> ready{}, held{};
  ASSERT_EQ(::pipe(ready.data()) + ::pipe(held.data()), 0);
  const pid_t process = ::fork();
  if (process == 0) {
    const std::string text =
        R"({"name":")" + name_ + R"(","pid":1,"command":"x","statistics":)" + Statistics{}.to_json() + "}";
    const auto publisher = Publisher::create(name_, [&] { return text; });
    char ok = publisher.ok() ? 'y' : 'n';
    if (::fork() == 0) {
      ::close(held[1]);
      ::_exit(static_cast<int>(::read(held[0], &ok, 1)));  // until the test ends
    }
    ::_exit(::write(ready[1], &ok, 1) == 1 ? ::pause() : 1);
  }
  char answer = 'n';
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(list_published(name_)->size(), answer == 'y' ? 1u : 0u);
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  EXPECT_TRUE(list_published(name_)->empty());
  for (const int fd : {ready[0], ready[1], held[0], held[1]}) ::close(fd);
  if (answer == 'n') GTEST_SKIP() << "there is no shared memory here";
}

TEST_F(PublisherTest, what_is_no_json_is_left_out) {
  auto publisher = Publisher::create(name_, [] { return std::string("{"); });
  if (!publisher) GTEST_SKIP() << publisher.error().message;
  EXPECT_TRUE(list_published(name_)->empty());
}

TEST(Statistics, that_are_broken_are_refused) {
  const std::string good = Statistics{}.to_json();
  EXPECT_TRUE(Statistics::from_json(good).ok());
  for (const char* bad : {"", "[]", "{}", "null", R"({"seconds": "x"})"}) {
    EXPECT_EQ(Statistics::from_json(bad).error().code, Code::invalid_argument) << bad;
  }
  std::string unknown = good;
  unknown.replace(unknown.find("[]"), 2, R"([{"engine": "x", "route": "warp"}])");
  EXPECT_FALSE(Statistics::from_json(unknown).ok());
}

}  // namespace

}  // namespace penstock::core
