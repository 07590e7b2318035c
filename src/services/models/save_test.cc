#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <sstream>
#include <vector>

#include "base/test_syncs.h"
#include "penstock/models.h"
#include "services/models/check.h"
#include "services/models/sha256.h"
#include "services/models/test_model.h"

namespace penstock::models {
namespace {

class ModelSave : public ModelTest {
 protected:
  ModelSave() : bytes_(3 << 20, '\0') { std::iota(bytes_.begin(), bytes_.end(), '\0'); }

  // A tensor of bytes that begin at `at`.
  TensorToSave tensor(const std::string& name, DType dtype, std::vector<std::uint64_t> shape, std::size_t at) {
    std::uint64_t size = dtype_bits(dtype) / 8;
    for (const std::uint64_t length : shape) size *= length;
    return {name, dtype, std::move(shape), Region::host(bytes_.data() + at, size)};
  }
  std::vector<TensorToSave> tensors() {
    return {tensor("b", DType::u8, {3}, 1),       tensor("\"q\"\n", DType::f32, {5, 5}, 10),
            tensor("a", DType::u8, {7}, 20),      tensor("large", DType::bf16, {1000, 1000}, 500),
            tensor("scalar", DType::f64, {}, 77), tensor("none", DType::f32, {0, 3}, 0)};
  }
  std::string content(const std::string& file) const {
    std::ostringstream content;
    content << std::ifstream(file, std::ios::binary).rdbuf();
    return content.str();
  }
  std::size_t files_in_folder() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  // On a busy machine operations take their time to come home.
  Context context_ =
      Context::create({.lanes = 2, .deadlines = {.cancel_grace_seconds = 5, .close_seconds = 10}}).value();
  std::string bytes_;
};

TEST_F(ModelSave, a_file_is_synced_before_it_has_its_name_unless_that_is_not_wanted) {
  for (const bool packed : {false, true}) {
    for (const bool durable : {true, false}) {
      const auto syncs = penstock::test::syncs_of([&] {
        EXPECT_TRUE(save_safetensors(context_, path("x"), tensors(), {.durable = durable, .packed = packed}).ok());
      });
      ASSERT_EQ(syncs.size(), durable ? 2U : 0U);
      if (!durable) continue;
      EXPECT_TRUE(syncs[0].starts_with(folder_.string() + "/") && syncs[0] != path("x")) << syncs[0];
      EXPECT_EQ(syncs[1], folder_.string());
    }
  }
}

TEST_F(ModelSave, what_was_saved_comes_back) {
  const std::vector<TensorToSave> saved = tensors();
  const Result<Report> report =
      save_safetensors(context_, path("x"), saved, {.metadata = {{"format", "pt"}, {"quote\"", "ü"}}});
  ASSERT_TRUE(report.ok()) << report.error().message;
  const Result<Model> model = Model::open(path("x"));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->files()[0].data_offset % 4096, 0U);
  EXPECT_EQ(model->files()[0].metadata, (std::map<std::string, MetadataValue>{{"format", "pt"}, {"quote\"", "ü"}}));
  const std::string file = content(path("x"));
  ASSERT_EQ(model->tensors().size(), saved.size());
  std::vector<std::string> order;
  for (const TensorInfo& info : model->tensors()) order.push_back(info.name);
  EXPECT_EQ(order, (std::vector<std::string>{"scalar", "\"q\"\n", "none", "large", "a", "b"}))
      << "larger types first, then by name";
  for (const TensorToSave& each : saved) {
    const TensorInfo& info = model->tensors()[model->find(each.name).value()];
    EXPECT_EQ(info.dtype, each.dtype);
    EXPECT_EQ(info.shape, each.shape);
    EXPECT_TRUE(file.substr(info.offset, info.size_bytes) ==
                std::string(reinterpret_cast<const char*>(each.memory.data), each.memory.size_bytes));
    EXPECT_EQ(info.offset % (dtype_bits(info.dtype) / 8), 0U) << "every tensor is aligned to its elements";
  }
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(ModelSave, the_first_tensor_begins_where_it_is_told_to) {
  ASSERT_TRUE(save_safetensors(context_, path("x"), tensors(), {.empty_metadata = true, .alignment = 8}).ok());
  const std::uint64_t begin = Model::open(path("x"))->files()[0].data_offset;
  EXPECT_EQ(begin % 8, 0U);
  EXPECT_NE(begin % 4096, 0U);
  EXPECT_EQ(content(path("x")).substr(8, 18), R"({"__metadata__":{})");
  for (const std::uint64_t wrong : {0, 4, 24, 1 << 21}) {
    EXPECT_EQ(save_safetensors(context_, path("y"), tensors(), {.alignment = wrong}).error().code,
              Code::invalid_argument);
  }
}

TEST_F(ModelSave, nothing_can_be_saved_too) {
  ASSERT_TRUE(save_safetensors(context_, path("x"), {}, {.durable = false}).ok());
  EXPECT_TRUE(Model::open(path("x"))->tensors().empty());
}

TEST_F(ModelSave, wrong_tensors_are_refused_by_name_and_nothing_is_written) {
  const auto refusal = [&](const std::vector<TensorToSave>& wrong, const SaveOptions& options = {}) {
    const Result<Report> report = save_safetensors(context_, path("x"), wrong, options);
    return report.ok() ? "was accepted" : report.error().message;
  };
  const auto has = [](const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; };
  const TensorToSave good = tensor("a", DType::u8, {4}, 0);
  EXPECT_TRUE(has(refusal({good, good}), "tensor \"a\": the name appears twice"));
  EXPECT_TRUE(has(refusal({tensor("__metadata__", DType::u8, {4}, 0)}), "reserves this name"));
  TensorToSave wrong = good;
  wrong.shape = {5};
  EXPECT_TRUE(has(refusal({wrong}), "tensor \"a\": its shape needs 5 bytes, and its memory has 4"));
  wrong.shape.assign(65, 1);
  EXPECT_TRUE(has(refusal({wrong}), "tensor \"a\": its shape has more than 64 dimensions"));
  wrong.shape = {1ULL << 40, 1ULL << 40};
  EXPECT_TRUE(has(refusal({wrong}), "more elements than can be counted"));
  EXPECT_TRUE(has(refusal({tensor("\xff", DType::u8, {4}, 0)}), "not UTF-8"));
  EXPECT_TRUE(has(refusal({good}, {.metadata = {{"x", "\xff"}}}), "not UTF-8"));
  EXPECT_EQ(files_in_folder(), 0U);
  const auto hint = [&](const std::vector<TensorToSave>& tensors) {
    return save_safetensors(context_, path("x"), tensors).error().hint;
  };
  EXPECT_EQ(hint({good, good}), "give each tensor a name of its own; nothing was written");
  wrong.shape = {5};
  EXPECT_EQ(hint({wrong}), "correct its shape, its type or its memory; nothing was written");
}

TEST_F(ModelSave, what_was_there_stays_until_the_new_file_is_complete) {
  write("x", "old");
  std::vector<TensorToSave> saved = tensors();
  SaveOptions options;
  options.progress = [&](std::uint64_t, std::uint64_t) {
    EXPECT_EQ(content(path("x")), "old");
    return true;
  };
  ASSERT_TRUE(save_safetensors(context_, path("x"), saved, options).ok());
  EXPECT_NE(content(path("x")), "old");
}

TEST_F(ModelSave, cancelled_or_failed_it_leaves_the_old_file_and_no_other) {
  write("x", "old");
  bytes_.resize(200 << 20);
  const std::vector<TensorToSave> large = {tensor("large", DType::u8, {bytes_.size()}, 0)};
  SaveOptions options{.checksums = true, .progress = [](std::uint64_t, std::uint64_t) { return false; }};
  const Result<Report> cancelled = save_safetensors(context_, path("x"), large, options);
  if (!cancelled.ok()) {  // unless it was done within the first twentieth of a second
    EXPECT_EQ(cancelled.error().code, Code::cancelled);
    EXPECT_EQ(content(path("x")), "old");
  }
  std::filesystem::create_directory(folder_ / "directory");
  EXPECT_EQ(save_safetensors(context_, path("directory"), large).error().code, Code::is_directory);
  EXPECT_EQ(save_safetensors(context_, path("missing/x"), large).error().code, Code::not_found);
  EXPECT_EQ(files_in_folder(), 2U);
}

TEST_F(ModelSave, the_last_word_of_progress_can_cancel_too) {
  const std::vector<TensorToSave> small = {tensor("a", DType::f32, {3}, 0)};
  for (const bool checksums : {false, true}) {
    write("x", "old");
    std::uint64_t told = 0;
    const SaveOptions options{.checksums = checksums, .progress = [&](std::uint64_t done, std::uint64_t all) {
                                told = done;
                                return done != all;
                              }};
    const Result<Report> report = save_safetensors(context_, path("x"), small, options);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, Code::cancelled);
    EXPECT_EQ(told, 12U);
    EXPECT_EQ(content(path("x")), "old");
    EXPECT_EQ(files_in_folder(), 1U);
  }
}

TEST_F(ModelSave, what_was_saved_is_cached_for_the_next_load_unless_the_cache_is_bypassed) {
  std::vector<TensorToSave> saved = tensors();
  bytes_.resize(70 << 20);
  for (const std::size_t size : {std::size_t{3} << 20, bytes_.size()}) {
    saved = {tensor("a", DType::u8, {100}, 5), tensor("long", DType::u8, {size}, 0), tensor("b", DType::u8, {7}, 20)};
    for (const Cache cache : {Cache::automatic, Cache::bypass}) {
      Context context = Context::create({.cache = cache, .lanes = 2}).value();
      for (const bool durable : {false, true}) {
        const auto report = save_safetensors(context, path("x"), saved, {.durable = durable});
        ASSERT_TRUE(report.ok()) << report.error().message;
        const Store store = context.open(path("x")).value();
        if (!store.info().direct) GTEST_SKIP() << "no direct I/O here";
        EXPECT_EQ(report->bytes, store.info().size_bytes);
        const std::uint64_t cached = store.cached_bytes(0, report->bytes).value_or(0);
        if (cache == Cache::automatic) {
          EXPECT_EQ(cached, report->bytes) << report->reason;
        } else {
          EXPECT_LT(cached, report->bytes / 2) << report->reason;
        }
        const std::string file = content(path("x"));
        const Model model = Model::open(path("x")).value();
        for (const TensorToSave& each : saved) {
          const TensorInfo& info = model.tensors()[model.find(each.name).value()];
          EXPECT_TRUE(std::memcmp(file.data() + info.offset, each.memory.data, info.size_bytes) == 0) << each.name;
        }
      }
    }
  }
}

TEST_F(ModelSave, checksums_tell_which_tensor_is_wrong) {
  ASSERT_TRUE(save_safetensors(context_, path("x"), tensors(), {.checksums = true}).ok());
  const Model model = Model::open(path("x")).value();
  EXPECT_EQ(parse_checksums(model.files()[0].metadata.at("penstock.xxh3").text())->size(), tensors().size());
  auto checked = check_model(context_, model).value();
  ASSERT_EQ(checked.size(), 1U);
  EXPECT_EQ(checked[0].verdict, CheckedFile::Verdict::right) << checked[0].how;
  EXPECT_EQ(checked[0].how, "xxh3 of 6 tensors");

  std::string damaged = content(path("x"));
  damaged[model.tensors()[model.find("a").value()].offset + 2] ^= 1;
  write("y", damaged);
  checked = check_model(context_, Model::open(path("y")).value()).value();
  EXPECT_EQ(checked[0].verdict, CheckedFile::Verdict::wrong);
  EXPECT_EQ(checked[0].wrong_tensors, std::vector<std::string>{"a"});
}

TEST_F(ModelSave, checksums_of_other_bytes_are_not_taken_over) {
  const SaveOptions options{.metadata = {{"penstock.xxh3", "{}"}, {"other", "x"}}};
  ASSERT_TRUE(save_safetensors(context_, path("x"), tensors(), options).ok());
  EXPECT_EQ(Model::open(path("x"))->files()[0].metadata.size(), 1U);
  const auto checked = check_model(context_, Model::open(path("x")).value()).value();
  EXPECT_EQ(checked[0].verdict, CheckedFile::Verdict::unknown);
  EXPECT_NE(checked[0].how.find("no recorded checksums"), std::string::npos);
}

TEST_F(ModelSave, recorded_checksums_that_are_broken_say_nothing) {
  for (const std::string text : {"{}", "[]", "x", R"({\"a\":\"0\",\"a\":\"0\"})", R"({\"a\":1})", R"({\"b\":\"0\"})"}) {
    write("x", safetensors_file(R"({"__metadata__":{"penstock.xxh3":")" + text +
                                    R"("},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                "x"));
    const auto checked = check_model(context_, Model::open(path("x")).value()).value();
    EXPECT_EQ(checked[0].verdict, CheckedFile::Verdict::unknown) << text;
  }
}

TEST_F(ModelSave, a_blob_of_the_hugging_face_cache_has_its_digest_for_a_name) {
  Result<Sha256> sha256 = Sha256::create();
  if (!sha256) GTEST_SKIP() << sha256.error().message;
  const std::string file = one_tensor("a", 40 << 20);
  sha256->add(std::as_bytes(std::span(file)));
  const std::string digest = sha256->hex();
  std::filesystem::create_directories(folder_ / "blobs");
  std::filesystem::create_directories(folder_ / "snapshots/1");
  write("blobs/" + digest, file);
  std::filesystem::create_symlink("../../blobs/" + digest, folder_ / "snapshots/1/model.safetensors");
  const auto verdict = [&] {
    const auto checked = check_model(context_, Model::open(path("snapshots/1")).value()).value();
    EXPECT_EQ(checked[0].how, "sha256 of the blob");
    return checked[0].verdict;
  };
  EXPECT_EQ(verdict(), CheckedFile::Verdict::right);
  std::string damaged = file;
  damaged.back() ^= 1;
  write("blobs/" + digest, damaged);
  EXPECT_EQ(verdict(), CheckedFile::Verdict::wrong);
}

TEST(Sha256, of_abc_is_what_the_standard_says) {
  Result<Sha256> sha256 = Sha256::create();
  if (!sha256) GTEST_SKIP() << sha256.error().message;
  sha256->add(std::as_bytes(std::span("abc", 3)));
  EXPECT_EQ(sha256->hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace penstock::models
