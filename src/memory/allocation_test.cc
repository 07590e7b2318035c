#include "memory/allocation.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "penstock/buffer.h"

namespace penstock::memory {
namespace {

constexpr std::size_t mib = 1 << 20;

AllocationOptions host_options(std::size_t size_bytes) {
  AllocationOptions options;
  options.size_bytes = size_bytes;
  return options;
}

std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

bool is_mapped(const std::byte* page) {
  return ::msync(const_cast<std::byte*>(page), page_bytes(), MS_ASYNC) == 0;
}

TEST(Allocation, is_page_aligned_zeroed_and_writable_to_its_last_byte) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4095}, std::size_t{4097}, mib, 2 * mib, 5 * mib + 3}) {
    const auto allocation = Allocation::create(host_options(size)).value();
    const Region region = allocation->region();
    EXPECT_EQ(region.size_bytes, size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data) % page_bytes(), 0u);
    EXPECT_EQ(region.data[size - 1], std::byte{0});
    region.data[0] = region.data[size - 1] = std::byte{1};
  }
}

TEST(Allocation, is_aligned_for_huge_pages_where_it_is_large_enough) {
  for (int repeat = 0; repeat < 8; ++repeat) {
    const auto allocation = Allocation::create(host_options(3 * mib)).value();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(allocation->region().data) % (2 * mib), 0u);
  }
}

TEST(Allocation, of_nothing_is_an_empty_region) {
  const auto allocation = Allocation::create(host_options(0)).value();
  EXPECT_EQ(allocation->region().size_bytes, 0u);
}

TEST(Allocation, of_too_much_is_an_error) {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t size : {most, most - 1, most - 4096, most / 2, std::size_t{1} << 56}) {
    const auto allocation = Allocation::create(host_options(size));
    ASSERT_FALSE(allocation.ok()) << size;
    EXPECT_EQ(allocation.error().code, Code::out_of_memory);
  }
}

TEST(Allocation, unmaps_its_memory) {
  auto allocation = Allocation::create(host_options(3 * mib)).value();
  const Region region = allocation->region();
  EXPECT_TRUE(is_mapped(region.data));
  allocation.reset();
  EXPECT_FALSE(is_mapped(region.data));
  EXPECT_FALSE(is_mapped(region.data + region.size_bytes - page_bytes()));
}

TEST(Allocation, runs_its_action_before_the_memory_goes) {
  auto allocation = Allocation::create(host_options(4096)).value();
  std::byte* data = allocation->region().data;
  std::array<int, 2> runs{};
  for (int& count : runs) {
    for (int again = 0; again < 2; ++again) {
      allocation->on_free(&count, [&count, data] {
        ++count;
        data[0] = std::byte{1};  // would crash if it were gone
      });
    }
  }
  allocation.reset();
  EXPECT_EQ(runs, (std::array{1, 1})) << "once for each owner";
}

TEST(Allocation, locks_its_memory_where_that_is_allowed) {
  AllocationOptions options = host_options(64 << 10);
  options.domain = Domain::pinned();
  options.lock = true;
  const auto allocation = Allocation::create(options);
  if (!allocation.ok()) GTEST_SKIP() << allocation.error().message;
  EXPECT_EQ(allocation.value()->region().domain, Domain::pinned());
  std::vector<unsigned char> resident((64 << 10) / page_bytes());
  ASSERT_EQ(::mincore(allocation.value()->region().data, 64 << 10, resident.data()), 0);
  for (const unsigned char page : resident) EXPECT_TRUE(page & 1);
}

// In a child, because giving up the right to lock can't be undone.
TEST(Allocation, refused_locking_names_the_limit_and_the_cure) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{4096, 4096};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (::getuid() == 0 && ::setuid(65534) != 0)) ::_exit(77);
    AllocationOptions options = host_options(mib);
    options.lock = true;
    options.budget = std::make_shared<Budget>(2 * mib);
    const auto allocation = Allocation::create(options);
    const bool right = !allocation.ok() && allocation.error().code == Code::out_of_memory &&
                       allocation.error().message.find("RLIMIT_MEMLOCK is 4096 bytes") != std::string::npos &&
                       allocation.error().hint.find("ulimit -l") != std::string::npos &&
                       options.budget->used_bytes() == 0;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "the right to lock memory can't be given up here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Budget, is_charged_by_allocations_and_refunded_by_their_end) {
  AllocationOptions options = host_options(mib);
  options.budget = std::make_shared<Budget>(2 * mib);
  auto first = Allocation::create(options).value();
  auto second = Allocation::create(options).value();
  EXPECT_EQ(options.budget->used_bytes(), 2 * mib);
  const auto third = Allocation::create(options);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, Code::over_budget);
  EXPECT_NE(third.error().message.find("the budget is 2097152 bytes, and 2097152 of them are in use"),
            std::string::npos)
      << third.error().message;
  first.reset();
  EXPECT_EQ(options.budget->used_bytes(), mib);
  EXPECT_TRUE(Allocation::create(options).ok());
}

TEST(Budget, is_not_spent_by_an_allocation_that_fails) {
  AllocationOptions options = host_options(std::size_t{1} << 56);
  options.budget = std::make_shared<Budget>(std::numeric_limits<std::uint64_t>::max());
  EXPECT_FALSE(Allocation::create(options).ok());
  EXPECT_EQ(options.budget->used_bytes(), 0u);
}

TEST(Budget, holds_when_many_threads_charge_it) {
  Budget budget(1000);
  std::atomic<std::uint64_t> taken{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 1000; ++repeat) {
        if (budget.charge(3)) taken += 3;
        EXPECT_LE(budget.used_bytes(), 1000u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 999u);
  EXPECT_EQ(budget.used_bytes(), 999u);
  EXPECT_FALSE(budget.charge(std::numeric_limits<std::uint64_t>::max()));
}

TEST(Buffer, moves_and_leaves_nothing_behind) {
  Buffer first = make_buffer(Allocation::create(host_options(100)).value());
  std::byte* data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size_bytes(), 0u);
  EXPECT_EQ(second.data(), data);
  Buffer third;
  third = std::move(second);
  EXPECT_EQ(third.bytes().size(), 100u);
  EXPECT_TRUE(is_mapped(data));
  Buffer fourth = make_buffer(Allocation::create(host_options(100)).value());
  fourth = std::move(third);
  EXPECT_EQ(third.data(), nullptr);
  EXPECT_EQ(fourth.data(), data);
  fourth = Buffer();
  EXPECT_FALSE(is_mapped(data));
}

}  // namespace
}  // namespace penstock::memory
