// Many units at once, and how fast.
#include <sys/resource.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>

#include "base/descriptors.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/test_tiers.h"
#include "services/tiers/unit_locks.h"

namespace penstock::tiers {
namespace {

using namespace test;

TEST_F(TiersTest, a_move_that_is_paused_under_way_says_so) {
  put("nvme", "a", 20 << 20);
  bool told = false;
  const auto moved = tiers_.move("a", "ssd", {.bytes_per_second = 40 << 20, .on_progress = [&](const MoveProgress& p) {
                                                if (p.step == MoveStep::paused) {
                                                  told = true;
                                                  EXPECT_EQ(p.name, "a");
                                                  EXPECT_TRUE(Tiers::open(folders_.options())->set_paused(false).ok());
                                                } else if (!told) {
                                                  EXPECT_TRUE(Tiers::open(folders_.options())->set_paused(true).ok());
                                                }
                                              }});
  ASSERT_TRUE(moved.ok()) << text_of(moved);
  EXPECT_TRUE(told);
}

TEST_F(TiersTest, the_rate_is_kept_and_movers_pause) {
  put("nvme", "a", 20 << 20);
  const auto report = tiers_.move("a", "hdd", {.bytes_per_second = 40 << 20});
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->seconds, 0.3);
  // One that is under way waits.
  const auto begin = std::chrono::steady_clock::now();
  std::thread pausing([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(tiers_.set_paused(true).ok());
  });
  const auto paused =
      tiers_.move("a", "ssd", {.bytes_per_second = 40 << 20, .keep_going = [&] {
                                 return std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(1500);
                               }});
  pausing.join();
  ASSERT_FALSE(paused.ok());
  EXPECT_EQ(paused.error().code, Code::cancelled);
  // What would begin is refused, and what only reads goes on.
  EXPECT_EQ(tiers_.move("a", "ssd").error().code, Code::in_use);
  EXPECT_EQ(tiers_.rebalance().error().code, Code::in_use);
  EXPECT_EQ(tiers_.add(folders_.path("hdd/a").string(), "b").error().message, "movers are paused");
  EXPECT_TRUE(tiers_.check({.bytes = true}).ok());
  ASSERT_TRUE(tiers_.set_paused(false).ok());
  EXPECT_TRUE(tiers_.move("a", "ssd").ok());
}

TEST_F(TiersTest, many_small_files_are_imported_listed_and_moved) {
  for (int i = 0; i < 300; ++i) {
    write_file(folders_.path("nvme/d/" + std::to_string(1000 + i)), bytes_of(std::to_string(i), 1, 100 + 37 * i));
  }
  const auto imported = tiers_.import_all("nvme");
  ASSERT_TRUE(imported.ok());
  EXPECT_EQ(imported->units, 300U);
  const auto page = tiers_.list({.after = "d/1009", .limit = 5});
  ASSERT_EQ(page->size(), 5U);
  EXPECT_EQ(page->front().name, "d/1010");
  EXPECT_EQ(tiers_.list({.prefix = "d/129"})->size(), 10U);
  const auto report = tiers_.rebalance();
  ASSERT_TRUE(report.ok() && report->ok()) << text_of(report);
  EXPECT_EQ(report->units, 300U);
  EXPECT_EQ(tiers_.list({.tier = "hdd"})->size(), 300U);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(content("hdd", "d/" + std::to_string(1000 + i)), bytes_of(std::to_string(i), 1, 100 + 37 * i));
  }
  EXPECT_EQ(text_of(*tiers_.check({.bytes = true})), "");
}

TEST_F(TiersTest, a_small_file_that_fails_holds_none_of_the_others_up) {
  std::vector<PlannedMove> moves;
  for (int i = 0; i < 40; ++i) {
    put("nvme", "d/" + std::to_string(i), 5000);
    moves.push_back({.name = "d/" + std::to_string(i), .to = "hdd"});
  }
  int batches = 0;
  set_fault_hook([&](std::string_view point) {
    if (point != "journaled") return;
    ++batches;
    if (batches == 1) fs::remove(folders_.aside().front());
  });
  const auto report = tiers_.move(moves);
  set_fault_hook({});
  ASSERT_TRUE(report.ok()) << text_of(report);
  EXPECT_EQ(report->units, 39U);
  ASSERT_EQ(report->failure_count, 1U);
  EXPECT_EQ(batches, 1);
  EXPECT_EQ(folders_.where(report->failures.front().name), std::vector<std::string>{"nvme"});
  EXPECT_EQ(tiers_.list({.tier = "hdd"})->size(), 39U);
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
}

class TiersManyCopies : public TiersTest {
 protected:
  // Of copies that are read together, those that were damaged must stay, and no others.
  void move_with_damage();
};

void TiersManyCopies::move_with_damage() {
  std::vector<PlannedMove> moves;
  for (int i = 0; i < 60; ++i) {
    put("nvme", "d/" + std::to_string(i), i == 41 ? 4096 : static_cast<std::size_t>(100 * i));
    moves.push_back({.name = "d/" + std::to_string(i), .to = "hdd"});
  }
  const auto copy_of = [&](const std::string& name) {
    const std::string bytes = content("nvme", name);
    for (const std::string& path : folders_.aside()) {
      if (read_file(path) == bytes) return path;
    }
    return std::string();
  };
  set_fault_hook([&](std::string_view point) {
    if (point != "synced") return;
    std::string bytes = content("nvme", "d/20");
    const std::string other = copy_of("d/20");
    const std::string shorter = copy_of("d/30");
    const std::string longer = copy_of("d/41");  // behind its whole page
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(other, bytes);
    fs::resize_file(shorter, 1);
    fs::resize_file(longer, 8192);
    fs::remove(copy_of("d/50"));
  });
  const auto report = tiers_.move(moves);
  set_fault_hook({});
  ASSERT_TRUE(report.ok()) << text_of(report);
  EXPECT_EQ(report->units, 56U);
  std::map<std::string, Code> failures;
  for (const MoveFailure& failure : report->failures) failures[failure.name] = failure.error.code;
  const std::map<std::string, Code> expected = {
      {"d/20", Code::io_error}, {"d/30", Code::changed}, {"d/41", Code::changed}, {"d/50", Code::not_found}};
  EXPECT_EQ(failures, expected);
  for (int i = 0; i < 60; ++i) {
    const std::string name = "d/" + std::to_string(i);
    EXPECT_EQ(folders_.where(name), std::vector<std::string>{expected.contains(name) ? "nvme" : "hdd"}) << name;
  }
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
}

TEST_F(TiersManyCopies, only_those_that_were_damaged_stay) {
  move_with_damage();
}

TEST_F(TiersManyCopies, are_compared_without_io_uring_too) {
  for (const long number : {__NR_io_uring_setup, __NR_io_uring_enter}) {
    bool refused = false;
    std::thread([&] {
      refused = refuse_call(number);
      if (refused) move_with_damage();
    }).join();
    if (!refused) GTEST_SKIP() << "no seccomp filter can be installed here";
    tiers_ = {};
    fs::remove(folders_.catalog());
    for (const NewTier& tier : folders_.tiers()) {
      fs::remove_all(tier.path);
      fs::create_directory(tier.path);
    }
    tiers_ = folders_.create();
  }
}

TEST_F(TiersTest, two_batches_of_small_files_move_at_once) {
  constexpr int files = 70;
  std::vector<PlannedMove> moves;
  for (int i = 0; i < files; ++i) {
    put("nvme", "d/" + std::to_string(i), 100);
    moves.push_back({.name = "d/" + std::to_string(i), .to = "hdd"});
  }
  auto locks = UnitLocks::open(folders_.options().catalog);
  ASSERT_TRUE(locks.ok()) << text_of(locks);
  const auto is_moving = [&](std::int64_t unit) {
    const auto locked = locks->try_lock(unit);
    if (locked.ok() && *locked) locks->unlock(unit);
    return locked.ok() && !*locked;
  };
  bool at_once = false;
  set_fault_hook([&](std::string_view point) {
    if (point != "journaled") return;
    // One batch waits here for the other to begin, or for so long that it is not coming.
    for (int i = 0; i < 3000 && !at_once; ++i) {
      at_once = is_moving(1) && is_moving(files);
      if (!at_once) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  std::atomic<int> callers = 0;
  std::atomic<int> done = 0;
  const auto tell = [&](const MoveProgress& progress) {
    EXPECT_EQ(++callers, 1);
    if (progress.step == MoveStep::done) ++done;
    --callers;
  };
  const auto report = tiers_.move(moves, {.on_progress = tell});
  set_fault_hook({});
  EXPECT_TRUE(at_once);
  ASSERT_TRUE(report.ok()) << text_of(report);
  EXPECT_EQ(report->units, static_cast<std::uint64_t>(files));
  EXPECT_EQ(report->bytes, files * 100U);
  EXPECT_EQ(done, files);
  EXPECT_EQ(tiers_.list({.tier = "hdd"})->size(), static_cast<std::size_t>(files));
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
}

// Room is made by what moves first.
TEST_F(TiersTest, batches_leave_descriptors_to_the_rest_of_the_process) {
  constexpr int files = 200;
  std::vector<PlannedMove> moves;
  for (int i = 0; i < files; ++i) {
    const std::string name = "small/" + std::to_string(i);
    write_file(folders_.path("nvme/" + name), bytes_of(name, 1, 100));
    moves.push_back({.name = name, .to = "hdd"});
  }
  ASSERT_TRUE(tiers_.import_all("nvme").ok());
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit few = before;
  few.rlim_cur = before.rlim_cur - free_descriptors() + 150;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto report = tiers_.move(moves);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(report.ok()) << text_of(report);
  for (const MoveFailure& failure : report->failures) ADD_FAILURE() << failure.error.message;
  EXPECT_EQ(report->units, static_cast<std::uint64_t>(files));
}

TEST_F(TiersTest, units_on_their_way_to_different_tiers_move_in_order) {
  std::vector<PlannedMove> moves;
  for (int i = 0; i < 70; ++i) put("nvme", "d/" + std::to_string(i), 100);
  for (const char* to : {"hdd", "ssd"}) {
    for (int i = 0; i < 70; ++i) moves.push_back({.name = "d/" + std::to_string(i), .to = to});
  }
  const auto report = tiers_.move(moves);
  ASSERT_TRUE(report.ok()) << text_of(report);
  EXPECT_EQ(report->units, 140U);
  EXPECT_EQ(tiers_.list({.tier = "ssd"})->size(), 70U);
}

TEST_F(TiersTest, the_mover_moves_by_itself) {
  put("nvme", "cold", 1000);
  ASSERT_TRUE(tiers_.start_mover(0.05).ok());
  EXPECT_EQ(tiers_.start_mover(1).error().code, Code::in_use);
  for (int i = 0; i < 500 && folders_.where("cold") != std::vector<std::string>{"hdd"}; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(folders_.where("cold"), std::vector<std::string>{"hdd"});
  EXPECT_TRUE(tiers_.stop_mover().ok());
}

}  // namespace
}  // namespace penstock::tiers
