// The memory of requests: what none can use, and the budget of pinned memory.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <vector>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

TEST_F(ContextTest, refuses_memory_that_no_request_can_use) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::byte byte{};
  EXPECT_EQ(context.read(store, 0, Region::host(nullptr, 10)).error->code, Code::invalid_argument);
  EXPECT_EQ(context.read(Store(), 0, Region::host(&byte, 1)).error->code, Code::invalid_argument);
  EXPECT_EQ(context.read(store, 0, Region{&byte, 1, Domain::cuda(999)}).error->code, Code::no_device);
  EXPECT_EQ(context.allocate(Domain::cuda(999), 10).error().code, Code::no_device);
}

TEST_F(ContextTest, refuses_memory_past_the_end_of_its_buffer) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  const Buffer memory = context.allocate(Domain::host(), 5000).value();
  const Report report = context.read(store, 0, memory.region().part(1000, 4001));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::out_of_range);
  EXPECT_FALSE(report.error->hint.empty());
  EXPECT_TRUE(context.read(store, 0, memory.region().part(1000, 4000)).ok());
  const Region wrapping = Region::host(reinterpret_cast<void*>(UINTPTR_MAX - 10), 100);
  EXPECT_EQ(context.read(store, 0, wrapping).error->code, Code::invalid_argument);
}

TEST_F(ContextTest, detaches_only_what_was_attached) {
  Context context = make_context();
  std::vector<std::byte> bytes(8192);
  const Region memory = Region::host(bytes.data(), bytes.size());
  for (const bool before : {true, false}) {
    const Status status = context.detach(memory);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::invalid_argument);
    EXPECT_FALSE(status.error().hint.empty());
    if (!before) break;
    ASSERT_TRUE(context.attach(memory).ok());
    EXPECT_EQ(context.attach(memory).error().code, Code::invalid_argument);
    EXPECT_EQ(context.attach(memory.part(4096, 10)).error().code, Code::invalid_argument);
    EXPECT_EQ(context.detach(memory.part(0, 4096)).error().code, Code::invalid_argument);
    EXPECT_TRUE(context.detach(memory).ok());
  }
}

class PinnedMemory : public ContextTest {
 protected:
  PinnedMemory() {
    options_.pinned_budget_bytes = 2 << 20;
    options_.staging_slot_bytes = 256 << 10;
    options_.lanes = 1;
  }
};

TEST_F(PinnedMemory, stays_within_its_budget_and_comes_back) {
  Context context = make_context();
  auto first = context.allocate(Domain::pinned(), 1 << 20);
  if (!first && first.error().code == Code::out_of_memory) GTEST_SKIP() << first.error().message;
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(context.statistics().pinned_bytes, 1U << 20);
  const auto refused = context.allocate(Domain::pinned(), (1 << 20) + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::over_budget);
  EXPECT_FALSE(refused.error().hint.empty());
  *first = Buffer();
  EXPECT_EQ(context.statistics().pinned_bytes, 0U);
  EXPECT_TRUE(context.allocate(Domain::pinned(), 2 << 20).ok());
}

TEST_F(PinnedMemory, that_is_spent_leaves_unaligned_reads_the_page_cache) {
  options_.cache = Cache::bypass;
  Context context = make_context();
  const auto all = context.allocate(Domain::pinned(), 2 << 20);
  if (!all && all.error().code == Code::out_of_memory) GTEST_SKIP() << all.error().message;
  const std::string path = make_file("file");
  evict(path);
  const Store store = context.open(path).value();
  std::vector<std::byte> memory(size_bytes);
  const Report report = context.read(store, 1, Region::host(memory.data() + 1, 1'000'001));
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_TRUE(holds_content(std::span(memory).subspan(1, 1'000'001), 1, 1));
}

TEST_F(PinnedMemory, that_is_spent_is_an_error_where_only_the_device_is_allowed) {
  options_.allowed_routes = {Route::direct};
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  if (!store.info().direct) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  std::vector<std::byte> memory(size_bytes);
  const Region unaligned = Region::host(memory.data() + 1, 1'000'001);
  EXPECT_EQ(bytes_by(context.read(store, 1, unaligned), Route::direct), 1'000'001U);

  Context poor = make_context();
  const auto all = poor.allocate(Domain::pinned(), 2 << 20);
  if (!all && all.error().code == Code::out_of_memory) GTEST_SKIP() << all.error().message;
  const Store other = poor.open(folder_.path("file")).value();
  const Report report = poor.read(other, 1, unaligned);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::over_budget);
}

TEST_F(ContextTest, stages_in_memory_that_is_given) {
  const int fd = ::memfd_create("staging", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, 8 << 20), 0);
  options_.lanes = 2;
  options_.staging_slot_bytes = 1 << 20;
  options_.staging_descriptor = fd;
  options_.cache = Cache::bypass;
  Context context = make_context();
  const std::string name = make_file("file");
  evict(name);
  const Store store = context.open(name).value();
  std::vector<std::byte> memory(size_bytes);
  // Nothing is aligned, so that all goes through staging memory.
  const std::size_t length = size_bytes - 14;
  const Report report = context.read(store, 7, Region::host(memory.data() + 3, length));
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(std::span(memory).subspan(3, length), 1, 7));
  EXPECT_EQ(context.statistics().pinned_bytes, 0U) << "it is not ours";
  const auto given = read_file("/proc/self/fd/" + std::to_string(fd));
  EXPECT_TRUE(std::any_of(given.begin(), given.end(), [](std::byte byte) { return byte != std::byte{0}; }));
  ::close(fd);
  EXPECT_FALSE(Context::create({.staging_descriptor = 1'000'000}).ok());
}

}  // namespace
}  // namespace penstock::test
