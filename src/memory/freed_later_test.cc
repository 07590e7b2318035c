#include "memory/freed_later.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "memory/live_buffers.h"

namespace penstock::memory {
namespace {

std::shared_ptr<const Allocation> make_held(Domain domain) {
  AllocationOptions options;
  options.size_bytes = 4096;
  options.domain = domain;
  return LiveBuffers::of_process().add(Allocation::create(options).value());
}

bool is_still_mapped(const std::byte* page) {
  return ::msync(const_cast<std::byte*>(page), 1, MS_ASYNC) == 0;
}

TEST(FreedLater, lists_what_its_thread_lets_go_of_last) {
  auto first = make_held(Domain::pinned());
  auto second = make_held(Domain::pinned());
  const std::byte* const pages[] = {first->region().data, second->region().data};
  FreedLater::List list;
  {
    FreedLater later;
    auto again = first;
    first.reset();
    EXPECT_TRUE(later.take().empty()) << "another holds it";
    again.reset();
    second.reset();
    list = later.take();
  }
  for (const std::byte* page : pages) {
    EXPECT_TRUE(is_still_mapped(page));
    EXPECT_EQ(LiveBuffers::of_process().find(page).held, nullptr) << "nobody gets it any more";
  }
  EXPECT_FALSE(list.empty());
  list.clear();
  for (const std::byte* page : pages) EXPECT_FALSE(is_still_mapped(page));
}

TEST(FreedLater, leaves_what_only_the_host_knows_and_what_is_let_go_of_elsewhere) {
  auto of_host = make_held(Domain::host());
  const std::byte* page = of_host->region().data;
  {
    FreedLater later;
    of_host.reset();
    EXPECT_TRUE(later.take().empty());
    EXPECT_FALSE(is_still_mapped(page));
  }
  auto pinned = make_held(Domain::pinned());
  page = pinned->region().data;
  pinned.reset();
  EXPECT_FALSE(is_still_mapped(page));
}

TEST(FreedLater, lists_can_be_put_together) {
  FreedLater::List all;
  for (int i = 0; i < 3; ++i) {
    FreedLater later;
    make_held(Domain::pinned()).reset();
    all.append(later.take());
  }
  EXPECT_FALSE(all.empty());
}

}  // namespace
}  // namespace penstock::memory
