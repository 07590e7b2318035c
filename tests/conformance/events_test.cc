// What every engine must do for who waits for several queues at once.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "conformance/every_engine.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

bool wait_for_event(int event) {
  pollfd wanted{event, POLLIN, 0};
  return ::poll(&wanted, 1, 20'000) == 1;
}

TEST_P(EveryEngine, tells_by_its_event_when_a_poll_would_find_something) {
  constexpr std::uint64_t block_bytes = 4096;
  constexpr std::uint64_t blocks = 32;
  make_store("file", blocks * block_bytes);
  make_cold("file");
  const auto engine = GetParam().make();
  const auto store = engine->open(engine_name("file"), {}).value();
  const auto queue = engine->make_queue({.depth = 4}).value();
  std::vector<std::byte> memory(blocks * block_bytes);
  std::unique_ptr<engine::Attached> attached;
  if (engine->description().host == engine::HostReach::attached) {
    attached = engine->memory()->attach(Region::host(memory.data(), memory.size())).value();
  }
  std::byte* at = memory.data();
  engine::Memory::Allocated own;
  if (engine->description().host == engine::HostReach::own) {
    own = engine->memory()->allocate(memory.size()).value();
    attached = std::move(own.attached);
    at = own.memory.data;
  }
  bool has_event = true;
  for (std::uint64_t i = 0; i < blocks && has_event; ++i) {
    const engine::Op op{.path = engine::Path::buffered,
                        .store = store.get(),
                        .offset = i * block_bytes,
                        .length = block_bytes,
                        .memory = at + i * block_bytes,
                        .attached = attached.get(),
                        .cookie = i};
    ASSERT_EQ(queue->submit({&op, 1}), 1U);
    engine::Done done;
    std::size_t count = queue->poll({&done, 1}, TimePoint::min());
    for (const TimePoint deadline = Clock::now() + 20s; count == 0 && Clock::now() < deadline;) {
      const int event = queue->event();
      has_event = event >= 0;
      if (has_event) {
        ASSERT_TRUE(wait_for_event(event));
      }
      count = queue->poll({&done, 1}, has_event ? TimePoint::min() : deadline);
    }
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(done.cookie, i);
    EXPECT_EQ(done.bytes, block_bytes);
    if (done.loan != nullptr) {
      std::copy_n(done.loan->data(), block_bytes, at + i * block_bytes);
      done.loan->give_back();
    }
  }
  if (!has_event) GTEST_SKIP() << "the engine's queues have no event: they are polled";
  EXPECT_TRUE(holds_content({at, memory.size()}, 1, 0));
}

}  // namespace
}  // namespace penstock::test
