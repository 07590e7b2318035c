#include "services/models/pack_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/test_syncs.h"
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

// With the folder: a power cut must not leave files of two models without the marker, nor it beside a whole one.
TEST_F(PackFolderTest, is_synced_when_the_marker_comes_and_when_it_goes) {
  std::unique_ptr<Unfinished> unfinished;
  EXPECT_EQ(test::syncs_of([&] { unfinished = begin().value(); }), std::vector<std::string>{out_});
  const auto failed = test::syncs_of([&] { EXPECT_FALSE(unfinished->end()); }, out_);
  EXPECT_EQ(failed, std::vector<std::string>{out_ + "!"});
  EXPECT_EQ(test::syncs_of([&] { EXPECT_TRUE(unfinished->end()); }), std::vector<std::string>{out_});
  unfinished = Unfinished::begin(out_, false).value();
  EXPECT_EQ(test::syncs_of([&] { EXPECT_TRUE(unfinished->end()); }), std::vector<std::string>());
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

// What root, or a service, packs may belong to another user. What is packed, everybody can read.
class PackOfAnotherUser : public PackFolderTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
    for (const char* name : {"model", "model/part0.safetensors", "model/part1.safetensors"}) give(name);
    fs::remove_all(out_);
    write("secret", one_tensor("a", 10, 's'));
    fs::permissions(path("secret"), fs::perms(0600));
  }
  void give(const std::string& name) const { ASSERT_EQ(::lchown(path(name).c_str(), other_, other_), 0); }
  void link(const std::string& name, uid_t owner) const {
    fs::remove(path(name));
    fs::create_symlink(path("secret"), path(name));
    ASSERT_EQ(::lchown(path(name).c_str(), owner, owner), 0);
  }
  void expect_refused(const std::string& name) {
    const auto packed = pack_model(context_, path(name), out_);
    ASSERT_FALSE(packed) << name;
    EXPECT_EQ(packed.error().code, Code::permission_denied) << packed.error().message;
    EXPECT_NE(packed.error().hint.find("chown"), std::string::npos) << packed.error().hint;
    EXPECT_FALSE(fs::exists(out_));
  }
  static std::string read(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  static constexpr uid_t other_ = 65534;
};

TEST_F(PackOfAnotherUser, copies_nothing_that_a_link_of_his_leads_to) {
  link("model/config.json", other_);
  expect_refused("model");
  fs::permissions(path("secret"), fs::perms(0644));
  expect_refused("model");
  ASSERT_EQ(::chown(path("secret").c_str(), 1, 1), 0);
  EXPECT_TRUE(pack_model(context_, path("model"), out_)) << "everybody may read it";
  fs::remove_all(out_);
  fs::permissions(path("secret"), fs::perms(0600));
  link("model/config.json", 0);
  EXPECT_TRUE(pack_model(context_, path("model"), out_)) << "a link of this user";
  EXPECT_NE(read(out_ + "/config.json").find("ssss"), std::string::npos);
  link("model/config.json", other_);
  give("secret");
  EXPECT_TRUE(pack_model(context_, path("model"), out_)) << "a file of his";
}

TEST_F(PackOfAnotherUser, packs_no_weights_that_a_link_of_his_leads_to) {
  link("model/part0.safetensors", other_);
  expect_refused("model");
  expect_refused("model/part0.safetensors");
  link("model/part0.safetensors", 0);
  EXPECT_TRUE(pack_model(context_, path("model"), out_));
}

TEST_F(PackOfAnotherUser, copies_nothing_that_has_taken_the_name_of_a_file_since) {
  fs::create_directory(path("private"));
  write("private/config.json", "ssss");
  const auto folder = SourceFolder::open(path("model"));
  ASSERT_TRUE(folder);
  const UniqueFd file(::open(path("private/config.json").c_str(), O_RDONLY));
  const Identity identity = Identity::of_file(file.get()).value();
  write("model/config.json", "his");
  fs::rename(path("model"), path("model.old"));
  fs::create_directory_symlink(path("private"), path("model"));
  const Status status = folder->check_copied("config.json", identity);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::changed);
  const auto names = folder->names();
  ASSERT_TRUE(names);
  EXPECT_EQ(std::ranges::count(*names, "part0.safetensors"), 1) << "those of the folder that was opened";
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
