// Packed models, from the writer to loads of all kinds.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "penstock/models.h"
#include "penstock/packing.h"
#include "penstock/published.h"
#include "services/models/packed_metadata.h"
#include "services/models/packed_writer.h"
#include "services/models/test_model.h"
#include "services/packed/test_values.h"

namespace penstock::models {
namespace {

using TensorBytes = std::vector<std::byte>;

struct PackedTensor {
  std::string name;
  DType dtype;
  std::vector<std::uint64_t> shape;
  TensorBytes bytes;
};

class PackedModelTest : public ModelTest {
 protected:
  PackedModelTest() {
    const auto add = [&](const std::string& name, DType dtype, packed::Kind kind, std::vector<std::uint64_t> shape,
                         packed::Pattern pattern) {
      const std::uint64_t count =
          std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<std::uint64_t>());
      tensors_.push_back({name, dtype, std::move(shape), packed::make_values(kind, pattern, count, tensors_.size())});
    };
    add("bf16", DType::bf16, packed::Kind::bf16, {700, 512}, packed::Pattern::normal);
    add("f16", DType::f16, packed::Kind::f16, {300, 512}, packed::Pattern::normal);
    add("f32", DType::f32, packed::Kind::f32, {3, 100, 700}, packed::Pattern::normal);
    add("e4m3", DType::f8_e4m3, packed::Kind::f8_e4m3, {512, 512}, packed::Pattern::equal);
    add("e5m2", DType::f8_e5m2, packed::Kind::f8_e5m2, {512, 500}, packed::Pattern::normal);
    add("nan", DType::bf16, packed::Kind::bf16, {100'000}, packed::Pattern::not_numbers);
    add("noise", DType::bf16, packed::Kind::bf16, {100'000}, packed::Pattern::random);
    add("small", DType::bf16, packed::Kind::bf16, {100}, packed::Pattern::normal);
    add("i64", DType::i64, packed::Kind::f32, {1}, packed::Pattern::zeros);
    tensors_.back().bytes.resize(8);
    tensors_.push_back({"none", DType::bf16, {0, 5}, {}});
    tensors_.push_back(
        {"scalar", DType::f32, {}, packed::make_values(packed::Kind::f32, packed::Pattern::normal, 1, 1)});
  }

  std::vector<TensorToSave> to_save() {
    std::vector<TensorToSave> list;
    for (PackedTensor& tensor : tensors_) {
      list.push_back({tensor.name, tensor.dtype, tensor.shape, Region::host(tensor.bytes.data(), tensor.bytes.size())});
    }
    return list;
  }
  std::string save(const std::string& name, const SaveOptions& options) {
    const auto report = save_safetensors(context_, path(name), to_save(), options);
    EXPECT_TRUE(report) << report.error().message;
    return path(name);
  }
  const PackedTensor& tensor_named(const std::string& name) const {
    return *std::ranges::find(tensors_, name, &PackedTensor::name);
  }

  void expect_all(const Model& model) {
    ASSERT_EQ(model.tensors().size(), tensors_.size());
    std::vector<TensorBytes> memory;
    std::vector<TensorPart> parts;
    for (const TensorInfo& info : model.tensors()) memory.emplace_back(info.size_bytes, std::byte{0xcc});
    for (std::uint32_t i = 0; i < memory.size(); ++i) {
      parts.push_back({.tensor = i, .memory = Region::host(memory[i].data(), memory[i].size())});
    }
    context_.reset_statistics();
    auto loading = load(context_, model, parts);
    ASSERT_TRUE(loading) << loading.error().message;
    loading->wait();
    const LoadReport report = loading->report();
    ASSERT_TRUE(report.ok()) << report.transfer.error->message;
    for (std::uint32_t i = 0; i < memory.size(); ++i) {
      const PackedTensor& tensor = tensor_named(model.tensors()[i].name);
      EXPECT_EQ(model.tensors()[i].dtype, tensor.dtype) << tensor.name;
      EXPECT_EQ(model.tensors()[i].shape, tensor.shape) << tensor.name;
      EXPECT_TRUE(memory[i] == tensor.bytes) << tensor.name;
    }
    std::uint64_t decoded = 0;
    for (const TensorInfo& info : model.tensors()) decoded += info.packing.empty() ? 0 : info.size_bytes;
    EXPECT_EQ(report.packed_bytes, decoded);
    EXPECT_EQ(report.wanted_bytes, model.size_bytes());
    const Statistics statistics = context_.statistics();
    EXPECT_EQ(statistics.made_bytes, decoded);
    EXPECT_EQ(statistics.stored_bytes, report.stored_bytes);
    const Published published[] = {{.name = "test", .pid = 1, .command = {}, .file = {}, .statistics = statistics}};
    const std::string metrics = to_prometheus(published);
    EXPECT_NE(metrics.find("\npenstock_made_bytes_total{"), std::string::npos);
    EXPECT_NE(metrics.find("\npenstock_stored_bytes_total{"), std::string::npos);
    EXPECT_NE(metrics.find("} " + std::to_string(decoded) + "\n"), std::string::npos) << metrics;
    EXPECT_NE(metrics.find("} " + std::to_string(report.stored_bytes) + "\n"), std::string::npos) << metrics;
    if (decoded != 0) {
      EXPECT_LT(report.stored_bytes, report.packed_bytes);
    }
  }

  Context context_ = Context::create().value();
  std::vector<PackedTensor> tensors_;
};

TEST_F(PackedModelTest, comes_back_as_it_was) {
  const auto model = Model::open(save("m.safetensors", {.packed = true}));
  ASSERT_TRUE(model) << model.error().message;
  expect_all(*model);
  const auto packing = [&](const char* name) { return model->tensors()[*model->find(name)].packing; };
  EXPECT_EQ(packing("bf16"), "planes");
  EXPECT_EQ(packing("f16"), "planes");
  EXPECT_EQ(packing("e4m3"), "planes");
  EXPECT_EQ(packing("nan"), "planes");
  EXPECT_EQ(packing("noise"), "") << "it does not get smaller";
  EXPECT_EQ(packing("small"), "") << "4096 bytes are more than it has";
  EXPECT_EQ(packing("i64"), "");
  EXPECT_LT(model->stored_bytes(), model->size_bytes());
}

TEST_F(PackedModelTest, is_a_safetensors_file_of_rows_of_bytes) {
  const std::string name = save("m.safetensors", {.metadata = {{"format", "pt"}}, .packed = true});
  std::ostringstream content;
  content << std::ifstream(name, std::ios::binary).rdbuf();
  const std::string bytes = content.str();
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ((8 + length) % 4096, 0U);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["bf16"]["dtype"], "U8");
  EXPECT_EQ(header["bf16"]["shape"][1], 4096);
  EXPECT_EQ(header["noise"]["dtype"], "BF16");
  EXPECT_EQ(header["__metadata__"]["format"], "pt");
  const auto packed = nlohmann::json::parse(header["__metadata__"]["penstock.packed"].get<std::string>());
  EXPECT_EQ(packed["version"], 1);
  EXPECT_EQ(packed["tensors"]["f32"],
            (nlohmann::json{{"dtype", "F32"}, {"shape", {3, 100, 700}}, {"codec", "planes"}}));
  std::uint64_t end_of_packed = 0, begin_of_plain = UINT64_MAX;
  for (const auto& [tensor, entry] : header.items()) {
    if (tensor == "__metadata__" || tensor == "none") continue;
    const bool is_packed = packed["tensors"].contains(tensor);
    if (is_packed) end_of_packed = std::max(end_of_packed, entry["data_offsets"][1].get<std::uint64_t>());
    if (!is_packed) begin_of_plain = std::min(begin_of_plain, entry["data_offsets"][0].get<std::uint64_t>());
  }
  EXPECT_EQ(end_of_packed, begin_of_plain);
}

TEST_F(PackedModelTest, parts_are_those_of_the_tensor) {
  const auto model = Model::open(save("m.safetensors", {.packed = true})).value();
  struct Case {
    const char* name;
    std::uint32_t dimension;
    std::vector<Interval> intervals;
  };
  const std::vector<Case> cases = {{"bf16", 0, {{0, 700}}},
                                   {"bf16", 0, {{128, 129}}},
                                   {"bf16", 0, {{600, 700}, {0, 10}, {127, 258}}},
                                   {"bf16", 1, {{0, 256}}},
                                   {"bf16", 1, {{500, 512}, {1, 2}}},
                                   {"f32", 1, {{99, 100}}},
                                   {"f32", 2, {{3, 5}, {600, 700}}},
                                   {"e5m2", 1, {{7, 9}}}};
  for (const Columns columns : {Columns::automatic, Columns::pieces, Columns::whole}) {
    for (const Case& each : cases) {
      const PackedTensor& whole = tensor_named(each.name);
      const std::uint32_t index = *model.find(each.name);
      TensorBytes memory(part_bytes(model.tensors()[index], each.dimension, each.intervals).value());
      const TensorPart part{.tensor = index,
                            .dimension = each.dimension,
                            .intervals = each.intervals,
                            .memory = Region::host(memory.data(), memory.size())};
      auto loading = load(context_, model, {&part, 1}, {.columns = columns});
      ASSERT_TRUE(loading) << loading.error().message;
      loading->wait();
      ASSERT_TRUE(loading->report().ok()) << loading->report().transfer.error->message;
      TensorBytes expected;
      std::uint64_t inner = dtype_bits(whole.dtype) / 8, rows = 1;
      for (std::size_t i = each.dimension + 1; i < whole.shape.size(); ++i) inner *= whole.shape[i];
      for (std::size_t i = 0; i < each.dimension; ++i) rows *= whole.shape[i];
      for (std::uint64_t row = 0; row < rows; ++row) {
        for (const Interval& interval : each.intervals) {
          const std::uint64_t begin = (row * whole.shape[each.dimension] + interval.begin) * inner;
          const auto from = whole.bytes.begin() + static_cast<std::ptrdiff_t>(begin);
          expected.insert(expected.end(), from,
                          from + static_cast<std::ptrdiff_t>((interval.end - interval.begin) * inner));
        }
      }
      EXPECT_TRUE(memory == expected) << each.name << " dimension " << each.dimension;
    }
  }
}

TEST_F(PackedModelTest, few_rows_read_few_chunks) {
  const auto model = Model::open(save("m.safetensors", {.packed = true})).value();
  const std::uint32_t index = *model.find("bf16");
  TensorBytes memory(1024);
  const TensorPart part{.tensor = index, .intervals = {{1, 2}}, .memory = Region::host(memory.data(), memory.size())};
  auto loading = load(context_, model, {&part, 1}).value();
  loading.wait();
  ASSERT_TRUE(loading.report().ok());
  EXPECT_LT(loading.report().stored_bytes, 131072U) << "one chunk of 65536 values";
}

TEST_F(PackedModelTest, pack_and_unpack_give_the_model_back) {
  std::filesystem::create_directories(path("in"));
  const std::vector<TensorToSave> all = to_save();
  const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
  ASSERT_TRUE(save_safetensors(context_, path("in/" + first), std::span(all).first(4), {.checksums = true}));
  ASSERT_TRUE(save_safetensors(context_, path("in/" + second), std::span(all).subspan(4)));
  nlohmann::json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::json::object()}};
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    index["weight_map"][all[i].name] = i < 4 ? first : second;
    total += all[i].memory.size_bytes;
  }
  index["metadata"]["total_size"] = total;
  write("in/model.safetensors.index.json", index.dump());
  write("in/config.json", "{}");
  write("in/pytorch_model.bin", "weights of another kind");

  std::uint64_t told = 0;
  const auto report = pack_model(context_, path("in"), path("packed"),
                                 {.threads = 2, .progress = [&](std::uint64_t done, std::uint64_t) {
                                    told = done;
                                    return true;
                                  }});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(told, total);
  EXPECT_EQ(report->bytes(), total);
  EXPECT_LT(report->stored_bytes(), total);
  EXPECT_EQ(report->files.size(), 2U);
  EXPECT_TRUE(std::filesystem::exists(path("packed/config.json")));
  EXPECT_FALSE(std::filesystem::exists(path("packed/pytorch_model.bin")));
  const auto packed = Model::open(path("packed"));
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_EQ(packed->stored_bytes(), report->stored_bytes());
  EXPECT_TRUE(packed->warnings().empty());
  expect_all(*packed);
  const std::vector<CheckedFile> checked = check_model(context_, *packed).value();
  for (const CheckedFile& file : checked) {
    EXPECT_EQ(file.verdict, CheckedFile::Verdict::right) << file.how;
  }

  const auto unpacked = unpack_model(context_, path("packed"), path("out"));
  ASSERT_TRUE(unpacked) << unpacked.error().message;
  EXPECT_EQ(unpacked->stored_bytes(), total);
  const auto plain = Model::open(path("out"));
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->stored_bytes(), total);
  for (const ModelFile& file : plain->files()) EXPECT_FALSE(file.metadata.contains("penstock.packed"));
  expect_all(*plain);
}

// A byte of a plain tensor is another, and one of the header, so that the recorded checksums don't show it.
TEST_F(PackedModelTest, damage_gets_no_new_checksum) {
  for (const bool is_packed : {true, false}) {
    for (const std::string mark : {"penstock.xxh3", "\\\"noise\\\"", "{\\\"bf16\\\""}) {
      std::filesystem::create_directories(path("in"));
      const std::string name = save("in/m.safetensors", {.checksums = true, .packed = is_packed});
      std::ifstream file(name, std::ios::binary);
      std::string bytes{std::istreambuf_iterator<char>(file), {}};
      file.close();
      const TensorInfo tensor = [&] {
        const auto model = Model::open(name).value();
        return model.tensors()[*model.find("noise")];
      }();
      bytes[tensor.offset + 1000] ^= 1;
      const std::size_t at = bytes.find(mark, bytes.find("penstock.xxh3"));
      ASSERT_NE(at, std::string::npos) << mark;
      bytes[at + (mark[0] == '{' ? 0 : mark.size() - 4)] = '_';
      write("in/m.safetensors", bytes);
      for (const auto& run : {pack_model, unpack_model}) {
        std::filesystem::remove_all(path("out"));
        const auto report = run(context_, path("in"), path("out"), {});
        if (mark == "penstock.xxh3") {
          ASSERT_TRUE(report.ok()) << report.error().message;
          if (!is_packed) continue;  // as one that never had any
          const auto checked = check_model(context_, Model::open(path("out")).value()).value();
          EXPECT_EQ(checked.at(0).verdict, CheckedFile::Verdict::unknown);
          continue;
        }
        ASSERT_FALSE(report.ok()) << mark;
        EXPECT_EQ(report.error().code, Code::io_error) << report.error().message;
        EXPECT_NE(report.error().message.find("checksums"), std::string::npos) << report.error().message;
        EXPECT_FALSE(std::filesystem::exists(path("out"))) << mark;
      }
      std::filesystem::remove_all(path("in"));
    }
  }
}

TEST_F(PackedModelTest, a_cancelled_packing_leaves_the_old_file) {
  std::filesystem::create_directories(path("in"));
  save("in/m.safetensors", {});
  std::filesystem::create_directories(path("out"));
  write("out/m.safetensors", "old");
  const auto report = pack_model(context_, path("in"), path("out"), {.progress = [](auto, auto) {
                                   std::this_thread::sleep_for(std::chrono::milliseconds(60));
                                   return false;
                                 }});
  // Where all was done before anybody was asked, the file is complete.
  if (!report) {
    EXPECT_EQ(report.error().code, Code::cancelled);
    EXPECT_EQ(std::filesystem::file_size(path("out/m.safetensors")), 3U);
  }
  EXPECT_FALSE(pack_model(context_, path("in"), path("in"))) << "into its own folder";
}

TEST_F(PackedModelTest, damage_is_told_with_tensor_and_place) {
  const std::string name = save("m.safetensors", {.packed = true});
  const auto model = Model::open(name).value();
  const TensorInfo& tensor = model.tensors()[*model.find("bf16")];
  {
    std::fstream file(name, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(tensor.offset + 100'000));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(tensor.offset + 100'000));
    file.put(byte);
  }
  const auto damaged = Model::open(name).value();
  TensorBytes memory(tensor.size_bytes);
  const TensorPart part{.tensor = *damaged.find("bf16"), .memory = Region::host(memory.data(), memory.size())};
  auto loading = load(context_, damaged, {&part, 1}).value();
  loading.wait();
  const LoadReport report = loading.report();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.transfer.error->code, Code::io_error);
  EXPECT_NE(report.transfer.error->message.find("\"bf16\": chunk 1 of 6"), std::string::npos)
      << report.transfer.error->message;
  const auto checked = check_model(context_, damaged).value();
  EXPECT_EQ(checked.at(0).verdict, CheckedFile::Verdict::wrong);
  EXPECT_EQ(checked.at(0).wrong_tensors, std::vector<std::string>{"bf16"});
}

TEST_F(PackedModelTest, an_estimate_is_near_the_truth) {
  const auto plain = Model::open(save("plain.safetensors", {})).value();
  const auto packed = Model::open(save("packed.safetensors", {.packed = true})).value();
  const auto estimate = estimate_packing(context_, plain);
  ASSERT_TRUE(estimate) << estimate.error().message;
  EXPECT_EQ(estimate->bytes, plain.size_bytes());
  EXPECT_NEAR(static_cast<double>(estimate->stored_bytes), static_cast<double>(packed.stored_bytes()),
              0.02 * static_cast<double>(plain.size_bytes()));
  EXPECT_GT(estimate->unpack_bytes_per_second, 0);
}

// The metadata of a file with one tensor of 8192 bytes.
Result<Contents> with_metadata(const std::string& packed) {
  Contents contents;
  TensorInfo tensor{.name = "w", .dtype = DType::u8, .shape = {2, 4096}};
  tensor.size_bytes = tensor.stored_bytes = 8192;
  contents.tensors.push_back(tensor);
  contents.metadata.emplace(packed_key, packed);
  if (Status status = apply_packed(contents); !status) return std::move(status).error();
  return contents;
}

// Zeros, of a file that changed in the end.
class ChangedSource : public TensorSource {
 public:
  Result<Ticket> read(std::span<const Bytes> wanted) override {
    for (const Bytes& bytes : wanted) std::memset(bytes.to.data, 0, bytes.to.size_bytes);
    return Ticket();
  }
  Status check_unchanged() const override { return Error{Code::changed, 0, "it was modified", ""}; }
};

TEST_F(PackedModelTest, a_source_that_changed_becomes_no_file) {
  const std::vector<TensorToSave> tensors = {{"w", DType::bf16, {1000, 100}, Region::host(nullptr, 200'000)}};
  ChangedSource source;
  const std::string file = path("changed.safetensors");
  const auto written = write_packed(context_, file, tensors, source, {});
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, Code::changed);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(PackedMetadata, tells_what_is_wrong) {
  const std::string right = R"({"version":1,"tensors":{"w":{"dtype":"BF16","shape":[64,64],"codec":"planes"}}})";
  const auto contents = with_metadata(right);
  ASSERT_TRUE(contents) << contents.error().message;
  EXPECT_EQ(contents->tensors[0].size_bytes, 8192U);
  EXPECT_EQ(contents->tensors[0].dtype, DType::bf16);
  const auto problem = [](std::string text, std::string_view from, std::string_view to) {
    text.replace(text.find(from), from.size(), to);
    const auto wrong = with_metadata(text);
    return wrong ? std::string("accepted") : wrong.error().message + " " + std::string(code_name(wrong.error().code));
  };
  const auto expect = [&](std::string_view from, std::string_view to, std::string_view message) {
    const std::string text = problem(right, from, to);
    EXPECT_NE(text.find(message), std::string::npos) << text;
  };
  expect(":1,", ":2,", "version 2");
  expect(":1,", ":2,", "unsupported");
  expect("planes", "huffman", "the codec \"huffman\"");
  expect("BF16", "I64", "does not pack I64");
  expect("BF16", "BF17", "is not known");
  expect("\"w\"", "\"v\"", "the file has no tensor \"v\"");
  expect("[64,64]", "[64,64000]", "can't be packed in 8192");
  expect("[64,64]", "[4294967296,4294967296,4294967296]", "w");
  expect("[64,64]", "[0,64]", "can't be packed");
  expect("[64,64]", "\"64\"", "whole numbers");
  expect("codec", "codecs", "unknown key");
  expect("{\"version\":1,", "{", "no version");
  expect("}}}", "}}", "metadata \"penstock.packed\"");
}

}  // namespace
}  // namespace penstock::models
