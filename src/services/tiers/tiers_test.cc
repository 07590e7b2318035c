#include "penstock/tiers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "base/unique_fd.h"
#include "penstock/models.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/names.h"
#include "services/tiers/test_tiers.h"
#include "services/tiers/unit_locks.h"

namespace penstock::tiers {
namespace {

using namespace test;

class TiersTest : public testing::Test {
 protected:
  // A file on a tier, and in the catalog.
  void put(const std::string& tier, const std::string& name, std::size_t size) {
    write_file(folders_.path(tier + "/" + name), bytes_of(name, 1, size));
    const Status imported = tiers_.import(name);
    ASSERT_TRUE(imported.ok()) << text_of(imported);
  }
  std::string content(const std::string& tier, const std::string& name) {
    return read_file(folders_.path(tier + "/" + name));
  }
  void use(const std::string& name, int times) {
    for (int i = 0; i < times; ++i) ASSERT_TRUE(tiers_.path_of(name).ok());
  }

  Folders folders_;
  Tiers tiers_ = folders_.create();
};

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

TEST_F(TiersTest, who_opens_for_writing_follows_a_unit_that_moves_meanwhile) {
  put("nvme", "a", 5000);
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  std::thread writer;
  set_fault_hook([&](std::string_view point) {
    if (point != "journaled" || writer.joinable()) return;
    writer = std::thread([&] {
      auto store = context->open("tier:a", {.access = Access::write});
      ASSERT_TRUE(store.ok()) << text_of(store);
      std::string bytes = "new";
      EXPECT_TRUE(context->write(*store, 0, Region::host(bytes.data(), bytes.size())).ok());
      EXPECT_TRUE(store->commit().ok());
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // by now it waits for this move
  });
  const auto moved = tiers_.move("a", "hdd");
  writer.join();
  set_fault_hook({});
  const auto places = folders_.where("a");
  ASSERT_EQ(places.size(), 1U);
  EXPECT_EQ(places.front(), moved.ok() ? "hdd" : "nvme");
  EXPECT_EQ(content(places.front(), "a").substr(0, 3), "new");
  EXPECT_EQ(content(places.front(), "a").size(), 5000U);
}

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

TEST_F(TiersTest, a_file_that_is_open_for_writing_stays) {
  put("nvme", "a", 1000);
  {
    const UniqueFd writer(::open(folders_.path("nvme/a").c_str(), O_WRONLY));
    const auto moved = tiers_.move("a", "hdd");
    ASSERT_FALSE(moved.ok());
    EXPECT_EQ(moved.error().code, Code::in_use) << text_of(moved);
  }
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
}

TEST_F(TiersTest, who_wants_to_write_stops_a_move) {
  put("nvme", "a", 40 << 20);
  std::thread writer;
  const auto moved =
      tiers_.move("a", "hdd", {.bytes_per_second = 20 << 20, .on_progress = [&](const MoveProgress& progress) {
                                 if (progress.bytes == 0 || writer.joinable()) return;
                                 writer = std::thread([&] {
                                   const UniqueFd file(::open(folders_.path("nvme/a").c_str(), O_WRONLY));
                                   EXPECT_EQ(::pwrite(file.get(), "new", 3, 0), 3);
                                 });
                               }});
  writer.join();
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(moved.error().code, Code::in_use) << text_of(moved);
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"nvme"});
  EXPECT_EQ(content("nvme", "a").substr(0, 3), "new");
}

TEST_F(TiersTest, who_opens_a_source_that_has_lost_its_name_writes_to_a_file_that_is_kept) {
  put("nvme", "a", 1000);
  std::thread writer;
  bool has_written = false;
  set_fault_hook([&](std::string_view point) {
    if (point != "aside") return;
    const std::string path = fs::directory_iterator(folders_.path("nvme/.penstock/going"))->path().string();
    writer = std::thread([&, path] {
      const UniqueFd file(::open(path.c_str(), O_WRONLY));  // waits for the mover
      has_written = file && ::pwrite(file.get(), "new", 3, 0) == 3;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // or it finds nothing any more
  });
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
  set_fault_hook({});
  writer.join();
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"hdd"});
  if (!has_written) return;
  ASSERT_EQ(folders_.aside().size(), 1U);
  EXPECT_EQ(read_file(folders_.aside().front()).substr(0, 3), "new");
  EXPECT_NE(text_of(tiers_.check().value()).find(".kept"), std::string::npos);
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

TEST_F(TiersTest, a_mode_that_changes_under_way_is_kept) {
  put("nvme", "a", 1000);
  set_fault_hook([&](std::string_view point) {
    if (point == "copied") fs::permissions(folders_.path("nvme/a"), fs::perms::owner_read);
  });
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
  set_fault_hook({});
  EXPECT_EQ(fs::status(folders_.path("hdd/a")).permissions(), fs::perms::owner_read);
}

TEST_F(TiersTest, readers_keep_what_they_have_open) {
  put("nvme", "a", 5 << 20);
  auto context = Context::create();
  ASSERT_TRUE(tiers_.serve(*context).ok());
  auto before = context->open("tier:a");
  ASSERT_TRUE(before.ok()) << text_of(before);
  ASSERT_TRUE(tiers_.move("a", "hdd").ok());
  auto after = context->open("tier:a");
  ASSERT_TRUE(after.ok());
  const std::string expected = bytes_of("a", 1, 5 << 20);
  for (const Store* store : {&*before, &*after}) {
    std::string bytes(5 << 20, '\0');
    const Report report = context->read(*store, 0, Region::host(bytes.data(), bytes.size()));
    EXPECT_TRUE(report.ok()) << report.to_string();
    EXPECT_EQ(bytes, expected);
  }
}

TEST_F(TiersTest, a_model_is_opened_by_the_name_of_its_directory) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  write_file(folders_.path("hdd/models/tiny/model.safetensors"), file + header + bytes_of("w", 1, 16));
  ASSERT_TRUE(tiers_.import("models/tiny").ok());
  auto context = Context::create();
  ASSERT_TRUE(tiers_.serve(*context).ok());
  for (const char* name : {"tier:models/tiny", "tier:models/tiny/model.safetensors"}) {
    const auto model = Model::open(*context, name);
    ASSERT_TRUE(model.ok()) << text_of(model);
    // It stays what it was while its files move.
    const std::string to = tiers_.find("models/tiny")->tier == "hdd" ? "nvme" : "hdd";
    ASSERT_TRUE(tiers_.move("models/tiny", to).ok());
    std::string bytes(16, '\0');
    const TensorPart part{.tensor = 0, .memory = Region::host(bytes.data(), bytes.size())};
    const auto loading = load(*context, *model, {&part, 1});
    ASSERT_TRUE(loading.ok()) << text_of(loading);
    loading->wait();
    EXPECT_TRUE(loading->report().ok()) << loading->report().transfer.to_string();
    EXPECT_EQ(bytes, bytes_of("w", 1, 16));
  }
  EXPECT_EQ(*context->path_of("tier:models/tiny"), folders_.path("hdd/models/tiny").string());
  EXPECT_EQ(*context->path_of("/some/path"), "/some/path");
}

TEST_F(TiersTest, writing_through_a_name_makes_and_replaces_units) {
  auto context = Context::create();
  ASSERT_TRUE(tiers_.serve(*context).ok());
  const auto write = [&](const std::string& name, std::string bytes) {
    auto store = context->open("tier:" + name, {.access = Access::replace, .size_bytes = bytes.size()});
    ASSERT_TRUE(store.ok()) << text_of(store);
    ASSERT_TRUE(context->write(*store, 0, Region::host(bytes.data(), bytes.size())).ok());
    const Status committed = store->commit();
    ASSERT_TRUE(committed.ok()) << text_of(committed);
  };
  write("out/new", "first");
  EXPECT_EQ(tiers_.find("out/new")->tier, "nvme");
  ASSERT_TRUE(tiers_.move("out/new", "hdd").ok());
  write("out/new", "second");
  EXPECT_EQ(folders_.where("out/new"), std::vector<std::string>{"nvme"});
  EXPECT_EQ(content("nvme", "out/new"), "second");
  EXPECT_EQ(tiers_.find("out/new")->size_bytes, 6U);
  write("out/new", "third time");
  EXPECT_EQ(content("nvme", "out/new"), "third time");
  {
    auto dropped = context->open("tier:out/new", {.access = Access::replace});
    ASSERT_TRUE(dropped.ok());
  }
  EXPECT_EQ(content("nvme", "out/new"), "third time");
  EXPECT_EQ(folders_.aside(), std::vector<std::string>());
  EXPECT_EQ(text_of(*tiers_.check({.bytes = true})), "");
  EXPECT_EQ(context->open("tier:out", {.access = Access::replace}).error().code, Code::in_use);
}

TEST_F(TiersTest, a_unit_written_in_place_moves_as_it_is) {
  put("nvme", "a", 1000);
  auto context = Context::create();
  ASSERT_TRUE(tiers_.serve(*context).ok());
  {
    auto store = context->open("tier:a", {.access = Access::write});
    ASSERT_TRUE(store.ok()) << text_of(store);
    std::string bytes = "0123456789";
    ASSERT_TRUE(context->write(*store, 995, Region::host(bytes.data(), bytes.size())).ok());
    ASSERT_TRUE(store->commit().ok());
  }
  EXPECT_EQ(tiers_.find("a")->size_bytes, 1005U);
  ASSERT_TRUE(tiers_.move("a", "ssd").ok());
  EXPECT_EQ(content("ssd", "a"), bytes_of("a", 1, 1000).substr(0, 995) + "0123456789");
  {
    auto made = context->open("tier:made/here", {.access = Access::create});
    ASSERT_TRUE(made.ok()) << text_of(made);
  }
  EXPECT_TRUE(tiers_.find("made/here").ok());
  EXPECT_EQ(context->open("tier:nothing", {.access = Access::write}).error().code, Code::not_found);
}

TEST_F(TiersTest, opening_a_unit_again_within_a_second_is_one_access) {
  put("hdd", "a", 1000);
  put("hdd", "b", 1000);
  auto context = Context::create();
  ASSERT_TRUE(tiers_.serve(*context).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(context->open("tier:a").ok());
  ASSERT_TRUE(context->open("tier:b").ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  ASSERT_TRUE(context->open("tier:b").ok());
  ASSERT_TRUE(tiers_.flush().ok());
  EXPECT_EQ(tiers_.find("a")->accesses, 1U);
  EXPECT_EQ(tiers_.find("b")->accesses, 2U);
}

TEST_F(TiersTest, accesses_move_units_and_fade) {
  put("hdd", "hot", 1000);
  put("hdd", "warm", 1000);
  put("nvme", "cold", 1000);
  use("hot", 100);
  use("warm", 10);
  const auto plan = tiers_.plan();
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->moves.size(), 3U);
  EXPECT_EQ(tiers_.why("hot")->tier, "nvme");
  const auto report = tiers_.rebalance();
  ASSERT_TRUE(report.ok() && report->ok()) << text_of(report);
  EXPECT_EQ(folders_.where("hot"), std::vector<std::string>{"nvme"});
  EXPECT_EQ(folders_.where("warm"), std::vector<std::string>{"ssd"});
  EXPECT_EQ(folders_.where("cold"), std::vector<std::string>{"hdd"});
  EXPECT_EQ(tiers_.find("hot")->accesses, 100U);
  EXPECT_TRUE(tiers_.plan()->moves.empty());
  ASSERT_TRUE(tiers_.set_policy({.half_life_seconds = 0.001, .least_stay_seconds = 0}).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(tiers_.find("hot")->heat, 1);
  EXPECT_EQ(*tiers_.auto_tier("hot")->tier.c_str(), 'h');
  EXPECT_EQ(folders_.where("hot"), std::vector<std::string>{"hdd"});
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
  std::uint64_t seen = 0;
  const auto stopped = tiers_.move("a", "hdd",
                                   {.keep_going = [&] { return seen < (16U << 20); },
                                    .on_progress = [&](const MoveProgress& p) { seen = p.bytes; }});
  // Progress is told ten times a second; where all went faster than that, there is nothing to go on with.
  if (stopped.ok()) GTEST_SKIP() << "it was copied before it could be stopped";
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
  ASSERT_TRUE(tiers_.path_of("x").ok());  // from now on a thread waits to write accesses down
  const pid_t child = ::fork();
  if (child == 0) {
    const auto found = tiers_.find("x");
    tiers_ = Tiers();
    ::_exit(!found.ok() && found.error().code == Code::closed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
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

TEST(Tiers, what_is_not_open_says_so) {
  Tiers none;
  EXPECT_EQ(none.tiers().error().code, Code::invalid_argument);
  EXPECT_EQ(none.flush().error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::tiers
