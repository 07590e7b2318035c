// Kills a process at every step of every kind of change, and looks whether each unit is whole, in one place.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "services/tiers/fault_point.h"
#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using namespace test;

// What may lie under a name: a version, or nothing.
struct Allowed {
  std::vector<std::string> contents;
  bool may_be_missing = false;
};

struct Scenario {
  const char* name;
  std::function<void(const Folders&, Tiers&)> prepare;
  std::function<bool(const Folders&, Tiers&)> run;  // in the process that dies
  std::map<std::string, Allowed> allowed;
};

constexpr int many = 70;
const std::string small = bytes_of("small", 1, 5000);
const std::string other = bytes_of("other", 1, 70000);
const std::string large = bytes_of("large", 1, (5 << 20) + 123);
const std::string fresh = bytes_of("fresh", 2, 300000);

bool write_through(Tiers& tiers, const std::string& name, std::string bytes) {
  auto context = Context::create({.lanes = 1});
  if (!context || !tiers.serve(*context)) return false;
  auto store = context->open("tier:" + name, {.access = Access::replace, .size_bytes = bytes.size()});
  if (!store) return false;
  if (!context->write(*store, 0, Region::host(bytes.data(), bytes.size())).ok()) return false;
  return store->commit().ok();
}

std::vector<Scenario> scenarios() {
  const auto few = [](const Folders& folders, Tiers& tiers) {
    write_file(folders.path("nvme/other"), other);
    write_file(folders.path("nvme/model/one"), small);
    write_file(folders.path("nvme/model/deep/two"), other);
    for (const char* name : {"other", "model"}) ASSERT_TRUE(tiers.import(name).ok());
  };
  const auto files = [few](const Folders& folders, Tiers& tiers) {
    few(folders, tiers);
    write_file(folders.path("nvme/a/small"), small);
    write_file(folders.path("nvme/large"), large);
    for (const char* name : {"a/small", "large"}) ASSERT_TRUE(tiers.import(name).ok());
  };
  const std::map<std::string, Allowed> few_as_they_were = {
      {"other", {{other}}}, {"model/one", {{small}}}, {"model/deep/two", {{other}}}};
  auto as_they_were = few_as_they_were;
  as_they_were["a/small"] = {{small}};
  as_they_were["large"] = {{large}};
  std::map<std::string, Allowed> many_as_they_were;
  for (int i = 0; i < many; ++i) many_as_they_were["many/" + std::to_string(i)] = {{small}};
  auto replaced = few_as_they_were;
  replaced["other"] = {{other, fresh}};
  auto added = few_as_they_were;
  added["new/file"] = {{fresh}, true};
  auto removed = few_as_they_were;
  removed["model/one"].may_be_missing = removed["model/deep/two"].may_be_missing = true;
  return {
      {"move", files,
       [](const Folders&, Tiers& tiers) {
         const std::vector<PlannedMove> moves = {{.name = "a/small", .to = "hdd"},
                                                 {.name = "other", .to = "hdd"},
                                                 {.name = "large", .to = "hdd"},
                                                 {.name = "model", .to = "hdd"}};
         const auto report = tiers.move(moves);
         return report.ok() && report->ok() && report->units <= 4;
       },
       as_they_were},
      // Enough for two batches, at which several threads work.
      {"move many",
       [](const Folders& folders, Tiers& tiers) {
         for (int i = 0; i < many; ++i) write_file(folders.path("nvme/many/" + std::to_string(i)), small);
         ASSERT_TRUE(tiers.import_all("nvme").ok());
       },
       [](const Folders&, Tiers& tiers) {
         std::vector<PlannedMove> moves;
         for (int i = 0; i < many; ++i) moves.push_back({.name = "many/" + std::to_string(i), .to = "hdd"});
         const auto report = tiers.move(moves);
         return report.ok() && report->ok();
       },
       many_as_they_were},
      {"replace", few, [](const Folders&, Tiers& tiers) { return write_through(tiers, "other", fresh); }, replaced},
      {"replace on another tier",
       [few](const Folders& folders, Tiers& tiers) {
         few(folders, tiers);
         ASSERT_TRUE(tiers.move("other", "hdd").ok());
       },
       [](const Folders&, Tiers& tiers) { return write_through(tiers, "other", fresh); }, replaced},
      {"write", few, [](const Folders&, Tiers& tiers) { return write_through(tiers, "new/file", fresh); }, added},
      {"add",
       [few](const Folders& folders, Tiers& tiers) {
         few(folders, tiers);
         write_file(folders.path("elsewhere"), fresh);
       },
       [](const Folders& folders, Tiers& tiers) {
         const auto known = tiers.find("new/file");
         return known.ok() || tiers.add(folders.path("elsewhere").string(), "new/file").ok();
       },
       added},
      {"remove", few,
       [](const Folders&, Tiers& tiers) { return !tiers.find("model").ok() || tiers.remove("model").ok(); }, removed},
  };
}

// Whether it came to the point: it is dead then.
bool dies_at(const Folders& folders, const Scenario& scenario, std::string_view point, int times) {
  const pid_t child = ::fork();
  if (child == 0) {
    int left = times;
    set_fault_hook([&](std::string_view name) {
      if (name == point && --left == 0) ::kill(::getpid(), SIGKILL);
    });
    auto tiers = Tiers::open(folders.options());
    const bool done = tiers.ok() && scenario.run(folders, *tiers);
    ::_exit(done ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(died || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << scenario.name << " at " << point;
  return died;
}

void expect_whole(const Folders& folders, const Scenario& scenario, Tiers& tiers, const std::string& when) {
  for (const auto& [name, allowed] : scenario.allowed) {
    const auto places = folders.where(name);
    if (places.empty() && allowed.may_be_missing) continue;
    ASSERT_EQ(places.size(), 1U) << name << " " << when;
    const std::string content = read_file(folders.path(places[0] + "/" + name));
    EXPECT_TRUE(std::ranges::find(allowed.contents, content) != allowed.contents.end()) << name << " " << when;
    const auto path = tiers.path_of(name);
    ASSERT_TRUE(path.ok()) << when;
    EXPECT_EQ(*path, folders.path(places[0] + "/" + name).string()) << when;
  }
  EXPECT_EQ(folders.aside(), std::vector<std::string>()) << when;
  const auto checked = tiers.check({.bytes = true});
  ASSERT_TRUE(checked.ok()) << text_of(checked) << when;
  EXPECT_EQ(text_of(*checked), "") << when;
}

// How often a scenario comes to each point if nothing stops it.
std::map<std::string, int, std::less<>> points_of(const Scenario& scenario) {
  std::mutex mutex;
  std::map<std::string, int, std::less<>> points;
  const Folders folders;
  {
    Tiers tiers = folders.create();
    scenario.prepare(folders, tiers);
  }
  set_fault_hook([&](std::string_view name) {
    const std::lock_guard lock(mutex);
    ++points[std::string(name)];
  });
  {
    auto tiers = Tiers::open(folders.options());
    EXPECT_TRUE(tiers.ok() && scenario.run(folders, *tiers)) << scenario.name;
  }
  set_fault_hook({});
  return points;
}

// With PENSTOCK_TIER_KILLS also when it comes to a point for the second time.
TEST(TiersCrash, every_unit_is_whole_in_one_place_whenever_the_process_dies) {
  const int most_times = std::getenv("PENSTOCK_TIER_KILLS") != nullptr ? 2 : 1;
  int deaths = 0;
  for (const Scenario& scenario : scenarios()) {
    for (const auto& [point, reached] : points_of(scenario)) {
      for (int times = 1; times <= std::min(reached, most_times); ++times) {
        const Folders folders;
        {
          Tiers tiers = folders.create();
          scenario.prepare(folders, tiers);
        }
        const std::string when =
            std::string(scenario.name) + ", killed at " + point + ", time " + std::to_string(times);
        // Some come only if a copy takes long.
        if (!dies_at(folders, scenario, point, times)) break;
        ++deaths;
        auto tiers = Tiers::open(folders.options());
        ASSERT_TRUE(tiers.ok()) << when;
        // What was staged before the catalog knew of it is found by who looks.
        ASSERT_TRUE(tiers->recover().ok()) << when;
        expect_whole(folders, scenario, *tiers, when);
        // And it goes on from there.
        EXPECT_TRUE(scenario.run(folders, *tiers)) << when;
        expect_whole(folders, scenario, *tiers, when + ", then again");
        if (HasFatalFailure()) return;
      }
    }
  }
  std::printf("%d processes were killed\n", deaths);
  EXPECT_GT(deaths, 40 * most_times);
}

// The process that puts things right may die too.
TEST(TiersCrash, recovery_may_be_killed_as_well) {
  const auto all = scenarios();
  const Scenario& scenario = all.front();
  for (const std::string_view first : {"named", "committed", "aside"}) {
    for (const std::string_view second : {"committed", "aside", "emptied", "cleared", "forgotten"}) {
      const Folders folders;
      {
        Tiers tiers = folders.create();
        scenario.prepare(folders, tiers);
      }
      if (!dies_at(folders, scenario, first, 1)) continue;
      static_cast<void>(dies_at(folders, scenario, second, 1));
      auto tiers = Tiers::open(folders.options());
      ASSERT_TRUE(tiers.ok());
      ASSERT_TRUE(tiers->recover().ok());
      expect_whole(folders, scenario, *tiers, std::string(first) + ", then " + std::string(second));
    }
  }
}

// In a process of its own, which does `at` when it comes to the point.
void move_until(const Folders& folders, const std::string& name, std::string_view point,
                const std::function<void()>& at) {
  const pid_t child = ::fork();
  if (child == 0) {
    set_fault_hook([&](std::string_view reached) {
      if (reached == point) at();
    });
    auto tiers = Tiers::open(folders.options());
    if (tiers) static_cast<void>(tiers->move(name, "ssd"));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

TEST(TiersCrash, a_source_stays_until_the_catalog_has_its_copy) {
  const Folders folders;
  Tiers tiers = folders.create();
  write_file(folders.path("nvme/a"), other);
  ASSERT_TRUE(tiers.import("a").ok());
  // From here on nothing can be written any more.
  move_until(folders, "a", "settled", [] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_FSIZE, &none);
  });
  EXPECT_EQ(read_file(folders.path("nvme/a")), other);
  ASSERT_TRUE(tiers.check({}).ok());
  EXPECT_EQ(folders.where("a").size(), 1U);
  const auto path = tiers.path_of("a");
  ASSERT_TRUE(path.ok()) << text_of(path);
  EXPECT_EQ(read_file(*path), other);
}

// A large copy whose process is killed when two pieces of it are safe.
constexpr std::uint64_t safe_bytes = 16 << 20;
std::string very_large() {
  return bytes_of("very large", 1, safe_bytes + (9 << 20));
}

void kill_a_large_copy(const Folders& folders) {
  write_file(folders.path("nvme/a"), very_large());
  {
    Tiers tiers = folders.create();
    ASSERT_TRUE(tiers.import("a").ok());
  }
  int pieces = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    set_fault_hook([&](std::string_view point) {
      // It is made safe every second.
      if (point == "copying" && ++pieces == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
      if (point == "saved" && pieces >= 2) ::kill(::getpid(), SIGKILL);
    });
    auto tiers = Tiers::open(folders.options());
    if (tiers) static_cast<void>(tiers->move("a", "ssd"));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it was not made safe";
}

TEST(TiersCrash, a_large_copy_goes_on_where_it_was_safe) {
  const Folders folders;
  kill_a_large_copy(folders);
  auto tiers = Tiers::open(folders.options());
  ASSERT_TRUE(tiers.ok());
  const auto moved = tiers->move("a", "ssd");
  ASSERT_TRUE(moved.ok()) << text_of(moved);
  EXPECT_EQ(moved->resumed_bytes, safe_bytes);
  EXPECT_TRUE(read_file(folders.path("ssd/a")) == very_large());
  EXPECT_EQ(folders.where("a"), std::vector<std::string>{"ssd"});
}

TEST(TiersCrash, what_is_left_of_a_large_copy_goes_with_a_unit_that_is_forgotten) {
  const Folders folders;
  kill_a_large_copy(folders);
  auto tiers = Tiers::open(folders.options());
  ASSERT_TRUE(tiers.ok());
  const Status forgotten = tiers->forget("a");
  EXPECT_TRUE(forgotten.ok()) << text_of(forgotten);
  EXPECT_EQ(folders.aside(), std::vector<std::string>());
  EXPECT_TRUE(read_file(folders.path("nvme/a")) == very_large());
}

TEST(TiersCrash, a_copy_of_what_was_changed_meanwhile_is_made_anew_whatever_its_time_says) {
  const Folders folders;
  kill_a_large_copy(folders);
  const auto time = fs::last_write_time(folders.path("nvme/a"));
  {
    std::fstream source(folders.path("nvme/a"), std::ios::in | std::ios::out | std::ios::binary);
    source.seekp(safe_bytes + 1000);  // what was not copied yet
    source << "changed";
  }
  fs::last_write_time(folders.path("nvme/a"), time);
  const std::string changed = read_file(folders.path("nvme/a"));
  auto tiers = Tiers::open(folders.options());
  ASSERT_TRUE(tiers.ok());
  const auto moved = tiers->move("a", "ssd");
  ASSERT_TRUE(moved.ok()) << text_of(moved);
  EXPECT_EQ(moved->resumed_bytes, 0U);
  EXPECT_TRUE(read_file(folders.path("ssd/a")) == changed);
}

TEST(TiersCrash, a_copy_that_was_damaged_meanwhile_is_made_anew) {
  const Folders folders;
  kill_a_large_copy(folders);
  ASSERT_EQ(folders.aside().size(), 1U);
  {
    std::fstream copy(folders.aside().front(), std::ios::in | std::ios::out | std::ios::binary);
    copy.seekp(1 << 20);
    copy << "damaged";
  }
  auto tiers = Tiers::open(folders.options());
  ASSERT_TRUE(tiers.ok());
  const auto moved = tiers->move("a", "ssd");
  ASSERT_TRUE(moved.ok()) << text_of(moved);
  EXPECT_EQ(moved->resumed_bytes, 0U);
  EXPECT_TRUE(read_file(folders.path("ssd/a")) == very_large());
  EXPECT_EQ(folders.aside(), std::vector<std::string>());
}

TEST(TiersCrash, recovery_deletes_no_file_that_took_the_place_of_one_that_was_removed_or_replaced) {
  const Scenario removal{"remove", {}, [](const Folders&, Tiers& tiers) { return tiers.remove("other").ok(); }, {}};
  const Scenario write{
      "write", {}, [](const Folders&, Tiers& tiers) { return write_through(tiers, "other", fresh); }, {}};
  for (const auto& [scenario, point] : {std::pair(&removal, "aside"), std::pair(&removal, "forgotten"),
                                        std::pair(&write, "committed"), std::pair(&write, "emptied")}) {
    const Folders folders;
    {
      Tiers tiers = folders.create();
      write_file(folders.path("hdd/other"), other);
      ASSERT_TRUE(tiers.import("other").ok());
    }
    ASSERT_TRUE(dies_at(folders, *scenario, point, 1)) << scenario->name << " at " << point;
    write_file(folders.path("hdd/other"), small);  // in the same inode, where there still is one
    auto tiers = Tiers::open(folders.options());
    ASSERT_TRUE(tiers.ok()) << text_of(tiers);
    const auto checked = tiers->check({});
    ASSERT_TRUE(checked.ok()) << text_of(checked);
    EXPECT_EQ(read_file(folders.path("hdd/other")), small) << scenario->name << " at " << point;
  }
}

// What was about to be removed is the unit until the catalog has forgotten it, whoever comes next.
TEST(TiersCrash, a_unit_whose_removal_died_is_there_for_whoever_comes_next) {
  const Scenario removal{"remove", {}, [](const Folders&, Tiers& tiers) { return tiers.remove("a/other").ok(); }, {}};
  const std::map<std::string, std::function<void(const Folders&, Tiers&)>> next = {
      {"forget", [](const Folders&, Tiers& tiers) { EXPECT_EQ(text_of(tiers.forget("a/other")), "ok"); }},
      {"import", [](const Folders&, Tiers& tiers) { EXPECT_EQ(text_of(tiers.import("a/other")), "ok"); }},
      {"move", [](const Folders&, Tiers& tiers) { EXPECT_EQ(text_of(tiers.move("a/other", "ssd")), "ok"); }},
      {"check", [](const Folders&, Tiers& tiers) { EXPECT_TRUE(tiers.check().ok()); }},
      {"read",
       [](const Folders&, Tiers& tiers) {
         auto context = Context::create({.lanes = 1});
         ASSERT_TRUE(context.ok() && tiers.serve(*context).ok());
         EXPECT_EQ(text_of(context->open("tier:a/other")), "ok");
       }},
      {"change",
       [](const Folders&, Tiers& tiers) {
         auto context = Context::create({.lanes = 1});
         ASSERT_TRUE(context.ok() && tiers.serve(*context).ok());
         EXPECT_EQ(text_of(context->open("tier:a/other", {.access = Access::write})), "ok");
       }},
      {"check without its folder",
       [](const Folders& folders, Tiers& tiers) {
         fs::remove_all(folders.path("hdd/a"));
         EXPECT_TRUE(tiers.check().ok());
       }},
      {"check when it can't be put back at first",
       [](const Folders& folders, Tiers& tiers) {
         {
           const ProtectedPath folder(folders.path("hdd/a"), FS_IMMUTABLE_FL);
           EXPECT_NE(text_of(tiers.check().value()), "");
         }
         EXPECT_TRUE(tiers.check().ok());
       }},
  };
  for (const auto& [name, come] : next) {
    SCOPED_TRACE(name);
    const Folders folders;
    {
      Tiers tiers = folders.create();
      write_file(folders.path("hdd/a/other"), other);
      ASSERT_TRUE(tiers.import("a/other").ok());
    }
    ASSERT_TRUE(dies_at(folders, removal, "cleared", 1));
    ASSERT_EQ(folders.where("a/other"), std::vector<std::string>());
    auto tiers = Tiers::open(folders.options());
    ASSERT_TRUE(tiers.ok());
    EXPECT_EQ(folders.where("a/other"), std::vector<std::string>{"hdd"}) << "who opens them undoes it";
    // As if somebody had died since.
    fs::rename(folders.path("hdd/a/other"), folders.path("hdd/.penstock/going/1"));
    fs::remove(folders.path("hdd/a"));
    come(folders, *tiers);
    const std::string tier = name == "move" ? "ssd" : "hdd";
    EXPECT_EQ(folders.where("a/other"), std::vector<std::string>{tier});
    EXPECT_EQ(read_file(folders.path(tier + "/a/other")), other);
    if (name != "forget") {
      EXPECT_EQ(text_of(tiers->check().value()), "");
    }
    EXPECT_EQ(folders.aside(), std::vector<std::string>());
  }
}

TEST(TiersCrash, a_tier_is_removed_with_what_a_removal_that_died_left_on_it) {
  const Folders folders;
  Tiers tiers = folders.create();
  write_file(folders.path("hdd/other"), other);
  ASSERT_TRUE(tiers.import("other").ok());
  ASSERT_TRUE(tiers.remove("other").ok());
  // As if it had died before it deleted anything, and another over a copy.
  write_file(folders.path("hdd/.penstock/going/1"), other);
  write_file(folders.path("hdd/.penstock/coming/2"), other);
  const std::string kept = folders.path("hdd/.penstock/going/3.0123abcd.kept").string();
  write_file(kept, "version");
  const Status refused = tiers.remove_tier("hdd");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("were kept"), std::string::npos) << refused.error().message;
  fs::remove(kept);
  EXPECT_EQ(text_of(tiers.remove_tier("hdd")), "ok");
  for (const char* left : {"going/1", "coming/2"})
    EXPECT_FALSE(fs::exists(folders.path("hdd/.penstock") / left)) << left;
}

TEST(TiersCrash, a_removal_whose_name_was_taken_is_told_as_what_it_is) {
  const Folders folders;
  Tiers tiers = folders.create();
  write_file(folders.path("hdd/other"), other);
  ASSERT_TRUE(tiers.import("other").ok());
  fs::rename(folders.path("hdd/other"), folders.path("hdd/.penstock/going/1"));
  write_file(folders.path("hdd/other"), fresh);
  const auto checked = tiers.check();
  ASSERT_TRUE(checked.ok());
  const std::string told = text_of(*checked);
  EXPECT_NE(told.find("its name was taken"), std::string::npos) << told;
  EXPECT_EQ(told.find("was undone"), std::string::npos) << told;
}

TEST(TiersCrash, who_writes_a_unit_whose_removal_died_has_replaced_it) {
  const Scenario removal{"remove", {}, [](const Folders&, Tiers& tiers) { return tiers.remove("other").ok(); }, {}};
  for (const char* tier : {"nvme", "hdd"}) {
    const Folders folders;
    {
      Tiers tiers = folders.create();
      write_file(folders.path(std::string(tier) + "/other"), other);
      ASSERT_TRUE(tiers.import("other").ok());
    }
    ASSERT_TRUE(dies_at(folders, removal, "aside", 1));
    auto tiers = Tiers::open(folders.options());
    ASSERT_TRUE(tiers.ok());
    EXPECT_TRUE(write_through(*tiers, "other", fresh)) << tier;
    EXPECT_EQ(folders.where("other"), std::vector<std::string>{"nvme"});
    EXPECT_EQ(text_of(tiers->check().value()), "");
    EXPECT_EQ(text_of(tiers->move("other", "ssd")), "ok");
    EXPECT_EQ(read_file(folders.path("ssd/other")), fresh);
    EXPECT_EQ(folders.aside(), std::vector<std::string>());
  }
}

TEST(TiersCrash, recovery_deletes_no_source_whose_copy_is_gone_or_damaged) {
  for (const bool is_gone : {true, false}) {
    const Folders folders;
    Tiers tiers = folders.create();
    write_file(folders.path("nvme/a"), other);
    ASSERT_TRUE(tiers.import("a").ok());
    tiers = Tiers();
    move_until(folders, "a", "committed", [] { ::kill(::getpid(), SIGKILL); });
    ASSERT_EQ(folders.where("a").size(), 2U);
    if (is_gone) {
      fs::remove(folders.path("ssd/a"));
    } else {
      write_file(folders.path("ssd/a"), bytes_of("damaged", 1, other.size()));
    }
    tiers = Tiers::open(folders.options()).value();
    const auto checked = tiers.check({});
    ASSERT_TRUE(checked.ok()) << text_of(checked);
    EXPECT_EQ(text_of(*checked).empty(), is_gone) << "a damaged copy stays for whoever wants to look";
    EXPECT_EQ(read_file(folders.path("nvme/a")), other);
    const auto path = tiers.path_of("a");
    ASSERT_TRUE(path.ok()) << text_of(path);
    EXPECT_EQ(*path, folders.path("nvme/a").string());
  }
}

}  // namespace
}  // namespace penstock::tiers
