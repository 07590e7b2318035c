// The tiers themselves, and their catalog.
#include <fcntl.h>
#include <sys/wait.h>

#include "base/unique_fd.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using namespace test;

TEST_F(TiersTest, a_capacity_is_less_than_2_to_the_63) {
  const auto change = [&](std::uint64_t bytes) {
    return tiers_.change_tier({.name = "hdd", .path = "", .capacity_bytes = bytes});
  };
  for (const std::uint64_t bytes : {std::uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_EQ(change(bytes).error().code, Code::invalid_argument) << bytes;
    const fs::path folder = folders_.path("more");
    fs::create_directory(folder);
    const Status added = tiers_.add_tier({.name = "more", .path = folder.string(), .capacity_bytes = bytes});
    EXPECT_EQ(added.error().code, Code::invalid_argument) << bytes;
  }
  EXPECT_TRUE(change(INT64_MAX).ok());
  EXPECT_EQ(tiers_.tiers()->back().capacity_bytes, std::uint64_t{INT64_MAX});
}

TEST_F(TiersTest, a_pinned_unit_goes_and_stays) {
  put("nvme", "a", 1000);
  ASSERT_TRUE(tiers_.pin("a", "ssd").ok());
  ASSERT_TRUE(tiers_.rebalance()->ok());
  EXPECT_EQ(tiers_.find("a")->tier, "ssd");
  EXPECT_NE(tiers_.why("a")->reason.find("pinned"), std::string::npos);
  EXPECT_EQ(tiers_.pin("a", "tape").error().code, Code::not_found);
}

TEST_F(TiersTest, a_tier_that_is_not_mounted_is_told_and_nothing_is_lost) {
  put("hdd", "a", 1000);
  put("nvme", "b", 1000);
  fs::rename(folders_.path("hdd"), folders_.path("away"));
  fs::create_directory(folders_.path("hdd"));  // the empty mount point
  EXPECT_TRUE(tiers_.tiers()->at(2).problem.has_value());
  auto context = Context::create();
  ASSERT_TRUE(tiers_.serve(*context).ok());
  const auto opened = context->open("tier:a");
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("marker"), std::string::npos) << opened.error().message;
  EXPECT_EQ(tiers_.move("b", "hdd").error().code, Code::not_found);
  EXPECT_EQ(tiers_.move("a", "ssd").error().code, Code::not_found);
  EXPECT_FALSE(tiers_.find("a")->in_doubt);
  EXPECT_EQ(tiers_.check()->findings.size(), 1U);
  fs::remove(folders_.path("hdd"));
  fs::rename(folders_.path("away"), folders_.path("hdd"));
  EXPECT_EQ(text_of(*tiers_.check()), "");
  EXPECT_TRUE(tiers_.move("a", "ssd").ok());
}

// Any user who may write to a folder of a tier can make such folders.
TEST_F(TiersTest, a_folder_that_cannot_be_listed_is_named_and_the_rest_is_imported_and_checked) {
  write_file(folders_.path("nvme/a/file"), "a");
  write_file(folders_.path("nvme/z/file"), "z");
  const auto nest = [&](const std::string& below, const std::string& name, int levels) {
    fs::create_directories(folders_.path(below));
    UniqueFd folder(::open(folders_.path(below).c_str(), O_PATH | O_DIRECTORY));
    for (int i = 0; i < levels; ++i) {
      ASSERT_EQ(::mkdirat(folder.get(), name.c_str(), 0755), 0);
      folder = UniqueFd(::openat(folder.get(), name.c_str(), O_PATH | O_DIRECTORY));
    }
    const UniqueFd file(::openat(folder.get(), "file", O_WRONLY | O_CREAT, 0644));
    ASSERT_TRUE(file);
  };
  nest("nvme/deep", "d", 220);
  nest("nvme/long", std::string(250, 'n'), 20);  // longer than any path may be
  for (int times = 0; times < 2; ++times) {
    const auto imported = tiers_.import_all("nvme");
    ASSERT_TRUE(imported.ok()) << text_of(imported);
    EXPECT_EQ(imported->units, times == 0 ? 2U : 0U);
    ASSERT_EQ(imported->findings.size(), 2U) << text_of(*imported);
    EXPECT_NE(imported->findings[0].text.find("nested too deeply"), std::string::npos) << text_of(*imported);
    EXPECT_TRUE(imported->findings[1].name.starts_with("long/nnn")) << text_of(*imported);
    const auto checked = tiers_.check();
    ASSERT_TRUE(checked.ok()) << text_of(checked);
    EXPECT_EQ(checked->units, 2U);
    ASSERT_EQ(checked->findings.size(), 2U) << text_of(*checked);
    for (const TierFinding& finding : checked->findings) EXPECT_TRUE(finding.harmless) << finding.text;
  }
}

TEST_F(TiersTest, tiers_have_folders_of_their_own) {
  fs::create_directory(folders_.path("nvme/inner"));
  fs::create_directory_symlink(folders_.path("ssd"), folders_.path("alias"));
  fs::create_directory(folders_.path("more"));
  const auto add = [&](const std::string& name, const std::string& path) {
    return tiers_.add_tier({.name = name, .path = folders_.path(path).string()}, "hdd");
  };
  EXPECT_EQ(add("x", "nvme").error().code, Code::invalid_argument);
  EXPECT_EQ(add("x", "nvme/inner").error().code, Code::invalid_argument);
  EXPECT_EQ(add("x", ".").error().code, Code::invalid_argument);
  EXPECT_EQ(add("x", "alias").error().code, Code::invalid_argument);
  EXPECT_EQ(add("x", "missing").error().code, Code::not_found);
  EXPECT_EQ(add("X Y", "more").error().code, Code::invalid_argument);
  EXPECT_EQ(add("nvme", "more").error().code, Code::invalid_argument);
  ASSERT_TRUE(add("tape", "more").ok());
  EXPECT_EQ(tiers_.tiers()->back().name, "tape");
  put("more", "x", 10);
  EXPECT_EQ(tiers_.remove_tier("tape").error().code, Code::in_use);
  ASSERT_TRUE(tiers_.forget("x").ok());
  EXPECT_TRUE(tiers_.remove_tier("tape").ok());
  // A folder of another catalog.
  auto others = folders_.options();
  others.catalog += ".other";
  EXPECT_EQ(Tiers::create(folders_.tiers(), {}, others).error().code, Code::in_use);
  EXPECT_FALSE(fs::exists(others.catalog));
  // What can't be made leaves folders that another may have.
  fs::create_directory(folders_.path("fresh"));
  const std::vector<NewTier> half = {{.name = "fresh", .path = folders_.path("fresh").string()},
                                     {.name = "none", .path = folders_.path("missing").string()}};
  EXPECT_EQ(Tiers::create(half, {}, others).error().code, Code::not_found);
  EXPECT_TRUE(Tiers::create(std::span(half).first(1), {}, others).ok());
}

TEST_F(TiersTest, a_full_tier_refuses_and_the_unit_stays) {
  const Folders folders;
  Tiers tiers = folders.create(1 << 20);
  write_file(folders.path("nvme/a"), bytes_of("a", 1, 2 << 20));
  ASSERT_TRUE(tiers.import("a").ok());
  EXPECT_EQ(tiers.move("a", "hdd").error().code, Code::no_space);
  EXPECT_EQ(folders.where("a"), std::vector<std::string>{"nvme"});
  EXPECT_EQ(tiers.place(2 << 20).error().code, Code::no_space);
  EXPECT_EQ(folders.aside(), std::vector<std::string>());
}

TEST_F(TiersTest, a_read_only_tier_is_only_read) {
  put("hdd", "a", 1000);
  put("nvme", "b", 1000);
  NewTier change = folders_.tiers()[2];
  change.read_only = true;
  ASSERT_TRUE(tiers_.change_tier(change).ok());
  EXPECT_EQ(tiers_.move("a", "nvme").error().code, Code::read_only);
  EXPECT_EQ(tiers_.move("b", "hdd").error().code, Code::read_only);
  EXPECT_TRUE(tiers_.path_of("a").ok());
}

TEST_F(TiersTest, a_catalog_that_is_damaged_newer_or_none_is_told) {
  tiers_ = {};
  auto options = folders_.options();
  options.catalog = folders_.path("none.db").string();
  EXPECT_EQ(Tiers::open(options).error().code, Code::not_found);
  write_file(options.catalog, bytes_of("noise", 1, 20000));
  EXPECT_EQ(Tiers::open(options).error().code, Code::io_error);
  EXPECT_FALSE(Tiers::open(options).error().hint.empty());
  EXPECT_EQ(Tiers::create(folders_.tiers(), {}, folders_.options()).error().code, Code::in_use);
  {
    const UniqueFd file(::open(folders_.catalog().c_str(), O_RDWR));
    const char newer[4] = {0, 0, 0, 99};
    ASSERT_EQ(::pwrite(file.get(), newer, 4, 60), 4);  // user_version, in the header of the database
  }
  EXPECT_EQ(Tiers::open(folders_.options()).error().code, Code::unsupported);
}

TEST_F(TiersTest, a_forked_child_is_refused_and_leaves_them_as_they_are) {
  put("nvme", "x", 10);
  ASSERT_TRUE(tiers_.path_of("x").ok());      // from now on a thread waits to write accesses down
  ASSERT_TRUE(tiers_.move("x", "hdd").ok());  // and one to close deleted sources
  const pid_t child = ::fork();
  if (child == 0) {
    const auto found = tiers_.find("x");
    const auto anew = Tiers::open(folders_.options());  // SQLite would take locks for its own that are the parent's
    tiers_ = Tiers();
    const auto is_closed = [](const auto& result) { return !result.ok() && result.error().code == Code::closed; };
    ::_exit(is_closed(found) && is_closed(anew) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(TiersTest, a_child_that_was_forked_before_opens_them) {
  tiers_ = Tiers();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto one = Tiers::open(folders_.options());
    const auto two = Tiers::open(folders_.options());
    ::_exit(one.ok() && two.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(TiersTest, the_catalog_is_no_unit) {
  const Folders folders;
  TiersOptions options = folders.options();
  options.catalog = folders.path("nvme/own/tiers.db").string();
  fs::create_directory(folders.path("nvme/own"));
  auto tiers = Tiers::create(folders.tiers(), {}, options);
  ASSERT_TRUE(tiers.ok()) << text_of(tiers);
  for (const char* name : {"own", "own/tiers.db", "own/tiers.db-wal"}) {
    EXPECT_EQ(tiers->import(name).error().code, Code::invalid_argument) << name;
  }
}

TEST_F(TiersTest, a_tier_that_is_on_its_way_out_of_use_says_what_holds_it) {
  put("nvme", "a", 1000);
  Tiers other = *Tiers::open(folders_.options());
  std::string told;
  set_fault_hook([&](std::string_view point) {
    if (point == "copied") told = text_of(other.remove_tier("hdd"));
  });
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
  set_fault_hook({});
  EXPECT_NE(told.find("on their way"), std::string::npos) << told;
}

TEST_F(TiersTest, what_is_new_goes_past_a_folder_that_cant_be_written) {
  const ProtectedPath folder(folders_.path("nvme"), FS_IMMUTABLE_FL);
  if (!folder) GTEST_SKIP() << "no file here can be made immutable: " << std::strerror(errno);
  write_file(folders_.path("elsewhere"), "content");
  EXPECT_EQ(text_of(tiers_.add(folders_.path("elsewhere").string(), "new")), "ok");
  EXPECT_EQ(folders_.where("new"), std::vector<std::string>{"ssd"});
}

TEST(Tiers, configurations_are_checked) {
  const auto good = Tiers::parse_configuration(
      R"({"tiers": [{"name": "a", "path": "/a", "capacity_bytes": 1000, "high_water": 0.7, "low_water": 0.5},
          {"name": "b", "path": "/b", "from_heat": 3, "read_only": true}], "policy": {"cooling": 0.2}})");
  ASSERT_TRUE(good.ok()) << text_of(good);
  EXPECT_EQ(good->tiers[0].capacity_bytes, 1000U);
  EXPECT_EQ(good->tiers[1].from_heat, 3);
  EXPECT_EQ(good->policy.cooling, 0.2);
  for (const char* wrong : {"", "[]", "{}", R"({"tiers": []})", R"({"tiers": [{"name": "a"}]})",
                            R"({"tiers": [{"name": "a", "path": "/a", "colour": 1}]})",
                            R"({"tiers": [{"name": "a", "path": "/a", "capacity_bytes": -1}]})",
                            R"({"tiers": [{"name": "a", "path": "/a"}], "policy": 3})"}) {
    EXPECT_EQ(Tiers::parse_configuration(wrong).error().code, Code::invalid_argument) << wrong;
  }
}

TEST(Tiers, the_usual_ones_come_from_the_environment) {
  const auto names_and_paths = [] {
    const auto tiers = Tiers::usual_tiers();
    if (!tiers)
      return std::string(tiers.error().code == Code::invalid_argument ? "wrong: " : "") + tiers.error().message;
    std::string text;
    for (const NewTier& tier : *tiers) text += tier.name + "=" + tier.path + " ";
    return text;
  };
  ::unsetenv("PENSTOCK_TIER_PATHS");
  EXPECT_EQ(names_and_paths(), "nvme=/nvme ssd=/ssd hdd=/hdd ");
  ::setenv("PENSTOCK_TIER_PATHS", "", 1);
  EXPECT_EQ(names_and_paths(), "nvme=/nvme ssd=/ssd hdd=/hdd ");
  ::setenv("PENSTOCK_TIER_PATHS", "fast=/mnt/a,slow=/mnt/b=c", 1);
  EXPECT_EQ(names_and_paths(), "fast=/mnt/a slow=/mnt/b=c ");
  for (const char* wrong : {"fast", "=/mnt/a", "fast=", "fast=/mnt/a,,slow=/mnt/b"}) {
    ::setenv("PENSTOCK_TIER_PATHS", wrong, 1);
    EXPECT_TRUE(names_and_paths().starts_with("wrong: PENSTOCK_TIER_PATHS: ")) << wrong;
  }
  ::unsetenv("PENSTOCK_TIER_PATHS");
}

TEST_F(TiersTest, a_new_unit_stays_where_it_was_added_for_a_while_and_then_goes_by_its_heat) {
  write_file(folders_.path("elsewhere"), "content");
  ASSERT_TRUE(tiers_.set_policy({.half_life_seconds = 0}).ok());
  ASSERT_EQ(text_of(tiers_.add(folders_.path("elsewhere").string(), "new")), "ok");
  const auto kept = tiers_.auto_tier("new");
  ASSERT_TRUE(kept.ok()) << text_of(kept);
  EXPECT_EQ(kept->tier, "nvme");
  EXPECT_NE(kept->reason.find("less than 600 seconds ago"), std::string::npos) << kept->reason;
  EXPECT_EQ(folders_.where("new"), std::vector<std::string>{"nvme"});

  ASSERT_TRUE(tiers_.set_policy({.half_life_seconds = 0, .least_stay_seconds = 0}).ok());
  EXPECT_EQ(tiers_.auto_tier("new")->tier, "hdd") << "no access yet";
  EXPECT_EQ(folders_.where("new"), std::vector<std::string>{"hdd"});
}

// 100 accesses and more: nvme; 10 to 99: ssd; fewer: hdd.
TEST_F(TiersTest, without_hysteresis_the_rule_is_the_same_going_down) {
  ASSERT_TRUE(tiers_.set_policy({.half_life_seconds = 0, .cooling = 1, .least_stay_seconds = 0}).ok());
  for (const auto& [name, accesses, tier] :
       {std::tuple("hot", 100, "nvme"), {"warm", 99, "ssd"}, {"cool", 10, "ssd"}, {"cold", 9, "hdd"}}) {
    put("nvme", name, 1000);
    use(name, accesses);
    const auto placed = tiers_.auto_tier(name);
    ASSERT_TRUE(placed.ok()) << text_of(placed);
    EXPECT_EQ(placed->tier, tier) << placed->reason;
    EXPECT_EQ(folders_.where(name), std::vector<std::string>{tier});
  }
}

TEST(Tiers, what_is_not_open_says_so) {
  Tiers none;
  EXPECT_EQ(none.tiers().error().code, Code::invalid_argument);
  EXPECT_EQ(none.flush().error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::tiers
