#include "penstock/tuning.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "penstock/context.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// Sets variables of the environment, and puts them back.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) {
      const char* old = getenv(name);
      old_.emplace_back(name, old != nullptr ? std::optional<std::string>(old) : std::nullopt);
      value != nullptr ? setenv(name, value, 1) : unsetenv(name);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : old_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> old_;
};

class TuningFile : public testing::Test {
 protected:
  TuningFile() {
    std::string name = (fs::temp_directory_path() / "penstock-tuning-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    file_ = folder_ / "made" / "when needed" / "tuning.json";
  }
  ~TuningFile() override { fs::remove_all(folder_); }

  Tuning tuning(Domain memory, std::uint32_t lanes) const {
    Tuning made{.key = *tuning_key(folder_, memory),
                .options = {},
                .when = "2026-01-31T12:00:00Z",
                .version = std::string(version()),
                .cached = TuningSpeed{1e9, 2e9},
                .cold = {}};
    made.options.lanes = lanes;
    return made;
  }
  std::string read() const {
    std::ifstream file(file_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path folder_;
  fs::path file_;
};

TEST_F(TuningFile, is_found_for_its_file_system_and_memory_only) {
  const Tuning host = tuning(Domain::host(), 3), pinned = tuning(Domain::pinned(), 5);
  ASSERT_TRUE(save_tuning(host, file_).ok());
  ASSERT_TRUE(save_tuning(pinned, file_).ok());
  EXPECT_EQ(**find_tuning(folder_, Domain::host(), file_), host);
  EXPECT_EQ(**find_tuning(folder_ / "not there yet", Domain::pinned(), file_), pinned);
  EXPECT_FALSE(find_tuning("/proc/self/status", Domain::host(), file_)->has_value());
  EXPECT_FALSE(find_tuning(folder_ / "no/such/folder", Domain::host(), file_)->has_value());
}

TEST_F(TuningFile, keeps_one_for_each_key) {
  ASSERT_TRUE(save_tuning(tuning(Domain::host(), 3), file_).ok());
  ASSERT_TRUE(save_tuning(tuning(Domain::pinned(), 5), file_).ok());
  ASSERT_TRUE(save_tuning(tuning(Domain::host(), 7), file_).ok());
  EXPECT_EQ((*find_tuning(folder_, Domain::host(), file_))->options.lanes, 7u);
  EXPECT_EQ((*find_tuning(folder_, Domain::pinned(), file_))->options.lanes, 5u);
}

TEST_F(TuningFile, leaves_nothing_else_in_its_folder) {
  ASSERT_TRUE(save_tuning(tuning(Domain::host(), 3), file_).ok());
  ASSERT_TRUE(save_tuning(tuning(Domain::host(), 4), file_).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(file_.parent_path()), fs::directory_iterator()), 1);
}

TEST_F(TuningFile, is_deleted_with_its_last_entry) {
  const Tuning host = tuning(Domain::host(), 3), pinned = tuning(Domain::pinned(), 5);
  ASSERT_TRUE(save_tuning(host, file_).ok());
  ASSERT_TRUE(save_tuning(pinned, file_).ok());
  EXPECT_TRUE(*remove_tuning(host.key, file_));
  EXPECT_FALSE(*remove_tuning(host.key, file_));
  EXPECT_TRUE(find_tuning(folder_, Domain::pinned(), file_)->has_value());
  EXPECT_TRUE(*remove_tuning(pinned.key, file_));
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_FALSE(*remove_tuning(pinned.key, file_));
}

TEST_F(TuningFile, is_not_missed) {
  EXPECT_FALSE(find_tuning(folder_, Domain::host(), file_)->has_value());
  EXPECT_FALSE(find_tuning(folder_, Domain::host(), "")->has_value());
  EXPECT_EQ(save_tuning(tuning(Domain::host(), 1), "").error().code, Code::invalid_argument);
}

TEST_F(TuningFile, that_is_broken_is_named_and_never_overwritten) {
  fs::create_directories(file_.parent_path());
  std::ofstream(file_) << "{\"schema\": 1}";
  const auto found = find_tuning(folder_, Domain::host(), file_);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, Code::invalid_argument);
  EXPECT_NE(found.error().message.find(file_.string()), std::string::npos);
  EXPECT_NE(found.error().hint.find("rm '" + file_.string()), std::string::npos);
  EXPECT_FALSE(save_tuning(tuning(Domain::host(), 1), file_).ok());
  EXPECT_FALSE(remove_tuning(tuning(Domain::host(), 1).key, file_).ok());
  EXPECT_EQ(read(), "{\"schema\": 1}");
}

TEST_F(TuningFile, may_not_be_something_else_or_too_large) {
  EXPECT_FALSE(find_tuning(folder_, Domain::host(), folder_).ok());
  const fs::path fifo = folder_ / "fifo", large = folder_ / "large";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_FALSE(find_tuning(folder_, Domain::host(), fifo).ok());
  std::ofstream(large) << "{}";
  ASSERT_EQ(truncate(large.c_str(), 5 << 20), 0);
  EXPECT_FALSE(find_tuning(folder_, Domain::host(), large).ok());
}

TEST(TuningKey, tells_where_a_path_is_mounted) {
  const auto key = tuning_key("/proc/self/status", Domain::host());
  ASSERT_TRUE(key.ok()) << key.error().message;
  EXPECT_EQ(key->file_system, "proc");
  EXPECT_EQ(key->mount_point, "/proc");
  EXPECT_EQ(key->memory, "host");
  EXPECT_EQ(tuning_key("/no/such/folder/file", Domain::host()).error().code, Code::not_found);
}

TEST(Tuning, sets_only_what_was_left_at_its_default) {
  Tuning tuning;
  tuning.options.lanes = 8;
  tuning.options.staging_slot_bytes = 8 << 20;
  Options given;
  given.lanes = 2;
  given.engine = "posix";
  const Options applied = tuning.apply(given);
  EXPECT_EQ(applied.lanes, 2u);
  EXPECT_EQ(applied.staging_slot_bytes, 8u << 20);
  EXPECT_EQ(applied.engine, "posix");
  EXPECT_EQ(applied.storage_chunk_bytes, Options().storage_chunk_bytes);
}

TEST(Tuning, gives_way_to_a_budget_that_it_does_not_fit) {
  Tuning tuning;
  tuning.options.staging_slot_bytes = 64 << 20;
  Options given;
  given.pinned_budget_bytes = 16 << 20;
  EXPECT_EQ(tuning.apply(given), given);
}

TEST(Tuning, file_is_where_the_environment_says) {
  {
    const Environment set({{"PENSTOCK_TUNING", "/a/b"}, {"XDG_CONFIG_HOME", "/x"}, {"HOME", "/h"}});
    EXPECT_EQ(default_tuning_file(), "/a/b");
  }
  {
    const Environment set({{"PENSTOCK_TUNING", nullptr}, {"XDG_CONFIG_HOME", "/x"}, {"HOME", "/h"}});
    EXPECT_EQ(default_tuning_file(), "/x/penstock/tuning.json");
  }
  {
    const Environment set({{"PENSTOCK_TUNING", nullptr}, {"XDG_CONFIG_HOME", "relative"}, {"HOME", "/h"}});
    EXPECT_EQ(default_tuning_file(), "/h/.config/penstock/tuning.json");
  }
  for (const char* none : {"", static_cast<const char*>(nullptr)}) {
    const Environment set({{"PENSTOCK_TUNING", none}, {"XDG_CONFIG_HOME", nullptr}, {"HOME", nullptr}});
    EXPECT_EQ(default_tuning_file(), "");
  }
}

class TuningMeasurement : public TuningFile {
 protected:
  std::string make(const char* name, std::size_t size_bytes) const {
    std::ofstream(folder_ / name) << std::string(size_bytes, 'x');
    return folder_ / name;
  }
};

TEST_F(TuningMeasurement, measures_and_tells_every_trial) {
  std::size_t told = 0;
  const auto result = search_tuning({.path = make("data", 3 << 20),
                                     .memory = Domain::host(),
                                     .seconds = 0.5,
                                     .keep_going = {},
                                     .on_trial = [&](const TuningTrial&) { ++told; }});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_GT(told, 0u);
  EXPECT_EQ(result->trials.size(), told);
  EXPECT_EQ(result->size_bytes % (1 << 20), 0u);
  ASSERT_TRUE(result->cached || result->cold);
  const TuningSpeed speed = result->cached ? *result->cached : *result->cold;
  EXPECT_GT(speed.before_bytes_per_second, 0);
  EXPECT_TRUE(!result->better || !tuned_options(result->options).empty());
}

TEST_F(TuningMeasurement, ends_when_told_to) {
  int asked = 0;
  const auto result = search_tuning({.path = make("data", 3 << 20),
                                     .memory = Domain::host(),
                                     .seconds = 600,
                                     .keep_going = [&] { return ++asked < 20; },
                                     .on_trial = {}});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::cancelled);
  EXPECT_LT(asked, 30);
}

TEST_F(TuningMeasurement, refuses_what_it_cannot_measure) {
  const auto small =
      search_tuning({.path = make("small", 1000), .memory = Domain::host(), .keep_going = {}, .on_trial = {}});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().code, Code::invalid_argument);
  const auto missing =
      search_tuning({.path = folder_ / "no", .memory = Domain::host(), .keep_going = {}, .on_trial = {}});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::not_found);
}

}  // namespace
}  // namespace penstock
