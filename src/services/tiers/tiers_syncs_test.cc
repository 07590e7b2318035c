// The order of syncs and steps, SQLite's too.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <vector>

#include "base/test_syncs.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using penstock::test::SyncRecorder;
using namespace test;

// The points in between are recorded as "=point".
class TiersSyncs : public TiersTest {
 protected:
  void TearDown() override { stop(); }
  static void start(const std::string& failing = {}) {
    SyncRecorder::get().start(failing);
    set_fault_hook([](std::string_view point) { SyncRecorder::get().add("=" + std::string(point)); });
  }
  static std::vector<std::string> stop() {
    set_fault_hook({});
    return SyncRecorder::get().stop();
  }
  std::string path(const std::string& name) const { return folders_.path(name).string(); }
  // Whether `sync` stands between the last `from` before the first `to`, and that.
  static bool is_between(const std::vector<std::string>& events, const std::string& sync, const std::string& from,
                         const std::string& to) {
    const auto end = std::ranges::find(events, "=" + to);
    if (end == events.end()) return false;
    const auto begin = std::find(std::make_reverse_iterator(end), events.rend(), "=" + from);
    if (begin == events.rend()) return false;
    return std::find(begin.base(), end, sync) != end;
  }
  static std::string text_of(const std::vector<std::string>& events) {
    std::string text;
    for (const std::string& event : events) text += event + "\n";
    return text;
  }
};

TEST_F(TiersSyncs, of_a_move_come_before_the_steps_that_rely_on_them) {
  for (const int files : {1, 3, 40}) {
    const bool is_directory = files == 3;
    std::vector<PlannedMove> moves;
    for (int i = 0; i < files; ++i) {
      const std::string name = std::to_string(files) + "/d/" + std::to_string(i);
      write_file(folders_.path("nvme/" + name), bytes_of(name, 1, 10000));
      if (!is_directory) moves.push_back({.name = name, .to = "hdd"});
    }
    const std::string folder = std::to_string(files) + "/d";
    if (is_directory) moves.push_back({.name = folder, .to = "hdd"});
    for (const PlannedMove& move : moves) ASSERT_TRUE(tiers_.import(move.name).ok());
    start();
    const auto moved = tiers_.move(moves);
    const auto events = stop();
    ASSERT_TRUE(moved.ok() && moved->ok());
    const std::string all = text_of(events);
    const std::string wal = path("tiers.db-wal");
    const std::string parent = is_directory ? std::to_string(files) : folder;
    EXPECT_TRUE(is_between(events, wal, "staged", "journaled")) << all;
    if (files == 40) {
      EXPECT_TRUE(is_between(events, path("hdd"), "copied", "synced")) << "its file system" << all;
    } else {
      const std::ptrdiff_t staged = std::ranges::count_if(events, [&](const std::string& event) {
        return event.starts_with(path("hdd/.penstock/coming/")) && is_between(events, event, "copied", "synced");
      });
      EXPECT_EQ(staged, is_directory ? 1 + files : files) << all;
    }
    EXPECT_TRUE(is_between(events, path("hdd/" + parent), "named", "settled")) << all;
    EXPECT_TRUE(is_between(events, wal, "settled", "committed")) << all;
    EXPECT_TRUE(is_between(events, path("nvme/" + parent), "emptied", "cleared")) << all;
    EXPECT_TRUE(is_between(events, path("nvme/.penstock/going"), "emptied", "cleared")) << all;
    EXPECT_TRUE(is_between(events, wal, "cleared", "forgotten")) << all;
    // New folders are durable too, before what is in them counts.
    EXPECT_TRUE(is_between(events, path("hdd"), "verified", "named")) << all;
  }
}

TEST_F(TiersSyncs, that_fail_leave_the_unit_where_it_was) {
  for (const std::string failing : {"coming/1", "hdd/d", "tiers.db-wal"}) {
    put("nvme", "d/a", 10000);
    start(failing);
    const auto moved = tiers_.move("d/a", "hdd");
    const auto events = stop();
    EXPECT_TRUE(std::ranges::any_of(events, [](const std::string& event) { return event.ends_with("!"); })) << failing;
    EXPECT_FALSE(moved.ok()) << failing << "\n" << text_of(events);
    tiers_ = {};
    auto again = Tiers::open(folders_.options());
    ASSERT_TRUE(again.ok()) << failing;
    tiers_ = *again;
    ASSERT_TRUE(tiers_.recover().ok());
    EXPECT_EQ(folders_.where("d/a").size(), 1U) << failing;
    const auto place = tiers_.path_of("d/a");
    ASSERT_TRUE(place.ok()) << failing;
    EXPECT_EQ(read_file(*place), bytes_of("d/a", 1, 10000)) << failing;
    ASSERT_TRUE(tiers_.remove("d/a").ok()) << failing;
  }
}

TEST_F(TiersSyncs, of_what_is_written_come_before_the_catalog_says_that_it_is_the_unit) {
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  std::string bytes = bytes_of("a", 1, 10000);
  for (const std::string old : {"", "hdd"}) {
    const std::string name = "d" + old + "/a";
    if (!old.empty()) put(old, name, 1000);
    auto store = context->open("tier:" + name, {.access = Access::replace, .size_bytes = bytes.size()});
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(context->write(*store, 0, Region::host(bytes.data(), bytes.size())).ok());
    start();
    const Status done = store->commit();
    const auto events = stop();
    ASSERT_TRUE(done.ok()) << done.error().message;
    const std::string all = text_of(events);
    const auto named = std::ranges::find(events, "=named");
    ASSERT_NE(named, events.end()) << all;
    const auto written = std::find(named, events.end(), path("tiers.db-wal"));
    ASSERT_NE(written, events.end()) << all;
    EXPECT_NE(std::find(named, written, path("nvme/d" + old)), written) << all;
    const auto staged = std::find_if(events.begin(), named, [&](const std::string& event) {
      return event.starts_with(path("nvme/.penstock/coming/"));
    });
    EXPECT_NE(staged, named) << all;
  }
}

TEST_F(TiersSyncs, of_a_large_copy_come_before_the_catalog_says_how_much_is_safe) {
  put("nvme", "a", 24 << 20);
  start();
  // Now and then, by the clock.
  const auto moved = tiers_.move("a", "hdd", {.bytes_per_second = 12 << 20});
  const auto events = stop();
  ASSERT_TRUE(moved.ok());
  const auto saved = std::ranges::find(events, "=saved");
  ASSERT_NE(saved, events.end());
  const auto copying = std::find(std::make_reverse_iterator(saved), events.rend(), "=copying");
  const auto copy =
      std::find_if(copying.base(), saved, [](const std::string& event) { return event.find("coming/") != event.npos; });
  const auto noted = std::find(copying.base(), saved, path("tiers.db-wal"));
  EXPECT_NE(copy, saved) << text_of(events);
  EXPECT_NE(noted, saved) << text_of(events);
  EXPECT_LT(copy - events.begin(), noted - events.begin());
}

TEST_F(TiersSyncs, of_a_large_copy_that_is_stopped_come_before_the_catalog_says_how_much_is_safe) {
  put("nvme", "a", 24 << 20);
  std::uint64_t copied = 0;
  start();
  const auto stopped = tiers_.move("a", "hdd",
                                   {.bytes_per_second = 32 << 20,
                                    .keep_going = [&] { return copied == 0; },
                                    .on_progress = [&](const MoveProgress& progress) { copied = progress.bytes; }});
  const auto events = stop();
  ASSERT_FALSE(stopped.ok());
  ASSERT_GT(tiers_.find("a")->moved_bytes, 0U);
  const auto copying = std::find(events.rbegin(), events.rend(), "=copying");
  ASSERT_NE(copying, events.rend());
  const auto copy = std::find_if(copying.base(), events.end(),
                                 [](const std::string& event) { return event.find("coming/") != event.npos; });
  const auto noted = std::find(copying.base(), events.end(), path("tiers.db-wal"));
  EXPECT_NE(copy, events.end()) << text_of(events);
  EXPECT_NE(noted, events.end()) << text_of(events);
  EXPECT_LT(copy - events.begin(), noted - events.begin()) << text_of(events);
}

// He would write to a file without a name.
TEST_F(TiersTest, a_source_that_somebody_waits_to_write_to_keeps_its_name) {
  put("nvme", "a", 10000);
  int error = 0;
  set_fault_hook([&](std::string_view point) {
    if (point != "committed") return;
    const int fd = ::open(folders_.path("nvme/a").c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    error = fd >= 0 ? 0 : errno;
    if (fd >= 0) ::close(fd);
  });
  const auto moved = tiers_.move("a", "hdd");
  set_fault_hook({});
  if (error != EWOULDBLOCK) GTEST_SKIP() << "there are no leases here";
  EXPECT_FALSE(moved.ok());
  EXPECT_EQ(content("nvme", "a"), bytes_of("a", 1, 10000));
  EXPECT_EQ(content("hdd", "a"), bytes_of("a", 1, 10000));
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
}

}  // namespace
}  // namespace penstock::tiers
