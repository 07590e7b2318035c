// Readers and writers of units, beside movers.
#include <fcntl.h>

#include <thread>

#include "base/unique_fd.h"
#include "penstock/models.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using namespace test;

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

TEST_F(TiersTest, a_uri_is_the_unit_of_that_very_name_first) {
  const auto text = [](std::size_t bytes) { return std::to_string(bytes); };
  put("nvme", "A", 1);
  put("nvme", "%41", 2);
  put("nvme", "50%.bin", 3);
  put("nvme", "%2F", 4);
  put("nvme", "a b", 5);
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  const auto size = [&](const std::string& uri) {
    const auto store = context->open(uri);
    return store.ok() ? text(store->info().size_bytes) : store.error().message;
  };
  EXPECT_EQ(size("tier:A"), "1");
  EXPECT_EQ(size("tier:%41"), "2");
  EXPECT_EQ(size("tier:./%2541"), "2");
  EXPECT_EQ(size("tier:50%.bin"), "3");
  EXPECT_EQ(size("tier://50%25.bin"), "3");
  EXPECT_EQ(size("tier:%2F"), "4");
  EXPECT_EQ(size("tier:a%20b"), "5");
  EXPECT_EQ(size("tier:c%20d"), "there is no unit \"c d\" in the catalog");
  EXPECT_EQ(size("tier:c%2"), "there is no unit \"c%2\" in the catalog");
  EXPECT_EQ(size("tier://"), "tier: names no unit");
  ASSERT_TRUE(tiers_.forget("%41").ok());
  EXPECT_EQ(size("tier:%41"), "1");
}

TEST_F(TiersTest, a_new_unit_has_the_name_that_a_uri_encodes) {
  put("nvme", "%41", 2);
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  for (const char* uri : {"tier:%41", "tier:%42", "tier:9%"}) {
    auto store = context->open(uri, {.access = Access::replace});
    ASSERT_TRUE(store.ok()) << text_of(store);
    EXPECT_TRUE(store->commit().ok());
  }
  const auto units = tiers_.list();
  ASSERT_TRUE(units.ok());
  std::vector<std::string> names;
  for (const UnitInfo& unit : *units) names.push_back(unit.name);
  EXPECT_EQ(names, (std::vector<std::string>{"%41", "9%", "B"}));
}

TEST_F(TiersTest, a_file_within_a_unit_may_be_percent_encoded) {
  write_file(folders_.path("nvme/model/a b"), "12345");
  write_file(folders_.path("nvme/model/%41"), "12");
  ASSERT_TRUE(tiers_.import("model").ok());
  auto context = Context::create({.lanes = 1});
  ASSERT_TRUE(context.ok() && tiers_.serve(*context).ok());
  const auto encoded = context->open("tier:model/a%20b");
  ASSERT_TRUE(encoded.ok()) << text_of(encoded);
  EXPECT_EQ(encoded->info().size_bytes, 5U);
  const auto literal = context->open("tier:model/%41");
  ASSERT_TRUE(literal.ok()) << text_of(literal);
  EXPECT_EQ(literal->info().size_bytes, 2U);
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
  const auto moved = tiers_.move("a", "hdd");
  set_fault_hook({});
  writer.join();
  EXPECT_EQ(moved.ok(), !has_written);
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"hdd"});
  if (!has_written) return;
  ASSERT_EQ(folders_.aside().size(), 1U);
  EXPECT_EQ(read_file(folders_.aside().front()).substr(0, 3), "new");
  EXPECT_NE(text_of(tiers_.check().value()).find(".kept"), std::string::npos);
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

TEST_F(TiersTest, what_was_written_behind_a_move_whose_source_could_not_go_stays) {
  put("nvme", "a", 1000);
  const fs::path in_the_way = folders_.path("nvme/.penstock/going") / std::to_string(1);
  write_file(in_the_way, "something");
  const auto moved = tiers_.move("a", "hdd");
  EXPECT_FALSE(moved.ok()) << "it lies in two places";
  fs::remove(in_the_way);
  auto context = Context::create();
  ASSERT_TRUE(tiers_.serve(*context).ok());
  {
    auto store = context->open("tier:a", {.access = Access::write});
    ASSERT_TRUE(store.ok()) << text_of(store);
    std::string bytes = "0123456789";
    ASSERT_TRUE(context->write(*store, 0, Region::host(bytes.data(), bytes.size())).ok());
    ASSERT_TRUE(store->commit().ok());
  }
  ASSERT_TRUE(Tiers::open(folders_.options()).ok());
  EXPECT_EQ(folders_.where("a"), std::vector<std::string>{"hdd"});
  EXPECT_EQ(content("hdd", "a").substr(0, 10), "0123456789");
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

}  // namespace
}  // namespace penstock::tiers
