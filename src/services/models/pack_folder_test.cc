#include "services/models/pack_folder.h"

#include <atomic>
#include <filesystem>
#include <thread>

#include "penstock/packing.h"
#include "services/models/test_model.h"

namespace penstock::models {
namespace {

namespace fs = std::filesystem;

class PackFolderTest : public ModelTest {
 protected:
  PackFolderTest() {
    for (const char* folder : {"model", "out"}) {
      fs::create_directory(path(folder));
      write(std::string(folder) + "/part0.safetensors", one_tensor("a", 10));
      write(std::string(folder) + "/part1.safetensors", one_tensor("b", 10));
    }
    write("out/model.safetensors.index.json", index);
    write("model/model.safetensors.index.json", index);
  }

  static constexpr const char* index = R"({"weight_map":{"a":"part0.safetensors","b":"part1.safetensors"}})";

  bool is_model() {
    const bool by_folder = Model::open(out_).ok(), by_index = Model::open(out_ + "/model.safetensors.index.json").ok();
    EXPECT_EQ(by_folder, by_index);
    EXPECT_EQ(Model::open(context_, out_).ok(), by_folder);
    EXPECT_TRUE(Model::open(out_ + "/part0.safetensors"));
    return by_folder;
  }
  auto begin() { return Unfinished::begin(out_, true); }

  Context context_ = Context::create().value();
  const std::string out_ = path("out");
};

TEST_F(PackFolderTest, is_no_model_until_all_is_there) {
  ASSERT_TRUE(is_model());
  const auto unfinished = begin().value();
  EXPECT_FALSE(is_model());
  const auto refused = Model::open(out_);
  EXPECT_NE(refused.error().message.find("has not ended"), std::string::npos) << refused.error().message;
  ASSERT_TRUE(unfinished->end());
  EXPECT_TRUE(is_model());
}

TEST_F(PackFolderTest, has_one_writer) {
  const auto unfinished = begin().value();
  const auto other = begin();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::in_use);
  EXPECT_EQ(pack_model(context_, path("model"), out_).error().code, Code::in_use);
  EXPECT_FALSE(is_model());
}

TEST_F(PackFolderTest, is_locked_only_by_who_may_write_there) {
  const auto mode_of_marker = [&] {
    const auto unfinished = begin().value();
    const fs::perms mode = fs::status(out_ + "/.penstock-unfinished").permissions();
    EXPECT_TRUE(unfinished->end());
    return mode;
  };
  fs::permissions(out_, fs::perms(0755));
  EXPECT_EQ(mode_of_marker(), fs::perms(0600)) << "who can open it could lock it";
}

// Its owner puts another folder, or a link, in its place while files are written.
TEST_F(PackFolderTest, files_are_made_in_the_folder_that_was_found) {
  write("model/config.json", "new");
  write("model/part0.safetensors", one_tensor("a", 20 << 20));
  fs::create_directory(path("other"));
  write("other/config.json", "other");
  std::atomic<bool> over = false;
  std::thread swapper([&] {
    while (!over && !fs::exists(out_ + "/.penstock-unfinished")) continue;
    fs::rename(out_, out_ + ".old");
    fs::create_directory_symlink(path("other"), out_);
  });
  static_cast<void>(pack_model(context_, path("model"), out_));
  over = true;
  swapper.join();
  EXPECT_EQ(std::distance(fs::directory_iterator(path("other")), fs::directory_iterator()), 1);
  std::ifstream file(path("other/config.json"));
  std::string text;
  file >> text;
  EXPECT_EQ(text, "other");
}

TEST_F(PackFolderTest, is_a_model_again_if_nothing_was_replaced) {
  begin().value()->withdraw();
  EXPECT_TRUE(is_model());
}

TEST_F(PackFolderTest, stays_unfinished_until_someone_finishes_it) {
  begin().value();
  EXPECT_FALSE(is_model());
  begin().value()->withdraw();
  EXPECT_FALSE(is_model());
  const auto packed = pack_model(context_, path("model"), out_);
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_TRUE(is_model());
}

TEST_F(PackFolderTest, a_planted_marker_is_not_followed) {
  fs::create_symlink(path("planted"), out_ + "/.penstock-unfinished");
  EXPECT_FALSE(begin());
  EXPECT_FALSE(fs::exists(path("planted")));
}

TEST_F(PackFolderTest, a_run_that_replaced_nothing_leaves_the_old_model) {
  fs::remove(out_ + "/part0.safetensors");
  fs::create_directory(out_ + "/part0.safetensors");
  EXPECT_FALSE(pack_model(context_, path("model"), out_));
  EXPECT_FALSE(fs::exists(out_ + "/.penstock-unfinished"));
}

TEST_F(PackFolderTest, old_and_new_files_are_no_model) {
  fs::remove(out_ + "/part1.safetensors");
  fs::create_directory(out_ + "/part1.safetensors");
  EXPECT_FALSE(pack_model(context_, path("model"), out_));
  fs::remove(out_ + "/part1.safetensors");
  write("out/part1.safetensors", one_tensor("b", 10, 'o'));
  EXPECT_FALSE(is_model());
  ASSERT_TRUE(pack_model(context_, path("model"), out_));
  EXPECT_TRUE(is_model());
}

}  // namespace
}  // namespace penstock::models
