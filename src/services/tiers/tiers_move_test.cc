// What a unit is, and that it moves as it is.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/unique_fd.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/names.h"
#include "services/tiers/sqlite.h"
#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using namespace test;

TEST_F(TiersTest, a_file_moves_with_its_bytes_mode_and_time) {
  put("nvme", "models/a.bin", 3'000'001);
  ASSERT_EQ(::chmod(folders_.path("nvme/models/a.bin").c_str(), 0640), 0);
  const auto time = fs::last_write_time(folders_.path("nvme/models/a.bin"));
  const auto report = tiers_.move("models/a.bin", "hdd");
  ASSERT_TRUE(report.ok()) << text_of(report);
  EXPECT_EQ(report->units, 1U);
  EXPECT_EQ(report->bytes, 3'000'001U);
  EXPECT_EQ(folders_.where("models/a.bin"), std::vector<std::string>{"hdd"});
  EXPECT_EQ(content("hdd", "models/a.bin"), bytes_of("models/a.bin", 1, 3'000'001));
  EXPECT_EQ(fs::last_write_time(folders_.path("hdd/models/a.bin")), time);
  EXPECT_EQ(static_cast<int>(fs::status(folders_.path("hdd/models/a.bin")).permissions()), 0640);
  EXPECT_EQ(tiers_.find("models/a.bin")->tier, "hdd");
  EXPECT_EQ(tiers_.find("models/a.bin")->checksum.size(), 16U);
}

TEST_F(TiersTest, a_directory_moves_as_one_with_its_links) {
  write_file(folders_.path("nvme/model/one"), bytes_of("one", 1, 100));
  write_file(folders_.path("nvme/model/deep/two"), bytes_of("two", 1, 2'000'000));
  fs::create_directory(folders_.path("nvme/model/empty"));
  fs::create_symlink("deep/two", folders_.path("nvme/model/link"));
  fs::create_hard_link(folders_.path("nvme/model/one"), folders_.path("nvme/model/same"));
  ASSERT_TRUE(tiers_.import("model").ok());
  EXPECT_EQ(tiers_.find("model")->files, 2U);
  ASSERT_TRUE(tiers_.move("model", "ssd").ok());
  EXPECT_EQ(folders_.where("model"), std::vector<std::string>{"ssd"});
  EXPECT_EQ(content("ssd", "model/link"), bytes_of("two", 1, 2'000'000));
  EXPECT_TRUE(fs::is_symlink(folders_.path("ssd/model/link")));
  EXPECT_TRUE(fs::is_directory(folders_.path("ssd/model/empty")));
  EXPECT_TRUE(fs::equivalent(folders_.path("ssd/model/one"), folders_.path("ssd/model/same")));
  EXPECT_EQ(*tiers_.path_of("model/deep/two"), folders_.path("ssd/model/deep/two").string());
  EXPECT_EQ(text_of(*tiers_.check({.bytes = true})), "");
}

// A hole takes no space on the disk, and may be so long that its checksum takes hours.
TEST_F(TiersTest, what_reads_a_hole_can_be_stopped) {
  constexpr std::uint64_t hole_bytes = std::uint64_t{4} << 30;
  write_file(folders_.path("nvme/a"), "begin");
  fs::resize_file(folders_.path("nvme/a"), hole_bytes);
  ASSERT_EQ(text_of(tiers_.import("a")), "ok");
  int questions = 0;
  const auto keep_going = [&] { return ++questions < 40; };
  const auto moved = tiers_.move("a", "hdd", {.keep_going = keep_going});
  ASSERT_TRUE(!moved.ok() || moved->error) << questions;
  EXPECT_EQ(moved.ok() ? moved->error->code : moved.error().code, Code::cancelled);
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"nvme"});
  questions = 0;
  const auto checked = tiers_.check({.bytes = true, .keep_going = keep_going});
  ASSERT_FALSE(checked.ok()) << questions;
  EXPECT_EQ(checked.error().code, Code::cancelled);
}

TEST_F(TiersTest, a_file_with_holes_that_no_disk_could_fill_is_no_unit) {
  struct statvfs system = {};
  ASSERT_EQ(::statvfs(folders_.path("nvme").c_str(), &system), 0);
  const std::uint64_t disk_bytes = std::uint64_t{system.f_blocks} * system.f_frsize;
  const fs::path path = folders_.path("nvme/home/a");
  put("nvme", "home/b", 1000);
  write_file(path, "begin");
  std::error_code failed;
  fs::resize_file(path, disk_bytes * 3, failed);
  if (!failed) {
    EXPECT_EQ(text_of(tiers_.import("home/a")), "ok");
  }
  fs::resize_file(path, disk_bytes * 5, failed);
  if (failed) GTEST_SKIP() << "the file system has no files that are longer than itself";
  const Status refused = tiers_.import("home/a");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::unsupported) << text_of(refused);
  EXPECT_FALSE(tiers_.move("home/a", "hdd").ok()) << "it was imported before it grew";
}

TEST_F(TiersTest, holes_stay_holes) {
  const std::string path = folders_.path("nvme/sparse").string();
  {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_EQ(::ftruncate(file.get(), 256 << 20), 0);
    ASSERT_EQ(::pwrite(file.get(), "middle", 6, (100 << 20) + 3), 6);
  }
  ASSERT_TRUE(tiers_.import("sparse").ok());
  const auto moved = tiers_.move("sparse", "hdd");
  ASSERT_TRUE(moved.ok()) << text_of(moved);
  struct stat status = {};
  ASSERT_EQ(::stat(folders_.path("hdd/sparse").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 256 << 20);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
  const UniqueFd file(::open(folders_.path("hdd/sparse").c_str(), O_RDONLY));
  char bytes[7] = {};
  ASSERT_EQ(::pread(file.get(), bytes, 6, (100 << 20) + 3), 6);
  EXPECT_STREQ(bytes, "middle");
}

TEST_F(TiersTest, odd_names_are_names) {
  const std::string odd = "a b/\xff\xfe\n'\"%41;--/*";
  put("nvme", odd, 1000);
  put("nvme", std::string(255, 'n'), 10);
  ASSERT_TRUE(tiers_.move(odd, "hdd").ok());
  EXPECT_EQ(content("hdd", odd), bytes_of(odd, 1, 1000));
  for (const char* wrong : {"", "/x", "a//b", "../x", "a/../b", ".", ".penstock/tier.json"}) {
    EXPECT_EQ(tiers_.import(wrong).error().code, Code::invalid_argument) << wrong;
  }
  EXPECT_EQ(tiers_.import(std::string(256, 'n')).error().code, Code::invalid_argument);
}

TEST_F(TiersTest, what_cant_move_as_it_is_is_refused) {
  write_file(folders_.path("nvme/file"), "x");
  fs::create_symlink("file", folders_.path("nvme/link"));
  EXPECT_EQ(tiers_.import("link").error().code, Code::unsupported);
  fs::create_hard_link(folders_.path("nvme/file"), folders_.path("nvme/other"));
  EXPECT_EQ(tiers_.import("file").error().code, Code::unsupported);
  fs::create_directory(folders_.path("nvme/dir"));
  fs::create_symlink("../file", folders_.path("nvme/dir/out"));
  EXPECT_EQ(tiers_.import("dir").error().code, Code::unsupported);
  ASSERT_EQ(::mkfifo(folders_.path("nvme/pipe").c_str(), 0600), 0);
  EXPECT_EQ(tiers_.import("pipe").error().code, Code::unsupported);
  EXPECT_EQ(tiers_.import("missing").error().code, Code::not_found);
  write_file(folders_.path("nvme/own/file"), "x");
  fs::create_symlink(folders_.path("nvme/own/file"), folders_.path("nvme/own/link"));
  EXPECT_EQ(tiers_.import("own").error().code, Code::unsupported);
  EXPECT_EQ(tiers_.add("/proc/cpuinfo", "cpuinfo").error().code, Code::unsupported);
}

TEST_F(TiersTest, links_among_the_parents_of_a_name_are_refused) {
  write_file(folders_.path("elsewhere/a"), "a");
  fs::create_directory_symlink(folders_.path("elsewhere"), folders_.path("nvme/link"));
  EXPECT_EQ(tiers_.import("link/a").error().code, Code::invalid_argument);
  put("ssd", "link/b", 10);
  static_cast<void>(tiers_.move("link/b", "nvme"));
  EXPECT_FALSE(fs::exists(folders_.path("elsewhere/b")));
  EXPECT_EQ(folders_.where("link/b"), std::vector<std::string>{"ssd"});
  put("hdd", "folder/c", 10);
  fs::rename(folders_.path("hdd/folder"), folders_.path("hdd/other"));
  fs::create_directory_symlink(folders_.path("hdd/other"), folders_.path("hdd/folder"));
  EXPECT_FALSE(tiers_.remove("folder/c").ok());
  EXPECT_TRUE(fs::exists(folders_.path("hdd/other/c")));
}

TEST_F(TiersTest, units_dont_nest) {
  put("nvme", "a/b/c", 10);
  EXPECT_EQ(tiers_.import("a").error().code, Code::in_use);
  fs::create_directory(folders_.path("nvme/d"));
  ASSERT_TRUE(tiers_.import("d").ok());
  write_file(folders_.path("nvme/d/e"), "x");
  EXPECT_EQ(tiers_.import("d/e").error().code, Code::in_use);
}

TEST_F(TiersTest, what_was_changed_from_outside_stays_and_is_told) {
  put("nvme", "a", 1000);
  write_file(folders_.path("nvme/a"), "other bytes");
  EXPECT_EQ(tiers_.move("a", "hdd").error().code, Code::changed);
  EXPECT_TRUE(tiers_.find("a")->in_doubt);
  EXPECT_EQ(tiers_.check()->findings.size(), 1U);
  EXPECT_TRUE(tiers_.plan()->moves.empty());  // what is in doubt is left alone
  ASSERT_TRUE(tiers_.import("a").ok());
  EXPECT_FALSE(tiers_.find("a")->in_doubt);
  ASSERT_TRUE(tiers_.move("a", "hdd").ok());
  EXPECT_EQ(content("hdd", "a"), "other bytes");
}

TEST_F(TiersTest, a_doubt_goes_when_every_byte_is_as_it_was) {
  put("nvme", "a", 10000);
  ASSERT_TRUE(tiers_.import("a", true).ok());
  const std::string path = folders_.path("nvme/a").string();
  fs::rename(path, folders_.path("away"));
  EXPECT_EQ(tiers_.move("a", "hdd").error().code, Code::not_found);
  EXPECT_TRUE(tiers_.find("a")->in_doubt);
  // It comes back from a backup, with other times.
  write_file(path, bytes_of("a", 1, 10000));
  const auto checked = tiers_.check();
  ASSERT_TRUE(checked.ok());
  ASSERT_EQ(checked->findings.size(), 1U);
  EXPECT_TRUE(checked->findings.front().repaired) << text_of(*checked);
  EXPECT_FALSE(tiers_.find("a")->in_doubt);
  EXPECT_EQ(text_of(*tiers_.check()), "");
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
  // Other bytes are no cure.
  write_file(folders_.path("hdd/a"), bytes_of("a", 2, 10000));
  EXPECT_EQ(tiers_.move("a", "ssd").error().code, Code::changed);
  const auto still = tiers_.recover();
  ASSERT_TRUE(still.ok());
  ASSERT_EQ(still->size(), 1U);
  EXPECT_FALSE(still->front().repaired);
  EXPECT_TRUE(tiers_.find("a")->in_doubt);
  write_file(folders_.path("hdd/a"), bytes_of("a", 1, 10000));
  EXPECT_TRUE(tiers_.recover()->front().repaired);
  EXPECT_FALSE(tiers_.find("a")->in_doubt);
}

TEST_F(TiersTest, damage_is_noticed_before_it_travels) {
  put("nvme", "a", 10000);
  ASSERT_TRUE(tiers_.import("a", true).ok());
  const std::string path = folders_.path("nvme/a").string();
  const auto time = fs::last_write_time(path);
  {
    const UniqueFd file(::open(path.c_str(), O_RDWR));
    ASSERT_EQ(::pwrite(file.get(), "?", 1, 5000), 1);
  }
  fs::last_write_time(path, time);
  EXPECT_EQ(tiers_.move("a", "hdd").error().code, Code::io_error);
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"nvme"});
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
  EXPECT_NE(text_of(*tiers_.check({.bytes = true})).find("damaged"), std::string::npos);
}

TEST_F(TiersTest, the_source_of_a_copy_that_was_replaced_stays) {
  put("nvme", "a", 1000);
  const std::string before = content("nvme", "a");
  set_fault_hook([&](std::string_view point) {
    if (point != "committed") return;
    write_file(folders_.path("hdd/other"), "another file");
    fs::rename(folders_.path("hdd/other"), folders_.path("hdd/a"));
  });
  static_cast<void>(tiers_.move("a", "hdd"));
  set_fault_hook({});
  EXPECT_EQ(content("nvme", "a"), before);
  EXPECT_EQ(content("hdd", "a"), "another file");
  EXPECT_NE(text_of(tiers_.check().value()), "");
}

TEST_F(TiersTest, what_others_are_at_is_no_damage) {
  for (const char* name : {"moved", "written", "removed"}) put("nvme", name, 1000);
  Tiers other = *Tiers::open(folders_.options());
  std::map<std::string, std::string> found;  // by where the other process was
  std::string imported;
  set_fault_hook([&](std::string_view point) {
    if (point == "journaled" || point == "named" || point == "aside" || point == "committed") {
      found[std::string(point)] += text_of(other.check().value());
    }
    if (point == "settled") imported = text_of(other.import("moved"));
  });
  EXPECT_TRUE(tiers_.move("moved", "hdd").ok());
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  auto store = context->open("tier:written", {.access = Access::replace, .size_bytes = 10});
  EXPECT_TRUE(store.ok() && store->commit().ok());
  EXPECT_TRUE(tiers_.remove("removed").ok());
  set_fault_hook({});
  EXPECT_EQ(found.size(), 4U);
  for (const auto& [point, text] : found) EXPECT_EQ(text, "") << point;
  EXPECT_EQ(imported, "moved is being moved or written");
}

TEST_F(TiersTest, a_source_whose_name_cant_be_taken_stays) {
  for (const int flag : {FS_IMMUTABLE_FL, FS_APPEND_FL}) {
    const std::string name = std::to_string(flag);
    put("nvme", name, 1000);
    const ProtectedPath file(folders_.path("nvme/" + name), flag);
    if (!file) GTEST_SKIP() << "no file here can be protected: " << std::strerror(errno);
    EXPECT_FALSE(tiers_.move(name, "hdd").ok());
    EXPECT_EQ(folders_.where(name), std::vector<std::string>{"nvme"});
    EXPECT_EQ(text_of(tiers_.check().value()), "");
  }
}

TEST_F(TiersTest, a_folder_that_lets_no_name_go_keeps_its_units) {
  put("hdd", "folder/file", 1000);
  for (const int flag : {FS_IMMUTABLE_FL, FS_APPEND_FL}) {
    for (const char* what : {"hdd/folder", "hdd/.penstock/going"}) {
      const ProtectedPath folder(folders_.path(what), flag);
      if (!folder) GTEST_SKIP() << "no folder here can be protected: " << std::strerror(errno);
      EXPECT_FALSE(tiers_.move("folder/file", "ssd").ok());
      EXPECT_FALSE(tiers_.remove("folder/file").ok());
      auto context = Context::create({.lanes = 1});
      ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
      auto store = context->open("tier:folder/file", {.access = Access::replace, .size_bytes = 10});
      EXPECT_FALSE(store.ok() && store->commit().ok());
      EXPECT_EQ(folders_.where("folder/file"), std::vector<std::string>{"hdd"});
      EXPECT_EQ(content("hdd", "folder/file"), bytes_of("folder/file", 1, 1000));
    }
  }
  EXPECT_EQ(text_of(tiers_.check().value()), "");
}

TEST_F(TiersTest, a_directory_of_which_a_part_cant_go_stays_whole) {
  write_file(folders_.path("nvme/folder/deep/file"), "protected");
  write_file(folders_.path("nvme/folder/other"), "other");
  ASSERT_TRUE(tiers_.import("folder").ok());
  for (const char* what : {"folder/deep/file", "folder/deep"}) {
    const ProtectedPath part(folders_.path(std::string("nvme/") + what), FS_IMMUTABLE_FL);
    if (!part) GTEST_SKIP() << "no file here can be protected: " << std::strerror(errno);
    for (const std::string& told : {text_of(tiers_.remove("folder")), text_of(tiers_.move("folder", "hdd"))}) {
      EXPECT_NE(told.find(std::string(what) + " is protected"), std::string::npos) << told;
    }
    EXPECT_EQ(content("nvme", "folder/deep/file"), "protected");
    EXPECT_EQ(content("nvme", "folder/other"), "other");
    EXPECT_EQ(folders_.where("folder"), std::vector<std::string>{"nvme"});
  }
  EXPECT_EQ(text_of(tiers_.check().value()), "");
  EXPECT_EQ(text_of(tiers_.remove("folder")), "ok");
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
}

TEST_F(TiersTest, a_directory_that_cant_move_can_be_removed) {
  put("nvme", "folder/file", 1000);
  tiers_ = {};
  tiers_ = *Tiers::open(folders_.options());
  ASSERT_TRUE(tiers_.forget("folder/file").ok());
  ASSERT_TRUE(tiers_.import("folder").ok());
  ASSERT_EQ(::mkfifo(folders_.path("nvme/folder/pipe").c_str(), 0600), 0);
  EXPECT_EQ(tiers_.move("folder", "hdd").error().code, Code::unsupported);
  EXPECT_EQ(text_of(tiers_.remove("folder")), "ok");
  EXPECT_EQ(folders_.where("folder"), std::vector<std::string>());
}

// Somebody who keeps the catalog from being changed from a step on, as a full disk would.
class Blocked {
 public:
  Blocked(const std::string& catalog, std::string_view from) {
    set_fault_hook([this, catalog, from](std::string_view point) {
      if (point != from || database_) return;
      auto database = Database::open(catalog, Database::Mode::existing, 1);
      ASSERT_TRUE(database.ok());
      database_.emplace(std::move(*database));
      auto transaction = Transaction::begin(*database_);
      ASSERT_TRUE(transaction.ok());
      transaction_.emplace(std::move(*transaction));
    });
  }
  ~Blocked() { set_fault_hook({}); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  bool happened() const { return database_.has_value(); }

 private:
  std::optional<Database> database_;
  std::optional<Transaction> transaction_;
};

TEST_F(TiersTest, what_failed_for_the_catalog_has_not_happened) {
  TiersOptions options = folders_.options();
  options.wait_seconds = 0.05;
  tiers_ = *Tiers::open(options);
  put("nvme", "here", 1000);
  put("hdd", "there", 1000);
  write_file(folders_.path("elsewhere"), "new");
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  const auto replace = [&](const char* name) {
    auto store = context->open("tier:" + std::string(name), {.access = Access::replace, .size_bytes = 10});
    return store ? store->commit() : Status(store.error());
  };
  const auto move = [&] {
    const auto moved = tiers_.move("here", "ssd");
    return moved ? Status() : Status(moved.error());
  };
  const std::vector<std::pair<const char*, std::function<Status()>>> changes = {
      {"aside", [&] { return tiers_.remove("here"); }},
      {"named", [&] { return replace("here"); }},
      {"named", [&] { return replace("there"); }},
      {"named", move},
      {"named", [&] { return tiers_.add(folders_.path("elsewhere").string(), "added"); }},
      {"named", [&] { return replace("written"); }},
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    {
      const Blocked blocked(folders_.catalog(), changes[i].first);
      EXPECT_FALSE(changes[i].second().ok());
      EXPECT_TRUE(blocked.happened());
    }
    for (const bool checked : {false, true}) {
      if (checked) {
        EXPECT_TRUE(tiers_.check().ok());
      }
      EXPECT_EQ(content("nvme", "here"), bytes_of("here", 1, 1000));
      EXPECT_EQ(content("hdd", "there"), bytes_of("there", 1, 1000));
      EXPECT_EQ(folders_.where("here"), std::vector<std::string>{"nvme"});
      EXPECT_EQ(folders_.where("there"), std::vector<std::string>{"hdd"});
      EXPECT_EQ(folders_.where("added"), std::vector<std::string>());
      EXPECT_EQ(folders_.where("written"), std::vector<std::string>());
    }
    EXPECT_EQ(tiers_.list({})->size(), 2U);
    EXPECT_EQ(text_of(tiers_.check().value()), "");
    EXPECT_EQ(folders_.aside(), std::vector<std::string>());
  }
  // And nothing is in the way of doing it.
  EXPECT_EQ(text_of(move()), "ok");
  EXPECT_EQ(text_of(replace("there")), "ok");
  EXPECT_EQ(text_of(tiers_.remove("here")), "ok");
}

TEST_F(TiersTest, a_mode_that_changes_under_way_is_kept) {
  put("nvme", "a", 1000);
  set_fault_hook([&](std::string_view point) {
    if (point == "copied") fs::permissions(folders_.path("nvme/a"), fs::perms::owner_read);
  });
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
  set_fault_hook({});
  EXPECT_EQ(fs::status(folders_.path("hdd/a")).permissions(), fs::perms::owner_read);
}

TEST_F(TiersTest, a_stranger_at_the_target_is_not_overwritten) {
  put("nvme", "a", 1000);
  write_file(folders_.path("hdd/a"), "a stranger");
  EXPECT_EQ(tiers_.move("a", "hdd").error().code, Code::in_use);
  EXPECT_EQ(content("hdd", "a"), "a stranger");
  EXPECT_EQ(content("nvme", "a"), bytes_of("a", 1, 1000));
  EXPECT_EQ(tiers_.import("a").error().code, Code::invalid_argument);
  EXPECT_EQ(tiers_.check()->findings.size(), 1U);
}

TEST_F(TiersTest, a_large_copy_that_was_stopped_goes_on) {
  put("nvme", "a", 40 << 20);
  // Progress is told ten times a second. So fast, it is told while half is copied; later it tells of verifying.
  std::uint64_t copied = 0;
  const auto note = [&](const MoveProgress& progress) {
    if (progress.step == MoveStep::copying) copied = progress.bytes;
  };
  const auto stopped = tiers_.move(
      "a", "hdd",
      {.bytes_per_second = 64 << 20, .keep_going = [&] { return copied < (8U << 20); }, .on_progress = note});
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, Code::cancelled);
  const auto info = tiers_.find("a");
  EXPECT_EQ(info->moving_to, "hdd");
  EXPECT_GT(info->moved_bytes, 0U);
  const auto report = tiers_.move("a", "hdd");
  ASSERT_TRUE(report.ok()) << text_of(report);
  EXPECT_EQ(report->resumed_bytes, info->moved_bytes);
  EXPECT_EQ(content("hdd", "a"), bytes_of("a", 1, 40 << 20));
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
}

TEST_F(TiersTest, empty_folders_that_moves_leave_are_in_nobodys_way) {
  put("hdd", "models/deep/a", 1000);
  ASSERT_TRUE(tiers_.move("models/deep/a", "nvme").ok());
  ASSERT_TRUE(fs::is_directory(folders_.path("hdd/models/deep")));
  ASSERT_TRUE(tiers_.forget("models/deep/a").ok());
  const Status imported = tiers_.import("models");
  ASSERT_TRUE(imported.ok()) << imported.error().message;
  EXPECT_EQ(tiers_.find("models")->tier, "nvme");
  EXPECT_TRUE(tiers_.check()->findings.empty());
  const auto back = tiers_.move("models", "hdd");
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(content("hdd", "models/deep/a").size(), 1000U);
  EXPECT_FALSE(fs::exists(folders_.path("nvme/models")));
  // What holds a file is in the way, as ever.
  fs::create_directories(folders_.path("nvme/models/deep"));
  write_file(folders_.path("nvme/models/deep/other"), bytes_of("o", 1, 10));
  EXPECT_EQ(tiers_.move("models", "nvme").error().code, Code::in_use);
  EXPECT_EQ(tiers_.import("models").error().code, Code::invalid_argument);
  EXPECT_TRUE(fs::exists(folders_.path("nvme/models/deep/other")));
}

TEST_F(TiersTest, a_file_whose_adding_was_stopped_can_be_added_again) {
  const std::string content = bytes_of("new", 1, 40 << 20);
  write_file(folders_.path("elsewhere"), content);
  const std::string path = folders_.path("elsewhere").string();
  int asked = 0;
  const Status stopped = tiers_.add(path, "new", "ssd", {.keep_going = [&] { return ++asked < 4; }});
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, Code::cancelled);
  EXPECT_FALSE(tiers_.find("new").ok());
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
  const Status added = tiers_.add(path, "new", "ssd");
  ASSERT_TRUE(added.ok()) << text_of(added);
  EXPECT_EQ(this->content("ssd", "new"), content);
}

TEST_F(TiersTest, a_file_whose_adding_died_can_be_added_again) {
  write_file(folders_.path("elsewhere"), "content");
  const std::string path = folders_.path("elsewhere").string();
  tiers_ = Tiers();  // no child could open any otherwise
  std::array<int, 2> opened = {};
  ASSERT_EQ(::pipe(opened.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char word = 0;
    if (::read(opened[0], &word, 1) != 1) ::_exit(1);
    set_fault_hook([](std::string_view name) {
      if (name == "copied") ::_exit(7);
    });
    auto tiers = Tiers::open(folders_.options());
    ::_exit(tiers.ok() && tiers->add(path, "new", "ssd").ok() ? 0 : 1);
  }
  tiers_ = Tiers::open(folders_.options()).value();
  EXPECT_EQ(::write(opened[1], "o", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  for (const int fd : opened) ::close(fd);
  ASSERT_EQ(WEXITSTATUS(status), 7);
  const Status added = tiers_.add(path, "new", "ssd");  // by Tiers that were open all the time
  ASSERT_TRUE(added.ok()) << text_of(added);
  EXPECT_EQ(content("ssd", "new"), "content");
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
}

TEST_F(TiersTest, what_lies_in_the_way_of_a_removal_is_kept) {
  put("nvme", "file", 1000);
  write_file(folders_.path("nvme/.penstock/going/1"), "something");
  EXPECT_EQ(text_of(tiers_.remove("file")), "ok");
  EXPECT_EQ(folders_.where("file"), std::vector<std::string>());
  const std::vector<std::string> kept = folders_.aside();
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(read_file(kept.front()), "something");
}

TEST_F(TiersTest, units_that_are_made_at_the_same_time_dont_nest_either) {
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  auto within = context->open("tier:model/new", {.access = Access::replace});
  ASSERT_TRUE(within.ok()) << text_of(within);
  write_file(folders_.path("elsewhere/file"), "x");
  ASSERT_TRUE(tiers_.add(folders_.path("elsewhere").string(), "model").ok());
  EXPECT_EQ(within->commit().error().code, Code::in_use);
  EXPECT_FALSE(tiers_.find("model/new").ok());
}

TEST_F(TiersTest, a_file_from_elsewhere_is_added_and_removed) {
  write_file(folders_.path("elsewhere"), bytes_of("e", 1, 100000));
  ASSERT_TRUE(tiers_.add(folders_.path("elsewhere").string(), "in/it").ok());
  EXPECT_EQ(content("nvme", "in/it"), bytes_of("e", 1, 100000));
  EXPECT_TRUE(fs::exists(folders_.path("elsewhere")));
  EXPECT_EQ(tiers_.add(folders_.path("elsewhere").string(), "in/it").error().code, Code::in_use);
  ASSERT_TRUE(tiers_.remove("in/it").ok());
  EXPECT_TRUE(folders_.where("in/it").empty());
  EXPECT_EQ(tiers_.find("in/it").error().code, Code::not_found);
  EXPECT_EQ(tiers_.tiers()->front().used_bytes, 0U);
}

}  // namespace
}  // namespace penstock::tiers
