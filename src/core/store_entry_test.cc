#include "core/store_entry.h"

#include <gtest/gtest.h>

#include "core/environment.h"
#include "core/test_scripted_engine.h"

namespace penstock::core {
namespace {

class StoreEntryTest : public testing::Test {
 protected:
  StoreEntryTest() {
    ring_.name = "ring";
    ring_.sleeps_in_kernel = true;
    threads_.name = "threads";
    for (Script* script : {&ring_, &threads_}) {
      script->info = {.name = "x",
                      .size_bytes = 10'000,
                      .alignments = {.offset = 512, .memory = 512},
                      .direct = true,
                      .page_cache = true};
      script->size_now = 10'000;
    }
  }

  Result<std::shared_ptr<StoreEntry>> open(const std::string& name, const OpenOptions& options = {}) {
    auto table = std::make_shared<engine::Table>();
    table->push_back(std::make_unique<ScriptedEngine>(ring_));
    table->push_back(std::make_unique<ScriptedEngine>(threads_));
    environment_ = std::make_unique<Environment>(table, options_, Machine{.page_bytes = 16384});
    return StoreEntry::open(*environment_, name, options);
  }

  Script ring_;
  Script threads_;
  Options options_;
  std::unique_ptr<Environment> environment_;
};

TEST_F(StoreEntryTest, is_opened_by_the_first_engine_that_serves_it) {
  const auto entry = open("file:some%20name");
  ASSERT_TRUE(entry.ok()) << entry.error().message;
  EXPECT_EQ((*entry)->engine(), 0U);
  EXPECT_EQ(ring_.opened_name, "some name");
  EXPECT_EQ(threads_.opened, 0);
  EXPECT_FALSE((*entry)->engine_reason().empty());
}

TEST_F(StoreEntryTest, is_opened_again_by_an_engine_that_suits_its_place_better) {
  for (Script* script : {&ring_, &threads_}) script->info.locality = Locality::network;
  const auto entry = open("x");
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ((*entry)->engine(), 1U);
  EXPECT_EQ(ring_.opened, 1);
  EXPECT_EQ(threads_.opened, 1);
}

TEST_F(StoreEntryTest, is_opened_for_a_device_by_its_own_descriptor) {
  threads_.reaches_device = true;
  ring_.descriptor = 8;
  const auto entry = open("x", {.descriptor = 7});
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ(ring_.opened_descriptor, 7);
  ASSERT_NE((*entry)->for_device(*environment_), nullptr) << (*entry)->facts()->device_reason;
  EXPECT_EQ(threads_.opened_descriptor, 8) << "by then the caller may have closed the other";
  const auto by_name = open("x");
  ASSERT_NE((*by_name)->for_device(*environment_), nullptr);
  EXPECT_EQ(threads_.opened_descriptor, 8) << "the name may mean another file by then";
}

TEST_F(StoreEntryTest, takes_a_descriptor_only_for_files) {
  threads_.scheme = "disk";
  EXPECT_EQ(open("disk:x", {.descriptor = 7}).error().code, Code::invalid_argument);
  EXPECT_EQ(ring_.opened + threads_.opened, 0);
}

TEST_F(StoreEntryTest, is_not_opened_twice_when_that_would_create_it_twice) {
  for (Script* script : {&ring_, &threads_}) script->info.locality = Locality::network;
  const auto entry = open("x", {.access = Access::replace});
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ((*entry)->engine(), 0U);
  EXPECT_EQ(threads_.opened, 0);
}

TEST_F(StoreEntryTest, passes_on_what_the_engine_says) {
  EXPECT_EQ(open("missing").error().code, Code::not_found);
  EXPECT_EQ(open("warp://x").error().code, Code::unknown_scheme);
  EXPECT_EQ(open("").error().code, Code::invalid_argument);
  options_.engine = "ring";
  ring_.available = false;
  EXPECT_EQ(open("x").error().code, Code::engine_unavailable);
}

TEST_F(StoreEntryTest, goes_to_the_engine_of_its_scheme) {
  threads_.scheme = "tape";
  const auto entry = open("tape://drive");
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ((*entry)->engine(), 1U);
  EXPECT_EQ(threads_.opened_name, "drive");
}

TEST_F(StoreEntryTest, aligns_as_the_store_and_the_options_need) {
  EXPECT_EQ((*open("x"))->alignment(Direction::read), 512U);
  EXPECT_EQ((*open("x"))->alignment(Direction::write), 16384U) << "pages of a file are dropped whole";
  options_.alignment_bytes = 4096;
  EXPECT_EQ((*open("x"))->alignment(Direction::read), 4096U);
  ring_.info.kind = StoreKind::block_device;
  EXPECT_EQ((*open("x"))->alignment(Direction::write), 4096U) << "a device is written past the cache only";
  ring_.info.alignments.offset = 65536;
  EXPECT_EQ((*open("x"))->alignment(Direction::read), 65536U) << "never less than the store needs";
}

TEST_F(StoreEntryTest, asks_again_before_it_refuses_a_range) {
  const auto entry = *open("x");
  EXPECT_TRUE(entry->check_end(10'000).ok());
  EXPECT_EQ(entry->check_end(10'001).error().code, Code::out_of_range);
  ring_.size_now = 20'000;
  EXPECT_TRUE(entry->check_end(20'000).ok());
  EXPECT_FALSE(entry->check_end(20'001).ok());
  entry->grown_to(30'000);
  EXPECT_TRUE(entry->check_end(30'000).ok());
  entry->grown_to(5);
  EXPECT_TRUE(entry->check_end(30'000).ok()) << "growing never shrinks";
}

TEST_F(StoreEntryTest, remembers_that_direct_transfers_were_refused) {
  const auto entry = *open("x");
  EXPECT_TRUE(entry->direct());
  entry->refuse_direct();
  EXPECT_FALSE(entry->direct());
}

TEST_F(StoreEntryTest, guesses_residency_from_the_time_that_samples_take) {
  const auto entry = *open("x");
  EXPECT_EQ(entry->sample_residency(0, 10'000), Residency::likely_all);
  EXPECT_EQ(entry->sample_residency(9'999, 1), Residency::likely_all);
  ring_.sample_seconds = 1e-3;
  EXPECT_EQ(entry->sample_residency(0, 10'000), Residency::likely_none);
}

TEST_F(StoreEntryTest, guesses_residency_from_a_few_pages_from_the_first_to_the_last) {
  const auto entry = *open("x");
  EXPECT_FALSE(entry->guess_residency(0, 10'000)) << "the kernel tells nothing";
  std::uint64_t first = 0;
  std::uint64_t end = 10'000;
  ring_.is_resident = [&](std::uint64_t offset) { return offset >= first && offset < end; };
  EXPECT_EQ(entry->guess_residency(0, 10'000)->missing, std::nullopt);
  EXPECT_EQ(entry->guess_residency(9'999, 1)->missing, std::nullopt);
  end = 9'990;
  EXPECT_GE(entry->guess_residency(0, 10'000)->missing, end);
  EXPECT_EQ(entry->guess_residency(0, 5'000)->missing, std::nullopt);
  first = 1;
  EXPECT_EQ(entry->guess_residency(0, 5'000)->missing, 0U);
}

TEST_F(StoreEntryTest, never_times_reads_that_a_server_may_not_answer) {
  for (Script* script : {&ring_, &threads_}) script->info.locality = Locality::network;
  EXPECT_EQ((*open("x"))->sample_residency(0, 10'000), Residency::likely_none);
}

}  // namespace
}  // namespace penstock::core
