#include "core/staged_window.h"

#include <deque>

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

// What a lane does with the window, `operations` long. The time that it took.
Duration read_from(const Disk& disk, StagedWindow& window, int operations) {
  struct Running {
    std::uint64_t bytes;
    Duration began;
    Duration ends;
  };
  std::deque<Running> running;
  Duration now{};
  Duration bus_free{};
  for (int done = 0; done < operations; ++done) {
    while (window.has_room()) {
      const std::uint64_t bytes = window.piece_bytes();
      const auto transfer =
          duration_cast<Duration>(std::chrono::duration<double>(static_cast<double>(bytes) / disk.bytes_per_second));
      bus_free = std::max(bus_free, now) + transfer;
      running.push_back({bytes, now, std::max(bus_free, now + disk.latency + transfer)});
      window.begin(bytes);
    }
    const Running first = running.front();
    running.pop_front();
    now = std::max(now, first.ends);
    window.end(first.bytes);
    window.note(first.bytes, now - first.began);
  }
  for (const Running& left : running) window.end(left.bytes);
  return now;
}

TEST(StagedWindow, stays_small_at_a_disk_that_a_small_one_keeps_busy) {
  StagedWindow window(mib, least, most);
  read_from({microseconds(20), 0.5e9}, window, 10'000);
  EXPECT_EQ(window.window_bytes(), least);
  EXPECT_EQ(window.piece_bytes(), 256 * kib);
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
  for (int i = 0; i < 1000; ++i) window.note(4096, nanoseconds(1));
  EXPECT_EQ(window.window_bytes(), least);
}

}  // namespace
}  // namespace penstock::core
