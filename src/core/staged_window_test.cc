#include "core/staged_window.h"

#include <deque>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::core {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t least = 512 * kib;
constexpr std::uint64_t most = 64 * mib;

// A simulated disk: each operation takes `latency` by itself, and all share `bytes_per_second`.
struct Disk {
  Duration latency;
  double bytes_per_second;
};

// What lanes do with their windows at one disk, until `operations` are done. The time that it took.
Duration read_from(const Disk& disk, std::span<StagedWindow> windows, int operations) {
  struct Running {
    StagedWindow* window;
    std::uint64_t bytes;
    Duration began;
    Duration ends;
  };
  std::deque<Running> running;
  Duration now{};
  Duration bus_free{};
  ShortestLatency shortest;
  const auto fill = [&](StagedWindow& window) {
    while (window.has_room()) {
      const std::uint64_t bytes = window.piece_bytes();
      const auto transfer =
          duration_cast<Duration>(std::chrono::duration<double>(static_cast<double>(bytes) / disk.bytes_per_second));
      bus_free = std::max(bus_free, now) + transfer;
      running.push_back({&window, bytes, now, std::max(bus_free, now + disk.latency + transfer)});
      window.begin(bytes);
    }
  };
  for (StagedWindow& window : windows) fill(window);
  for (int done = 0; done < operations; ++done) {
    const Running first = running.front();
    running.pop_front();
    now = std::max(now, first.ends);
    const Duration latency = now - first.began;
    first.window->end(first.bytes);
    first.window->note(first.bytes, latency, shortest.with(first.bytes, latency));
    fill(*first.window);
  }
  for (const Running& left : running) left.window->end(left.bytes);
  return now;
}

Duration read_from(const Disk& disk, StagedWindow& window, int operations) {
  return read_from(disk, std::span(&window, 1), operations);
}

TEST(StagedWindow, stays_small_at_a_disk_that_a_small_one_keeps_busy) {
  StagedWindow window(mib, least, most);
  read_from({microseconds(20), 0.5e9}, window, 10'000);
  EXPECT_EQ(window.window_bytes(), least);
  EXPECT_EQ(window.piece_bytes(), 256 * kib);
}

TEST(StagedWindow, lanes_that_begin_together_don_t_take_their_queue_for_the_disk_s_latency) {
  std::vector<StagedWindow> windows(16, StagedWindow(mib, least, most));
  read_from({microseconds(60), 4.5e9}, windows, 10'000);
  for (const StagedWindow& window : windows) EXPECT_EQ(window.window_bytes(), least);
}

TEST(StagedWindow, grows_until_a_distant_disk_is_busy) {
  StagedWindow window(mib, least, most);
  const Disk disk{microseconds(2000), 4e9};  // 8 MB are on their way
  read_from(disk, window, 2'000);
  EXPECT_GE(window.window_bytes(), 8 * mib);
  EXPECT_LE(window.window_bytes(), 32 * mib);
  EXPECT_EQ(window.piece_bytes(), mib);
  const auto took = std::chrono::duration<double>(read_from(disk, window, 2'000));
  EXPECT_GT(2'000 * static_cast<double>(mib) / took.count(), 0.9 * disk.bytes_per_second);
}

TEST(StagedWindow, shrinks_again_when_others_use_the_disk) {
  StagedWindow window(mib, least, most);
  read_from({microseconds(2000), 4e9}, window, 2'000);
  const std::uint64_t before = window.window_bytes();
  read_from({microseconds(2000), 0.2e9}, window, 2'000);
  EXPECT_LT(window.window_bytes(), before / 2);
}

TEST(StagedWindow, never_leaves_its_bounds) {
  StagedWindow window(mib, least, 4 * mib);
  read_from({microseconds(100'000), 10e9}, window, 2'000);
  EXPECT_EQ(window.window_bytes(), 4 * mib);
  StagedWindow of_small_pieces(64 * kib, least, most);
  read_from({microseconds(20), 0.5e9}, of_small_pieces, 2'000);
  EXPECT_EQ(of_small_pieces.piece_bytes(), 64 * kib);
  EXPECT_EQ(of_small_pieces.window_bytes(), least);
}

TEST(StagedWindow, learns_nothing_from_operations_of_another_length) {
  StagedWindow window(mib, least, most);
  for (int i = 0; i < 1000; ++i) window.note(4096, nanoseconds(1), nanoseconds(1));
  EXPECT_EQ(window.window_bytes(), least);
}

TEST(ShortestLatency, is_kept_for_each_length) {
  ShortestLatency shortest;
  EXPECT_EQ(shortest.with(256 * kib, microseconds(300)), microseconds(300));
  EXPECT_EQ(shortest.with(4 * kib, microseconds(20)), microseconds(20));
  EXPECT_EQ(shortest.with(256 * kib, microseconds(500)), microseconds(300));
  EXPECT_EQ(shortest.with(256 * kib, microseconds(200)), microseconds(200));
  EXPECT_EQ(shortest.with(0, microseconds(1)), microseconds(1));
}

}  // namespace
}  // namespace penstock::core
