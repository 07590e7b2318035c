// The steps of a transfer between a kernel and the server, under a scheduler that explores interleavings: callers that
// give up at any time, a server that answers in any order, and few slots.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "nvme/interleavings_test_support.h"
#include "penstock/queue_set.h"
#include "services/gpu_queues/served_queue.h"

namespace penstock::test {
namespace {

using nvme::interleavings::Explorer;
using nvme::interleavings::Group;
using nvme::interleavings::SchedulePlatform;

constexpr std::uint32_t place_size = 8;
constexpr std::uint64_t time_to_give_up = 1000;
constexpr std::uint64_t give_up_deadline = time_to_give_up / 2;

// As SchedulePlatform, with what QueueSetIo needs besides, and a clock that may jump past a deadline.
class SetPlatform : public SchedulePlatform {
 public:
  SetPlatform(Explorer& explorer, Group& group, std::uint32_t rank, bool gives_up)
      : SchedulePlatform(explorer, group, rank, {}), explorer_(explorer), gives_up_(gives_up) {}

  static void copy(unsigned char* to, const unsigned char* from, std::uint32_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  static void note(std::uint32_t& word) { word = 1; }
  static std::uint32_t spread() { return 0; }
  static std::uint64_t of_first(bool, std::uint64_t given) { return given; }
  std::uint64_t now() { return gives_up_ && looks_++ > 0 && explorer_.choose(2) == 1 ? time_to_give_up : 0; }

 private:
  Explorer& explorer_;
  const bool gives_up_;
  std::uint32_t looks_ = 0;
};

// Words of the server. Others may look before and after each: of what it stores besides, nothing may come later.
struct ServerWords {
  Explorer& explorer;
  template <typename T>
  T load_acquire(const T& word) {
    explorer.point();
    return word;
  }
  template <typename T>
  void store_release(T& word, T value) {
    explorer.point();
    word = value;
    explorer.point();
  }
};

// One queue in plain memory, and a server that brings the number of a block to its place.
struct Scene {
  Scene(Explorer& the_explorer, std::uint32_t entries, std::uint32_t ahead)
      : explorer(the_explorer),
        submissions(entries),
        completions(2 * entries),
        slots(entries),
        ahead_places(ahead),
        places((entries + ahead) * place_size) {
    state.memory = {.id = 1,
                    .entries = entries,
                    .completion_entries = 2 * entries,
                    .submissions = submissions.data(),
                    .completions = completions.data(),
                    .slots = slots.data(),
                    .tail_doorbell = &tail,
                    .head_doorbell = &head};
    for (std::uint64_t ticket = 0; ticket < entries; ++ticket) slots[ticket] = {2 * ticket, nullptr, {}, 0};
    set.queue_count = set.store_count = 1;
    set.ahead_count = ahead;
    set.place_bytes = place_size;
    set.timeout_ns = give_up_deadline;
    set.stall_ns = UINT64_MAX / 2;
    set.queues = &state;
    set.stores = &window;
    set.ahead = ahead_places.data();
    set.places = places.data();
    set.notes = &notes;
  }

  void serve() {
    ServerWords words{explorer};
    gpu_queues::ServedQueue<ServerWords> queue(state.memory);
    std::vector<nvme::Command> fetched;
    while (users > 0 || !fetched.empty()) {
      explorer.point();
      std::array<nvme::Command, 2> more;
      const std::uint32_t count = queue.fetch(words, more);
      fetched.insert(fetched.end(), more.begin(), more.begin() + count);
      if (fetched.empty()) {
        explorer.pause();
        continue;
      }
      const std::size_t which = explorer.choose(fetched.size());
      const nvme::Command command = fetched[which];
      fetched.erase(fetched.begin() + static_cast<std::ptrdiff_t>(which));
      const std::uint64_t number = command.first_block();
      std::memcpy(places.data() + command.prp1, &number, sizeof number);
      queue.complete(words, command.cid, nvme::status::success);
    }
  }

  Explorer& explorer;
  std::vector<nvme::Command> submissions;
  std::vector<nvme::Completion> completions;
  std::vector<nvme::Slot> slots;
  std::vector<device::AheadPlace> ahead_places;
  std::vector<unsigned char> places;
  nvme::QueuePairState state;
  device::StoreWindow window{0, 8 * 1024, 8, 0, 3};
  device::Notes notes;
  device::QueueSet set;
  std::uint32_t tail = 0;
  std::uint32_t head = 0;
  std::uint32_t users = 0;
};

struct Caller {
  std::uint32_t lanes = 1;
  std::uint32_t rounds = 1;
  bool gives_up = false;
  bool ahead = false;
};

void call(Scene& scene, Group& group, std::uint32_t rank, std::uint64_t tag, const Caller& caller) {
  SetPlatform platform(scene.explorer, group, rank, caller.gives_up);
  device::QueueSetIo<SetPlatform> io(scene.set, platform, 0);
  for (std::uint32_t round = 0; round < caller.rounds; ++round) {
    const std::uint64_t block = tag + round;
    std::uint64_t number = UINT64_MAX;
    device::Pending pending;
    if (caller.ahead) pending = io.begin_read({8 * block, 8});
    const device::IoResult result = caller.ahead ? io.finish(pending, &number, give_up_deadline)
                                                 : io.read({8 * block, 8}, &number, give_up_deadline);
    if (result.ok() && number != block) scene.explorer.fail("another command's bytes");
    if (!result.ok() && number != UINT64_MAX) scene.explorer.fail("bytes for one who gave up");
    if (!result.ok() && !caller.gives_up) scene.explorer.fail("a wait that ended early");
  }
  --scene.users;
}

Explorer::Outcome explore_calls(std::uint32_t entries, std::uint32_t ahead, const std::vector<Caller>& callers,
                                int departures) {
  Explorer explorer;
  std::unique_ptr<Scene> scene;
  std::vector<std::unique_ptr<Group>> groups;
  const auto begin = [&] {
    scene = std::make_unique<Scene>(explorer, entries, ahead);
    groups.clear();
    std::vector<std::function<void()>> bodies;
    std::uint64_t tag = 0;
    for (const Caller& caller : callers) {
      groups.push_back(std::make_unique<Group>());
      groups.back()->size = caller.lanes;
      for (std::uint32_t rank = 0; rank < caller.lanes; ++rank) {
        tag += 16;
        ++scene->users;
        bodies.emplace_back([&, group = groups.back().get(), rank, tag] { call(*scene, *group, rank, tag, caller); });
      }
    }
    bodies.emplace_back([&] { scene->serve(); });
    return bodies;
  };
  const auto end = [&] {
    if (scene->state.strange_completions != 0) explorer.note("a completion was not recognized");
  };
  return explorer.explore({.departures = departures, .schedules = 200'000}, begin, end);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int departures = 1;
#else
constexpr int departures = 2;
#endif

TEST(GpuQueuesInterleavings, bring_each_caller_its_own_bytes) {
  const auto outcome = explore_calls(2, 0, {{.rounds = 2}, {.rounds = 2}}, departures);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(GpuQueuesInterleavings, of_groups_bring_each_lane_its_own_bytes) {
  const auto outcome = explore_calls(4, 0, {{.lanes = 2, .rounds = 2}, {.rounds = 1}}, 1);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

// What a caller leaves is cleared away by who needs it next, once the server has ended it, and not before.
TEST(GpuQueuesInterleavings, never_write_to_one_who_gave_up) {
  const auto outcome = explore_calls(2, 0, {{.rounds = 2, .gives_up = true}, {.rounds = 2}}, departures);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(GpuQueuesInterleavings, of_reads_begun_ahead_are_as_exact) {
  const auto outcome =
      explore_calls(2, 1, {{.rounds = 2, .gives_up = true, .ahead = true}, {.rounds = 2, .ahead = true}}, departures);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

}  // namespace
}  // namespace penstock::test
