#include "services/models/range_list.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock::models {
namespace {

constexpr std::uint64_t mebibyte = 1 << 20;

// A file as long as a packed tensor of 100 chunks, in the page cache; nothing reads its bytes.
class PackedRanges : public testing::Test {
 protected:
  void SetUp() override {
    packed::TensorIndex index{
        .kind = packed::Kind::bf16, .values = chunks * packed::chunk_values, .bytes = 0, .starts = {}};
    std::uint64_t at = packed::index_bytes(index.values);
    for (std::uint64_t i = 0; i <= chunks; ++i, at += chunk_bytes) {
      index.starts.push_back(static_cast<std::uint32_t>(at / packed::chunk_alignment));
    }
    index.bytes = packed::round_up(index.offset(chunks), packed::tensor_alignment);
    fd_ = ::mkstemp(path_.data());
    ASSERT_GE(fd_, 0);
    const std::vector<char> bytes(place + index.bytes, 'x');
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    tensor_ = std::make_shared<packed::Unpack>("w", std::move(index), place);
    store_ = context_.open(path_).value();
  }
  ~PackedRanges() override {
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  // The most stored bytes of a range, once it is sure that the ranges have all of the tensor.
  std::uint64_t longest_for(Domain domain) const {
    std::byte* const somewhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 32);  // never touched
    const std::uint64_t decoded = chunks * tensor_->chunk_bytes();
    RangeList list(context_);
    list.add(store_, {.memory = {somewhere, decoded, domain}, .packed = {tensor_, 0}});
    std::uint64_t made = 0, offset = place + tensor_->index().offset(0), longest = 0;
    for (const Range& range : list.ranges()) {
      EXPECT_EQ(range.offset, offset);
      EXPECT_EQ(range.memory.data, somewhere + made);
      offset += range.stored->bytes;
      made += range.memory.size_bytes;
      longest = std::max(longest, range.stored->bytes);
    }
    EXPECT_EQ(made, decoded);
    return longest;
  }

  static constexpr std::uint64_t chunks = 100;
  static constexpr std::uint64_t chunk_bytes = 92160;
  static constexpr std::uint64_t place = 8192;
  std::string path_ = (std::filesystem::temp_directory_path() / "penstock-ranges-XXXXXX").string();
  int fd_ = -1;
  Context context_ = Context::create({}).value();
  Store store_;
  std::shared_ptr<packed::Unpack> tensor_;
};

TEST_F(PackedRanges, that_are_cached_fill_a_slot_on_their_way_to_a_gpu) {
  if (store_.cached_bytes(place, mebibyte) != mebibyte && store_.info().locality != Locality::memory) {
    GTEST_SKIP() << "the page cache has other plans here";
  }
  const std::uint64_t slot = context_.options().staging_slot_bytes;
  EXPECT_LE(longest_for(Domain::cuda(0)), slot);
  EXPECT_GT(longest_for(Domain::cuda(0)), slot - chunk_bytes);
  EXPECT_LE(longest_for(Domain::host()), mebibyte);
}

TEST_F(PackedRanges, that_a_disk_brings_to_a_gpu_are_short) {
  ::fsync(fd_);
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  if (store_.cached_bytes(place, mebibyte) != 0U) GTEST_SKIP() << "the page cache has other plans here";
  EXPECT_LE(longest_for(Domain::cuda(0)), mebibyte / 2);
  EXPECT_GT(longest_for(Domain::cuda(0)), mebibyte / 2 - chunk_bytes);
  EXPECT_LE(longest_for(Domain::host()), mebibyte);
}

}  // namespace
}  // namespace penstock::models
