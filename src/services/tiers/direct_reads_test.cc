#include "services/tiers/direct_reads.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

constexpr std::size_t page = 4096;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

TEST(DirectReads, each_file_comes_to_its_place_and_one_that_fails_keeps_none_back) {
  const test::Folders folders;
  const std::unique_ptr<std::byte, FreeMemory> memory(
      static_cast<std::byte*>(std::aligned_alloc(page, DirectReads::most * page)));
  std::vector<UniqueFd> files;
  for (std::size_t i = 0; i < DirectReads::most; ++i) {
    const std::string path = folders.path("nvme/" + std::to_string(i)).string();
    test::write_file(path, test::bytes_of(path, 1, 60 * i));
    files.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    if (!files.back()) GTEST_SKIP() << "files here can't be read past the page cache";
  }
  files[7] = UniqueFd();
  DirectReads direct;
  for (int round = 0; round < 3; ++round) {
    std::vector<DirectReads::Read> reads;
    for (std::size_t i = 0; i < files.size(); ++i) {
      reads.push_back({.file = files[i].get(), .place = memory.get() + i * page, .bytes = page});
    }
    direct.run(reads);
    if (reads[1].got < 0) GTEST_SKIP() << "there is no io_uring here";
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (i == 7) {
        EXPECT_LT(reads[i].got, 0);
        continue;
      }
      const std::string path = folders.path("nvme/" + std::to_string(i)).string();
      ASSERT_EQ(reads[i].got, static_cast<std::int64_t>(60 * i));
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(reads[i].place), 60 * i), test::bytes_of(path, 1, 60 * i));
    }
  }
}

}  // namespace
}  // namespace penstock::tiers
