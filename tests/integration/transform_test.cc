// Ranges whose bytes are made of what is stored, in host memory.
#include <gtest/gtest.h>

#include "integration/context_fixture.h"
#include "support/echo.h"

namespace penstock::test {
namespace {

class Transformed : public testing::Test {
 protected:
  void read(const EchoFile& file, std::shared_ptr<Transform> transform) {
    write_file(folder_.path("file"), file.bytes);
    if (is_cold_) evict(folder_.path("file"));
    context_.emplace(Context::create(options_).value());
    store_ = context_->open(folder_.path("file")).value();
    memory_ = context_->allocate(Domain::host(), file.memory_bytes()).value();
    stored_.clear();
    ranges_.clear();
    file.add_ranges(store_, transform, memory_.region(), stored_, ranges_);
    report_ = context_->transfer(Direction::read, ranges_);
  }
  bool holds(const EchoFile& file, std::size_t piece) const {
    const Region place = ranges_[piece].memory;
    return same_bytes({place.data, place.size_bytes}, file.expected[piece]);
  }

  Options options_{.lanes = 3, .staging_slot_bytes = 1 << 20, .deadlines = patient};
  bool is_cold_ = false;
  TemporaryFolder folder_;
  std::optional<Context> context_;
  Store store_;
  Buffer memory_;
  std::vector<Stored> stored_;
  std::vector<Range> ranges_;
  Report report_;
};

const std::vector<std::uint64_t> many_lengths = {5, 4096, 100'000, 777, 1 << 20, 300'001, 64, 8192, 999'999, 4097};

TEST_F(Transformed, is_what_the_transform_makes_of_every_piece_cached_or_not) {
  for (const bool is_cold : {false, true}) {
    is_cold_ = is_cold;
    const EchoFile file(123, many_lengths);
    const auto echo = std::make_shared<Echo>();
    read(file, echo);
    ASSERT_TRUE(report_.ok()) << report_.error->message;
    for (std::size_t i = 0; i < many_lengths.size(); ++i) EXPECT_TRUE(holds(file, i)) << i;
    EXPECT_EQ(report_.bytes, file.memory_bytes());
    EXPECT_EQ(report_.stored_bytes, file.stored_bytes());
    std::uint64_t by_any_route = 0;
    for (const std::uint64_t bytes : report_.routes) by_any_route += bytes;
    EXPECT_EQ(by_any_route, file.memory_bytes());
    EXPECT_EQ(report_.routes[static_cast<std::size_t>(Route::cached)], 0U) << "it goes through staging memory";
    EXPECT_EQ(echo->by_cpu_count, static_cast<int>(many_lengths.size()));
  }
}

TEST_F(Transformed, may_be_mixed_with_plain_ranges) {
  const EchoFile file(0, {70'000, 70'000});
  read(file, std::make_shared<Echo>());
  std::vector<std::byte> plain(100'000);
  ranges_.insert(ranges_.begin() + 1, Range{&store_, 5, Region::host(plain.data(), plain.size())});
  std::fill_n(memory_.data(), memory_.size_bytes(), std::byte{0});
  const Report report = context_->transfer(Direction::read, ranges_);
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(std::equal(plain.begin(), plain.end(), file.bytes.begin() + 5));
  ranges_.erase(ranges_.begin() + 1);
  EXPECT_TRUE(holds(file, 0) && holds(file, 1));
}

TEST_F(Transformed, fails_piece_by_piece_with_the_reason) {
  EchoFile file(4096, many_lengths);
  file.damage(4, std::byte{9});
  read(file, std::make_shared<Echo>());
  ASSERT_EQ(report_.outcome, Outcome::failed);
  EXPECT_EQ(report_.error->code, Code::io_error);
  EXPECT_NE(report_.error->message.find("piece 4 can't be transformed: status 9"), std::string::npos)
      << report_.error->message;
  ASSERT_EQ(report_.failure_count, 1U);
  EXPECT_EQ(report_.failures[0].range, 4U);
  EXPECT_EQ(report_.failures[0].offset, file.offsets[4]);
  for (std::size_t i = 0; i < many_lengths.size(); ++i) EXPECT_TRUE(i == 4 || holds(file, i)) << i;
}

TEST_F(Transformed, refuses_what_can_never_be_right) {
  const EchoFile file(0, {4096});
  read(file, std::make_shared<Echo>());
  const auto error_with = [&](const Stored& stored, Direction direction = Direction::read, std::uint64_t offset = 0) {
    const Range range{&store_, offset, memory_.region(), &stored};
    const Report report = context_->transfer(direction, {&range, 1});
    EXPECT_FALSE(report.ok());
    return report.error.value_or(Error{});
  };
  const auto echo = std::make_shared<Echo>();
  EXPECT_EQ(error_with({echo, 4096}, Direction::write).code, Code::invalid_argument);
  EXPECT_EQ(error_with({nullptr, 4096}).code, Code::invalid_argument);
  EXPECT_EQ(error_with({echo, 0}).code, Code::invalid_argument);
  EXPECT_EQ(error_with({echo, 4097}).code, Code::out_of_range) << "past the end of the store";
  EXPECT_EQ(error_with({echo, UINT64_MAX}, Direction::read, 1).code, Code::invalid_argument);
  const Error too_long = error_with({echo, (1 << 20) + 1});
  EXPECT_EQ(too_long.code, Code::invalid_argument);
  EXPECT_NE(too_long.hint.find("staging_slot_bytes"), std::string::npos);
  EXPECT_EQ(echo->by_cpu_count, 0);
}

TEST_F(Transformed, is_made_of_what_a_function_makes) {
  context_.emplace(Context::create(options_).value());
  const Store made = context_
                         ->open(Recipe{"zeros", 4096,
                                       [](auto, std::span<std::byte> memory) {
                                         std::ranges::fill(memory, std::byte{0});
                                         return Status();
                                       }})
                         .value();
  std::vector<std::byte> memory(10'000, std::byte{1});
  const Stored stored{std::make_shared<Echo>(), 4000};
  const Range range{&made, 96, Region::host(memory.data(), memory.size()), &stored};
  const Report report = context_->transfer(Direction::read, {&range, 1});
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_EQ(memory, std::vector<std::byte>(10'000));
  EXPECT_EQ(report.routes[static_cast<std::size_t>(Route::made_staged)], memory.size());
}

}  // namespace
}  // namespace penstock::test
