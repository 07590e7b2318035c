// What others could write to a catalog, and which catalogs are refused.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "base/unique_fd.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/sqlite.h"
#include "services/tiers/test_tiers.h"
#include "services/tiers/unit_locks.h"

namespace penstock::tiers {
namespace {

using namespace test;

// What whoever writes to the catalog could put there.
class TiersRows : public TiersTest {
 protected:
  void change(const char* sql) {
    auto database = Database::open(folders_.catalog(), Database::Mode::existing, 5);
    ASSERT_TRUE(database.ok()) << text_of(database);
    const Status changed = database->run(sql);
    ASSERT_TRUE(changed.ok()) << text_of(changed);
  }
  static void expect_damaged(const auto& result, const std::string& call) {
    ASSERT_FALSE(result.ok()) << call;
    EXPECT_EQ(result.error().code, Code::io_error) << call << ": " << text_of(result);
    EXPECT_NE(text_of(result).find("is damaged"), std::string::npos) << call << ": " << text_of(result);
    EXPECT_NE(result.error().hint, "") << call;
  }
};

TEST_F(TiersRows, a_name_that_leads_out_of_its_tier_touches_nothing) {
  const fs::path victim = folders_.path("victim");
  write_file(victim, "mine");
  put("nvme", "a", 1000);
  tiers_ = {};
  const std::string inode = std::to_string(facts_of(victim).st_ino);
  // As if it was about to be removed from its old place, put back, or given to the catalog.
  for (const std::string stage : {"0", "1"}) {
    for (const std::string name : {"../victim", "x/../../victim", "/victim", ".penstock/tier.json"}) {
      change(("UPDATE unit SET name = '" + name + "', tier = 3; DELETE FROM move; INSERT INTO move VALUES(1, 0, " +
              stage + ", 1, 3, 0, " + inode + ", '', 0, 0, 0, 0)")
                 .c_str());
      auto opened = Tiers::open(folders_.options());
      if (opened.ok()) {
        expect_damaged(opened->check(), name);
        expect_damaged(opened->list(), name);
      } else {
        expect_damaged(opened, name);
      }
      EXPECT_EQ(read_file(victim), "mine") << name;
      EXPECT_TRUE(fs::exists(folders_.path("hdd/.penstock/tier.json")));
    }
  }
}

TEST_F(TiersRows, a_row_that_cannot_be_is_reported_by_every_call) {
  put("nvme", "a", 1000);
  put("nvme", "b", 1000);
  for (const char* sql :
       {"PRAGMA foreign_keys = OFF; UPDATE unit SET tier = 77 WHERE name = 'a'",
        "PRAGMA foreign_keys = OFF; UPDATE unit SET tier = -1 WHERE name = 'a'",
        "PRAGMA foreign_keys = OFF; UPDATE unit SET pinned = 77 WHERE name = 'a'",
        "UPDATE unit SET kind = 7 WHERE name = 'a'", "UPDATE unit SET name = x'6161' WHERE name = 'a'"}) {
    change(sql);
    expect_damaged(tiers_.list(), sql);
    expect_damaged(tiers_.check(), sql);
    if (std::string_view(sql).find("77") != std::string_view::npos) {
      expect_damaged(tiers_.plan(), sql);
      expect_damaged(tiers_.rebalance(), sql);
      expect_damaged(tiers_.why("a"), sql);
      expect_damaged(tiers_.move("a", "hdd"), sql);
    }
    EXPECT_EQ(text_of(tiers_.move("b", "hdd")), "ok") << sql;
    EXPECT_EQ(text_of(tiers_.move("b", "nvme")), "ok") << sql;
    change(
        "PRAGMA foreign_keys = OFF; UPDATE unit SET tier = 1, kind = 0, pinned = NULL, name = 'a' WHERE name <> 'b'");
    EXPECT_EQ(text_of(tiers_.check()), "ok");
  }
  for (const char* sql :
       {"UPDATE tier SET path = 'relative' WHERE id = 3", "UPDATE tier SET name = '../x' WHERE id = 3",
        "UPDATE tier SET name = x'00' WHERE id = 3", "UPDATE tier SET low = 0 WHERE id = 3"}) {
    change(sql);
    expect_damaged(tiers_.tiers(), sql);
    expect_damaged(tiers_.plan(), sql);
    expect_damaged(tiers_.move("a", "hdd"), sql);
    change(("UPDATE tier SET low = 0.8, name = 'hdd', path = '" + folders_.path("hdd").string() + "' WHERE id = 3")
               .c_str());
    EXPECT_EQ(text_of(tiers_.tiers()), "ok");
  }
  for (const char* values : {"(1, 7, 0, 1", "(1, 0, 9, 1", "(1, 0, 0, NULL", "(-1, 0, 0, 1"}) {
    change((std::string("INSERT INTO move VALUES") + values + ", 3, 0, 0, '', 0, 0, 0, 0)").c_str());
    expect_damaged(tiers_.recover(), values);
    expect_damaged(Tiers::open(folders_.options()), values);
    change("DELETE FROM move");
  }
}

TEST_F(TiersRows, heat_that_was_counted_while_the_clock_was_ahead_fades) {
  put("nvme", "a", 1000);
  use("a", 1000);
  ASSERT_EQ(text_of(tiers_.flush()), "ok");
  change("UPDATE unit SET heat_at = heat_at + 1e9, moved_at = moved_at + 1e9");
  ASSERT_EQ(text_of(tiers_.plan()), "ok");
  change("UPDATE unit SET heat_at = heat_at - 10 * 86400");  // ten days pass
  const auto found = tiers_.find("a");
  ASSERT_TRUE(found.ok());
  EXPECT_LT(found->heat, 2);
  change("UPDATE unit SET heat_at = heat_at + 1e9");
  use("a", 1);
  ASSERT_EQ(text_of(tiers_.flush()), "ok");
  change("UPDATE unit SET heat_at = heat_at - 10 * 86400");
  EXPECT_LT(tiers_.find("a")->heat, 2);
}

// At each step of it, and the next attempt as well.
TEST(TiersInit, that_was_killed_can_be_done_again) {
  for (int tiers_made = 1; tiers_made <= 3; ++tiers_made) {
    const Folders folders;
    const pid_t child = ::fork();
    if (child == 0) {
      set_fault_hook([&, left = tiers_made](std::string_view point) mutable {
        if (point == "tier" && --left == 0) ::kill(::getpid(), SIGKILL);
      });
      static_cast<void>(Tiers::create(folders.tiers(), {}, folders.options()));
      ::_exit(1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto opened = Tiers::open(folders.options());
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, Code::not_found);
    EXPECT_NE(opened.error().hint.find("tier init"), std::string::npos) << opened.error().hint;
    const auto made = Tiers::create(folders.tiers(), {}, folders.options());
    ASSERT_TRUE(made.ok()) << text_of(made);
    EXPECT_EQ(made->tiers()->size(), 3U);
    EXPECT_EQ(text_of(Tiers::open(folders.options())), "ok");
    EXPECT_EQ(Tiers::create(folders.tiers(), {}, folders.options()).error().code, Code::in_use);
  }
}

TEST(TiersInit, that_goes_on_is_not_done_again_by_another_process) {
  const Folders folders;
  int attempts = 0;
  set_fault_hook([&](std::string_view point) {
    if (point != "tier" || ++attempts > 1) return;
    auto locks = UnitLocks::open(folders.catalog());
    EXPECT_TRUE(locks.ok() && locks->try_lock(0).ok() && !*locks->try_lock(0)) << "others can tell that it goes on";
  });
  EXPECT_TRUE(Tiers::create(folders.tiers(), {}, folders.options()).ok());
  set_fault_hook({});
  EXPECT_EQ(attempts, 3);
}

class TiersTrust : public TiersTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
    fs::permissions(folders_.path("."), fs::perms(0755));
  }
  Result<Tiers> open() { return Tiers::open(folders_.options()); }
  void expect_refused(const std::string& what) {
    const auto opened = open();
    ASSERT_FALSE(opened.ok()) << what;
    EXPECT_EQ(opened.error().code, Code::permission_denied) << what << ": " << text_of(opened);
    EXPECT_NE(opened.error().hint, "") << what;
  }
};

TEST_F(TiersTrust, a_catalog_that_another_user_decides_about_is_refused) {
  const std::string catalog = folders_.catalog();
  tiers_ = {};
  ASSERT_EQ(::chown(catalog.c_str(), other_user, other_user), 0);
  expect_refused("his own");
  ASSERT_EQ(::chown(catalog.c_str(), 0, 0), 0);
  fs::permissions(catalog, fs::perms(0666));
  expect_refused("everybody's");
  fs::permissions(catalog, fs::perms(0644));
  EXPECT_EQ(text_of(open()), "ok");
  fs::permissions(folders_.path("."), fs::perms(0777));
  expect_refused("in everybody's folder");
  fs::permissions(folders_.path("."), fs::perms(01777));
  expect_refused("in a folder that takes what he puts beside it");
  // What he has put there before.
  for (const std::string ending : {"-wal", "-shm", "-units"}) {
    fs::permissions(folders_.path("."), fs::perms(01777));
    fs::remove(catalog + ending);
    ASSERT_TRUE(as_other([&] { return ::mknod((catalog + ending).c_str(), S_IFREG | 0666, 0) == 0; }));
    fs::permissions(folders_.path("."), fs::perms(0755));
    expect_refused(ending);
    fs::remove(catalog + ending);
    fs::create_symlink("/dev/null", catalog + ending);
    expect_refused(ending + " as a link");
    fs::remove(catalog + ending);
    write_file(folders_.path("mine"), "mine");
    fs::create_hard_link(folders_.path("mine"), catalog + ending);
    expect_refused(ending + " as another name of a file");
    EXPECT_EQ(read_file(folders_.path("mine")), "mine");
    fs::remove(catalog + ending);
  }
  EXPECT_EQ(text_of(open()), "ok");
}

// He could rename what is in his folder, and put something else there.
TEST_F(TiersTrust, root_uses_nothing_in_a_folder_of_another_user) {
  tiers_ = {};
  const std::string his = folders_.path("his");
  for (const char* name : {"his/state", "his/tier"}) fs::create_directories(folders_.path(name));
  const auto create = [&](const std::string& catalog, const std::string& tier) {
    const NewTier one{.name = "one", .path = folders_.path(tier), .capacity_bytes = 1 << 20};
    return Tiers::create({&one, 1}, {}, {.catalog = folders_.path(catalog)});
  };
  for (const bool is_open_to_all : {false, true}) {
    const uid_t owner = is_open_to_all ? 0 : other_user;
    ASSERT_EQ(::chown(his.c_str(), owner, owner), 0);
    fs::permissions(his, fs::perms(is_open_to_all ? 0777 : 0755));
    for (const Result<Tiers>& refused : {create("his/state/a.db", "ssd"), create("a.db", "his/tier")}) {
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, Code::permission_denied) << text_of(refused);
      EXPECT_NE(refused.error().message.find(his), std::string::npos) << text_of(refused);
      EXPECT_NE(refused.error().hint, "");
    }
  }
  fs::permissions(his, fs::perms(01777));
  EXPECT_TRUE(create("his/state/a.db", "his/tier").ok()) << "as in /tmp";
  const auto reopen = [&] { return Tiers::open({.catalog = folders_.path("his/state/a.db")}); };
  ASSERT_TRUE(reopen().ok());
  ASSERT_EQ(::chown(his.c_str(), other_user, other_user), 0);
  EXPECT_EQ(reopen().error().code, Code::permission_denied);
}

TEST_F(TiersTrust, a_user_who_may_only_read_holds_no_lock_that_moves_wait_for) {
  put("nvme", "a", 1000);
  EXPECT_EQ(facts_of(folders_.catalog()).st_mode & 0777, 0600U);
  fs::permissions(folders_.catalog(), fs::perms(0644));
  fs::permissions(folders_.catalog() + "-units", fs::perms(0644));  // as earlier versions have made it
  EXPECT_EQ(text_of(tiers_.move("a", "hdd")), "ok");
  const auto may_open = [&](int flags) {
    return as_other([&] { return UniqueFd(::open((folders_.catalog() + "-units").c_str(), flags)).get() >= 0; });
  };
  EXPECT_FALSE(may_open(O_RDONLY));
  EXPECT_FALSE(may_open(O_RDWR));
  fs::permissions(folders_.catalog(), fs::perms(0664));
  EXPECT_EQ(text_of(tiers_.move("a", "ssd")), "ok");
  EXPECT_EQ(facts_of(folders_.catalog() + "-units").st_mode & 0777, 0660U);
}

}  // namespace
}  // namespace penstock::tiers
