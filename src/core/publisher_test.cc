#include "core/publisher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
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
