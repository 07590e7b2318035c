#include "services/models/pack_folder.h"

#include <filesystem>

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
