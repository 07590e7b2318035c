// Groups of several lanes that read from an array, under a scheduler that explores interleavings, from a set that was
// stopped before they began: every lane learns it, and nothing is touched that was never there.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "nvme/interleavings_test_support.h"
#include "penstock/paged_array.h"

namespace penstock::test {
namespace {

using device::IoStatus;
using nvme::interleavings::Explorer;
using nvme::interleavings::Group;
using nvme::interleavings::SchedulePlatform;

class LanePlatform : public SchedulePlatform {
 public:
  using Passed = LanePlatform&;

  LanePlatform(Explorer& explorer, Group& group, std::uint32_t rank) : SchedulePlatform(explorer, group, rank, {}) {}

  static void copy(unsigned char* to, const unsigned char* from, std::uint32_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  static void note(std::uint32_t& word) { word = 1; }
  static std::uint32_t spread() { return 0; }
  static std::uint64_t of_first(bool, std::uint64_t given) { return given; }
  static std::uint32_t stripe() { return 0; }
  static std::uint32_t queue_of(std::uint32_t) { return 0; }
  std::uint64_t add_acquire(std::uint64_t& word, std::uint64_t value) { return fetch_add(word, value); }
  static void add(std::uint64_t& word, std::uint64_t value) { word += value; }
  void add_release(std::uint64_t& word, std::uint64_t value) { fetch_add(word, value); }
  // Lane after lane tells what it has.
  std::uint64_t of_same(std::uint32_t value, std::uint64_t given) {
    std::uint64_t found = given;
    bool is_found = false;
    for (std::uint32_t lane = 0; lane < size(); ++lane) {
      const bool mine = lane == rank();
      const auto its_value = static_cast<std::uint32_t>(sum_of(mine ? value : 0));
      const std::uint64_t its_given = sum_of(mine ? given : 0);
      if (!is_found && its_value == value) {
        found = its_given;
        is_found = true;
      }
    }
    return found;
  }

 private:
  // Of numbers of which one is not 0, by bits.
  std::uint64_t sum_of(std::uint64_t number) {
    std::uint64_t sum = 0;
    for (unsigned bit = 0; bit < 64; ++bit) {
      if (any((number >> bit & 1) != 0)) sum |= std::uint64_t{1} << bit;
    }
    return sum;
  }
};

struct StoppedArray {
  static constexpr std::uint32_t entries = 4;

  StoppedArray() : submissions(entries), completions(2 * entries), slots(entries), places(entries * 8) {
    state.memory = {.id = 1,
                    .entries = entries,
                    .completion_entries = 2 * entries,
                    .submissions = submissions.data(),
                    .completions = completions.data(),
                    .slots = slots.data(),
                    .tail_doorbell = &tail,
                    .head_doorbell = &head};
    for (std::uint64_t ticket = 0; ticket < entries; ++ticket) slots[ticket] = {2 * ticket, nullptr, {}, 0};
    state.poison = static_cast<std::uint32_t>(nvme::Poison::deleted);
    set.queue_count = set.store_count = 1;
    set.place_bytes = 8;
    set.timeout_ns = set.stall_ns = 1000;
    set.queues = &state;
    set.stores = &window;
    set.places = places.data();
    set.notes = &notes;
    array.size_bytes = 64;
    array.queues = &set;
    array.cache.page_shift = 3;
    array.cache.frame_count = 1;
    array.cache.words = words.data();
    array.cache.frames = &frame;
    array.cache.memory = memory.data();
    array.cache.counts = counts.data();
  }

  std::vector<nvme::Command> submissions;
  std::vector<nvme::Completion> completions;
  std::vector<nvme::Slot> slots;
  std::vector<unsigned char> places;
  std::uint32_t tail = 0, head = 0;
  nvme::QueuePairState state;
  device::StoreWindow window{0, 64, 8, 0, 3};
  device::Notes notes;
  device::QueueSet set;
  std::vector<std::uint64_t> words = std::vector<std::uint64_t>(8);
  device::Frame frame;
  std::vector<unsigned char> memory = std::vector<unsigned char>(8);
  std::vector<device::PageCounts> counts = std::vector<device::PageCounts>(device::PageCacheState::count_stripes);
  device::PagedArray array;
};

TEST(PagedArrays, whose_set_was_stopped_tell_every_lane) {
  Explorer explorer;
  std::unique_ptr<StoppedArray> stopped;
  std::array<Group, 2> groups;
  const auto begin = [&] {
    stopped = std::make_unique<StoppedArray>();
    groups = {};
    std::vector<std::function<void()>> bodies;
    for (std::uint32_t group = 0; group < 2; ++group) {
      groups[group].size = 3;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        bodies.emplace_back([&, group, rank] {
          LanePlatform platform(explorer, groups[group], rank);
          device::PagedArrayIo<LanePlatform> io(stopped->array, platform);
          const auto never = [&](const unsigned char*) { explorer.fail("bytes that nobody read"); };
          // Pages of its own, of its neighbour, and of the other group.
          const std::uint64_t page = (group + rank / 2) % 3;
          if (io.visit_each({8 * page, 8}, 0, never).status != IoStatus::closed) explorer.fail("not closed");
          const auto nor_here = [&](const unsigned char*, std::uint64_t, std::uint32_t) {
            explorer.fail("bytes that nobody read");
          };
          if (io.visit_together({4, 20}, 0, nor_here).status != IoStatus::closed) explorer.fail("not closed");
        });
      }
    }
    return bodies;
  };
  const auto end = [&] {
    for (const std::uint64_t word : stopped->words) {
      const device::PageWord page{word};
      if (page.holders() != 0 || page.state() != device::PageWord::absent) explorer.note("a page that is not absent");
    }
    if (stopped->frame.page != device::Frame::nobody) explorer.note("a frame that is lost");
  };
  const auto outcome = explorer.explore({.schedules = 20, .random_seed = 3}, begin, end);
  EXPECT_EQ(outcome.failure, "");
}

}  // namespace
}  // namespace penstock::test
