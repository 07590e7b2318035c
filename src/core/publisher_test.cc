#include "core/publisher.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "penstock/checksum.h"
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

// As whoever may write to the folder can do, with a thread that lives.
class Forged {
 public:
  Forged(const std::string& file, const std::string& text) : path_(std::string(published_folder) + "/" + file) {
    Checksum checksum;
    checksum.add(std::as_bytes(std::span(text)));
    std::string head(published_head_bytes, '\0');
    head[0] = 1;
    std::ofstream(path_, std::ios::binary) << head << checksum.hex() << "\n" << text << "\n";
  }
  ~Forged() { ::unlink(path_.c_str()); }
  Forged(const Forged&) = delete;
  Forged& operator=(const Forged&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST_F(PublisherTest, leaves_nothing_when_it_is_killed_before_it_has_its_name) {
  const auto files = [] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(published_folder)) found.insert(entry.path());
    return found;
  };
  const auto before = files();
  const pid_t process = ::fork();
  if (process == 0) {
    static_cast<void>(Publisher::create(name_, [] { return ::kill(::getpid(), SIGKILL), std::string(); }));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  if (!WIFSIGNALED(status)) GTEST_SKIP() << "there is no shared memory here";
  for (const std::string& file : files()) EXPECT_TRUE(before.contains(file)) << file;
}

TEST_F(PublisherTest, what_others_forge_is_left_out) {
  if (::access(std::string(published_folder).c_str(), W_OK) != 0) GTEST_SKIP() << "there is no shared memory here";
  const auto text = [&](const std::string& statistics, const std::string& name) {
    return R"({"name":")" + name + R"(","pid":1,"command":"x","statistics":)" + statistics + "}";
  };
  const std::string base = std::string(published_prefix) + name_ + ".1.";
  Statistics good;
  good.routes.push_back({.engine = "posix", .route = Route::direct});
  Statistics twice = good;
  twice.routes.push_back(good.routes.front());
  const std::string deep(60'000, '[');
  const Forged fine(base + "0", text(good.to_json(), name_));
  const Forged nested(base + "1", text(deep, name_));
  const Forged closed(base + "2", text(deep + std::string(deep.size(), ']'), name_));
  const Forged repeated(base + "3", text(twice.to_json(), name_));
  const Forged other(base + "4", text(good.to_json(), "another"));
  const auto found = list_published(name_);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ(found->front().file, base + "0");
}

TEST_F(PublisherTest, what_would_fool_a_terminal_or_prometheus_is_left_out) {
  if (::access(std::string(published_folder).c_str(), W_OK) != 0) GTEST_SKIP() << "there is no shared memory here";
  const auto text = [&](const std::string& command, const std::string& engine, const std::string& more = "") {
    Statistics statistics;
    statistics.routes.push_back({.engine = engine, .route = Route::direct});
    return R"({"name":")" + name_ + R"(","pid":1,"command":")" + command + R"(","statistics":)" + statistics.to_json() +
           more + "}";
  };
  const std::string file = std::string(published_prefix) + name_ + ".1.";
  const auto is_listed = [&](const std::string& of, const std::string& with) {
    const Forged forged(of, with);
    return !list_published(name_)->empty();
  };
  EXPECT_TRUE(is_listed(file + "0", text("x", "posix")));
  // A title of the terminal's window, say.
  EXPECT_FALSE(is_listed(file + "0", text("\\u001b]0;x\\u0007", "posix")));
  EXPECT_FALSE(is_listed(file + "0", text("x", "\x1b[2J")));
  EXPECT_FALSE(is_listed(file + "0", text("x", "po\"six")));
  for (const std::string number : {"", "x", "0\n", "\xff", "0 ", "0.1"}) {
    EXPECT_FALSE(is_listed(file + number, text("x", "posix"))) << number;
  }
  const std::string filler(200 << 10, ' ');
  EXPECT_FALSE(is_listed(file + "0", text("x", "posix", filler))) << "more than statistics take";
}

TEST_F(PublisherTest, finds_a_name_where_others_have_taken_the_usual_ones) {
  if (::access(std::string(published_folder).c_str(), W_OK) != 0) GTEST_SKIP() << "there is no shared memory here";
  const std::string base = std::string(published_folder) + "/" + std::string(published_prefix) + name_ + "." +
                           std::to_string(::getpid()) + ".";
  for (int i = 0; i < 64; ++i) std::ofstream(base + std::to_string(i)) << "taken";
  const std::string text = R"({"name":")" + name_ + R"(","pid":)" + std::to_string(::getpid()) +
                           R"(,"command":"x","statistics":)" + Statistics{}.to_json() + "}";
  const auto publisher = Publisher::create(name_, [&] { return text; });
  EXPECT_TRUE(publisher.ok()) << publisher.error().message;
  EXPECT_EQ(list_published(name_)->size(), 1U);
  for (int i = 0; i < 64; ++i) ::unlink((base + std::to_string(i)).c_str());
}

TEST(Exposition, escapes_what_prometheus_wants_escaped) {
  const Published published{.name = "a\nb\"c\\d", .pid = 1, .command = "x", .file = "f", .statistics = {}};
  const std::string text = to_prometheus({&published, 1});
  EXPECT_NE(text.find(R"(name="a\nb\"c\\d")"), std::string::npos) << text;
}

// Each of them was waited for on its own.
TEST_F(PublisherTest, files_with_wrong_checksums_are_waited_for_together) {
  if (::access(std::string(published_folder).c_str(), W_OK) != 0) GTEST_SKIP() << "there is no shared memory here";
  std::vector<std::unique_ptr<Forged>> torn;
  for (int i = 0; i < 50; ++i) {
    torn.push_back(std::make_unique<Forged>(std::string(published_prefix) + name_ + ".1." + std::to_string(i), "{}"));
    std::ofstream(torn.back()->path(), std::ios::binary | std::ios::app) << "torn\n";
  }
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_THREAD, &before);
  EXPECT_TRUE(list_published(name_)->empty());
  ::getrusage(RUSAGE_THREAD, &after);
  EXPECT_LT(after.ru_nvcsw - before.ru_nvcsw, 100);  // sleeps
}

TEST_F(PublisherTest, one_user_does_not_hide_what_others_publish) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
  const std::string base = std::string(published_prefix) + name_ + ".1.";
  const std::string text =
      R"({"name":")" + name_ + R"(","pid":1,"command":"x","statistics":)" + Statistics{}.to_json() + "}";
  std::vector<std::unique_ptr<Forged>> decoys;
  const Forged first(base + "5000", text);
  for (int i = 0; i < 1500; ++i) {
    decoys.push_back(std::make_unique<Forged>(base + std::to_string(i), text));
    ASSERT_EQ(::chown(decoys.back()->path().c_str(), 65534, 65534), 0);
  }
  const Forged last(base + "5001", text);
  const auto found = list_published(name_);
  ASSERT_TRUE(found.ok());
  EXPECT_LT(found->size(), decoys.size());
  for (const char* own : {"5000", "5001"}) {
    EXPECT_EQ(std::ranges::count(*found, base + own, &Published::file), 1) << own;
  }
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
