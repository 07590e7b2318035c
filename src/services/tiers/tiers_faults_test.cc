// What goes wrong around tiers, and whether what is told of it is true.
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/sqlite.h"
#include "services/tiers/test_tiers.h"
#include "services/tiers/unit_locks.h"

namespace penstock::tiers {
namespace {

using namespace test;

// Leaves this process so many descriptors that it may still open.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    std::vector<UniqueFd> free;
    for (std::size_t i = 0; i <= count; ++i) free.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(free.back().get());
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_ = {};
};

class FaultHook {
 public:
  explicit FaultHook(std::function<void(std::string_view)> hook) { set_fault_hook(std::move(hook)); }
  ~FaultHook() { set_fault_hook({}); }
  FaultHook(const FaultHook&) = delete;
  FaultHook& operator=(const FaultHook&) = delete;
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

class TiersFaults : public TiersTest {
 protected:
  std::string marker(const std::string& tier) const { return folders_.path(tier + "/.penstock/tier.json").string(); }
  Status change(const std::string& tier, bool adopt) {
    return tiers_.change_tier({.name = tier, .path = folders_.path(tier).string(), .adopt = adopt});
  }
  Tiers other() const {
    auto opened = Tiers::open(folders_.options());
    EXPECT_TRUE(opened.ok()) << text_of(opened);
    return opened.ok() ? *opened : Tiers();
  }
};

TEST_F(TiersFaults, a_marker_that_cannot_be_read_is_not_called_damaged) {
  std::optional<Error> problem;
  {
    const FewDescriptors none(0);
    problem = tiers_.tiers()->front().problem;
  }
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->system_error, EMFILE) << problem->message;
  EXPECT_TRUE(has(problem->hint, "ulimit")) << problem->hint;
}

TEST_F(TiersFaults, a_marker_that_is_lost_is_written_anew_when_asked_for) {
  put("nvme", "a", 1000);
  for (const std::string content : {"", "{\"tier\":", "gone"}) {
    if (content == "gone") {
      fs::remove(marker("nvme"));
    } else {
      write_file(marker("nvme"), content);
    }
    const auto problem = tiers_.tiers()->front().problem;
    ASSERT_TRUE(problem.has_value());
    EXPECT_TRUE(has(problem->hint, "penstock tier change nvme --path " + folders_.path("nvme").string() + " --adopt"))
        << problem->hint;
    EXPECT_FALSE(change("nvme", false).ok());
    EXPECT_FALSE(tiers_.move("a", "hdd").ok());
    const Status adopted = change("nvme", true);
    ASSERT_TRUE(adopted.ok()) << text_of(adopted);
    EXPECT_FALSE(tiers_.tiers()->front().problem.has_value());
  }
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
  EXPECT_EQ(text_of(*tiers_.check()), "");
}

TEST_F(TiersFaults, the_marker_of_another_tier_is_not_overwritten) {
  const std::string of_ssd = read_file(marker("ssd"));
  write_file(marker("nvme"), of_ssd);
  const Status adopted = change("nvme", true);
  ASSERT_FALSE(adopted.ok());
  EXPECT_EQ(adopted.error().code, Code::changed);
  EXPECT_EQ(read_file(marker("nvme")), of_ssd);
}

TEST_F(TiersFaults, without_descriptors_the_limit_is_told_and_not_a_lack_of_room) {
  const std::uint64_t size_bytes = 1000;
  put("nvme", "a", 1000);
  std::vector<Error> errors;
  {
    const FewDescriptors none(0);
    errors = {tiers_.place(size_bytes).error(), tiers_.why("a").error(), UnitLocks::open(folders_.catalog()).error(),
              Tiers::open(folders_.options()).error()};
  }
  for (const Error& error : errors) {
    EXPECT_EQ(error.system_error, EMFILE) << error.message;
    EXPECT_EQ(error.code, Code::too_many_files) << error.message;
    EXPECT_TRUE(has(error.hint, "ulimit")) << error.message << "; " << error.hint;
  }
}

TEST_F(TiersFaults, tiers_that_are_missing_are_told_to_who_looks_for_a_place) {
  for (const char* tier : {"nvme", "ssd"}) fs::remove(marker(tier));
  EXPECT_TRUE(tiers_.place(1000).ok());
  const auto mixed = tiers_.place(2ULL << 30);
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, Code::no_space);
  EXPECT_TRUE(has(mixed.error().message, "nvme")) << text_of(mixed);
  fs::remove(marker("hdd"));
  const auto placed = tiers_.place(1000);
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.error().code, Code::not_found) << text_of(placed);
  EXPECT_TRUE(has(placed.error().message, "marker")) << text_of(placed);
}

TEST_F(TiersFaults, tiers_that_are_all_read_only_are_told) {
  for (const char* tier : {"nvme", "ssd", "hdd"})
    ASSERT_TRUE(tiers_.change_tier({.name = tier, .read_only = true}).ok());
  const auto placed = tiers_.place(1000);
  ASSERT_FALSE(placed.ok());
  EXPECT_EQ(placed.error().code, Code::read_only) << text_of(placed);
}

TEST_F(TiersFaults, what_may_lie_on_a_tier_that_is_missing_is_not_said_to_lie_nowhere) {
  write_file(folders_.path("hdd/a"), "a");
  fs::rename(folders_.path("hdd"), folders_.path("away"));
  const Status imported = tiers_.import("a");
  ASSERT_FALSE(imported.ok());
  EXPECT_TRUE(has(imported.error().message, "marker")) << text_of(imported);
  fs::rename(folders_.path("away"), folders_.path("hdd"));
  EXPECT_TRUE(tiers_.import("a").ok());
}

TEST_F(TiersFaults, a_check_without_descriptors_doubts_no_unit) {
  write_file(folders_.path("nvme/deep/1/2/3/4/5/6/7/8/9/file"), "bytes");
  ASSERT_TRUE(tiers_.import("deep").ok());
  ASSERT_EQ(text_of(*tiers_.check()), "");
  for (const bool bytes : {false, true}) {
    const auto checked = [&] {
      const FewDescriptors few(4);
      return tiers_.check({.bytes = bytes});
    }();
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().system_error, EMFILE) << text_of(checked);
  }
  EXPECT_FALSE(tiers_.find("deep")->in_doubt);
}

TEST_F(TiersFaults, a_catalog_that_may_not_be_written_says_so) {
  put("nvme", "a", 1000);
  tiers_ = {};
  const ProtectedPath catalog(folders_.catalog(), FS_IMMUTABLE_FL);
  if (!catalog) GTEST_SKIP() << "this file system or user can't make a file immutable";
  const auto opened = Tiers::open(folders_.options());
  const Status done = opened ? Tiers(*opened).pin("a", "hdd") : Status(opened.error());
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Code::permission_denied) << text_of(done);
  EXPECT_EQ(done.error().hint, "run as the user who owns the catalog");
}

TEST_F(TiersFaults, a_full_disk_of_the_catalog_is_told_as_one) {
  tiers_ = {};
  sqlite3_vfs* system = sqlite3_vfs_find(nullptr);
  const auto full = +[](int, const void*, std::size_t, off_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };
  for (const char* call : {"pwrite", "pwrite64"}) {
    system->xSetSystemCall(system, call, reinterpret_cast<sqlite3_syscall_ptr>(full));
  }
  const auto opened = Tiers::open(folders_.options());
  for (const char* call : {"pwrite", "pwrite64"}) system->xSetSystemCall(system, call, nullptr);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::no_space) << text_of(opened);
  EXPECT_TRUE(has(opened.error().hint, "room")) << opened.error().hint;
}

TEST_F(TiersFaults, a_unit_that_is_written_while_it_is_checked_is_not_in_doubt) {
  const std::size_t size = 24 << 20;
  put("nvme", "a", size);
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  const auto store = context->open("tier:a", {.access = Access::write});
  ASSERT_TRUE(store.ok()) << text_of(store);
  const UniqueFd writer(::open(folders_.path("nvme/a").c_str(), O_WRONLY | O_CLOEXEC));
  std::thread writing;
  std::atomic<bool> stop = false;
  const auto checked = [&] {
    writing = std::thread([&] {
      while (!stop) EXPECT_EQ(::pwrite(writer.get(), "new", 3, 0), 3);
    });
    return tiers_.check({.bytes = true});
  }();
  stop = true;
  writing.join();
  ASSERT_TRUE(checked.ok()) << text_of(checked);
  EXPECT_EQ(text_of(*checked), "");
  EXPECT_FALSE(tiers_.find("a")->in_doubt);
}

TEST_F(TiersFaults, units_on_their_way_are_imported_by_nobody) {
  put("nvme", "a", 1000);
  Tiers second = other();
  std::string findings;
  std::uint64_t imported = 0;
  int looks = 0;
  {
    const FaultHook hook([&](std::string_view point) {
      if (point != "named" && point != "committed") return;
      ++looks;
      for (const char* tier : {"nvme", "hdd"}) {
        const auto report = second.import_all(tier);
        ASSERT_TRUE(report.ok()) << text_of(report);
        findings += text_of(*report);
        imported += report->units;
      }
    });
    const auto moved = tiers_.move("a", "hdd");
    ASSERT_TRUE(moved.ok()) << text_of(moved);
  }
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(findings, "");
  EXPECT_EQ(imported, 0U);
  write_file(folders_.path("ssd/a"), "another");
  EXPECT_EQ(second.import_all("ssd")->findings.size(), 1U);
}

TEST_F(TiersFaults, a_new_unit_goes_to_the_next_tier_when_the_first_is_full_meanwhile) {
  write_file(folders_.path("source"), bytes_of("source", 1, 1 << 20));
  Tiers second = other();
  const auto fill = [&](std::string_view point) {
    if (point != "staged" || !folders_.where("large").empty()) return;
    write_file(folders_.path("nvme/large"), std::string(8 << 20, 'x'));
    ASSERT_TRUE(second.import("large").ok());
  };
  ASSERT_TRUE(tiers_.change_tier({.name = "nvme", .capacity_bytes = 8 << 20}).ok());
  {
    const FaultHook hook(fill);
    const Status added = tiers_.add(folders_.path("source").string(), "a");
    ASSERT_TRUE(added.ok()) << text_of(added);
  }
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"ssd"});
  EXPECT_EQ(tiers_.find("a")->tier, "ssd");
  EXPECT_TRUE(folders_.aside().empty());
  const Status named = tiers_.add(folders_.path("source").string(), "b", "nvme");
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(named.error().code, Code::no_space);
  EXPECT_TRUE(folders_.where("b").empty());
}

TEST_F(TiersFaults, a_new_unit_goes_past_a_tier_that_has_lost_its_folder_for_copies) {
  write_file(folders_.path("source"), "bytes");
  fs::remove(folders_.path("nvme/.penstock/coming"));
  EXPECT_FALSE(tiers_.add(folders_.path("source").string(), "a", "nvme").ok());
  const Status added = tiers_.add(folders_.path("source").string(), "a");
  ASSERT_TRUE(added.ok()) << text_of(added);
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"ssd"});
  EXPECT_TRUE(has(tiers_.tiers()->front().problem->hint, "--adopt"));
  ASSERT_TRUE(tiers_.change_tier({.name = "nvme", .adopt = true}).ok());
  EXPECT_TRUE(tiers_.add(folders_.path("source").string(), "b", "nvme").ok());
}

TEST_F(TiersFaults, a_tier_to_which_units_are_pinned_stays_and_says_why) {
  put("nvme", "a", 10);
  ASSERT_TRUE(tiers_.pin("a", "ssd").ok());
  const Status pinned = tiers_.remove_tier("ssd");
  ASSERT_FALSE(pinned.ok());
  EXPECT_EQ(pinned.error().code, Code::in_use);
  EXPECT_TRUE(has(pinned.error().message, "1 unit") && !has(pinned.error().message, "1 units")) << text_of(pinned);
  EXPECT_TRUE(has(pinned.error().hint, "unpin")) << pinned.error().hint;
  ASSERT_TRUE(tiers_.pin("a", "").ok());
  EXPECT_TRUE(tiers_.remove_tier("ssd").ok());
  EXPECT_EQ(tiers_.remove_tier("nvme").error().message, "the tier nvme has 1 unit");
}

TEST_F(TiersFaults, a_tier_to_which_a_unit_is_being_added_is_not_said_to_have_it) {
  write_file(folders_.path("source"), "bytes");
  Tiers second = other();
  std::optional<Error> refused;
  {
    const FaultHook hook([&](std::string_view point) {
      if (point == "journaled") refused = second.remove_tier("ssd").error();
    });
    ASSERT_TRUE(tiers_.add(folders_.path("source").string(), "a", "ssd").ok());
  }
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::in_use);
  EXPECT_TRUE(has(refused->message, "on their way")) << refused->message;
}

TEST_F(TiersFaults, a_version_that_was_kept_is_told_with_the_name_of_its_unit) {
  put("nvme", "a", 10);
  const std::string of_a = folders_.path("hdd/.penstock/going/1.0123abcd.kept").string();
  const std::string of_none = folders_.path("hdd/.penstock/going/77.0123abcd.kept").string();
  for (const std::string& path : {of_a, of_none}) write_file(path, "version");
  const auto checked = tiers_.check();
  ASSERT_TRUE(checked.ok()) << text_of(checked);
  ASSERT_EQ(checked->findings.size(), 2U) << text_of(*checked);
  for (const TierFinding& finding : checked->findings) {
    EXPECT_EQ(finding.name, finding.path == of_a ? "a" : "");
    EXPECT_TRUE(has(finding.text, "remove it")) << finding.text;
  }
}

TEST_F(TiersFaults, a_name_that_a_file_of_another_tier_has_is_not_added) {
  write_file(folders_.path("hdd/a"), "no unit");
  write_file(folders_.path("source"), "bytes");
  for (const char* tier : {"nvme", ""}) {
    const Status refused = tiers_.add(folders_.path("source").string(), "a", tier);
    ASSERT_FALSE(refused.ok());
    EXPECT_TRUE(has(refused.error().message, "hdd/a is there")) << refused.error().message;
  }
}

TEST_F(TiersFaults, an_empty_folder_is_in_no_files_way) {
  put("nvme", "a", 1000);
  fs::create_directories(folders_.path("hdd/a/left/over"));
  const auto moved = tiers_.move("a", "hdd");
  ASSERT_TRUE(moved.ok()) << text_of(moved);
  EXPECT_EQ(content("hdd", "a"), bytes_of("a", 1, 1000));
  write_file(folders_.path("source"), "bytes");
  fs::create_directories(folders_.path("ssd/b"));
  const Status added = tiers_.add(folders_.path("source").string(), "b", "ssd");
  ASSERT_TRUE(added.ok()) << text_of(added);
  EXPECT_EQ(content("ssd", "b"), "bytes");
  fs::create_directories(folders_.path("nvme/a"));
  write_file(folders_.path("nvme/a/file"), "somebody's");
  EXPECT_EQ(tiers_.move("a", "nvme").error().code, Code::in_use);
  EXPECT_EQ(content("nvme", "a/file"), "somebody's");
}

TEST_F(TiersFaults, what_took_the_place_of_a_unit_and_is_of_another_kind_is_not_removed) {
  put("nvme", "a", 10);
  fs::remove(folders_.path("nvme/a"));
  write_file(folders_.path("nvme/a/precious"), "bytes");
  write_file(folders_.path("nvme/d/file"), "bytes");
  ASSERT_TRUE(tiers_.import("d").ok());
  fs::remove_all(folders_.path("nvme/d"));
  write_file(folders_.path("nvme/d"), "precious");
  for (const char* name : {"a", "d"}) {
    const Status removed = tiers_.remove(name);
    ASSERT_FALSE(removed.ok());
    EXPECT_EQ(removed.error().code, Code::changed) << text_of(removed);
    EXPECT_TRUE(tiers_.find(name).ok());
  }
  EXPECT_EQ(content("nvme", "a/precious"), "bytes");
  EXPECT_EQ(content("nvme", "d"), "precious");
}

TEST_F(TiersFaults, the_units_of_a_tier_within_the_folder_are_not_taken) {
  put("nvme", "a", 10);
  TiersOptions options = folders_.options();
  fs::create_directory(folders_.path("around"));
  for (const char* tier : {"nvme", "ssd", "hdd"}) {
    fs::rename(folders_.path(tier), folders_.path(std::string("around/") + tier));
  }
  write_file(folders_.path("around/mine"), "mine");
  options.catalog = folders_.path("around.db").string();
  const std::vector<NewTier> around = {{.name = "x", .path = folders_.path("around").string()}};
  auto made = Tiers::create(around, {}, options);
  ASSERT_TRUE(made.ok()) << text_of(made);
  EXPECT_EQ(made->import_all("x")->units, 1U);
  EXPECT_TRUE(made->find("mine").ok());
  EXPECT_EQ(made->import_all("x", "nvme").error().code, Code::in_use);
  EXPECT_EQ(text_of(*made->check()), "");
}

}  // namespace
}  // namespace penstock::tiers
