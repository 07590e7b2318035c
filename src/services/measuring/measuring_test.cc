#include "penstock/measuring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "penstock/diagnosis.h"
#include "penstock/tuning.h"
#include "services/measuring/plain.h"
#include "services/measuring/session.h"

namespace penstock::measuring {
namespace {

const KeepGoing go_on = [] { return true; };

// In a process of its own, which may leak and lose its rights; -1 if it did not end by itself.
int in_child(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(work());
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A file of random bytes on the disk that tests use; with another that may be overwritten.
class Measuring : public testing::Test {
 protected:
  Measuring() : content_(2 * mib) {
    std::string name = "/var/tmp/penstock-measuring-XXXXXX";
    folder_ = mkdtemp(name.data());
    std::mt19937_64 random(7);
    std::ranges::generate(content_, [&] { return static_cast<char>(random()); });
    for (const char* file : {"read", "written"}) {
      std::ofstream(folder_ / file).write(content_.data(), static_cast<std::streamsize>(content_.size()));
    }
    fd_ = open((folder_ / "read").c_str(), O_RDWR);
  }
  ~Measuring() override {
    close(fd_);
    std::filesystem::remove_all(folder_);
  }

  std::filesystem::path folder_;
  std::vector<char> content_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(2 * mib);
  int fd_ = -1;
};

TEST_F(Measuring, plain_reads_put_every_byte_in_its_place) {
  const PlainJob job{
      .fd = fd_, .size_bytes = 2 * mib, .setting = {.threads = 3, .chunk_bytes = 40960}, .memory = memory_};
  const Result<Sample> sample = run_plain(job, go_on);
  ASSERT_TRUE(sample) << sample.error().message;
  EXPECT_EQ(sample->bytes, 2 * mib);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(content_)), memory_));
}

TEST_F(Measuring, plain_writes_write_every_byte) {
  std::ranges::fill(memory_, std::byte{42});
  const PlainJob job{.fd = fd_,
                     .direction = Direction::write,
                     .size_bytes = 2 * mib,
                     .setting = {.threads = 2, .chunk_bytes = mib},
                     .memory = memory_};
  ASSERT_TRUE(run_plain(job, go_on));
  std::vector<std::byte> found(2 * mib);
  EXPECT_EQ(pread(fd_, found.data(), found.size(), 0), static_cast<ssize_t>(2 * mib));
  EXPECT_EQ(found, memory_);
}

TEST_F(Measuring, plain_random_reads_time_each_of_them) {
  std::vector<float> latencies;
  const PlainRandomJob job{
      .fd = fd_, .size_bytes = 2 * mib, .block_bytes = 4096, .depth = 2, .memory = memory_, .to = {}, .seconds = 0.01};
  const Result<Sample> sample = run_plain_random(job, latencies, go_on);
  ASSERT_TRUE(sample) << sample.error().message;
  EXPECT_EQ(sample->bytes, latencies.size() * 4096);
  EXPECT_GT(*std::ranges::min_element(latencies), 0);
}

TEST_F(Measuring, plain_work_ends_when_told_to) {
  const PlainJob job{.fd = fd_, .size_bytes = 2 * mib, .setting = {.threads = 2}, .memory = memory_, .seconds = 3600};
  const Result<Sample> sample = run_plain(job, [] { return false; });
  ASSERT_FALSE(sample);
  EXPECT_EQ(sample.error().code, Code::cancelled);
}

TEST_F(Measuring, plain_work_without_enough_threads_is_an_error) {
  const auto run = [&] {
    constexpr uid_t nobody_else = 61234;
    constexpr rlimit few{3, 3};
    if (getuid() == 0 && setuid(nobody_else) != 0) return 2;  // limits don't bind root
    if (setrlimit(RLIMIT_NPROC, &few) != 0) return 3;
    const PlainJob job{.fd = fd_, .size_bytes = 2 * mib, .setting = {.threads = 8}, .memory = memory_, .seconds = 3600};
    const Result<Sample> sample = run_plain(job, go_on);
    return !sample && sample.error().message.find("start a thread") != std::string::npos ? 0 : 1;
  };
  EXPECT_EQ(in_child(run), 0);
}

TEST_F(Measuring, for_a_time_that_nobody_can_mean_is_refused) {
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const std::string path = folder_ / "read";
    EXPECT_EQ(measure({.path = path, .seconds = seconds}).error().code, Code::invalid_argument);
    EXPECT_EQ(search_tuning({.path = path, .seconds = seconds}).error().code, Code::invalid_argument);
    EXPECT_EQ(measure_speeds({.path = path, .seconds = seconds}).error().code, Code::invalid_argument);
  }
}

TEST_F(Measuring, a_file_that_became_shorter_is_an_error) {
  ASSERT_EQ(ftruncate(fd_, mib), 0);
  const PlainJob job{.fd = fd_, .size_bytes = 2 * mib, .setting = {.threads = 2}, .memory = memory_};
  const Result<Sample> sample = run_plain(job, go_on);
  ASSERT_FALSE(sample);
  EXPECT_EQ(sample.error().code, Code::truncated);
}

TEST_F(Measuring, races_all_states_and_leaves_the_file_alone) {
  std::vector<std::string> steps;
  const Result<Measured> measured = measure({.path = folder_ / "read",
                                             .memory = Domain::host(),
                                             .size_bytes = mib,
                                             .seconds = 0.05,
                                             .write_path = folder_ / "written",
                                             .keep_going = go_on,
                                             .on_step = [&](const std::string& step) { steps.push_back(step); }});
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_EQ(measured->size_bytes, mib);
  ASSERT_EQ(measured->races.size(), 4U);
  for (const Race& race : measured->races) {
    if (!race.refused.empty()) continue;  // where the kernel does not tell what is cached
    ASSERT_GE(race.rows.size(), 2U) << race_state_name(race.state);
    EXPECT_TRUE(race.rows.front().plain);
    for (const RaceRow& row : race.rows) {
      EXPECT_TRUE(row.bytes_right) << row.name;
      EXPECT_GE(row.bytes_per_second.rounds.size(), 3U) << row.name;
    }
  }
  EXPECT_GT(steps.size(), 10U);
  std::vector<char> found(content_.size());
  EXPECT_EQ(pread(fd_, found.data(), found.size(), 0), static_cast<ssize_t>(found.size()));
  EXPECT_EQ(found, content_);
}

TEST_F(Measuring, ends_when_told_to) {
  const Result<Measured> measured =
      measure({.path = folder_ / "read", .seconds = 3600, .keep_going = [] { return false; }});
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().code, Code::cancelled);
}

}  // namespace
}  // namespace penstock::measuring
