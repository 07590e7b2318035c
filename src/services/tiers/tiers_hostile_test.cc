// What another user of this machine can do while root, or a service, works on his files. What he does between two steps
// happens at fault points, in a process with his identity.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "base/unique_fd.h"
#include "penstock/leftovers.h"
#include "penstock/models.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using namespace test;

// Once, at that point.
class AtPoint {
 public:
  AtPoint(std::string_view point, std::function<void()> work) {
    set_fault_hook([point, work = std::move(work), done = false](std::string_view name) mutable {
      if (done || name != point) return;
      done = true;
      work();
    });
  }
  ~AtPoint() { set_fault_hook({}); }
  AtPoint(const AtPoint&) = delete;
  AtPoint& operator=(const AtPoint&) = delete;
};

// `openat2` as it is, missing as in old kernels, and refused as in some containers.
class TiersHostile : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
    fs::permissions(folders_.path("."), fs::perms(0755));
    fs::permissions(folders_.path("nvme"), fs::perms(0755));
    write_file(secret(), bytes_of("secret", 1, 5000));
    fs::permissions(secret(), fs::perms(0600));
    fs::permissions(folders_.path("root"), fs::perms(0700));
    for (const char* tier : {"nvme", "hdd"}) {
      fs::create_directory(folders_.path(tier) / "home");
      give(folders_.path(tier) / "home");
    }
  }
  // What is root's, and must stay as it is.
  fs::path secret() const { return folders_.path("root/secret"); }
  void expect_secret() {
    const struct stat file = facts_of(secret());
    const struct stat folder = facts_of(folders_.path("root"));
    EXPECT_EQ(file.st_uid, 0U);
    EXPECT_EQ(file.st_mode & 07777, 0600U);
    EXPECT_EQ(folder.st_uid, 0U);
    EXPECT_EQ(folder.st_mode & 07777, 0700U);
    EXPECT_EQ(read_file(secret()), bytes_of("secret", 1, 5000));
  }
  static void give(const fs::path& path) { ASSERT_EQ(::lchown(path.c_str(), other_user, other_user), 0) << path; }
  // A file of the other user's on the fastest tier.
  void put_of_other(const std::string& name, std::size_t size = 5000) {
    const fs::path path = folders_.path("nvme") / name;
    write_file(path, bytes_of(name, 1, size));
    for (fs::path each = path; each != folders_.path("nvme"); each = each.parent_path()) give(each);
  }
  // In a thread of its own, since a filter of system calls can't be taken away.
  void run(const std::function<void()>& work) {
    std::thread([&] {
      if (GetParam() == 0 || refuse_call(SYS_openat2, GetParam())) return work();
      ADD_FAILURE() << "no seccomp filter can be installed here";
    }).join();
  }
  // That no file of the tier has the bytes of the secret.
  void expect_no_copy(const std::string& tier) {
    for (const auto& entry : fs::recursive_directory_iterator(folders_.path(tier))) {
      if (!entry.is_regular_file()) continue;
      EXPECT_NE(read_file(entry.path()), read_file(secret())) << entry.path();
    }
  }

  Folders folders_;
};

INSTANTIATE_TEST_SUITE_P(, TiersHostile, testing::Values(0, ENOSYS, EPERM), [](const auto& test) {
  return test.param == 0 ? "openat2" : test.param == ENOSYS ? "without_openat2" : "openat2_refused";
});

TEST_P(TiersHostile, a_folder_above_a_unit_that_becomes_a_link_gives_nothing_of_roots_away) {
  run([&] {
    Tiers tiers = folders_.create();
    put_of_other("home/d/a");
    ASSERT_EQ(text_of(tiers.import("home/d/a")), "ok");
    bool done = false;
    const AtPoint hook("parent", [&] {
      done = as_other([&] {
        const fs::path target = folders_.path("hdd/home/d");
        ::rmdir(target.c_str());
        return ::symlink(folders_.path("root").c_str(), target.c_str()) == 0;
      });
    });
    EXPECT_FALSE(tiers.move("home/d/a", "hdd").ok());
    EXPECT_TRUE(done);
    expect_secret();
    EXPECT_EQ(read_file(folders_.path("nvme/home/d/a")), bytes_of("home/d/a", 1, 5000));
    EXPECT_EQ(folders_.aside(), std::vector<std::string>());
  });
}

TEST_P(TiersHostile, folders_above_a_unit_get_the_owner_and_mode_of_those_that_it_leaves) {
  run([&] {
    Tiers tiers = folders_.create();
    put_of_other("home/d/e/a");
    fs::permissions(folders_.path("nvme/home/d"), fs::perms(0750));
    ASSERT_EQ(text_of(tiers.import("home/d/e/a")), "ok");
    ASSERT_EQ(text_of(tiers.move("home/d/e/a", "hdd")), "ok");
    for (const char* folder : {"hdd/home/d", "hdd/home/d/e"})
      EXPECT_EQ(facts_of(folders_.path(folder)).st_uid, other_user);
    EXPECT_EQ(facts_of(folders_.path("hdd/home/d")).st_mode & 07777, 0750U);
    EXPECT_EQ(folders_.aside(), std::vector<std::string>());
  });
}

// The other user puts a link, or another file, where the copy is about to read, and all as it was when it has.
TEST_P(TiersHostile, a_file_of_roots_is_not_copied_in_the_place_of_another) {
  for (const bool by_link : {true, false}) {
    for (const int files : {2, 400}) {  // with leases, and without
      for (const std::size_t size : {std::size_t{5000}, std::size_t{5} << 20}) {
        if (files > 2 && size > 5000) continue;
        run([&] {
          Tiers tiers = folders_.create();
          for (int i = 0; i < files; ++i) put_of_other("home/model/d/" + std::to_string(i), size);
          fs::remove(secret());
          write_file(secret(), bytes_of("secret", 2, size));
          ASSERT_EQ(text_of(tiers.import("home/model")), "ok");
          const fs::path model = folders_.path("nvme/home/model");
          const auto as_it_was = [&] {
            if (by_link) {
              ::unlink((model / "d").c_str());
              ::rename((model / "..d").c_str(), (model / "d").c_str());
            } else {
              ::rename((model / "d/1").c_str(), secret().c_str());
              ::rename((model.parent_path() / "1").c_str(), (model / "d/1").c_str());
            }
          };
          set_fault_hook([&](std::string_view point) {
            if (point == "journaled" && by_link) {
              fs::rename(secret(), secret().parent_path() / "1");
              EXPECT_TRUE(as_other([&] {
                return ::rename((model / "d").c_str(), (model / "..d").c_str()) == 0 &&
                       ::symlink(folders_.path("root").c_str(), (model / "d").c_str()) == 0;
              }));
            } else if (point == "journaled") {
              fs::rename(model / "d/1", model.parent_path() / "1");
              fs::rename(secret(), model / "d/1");
            } else if (point == "synced") {
              as_it_was();
            }
          });
          const auto moved = tiers.move("home/model", "hdd");
          set_fault_hook({});
          if (fs::is_symlink(model / "d") || !by_link) as_it_was();
          EXPECT_FALSE(moved.ok()) << by_link << files;
          fs::create_directories(secret().parent_path());
          if (by_link) fs::rename(secret().parent_path() / "1", secret());
          EXPECT_EQ(read_file(secret()), bytes_of("secret", 2, size));
          expect_no_copy("hdd");
        });
        fs::remove_all(folders_.path("nvme/home/model"));
        for (const char* tier : {"nvme", "ssd", "hdd"}) fs::remove_all(folders_.path(tier) / ".penstock");
        for (const char* ending : {"", "-wal", "-shm", "-units"}) fs::remove(folders_.catalog() + ending);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(TiersHostile, what_is_removed_leads_nowhere_else) {
  for (const std::string act : {"move", "remove"}) {
    run([&] {
      Tiers tiers = folders_.create();
      const fs::path model = folders_.path("nvme/home/model");
      put_of_other("home/model/d/e/a");
      ASSERT_EQ(text_of(tiers.import("home/model")), "ok");
      // He has had it open since before it went where he can't follow by name.
      const UniqueFd held(::open((model / "d").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      int times = 0;
      set_fault_hook([&](std::string_view point) {
        if (point != "removing" || ++times != 3) return;
        EXPECT_TRUE(as_other([&] {
          return ::renameat(held.get(), "e", held.get(), "moved") == 0 &&
                 ::symlinkat(folders_.path("root").c_str(), held.get(), "e") == 0;
        }));
      });
      const Status done = act == "remove" ? tiers.remove("home/model") : [&]() -> Status {
        const auto moved = tiers.move("home/model", "hdd");
        return moved ? Status() : Status(moved.error());
      }();
      set_fault_hook({});
      EXPECT_GE(times, 3) << text_of(done);
      expect_secret();
      tiers = {};
      auto again = Tiers::open(folders_.options());
      ASSERT_TRUE(again.ok()) << text_of(again);
      ASSERT_TRUE(again->check().ok());
      expect_secret();
      EXPECT_EQ(folders_.aside(), std::vector<std::string>());
    });
    fs::remove_all(folders_.path("hdd/home/model"));
    for (const char* tier : {"nvme", "ssd", "hdd"}) fs::remove_all(folders_.path(tier) / ".penstock");
    for (const char* ending : {"", "-wal", "-shm", "-units"}) fs::remove(folders_.catalog() + ending);
  }
}

// The mode of a source changes while it moves, and its copy, which gets it, becomes a link.
TEST_P(TiersHostile, a_copy_that_becomes_a_link_gets_no_owner_or_mode) {
  run([&] {
    Tiers tiers = folders_.create();
    put_of_other("home/a");
    ASSERT_EQ(text_of(tiers.import("home/a")), "ok");
    bool done = false;
    set_fault_hook([&](std::string_view point) {
      if (point == "committed") {
        ::chmod(folders_.path("nvme/home/a").c_str(), 0777);
      } else if (point == "owning") {
        done = as_other([&] {
          const std::string copy = folders_.path("hdd/home/a");
          return ::unlink(copy.c_str()) == 0 && ::symlink(secret().c_str(), copy.c_str()) == 0;
        });
      }
    });
    static_cast<void>(tiers.move("home/a", "hdd"));
    set_fault_hook({});
    EXPECT_TRUE(done);
    expect_secret();
    EXPECT_EQ(read_file(folders_.path("nvme/home/a")), bytes_of("home/a", 1, 5000));
  });
}

TEST_P(TiersHostile, a_directory_that_becomes_a_link_while_it_is_looked_at_is_not_followed) {
  run([&] {
    Tiers tiers = folders_.create();
    put_of_other("home/model/a");
    const fs::path model = folders_.path("nvme/home/model");
    const AtPoint hook("looking", [&] {
      EXPECT_TRUE(as_other([&] {
        return ::rename(model.c_str(), (model.string() + ".old").c_str()) == 0 &&
               ::symlink(folders_.path("root").c_str(), model.c_str()) == 0;
      }));
    });
    EXPECT_FALSE(tiers.import("home/model").ok());
    EXPECT_FALSE(tiers.import("home/model/secret").ok());
    const auto all = tiers.import_all("nvme");
    ASSERT_TRUE(all.ok()) << text_of(all);
    EXPECT_FALSE(tiers.find("home/model/secret").ok());
    expect_secret();
  });
}

TEST_P(TiersHostile, a_unit_below_a_link_is_neither_read_nor_written) {
  run([&] {
    Tiers tiers = folders_.create();
    put_of_other("home/d/secret");
    put_of_other("home/model/secret");
    for (const char* name : {"home/d/secret", "home/model"}) ASSERT_EQ(text_of(tiers.import(name)), "ok");
    auto context = Context::create({.lanes = 1});
    ASSERT_TRUE(context.ok() && tiers.serve(*context).ok());
    const fs::path home = folders_.path("nvme/home");
    ASSERT_TRUE(as_other([&] {
      for (const std::string name : {"d", "model"}) {
        if (::rename((home / name).c_str(), (home / (name + ".old")).c_str()) != 0) return false;
        if (::symlink(folders_.path("root").c_str(), (home / name).c_str()) != 0) return false;
      }
      return true;
    }));
    for (const Access access : {Access::read, Access::write, Access::create, Access::replace}) {
      auto store = context->open("tier:home/d/secret", {.access = access});
      // What replaces it is written aside.
      EXPECT_FALSE(store.ok() && (access != Access::replace || store->commit().ok())) << static_cast<int>(access);
      EXPECT_FALSE(context->open("tier:home/model/secret", {.access = access}).ok()) << static_cast<int>(access);
    }
    expect_secret();
    EXPECT_FALSE(tiers.remove("home/d/secret").ok());
    expect_secret();
  });
}

TEST_P(TiersHostile, a_file_that_replaces_one_in_a_directory_takes_its_name_where_it_was_found) {
  run([&] {
    Tiers tiers = folders_.create();
    put_of_other("home/model/d/secret");
    ASSERT_EQ(text_of(tiers.import("home/model")), "ok");
    auto context = Context::create({.lanes = 1});
    ASSERT_TRUE(context.ok() && tiers.serve(*context).ok());
    const fs::path folder = folders_.path("nvme/home/model/d");
    bool done = false;
    const AtPoint hook("replacing", [&] {
      done = as_other([&] {
        return ::rename(folder.c_str(), (folder.string() + ".old").c_str()) == 0 &&
               ::symlink(folders_.path("root").c_str(), folder.c_str()) == 0;
      });
    });
    std::string bytes = bytes_of("new", 1, 100);
    auto store = context->open("tier:home/model/d/secret", {.access = Access::replace, .size_bytes = bytes.size()});
    EXPECT_TRUE(done);
    if (store.ok()) {
      EXPECT_TRUE(context->write(*store, 0, Region::host(bytes.data(), bytes.size())).ok());
      static_cast<void>(store->commit());
    }
    expect_secret();
    EXPECT_EQ(std::distance(fs::directory_iterator(folders_.path("root")), fs::directory_iterator()), 1);
    ASSERT_TRUE(store.ok()) << text_of(store);
    EXPECT_EQ(read_file(folder.string() + ".old/secret"), bytes);
  });
}

// A folder that any user may write to, as /tmp is one.
TEST_P(TiersHostile, what_another_user_has_made_of_a_tiers_own_folder_is_refused) {
  const std::string hdd = folders_.path("hdd");
  fs::permissions(hdd, fs::perms(01777));
  for (const std::string own : {"folder", "going", "coming", "link"}) {
    run([&] {
      ASSERT_TRUE(as_other([&] {
        const std::string folder = hdd + "/.penstock";
        if (own == "link") return ::symlink(folders_.path("root").c_str(), folder.c_str()) == 0;
        if (::mkdir(folder.c_str(), 0777) != 0 || ::chmod(folder.c_str(), 0777) != 0) return false;
        if (own != "folder") return ::symlink(folders_.path("root").c_str(), (folder + "/" + own).c_str()) == 0;
        return ::symlink(secret().c_str(), (folder + "/tier.json.part").c_str()) == 0;
      }));
      const auto made = Tiers::create(folders_.tiers(), {}, folders_.options());
      ASSERT_FALSE(made.ok());
      EXPECT_EQ(made.error().code, Code::permission_denied) << text_of(made);
      EXPECT_NE(made.error().hint, "");
      EXPECT_FALSE(fs::exists(folders_.catalog()));
      expect_secret();
      EXPECT_EQ(std::distance(fs::directory_iterator(folders_.path("root")), fs::directory_iterator()), 1);
    });
    fs::remove_all(folders_.path("hdd/.penstock"));
  }
}

TEST_P(TiersHostile, a_tier_whose_folder_is_another_users_is_refused) {
  for (const bool is_open_to_all : {false, true}) {
    run([&] {
      const std::string hdd = folders_.path("hdd");
      if (is_open_to_all) {
        fs::permissions(hdd, fs::perms(0777));
      } else {
        give(hdd);
      }
      const auto made = Tiers::create(folders_.tiers(), {}, folders_.options());
      ASSERT_FALSE(made.ok());
      EXPECT_EQ(made.error().code, Code::permission_denied) << text_of(made);
      EXPECT_NE(made.error().hint.find(hdd), std::string::npos) << made.error().hint;
      ASSERT_EQ(::chown(hdd.c_str(), 0, 0), 0);
      fs::permissions(hdd, fs::perms(0755));
      EXPECT_TRUE(Tiers::create(folders_.tiers(), {}, folders_.options()).ok());
    });
    for (const char* tier : {"nvme", "ssd", "hdd"}) fs::remove_all(folders_.path(tier) / ".penstock");
    for (const char* ending : {"", "-wal", "-shm", "-units"}) fs::remove(folders_.catalog() + ending);
  }
}

// The folder of a tier may be one that any user may write to, as /tmp is. What is in a folder that only root can enter
// must not come to lie in one that the other user has made there.
TEST_P(TiersHostile, what_moves_comes_into_no_folder_that_another_user_has_made_for_it) {
  for (const bool is_late : {false, true}) {
    run([&] {
      for (const char* tier : {"nvme", "hdd"}) fs::permissions(folders_.path(tier), fs::perms(01777));
      Tiers tiers = folders_.create();
      for (const char* name : {"private/a", "private/d/b"}) {
        write_file(folders_.path("nvme") / name, bytes_of(name, 1, 5000));
        ASSERT_EQ(text_of(tiers.import(name)), "ok");
      }
      fs::permissions(folders_.path("nvme/private"), fs::perms(0700));
      const auto make = [&](const std::string& tier) {
        EXPECT_TRUE(as_other([&] { return ::mkdir((folders_.path(tier) / "private").c_str(), 0777) == 0; }));
      };
      {
        if (!is_late) make("hdd");
        const AtPoint hook("parent", [&] { make("hdd"); });
        const auto moved = tiers.move("private/a", "hdd");
        ASSERT_FALSE(moved.ok() && moved->ok());
        const Error error = !moved.ok() ? moved.error() : moved->failures.at(0).error;
        EXPECT_EQ(error.code, Code::permission_denied) << error.message;
        EXPECT_NE(error.hint.find("chown"), std::string::npos) << error.hint;
      }
      EXPECT_FALSE(fs::exists(folders_.path("hdd/private/a")));
      EXPECT_EQ(read_file(folders_.path("nvme/private/a")), bytes_of("private/a", 1, 5000));
      // What replaces a unit comes to the fastest tier.
      fs::remove(folders_.path("hdd/private"));
      ASSERT_EQ(text_of(tiers.move("private/a", "hdd")), "ok");
      EXPECT_EQ(facts_of(folders_.path("hdd/private")).st_mode & 07777, 0700U);
      EXPECT_EQ(text_of(tiers.move("private/d/b", "hdd")), "ok");
      fs::remove_all(folders_.path("nvme/private"));
      make("nvme");
      auto context = Context::create({.lanes = 1});
      ASSERT_TRUE(context.ok() && tiers.serve(*context).ok());
      std::string bytes = bytes_of("new", 1, 100);
      const auto replace = [&] {
        auto store = context->open("tier:private/a", {.access = Access::replace, .size_bytes = bytes.size()});
        if (!store.ok()) return store.error().code;
        EXPECT_TRUE(context->write(*store, 0, Region::host(bytes.data(), bytes.size())).ok());
        const Status done = store->commit();
        return done ? Code::internal : done.error().code;
      };
      EXPECT_EQ(replace(), Code::permission_denied);
      EXPECT_FALSE(fs::exists(folders_.path("nvme/private/a")));
      EXPECT_EQ(read_file(folders_.path("hdd/private/a")), bytes_of("private/a", 1, 5000));
      fs::remove(folders_.path("nvme/private"));
      EXPECT_EQ(replace(), Code::internal) << "it was done";
      EXPECT_EQ(facts_of(folders_.path("nvme/private")).st_mode & 07777, 0700U);
      EXPECT_EQ(folders_.aside(), std::vector<std::string>());
    });
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      fs::remove_all(folders_.path(tier) / "private");
      fs::remove_all(folders_.path(tier) / ".penstock");
    }
    for (const char* ending : {"", "-wal", "-shm", "-units"}) fs::remove(folders_.catalog() + ending);
  }
}

// The same without points: the other user exchanges folders for links as fast as he can. PENSTOCK_TIER_RACES rounds.
TEST_P(TiersHostile, in_a_race_nothing_of_roots_is_given_away_changed_or_deleted) {
  const char* const wanted = std::getenv("PENSTOCK_TIER_RACES");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 10;
  for (const char* model : {"home/model", "home/x"}) put_of_other(std::string(model) + "/d/secret");
  // What a writer of root's has left, that is, of another folder than those that are cleaned.
  const fs::path leftover = folders_.path("root/.secret.0123456789abcdef.part");
  write_file(leftover, "mine");
  fs::create_directories(folders_.path("hdd/home/x"));
  give(folders_.path("hdd/home/x"));
  const pid_t racer = ::fork();
  if (racer == 0) {
    const bool is_other = ::setgroups(0, nullptr) == 0 && ::setresgid(other_user, other_user, other_user) == 0 &&
                          ::setresuid(other_user, other_user, other_user) == 0;
    for (const char* tier : {"nvme", "hdd"}) {
      const fs::path home = folders_.path(tier) / "home";
      static_cast<void>(::symlink(folders_.path("root").c_str(), (home / "link").c_str()));
    }
    while (is_other) {
      for (const char* name : {"nvme/home/model/d", "hdd/home/model/d", "nvme/home/x", "hdd/home/x", "nvme/home/model",
                               "hdd/home/model"}) {
        const std::string link = (folders_.path(std::string(name).substr(0, 4)) / "home/link").lexically_normal();
        const std::string folder = folders_.path(name);
        for (int i = 0; i < 2; ++i) {
          static_cast<void>(::renameat2(AT_FDCWD, link.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE));
        }
      }
    }
    ::_exit(1);
  }
  run([&] {
    static_cast<void>(folders_.create());
    TiersOptions options = folders_.options();
    options.wait_seconds = 0.05;  // a write waits for a unit that has moved, as often as he makes it look so
    auto opened = Tiers::open(options);
    ASSERT_TRUE(opened.ok()) << text_of(opened);
    Tiers tiers = *opened;
    auto context = Context::create({.lanes = 1});
    ASSERT_TRUE(context.ok() && tiers.serve(*context).ok());
    std::string bytes = bytes_of("new", 1, 5000);
    const Region memory = Region::host(bytes.data(), bytes.size());
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      for (const char* to : {"hdd", "nvme"}) {
        static_cast<void>(tiers.import("home/model"));
        static_cast<void>(tiers.import("home/x/d/secret"));
        static_cast<void>(tiers.import_all(to));
        std::vector<PlannedMove> moves;
        for (const char* name : {"home/model", "home/x/d/secret"}) {
          if (tiers.find(name).ok()) moves.push_back({.name = name, .to = to});
        }
        static_cast<void>(tiers.move(moves));
        static_cast<void>(tiers.rebalance());
        static_cast<void>(tiers.check({.bytes = true}));
      }
      static_cast<void>(tiers.remove("home/x/d/secret"));
      static_cast<void>(tiers.add(folders_.path("nvme/home/model/d").string(), "home/added"));
      static_cast<void>(tiers.remove("home/added"));
      for (const char* name : {"tier:home/model/d/secret", "tier:home/x/d/secret", "tier:home/x/new/secret"}) {
        for (const Access access : {Access::write, Access::create, Access::replace}) {
          auto store = context->open(name, {.access = access, .size_bytes = bytes.size()});
          if (!store.ok()) continue;
          static_cast<void>(context->write(*store, 0, memory));
          static_cast<void>(store->commit());
        }
        const TensorToSave tensor{.name = "a", .shape = {bytes.size()}, .memory = memory};
        static_cast<void>(save_safetensors(*context, name, {&tensor, 1}));
      }
      static_cast<void>(tiers.change_tier({.name = "hdd", .path = folders_.path("hdd"), .adopt = true}));
      for (const char* tier : {"nvme", "hdd"}) {
        static_cast<void>(remove_leftovers(folders_.path(tier), {.recursive = true}));
      }
      expect_secret();
      EXPECT_EQ(read_file(leftover), "mine");
      EXPECT_EQ(std::distance(fs::directory_iterator(folders_.path("root")), fs::directory_iterator()), 2);
    }
  });
  ::kill(racer, SIGKILL);
  ::waitpid(racer, nullptr, 0);
  for (const char* tier : {"nvme", "ssd", "hdd"}) {
    for (const auto& entry : fs::recursive_directory_iterator(folders_.path(tier))) {
      // He named the source himself in `add`, so a copy may be there; but it is root's.
      if (!entry.is_regular_file() || read_file(entry.path()) != read_file(secret())) continue;
      const struct stat status = facts_of(entry.path());
      EXPECT_TRUE(status.st_uid == 0 && (status.st_mode & 077) == 0) << entry.path();
    }
  }
}

}  // namespace
}  // namespace penstock::tiers
