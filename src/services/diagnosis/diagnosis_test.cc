#include "penstock/diagnosis.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "penstock/context.h"

namespace penstock {

namespace {

class Diagnosis : public testing::Test {
 protected:
  Diagnosis() {
    const int fd = mkstemp(name_.data());
    if (fd >= 0) close(fd);
  }
  ~Diagnosis() override { std::filesystem::remove(name_); }
  void fill(std::size_t size_bytes) { std::ofstream(name_) << std::string(size_bytes, 'x') << std::flush; }

  std::string name_ = (std::filesystem::temp_directory_path() / "penstock-diagnosis-XXXXXX").string();
};

TEST_F(Diagnosis, knows_how_a_file_is_mounted) {
  const Result<MountFacts> mount = find_mount(name_);
  if (!mount && mount.error().code == Code::unsupported) GTEST_SKIP() << mount.error().message;
  ASSERT_TRUE(mount.ok()) << mount.error().message;
  EXPECT_FALSE(mount->file_system.empty());
  EXPECT_TRUE(name_.starts_with(mount->point)) << mount->point;
  EXPECT_NE(("," + mount->options + ",").find(",rw,"), std::string::npos) << mount->options;
  EXPECT_EQ(find_mount(name_ + ".missing").error().code, Code::not_found);
}

TEST_F(Diagnosis, counts_the_pieces_of_a_file) {
  fill(1 << 20);
  const Result<std::uint64_t> extents = count_extents(name_);
  if (!extents) GTEST_SKIP() << extents.error().message;
  EXPECT_GE(*extents, 1u);
  EXPECT_EQ(count_extents(name_ + ".missing").error().code, Code::not_found);
  EXPECT_EQ(count_extents("/proc/self/stat").error().code, Code::unsupported);
}

TEST_F(Diagnosis, measures_or_says_why_not) {
  fill(3 << 20);
  const Result<Speeds> speeds = measure_speeds({.path = name_, .size_bytes = 2 << 20, .seconds = 60});
  ASSERT_TRUE(speeds.ok()) << speeds.error().message;
  EXPECT_NE(speeds->cold.has_value(), !speeds->no_cold_because.empty());
  EXPECT_NE(speeds->cached.has_value(), !speeds->no_cached_because.empty());
  for (const auto* sample : {&speeds->cold, &speeds->cached}) {
    EXPECT_TRUE(!*sample || (*sample)->bytes == 2 << 20);
  }
}

TEST_F(Diagnosis, leaves_nothing_in_the_page_cache_that_was_not_there) {
  fill(8 << 20);
  Result<Context> context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok()) << context.error().message;
  const Result<Store> store = context->open(name_);
  ASSERT_TRUE(store.ok()) << store.error().message;
  const auto cached = [&] { return store->cached_bytes(0, 8 << 20); };
  const int fd = open(name_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(fsync(fd), 0);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  if (cached() != std::uint64_t{0}) GTEST_SKIP() << "the file can't be evicted here, or the kernel does not tell";
  // The kernel reads ahead, past what is measured.
  ASSERT_TRUE(measure_speeds({.path = name_, .size_bytes = 1 << 20}).ok());
  EXPECT_EQ(cached(), std::uint64_t{0});
}

TEST_F(Diagnosis, measures_nothing_of_an_empty_file) {
  const Result<Speeds> speeds = measure_speeds({.path = name_});
  ASSERT_TRUE(speeds.ok()) << speeds.error().message;
  EXPECT_FALSE(speeds->cold || speeds->cached);
  EXPECT_EQ(speeds->no_cold_because, "it is empty");
}

TEST_F(Diagnosis, stops_when_it_is_told_to) {
  fill(1 << 20);
  const Result<Speeds> speeds = measure_speeds({.path = name_, .keep_going = [] { return false; }});
  ASSERT_FALSE(speeds.ok());
  EXPECT_EQ(speeds.error().code, Code::cancelled);
}

}  // namespace

}  // namespace penstock
