#include <algorithm>
#include <filesystem>

#include "penstock/models.h"
#include "services/models/resolve.h"
#include "services/models/test_model.h"

namespace penstock::models {
namespace {

namespace fs = std::filesystem;

class ModelOpen : public ModelTest {
 protected:
  static std::string refusal(const std::string& path) {
    const Result<Model> model = Model::open(path);
    return model.ok() ? "was accepted" : model.error().message;
  }
  static bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

  void write_shards() const {
    write("model-00001-of-00002.safetensors", one_tensor("a", 4));
    write("model-00002-of-00002.safetensors", one_tensor("b", 8));
  }
  std::string write_index(const std::string& weight_map) const {
    return write("model.safetensors.index.json", R"({"metadata":{"total_size":12},"weight_map":)" + weight_map + "}");
  }
};

TEST_F(ModelOpen, a_file_is_a_model) {
  const std::string file = write("x.safetensors", one_tensor("a", 4));
  const Result<Model> model = Model::open(file);
  ASSERT_TRUE(model.ok()) << model.error().message;
  ASSERT_EQ(model->tensors().size(), 1U);
  EXPECT_EQ(model->size_bytes(), 4U);
  EXPECT_EQ(model->files()[0].path, file);
  EXPECT_EQ(model->files()[0].size_bytes, fs::file_size(file));
  EXPECT_EQ(model->tensors()[0].offset, model->files()[0].data_offset);
  EXPECT_EQ(model->find("a"), 0U);
  EXPECT_EQ(model->find("b"), std::nullopt);
}

TEST_F(ModelOpen, an_index_names_files_beside_it_by_its_own_scheme) {
  EXPECT_EQ(beside("soft-nvme:/disks/index.json", "a"), "soft-nvme:/disks/a");
  EXPECT_EQ(beside("soft-nvme:index.json", "50%"), "soft-nvme:50%25");
  write_shards();
  const std::string index =
      write_index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  fs::resize_file(index, fs::file_size(index) + 5000);  // zeros follow it, as on a device
  Context context = Context::create().value();
  const Result<Model> model = Model::open(context, "soft-nvme:" + index);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->tensors().size(), 2U);
  EXPECT_EQ(model->files()[1].path, "soft-nvme:" + path("model-00002-of-00002.safetensors"));
  fs::remove(path("model-00002-of-00002.safetensors"));
  EXPECT_EQ(Model::open(context, "soft-nvme:" + index).error().code, Code::not_found);
}

TEST_F(ModelOpen, a_path_may_look_like_a_uri_where_nothing_serves_it) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  Context context = Context::create().value();
  write("odd:x.safetensors", one_tensor("a", 4));
  const Result<Model> file = Model::open(context, "odd:x.safetensors");
  fs::create_directory("odd:folder");
  write("odd:folder/x.safetensors", one_tensor("a", 4));
  const Result<Model> directory = Model::open(context, "odd:folder");
  const Result<Model> other = Model::open(context, "odd://x");
  fs::current_path(before);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->files()[0].path, path("odd:x.safetensors"));
  ASSERT_TRUE(directory.ok()) << directory.error().message;
  EXPECT_EQ(directory->files()[0].path, path("odd:folder/x.safetensors"));
  EXPECT_EQ(other.error().code, Code::unknown_scheme);
}

TEST_F(ModelOpen, a_model_that_was_moved_or_never_opened_has_no_tensors) {
  Result<Model> model = Model::open(write("x.safetensors", one_tensor("a", 4)));
  ASSERT_TRUE(model.ok()) << model.error().message;
  const Model taken = std::move(*model);
  EXPECT_EQ(taken.find("a"), 0U);
  EXPECT_EQ(model->find("a"), std::nullopt);
  EXPECT_EQ(Model().find("a"), std::nullopt);
}

TEST_F(ModelOpen, several_files_are_one_model_unless_they_share_a_tensor) {
  const std::string files[] = {write("x", one_tensor("a", 4)), write("y", one_tensor("b", 4))};
  const Result<Model> model = Model::open(files);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->tensors()[1].file, 1U);
  const std::string twice[] = {files[0], write("z", one_tensor("a", 4))};
  const Result<Model> refused = Model::open(twice);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "two files have a tensor \"a\": " + twice[0] + " and " + twice[1]);
  EXPECT_EQ(refused.error().hint, "name the file you want");
  const std::string same[] = {files[0], files[1], files[0]};
  EXPECT_EQ(Model::open(same).error().message, files[0] + " is named twice");
  EXPECT_FALSE(Model::open(std::span<const std::string>()).ok());
}

TEST_F(ModelOpen, a_directory_is_its_files) {
  write_shards();
  const Result<Model> model = Model::open(folder_.string());
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->files().size(), 2U);
}

TEST_F(ModelOpen, an_index_says_which_files_of_a_directory_count) {
  write_shards();
  write("consolidated.safetensors", one_tensor("a", 4));
  const std::string index =
      write_index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  for (const std::string& name : {folder_.string(), index}) {
    const Result<Model> model = Model::open(name);
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->files().size(), 2U);
  }
}

TEST_F(ModelOpen, a_consolidated_file_beside_shards_is_refused_by_name) {
  write_shards();
  write("consolidated.safetensors", one_tensor("a", 4));
  const std::string why = refusal(folder_.string());
  EXPECT_TRUE(has(why, "consolidated.safetensors and model-00001-of-00002.safetensors")) << why;
}

TEST_F(ModelOpen, variants_of_a_model_in_one_directory_are_refused_by_name) {
  const std::string half = write("model.fp16.safetensors", one_tensor("a", 4));
  const std::string full = write("model.safetensors", one_tensor("a", 8));
  EXPECT_EQ(refusal(folder_.string()), "two files have a tensor \"a\": " + half + " and " + full);
}

TEST_F(ModelOpen, a_snapshot_of_the_hugging_face_cache_is_followed_through_its_links) {
  fs::create_directories(folder_ / "blobs");
  fs::create_directories(folder_ / "snapshots/1234");
  write("blobs/abcd", one_tensor("a", 4));
  write("blobs/ef01", R"({"weight_map":{"a":"model.safetensors"}})");
  fs::create_symlink("../../blobs/abcd", folder_ / "snapshots/1234/model.safetensors");
  fs::create_symlink("../../blobs/ef01", folder_ / "snapshots/1234/model.safetensors.index.json");
  const Result<Model> model = Model::open(path("snapshots/1234"));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->files()[0].path, path("snapshots/1234/model.safetensors"));
}

TEST_F(ModelOpen, missing_files_are_named) {
  write("model-00001-of-00003.safetensors", one_tensor("a", 4));
  EXPECT_TRUE(has(refusal(folder_.string()), "number 2, number 3 are missing")) << refusal(folder_.string());
  write_index(R"({"a":"model-00001-of-00003.safetensors","b":"model-00002-of-00003.safetensors"})");
  const std::string why = refusal(folder_.string());
  EXPECT_TRUE(has(why, "1 of the 2 files that it names are missing: model-00002-of-00003.safetensors")) << why;
}

TEST_F(ModelOpen, names_in_an_index_stay_in_the_directory) {
  fs::create_directories(folder_ / "below");
  write("below/x.safetensors", one_tensor("a", 4));
  for (const std::string name : {"../x", "/etc/passwd", "..", ".", "below/x.safetensors", "", "a\\u0000b"}) {
    write_index(R"({"a":")" + name + R"("})");
    const std::string why = refusal(folder_.string());
    EXPECT_TRUE(has(why, "tensor \"a\": the name of its file")) << why;
  }
}

TEST_F(ModelOpen, a_wrong_total_in_an_index_is_a_warning) {
  write_shards();
  const Model right = Model::open(folder_.string()).value();
  const auto warnings_with = [&](const std::string& total) {
    write("model.safetensors.index.json",
          R"({"metadata":{"total_size":)" + total +
              R"(},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
    return Model::open(folder_.string()).value().warnings();
  };
  const std::string bytes = std::to_string(right.size_bytes());
  EXPECT_TRUE(warnings_with(bytes).empty());
  EXPECT_TRUE(warnings_with("\"" + bytes + "1\"").empty()) << "it is no number";
  ASSERT_EQ(warnings_with(bytes + "1").size(), 1U);
  EXPECT_TRUE(has(warnings_with(bytes + "1")[0], "its total_size is " + bytes + "1, and its tensors have " + bytes));
}

TEST_F(ModelOpen, an_index_may_name_tensors_and_files_in_any_order) {
  write_shards();
  write_index(R"({"b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors"})");
  const Model model = Model::open(folder_.string()).value();
  EXPECT_EQ(model.tensors()[model.find("b").value()].file, 1U);
  EXPECT_TRUE(model.files()[1].path.ends_with("model-00002-of-00002.safetensors"));
}

TEST_F(ModelOpen, an_index_agrees_with_its_files) {
  write_shards();
  const auto refused = [&](const std::string& weight_map) {
    write_index(weight_map);
    return refusal(folder_.string());
  };
  const std::string a = R"("a":"model-00001-of-00002.safetensors")", b = R"("b":"model-00002-of-00002.safetensors")";
  EXPECT_TRUE(has(refused("{" + a + "," + b + R"(,"c":"model-00001-of-00002.safetensors"})"),
                  R"(tensor "c" is not in "model-00001-of-00002.safetensors" as the weight_map says)"));
  EXPECT_TRUE(has(refused("{" + a + R"(,"c":"model-00002-of-00002.safetensors"})"), "but not in the weight_map"));
  EXPECT_TRUE(has(
      refused("{" + a + R"(,"b":"model-00001-of-00002.safetensors",)" + R"("c":"model-00002-of-00002.safetensors"})"),
      R"(not in "model-00001-of-00002.safetensors" as the weight_map says)"));
  EXPECT_TRUE(has(refused("[]"), "its weight_map is not a JSON object"));
  EXPECT_TRUE(has(refused("{}"), "the weight_map of the index is empty"));
  EXPECT_TRUE(has(refused(R"({"a":1})"), R"(tensor "a": its file in the weight_map is not a string)"));
  EXPECT_TRUE(has(refused("{" + a + "," + a + "}"), R"(the key "a" appears twice)"));
  write("model.safetensors.index.json", "{}");
  EXPECT_TRUE(has(refusal(folder_.string()), "the index has no weight_map"));
  write("model.safetensors.index.json", "weight_map");
  EXPECT_TRUE(has(refusal(folder_.string()), "not valid JSON"));
}

TEST_F(ModelOpen, what_is_no_model_is_refused_by_name) {
  EXPECT_EQ(Model::open(path("missing")).error().code, Code::not_found);
  EXPECT_TRUE(has(refusal(folder_.string()), "has no *.safetensors"));
  EXPECT_TRUE(has(refusal("/dev/null"), "/dev/null is not a regular file"));
  const std::string short_file = write("short", "1234");
  EXPECT_TRUE(has(refusal(short_file), short_file + ": it has 4 bytes")) << refusal(short_file);
  EXPECT_EQ(Model::open(write("x-00001-of-00002.gguf", "GGUF")).error().code, Code::not_found);
  EXPECT_TRUE(has(refusal(folder_.string()), "x-00002-of-00002.gguf"));
  const std::string files[] = {write("a.safetensors", one_tensor("a", 4)), write("a.safetensors.index.json", "{}")};
  EXPECT_TRUE(has(Model::open(files).error().message, "is an index among files"));
}

}  // namespace
}  // namespace penstock::models
