#include "services/models/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "penstock/models.h"
#include "services/models/ggml_types.h"
#include "services/models/test_model.h"

namespace penstock::models {
namespace {

std::string text(std::string_view value) {
  return little_endian(value.size()) + std::string(value);
}
std::string u32(std::uint64_t value) {
  return little_endian(value, 4);
}
std::string pair(std::string_view key, std::uint32_t type, const std::string& value) {
  return text(key) + u32(type) + value;
}

struct File {
  std::uint32_t version = 3;
  std::vector<std::string> pairs;
  std::vector<std::string> tensors;
  std::size_t alignment = 32;
  std::string data;

  std::string bytes() const {
    std::string all = "GGUF" + u32(version) + little_endian(tensors.size()) + little_endian(pairs.size());
    for (const std::string& each : pairs) all += each;
    for (const std::string& each : tensors) all += each;
    if (!data.empty()) all.resize((all.size() + alignment - 1) / alignment * alignment, '\0');
    return all + data;
  }
};

std::string tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                   std::uint64_t offset) {
  std::string all = text(name) + u32(dimensions.size());
  for (const std::uint64_t length : dimensions) all += little_endian(length);
  return all + u32(type) + little_endian(offset);
}

TEST(Gguf, a_file_says_what_is_in_it) {
  File file;
  file.pairs = {pair("general.architecture", 8, text("llama")),
                pair("general.alignment", 4, u32(64)),
                pair("a.number", 5, u32(0xffffffff)),
                pair("a.float", 6, u32(0x3fc00000)),
                pair("a.truth", 7, "\1"),
                pair("a.large", 10, little_endian(UINT64_MAX)),
                pair("words", 9, u32(8) + little_endian(2) + text("a\"b") + text("plain")),
                pair("nested", 9, u32(9) + little_endian(1) + u32(0) + little_endian(3) + "\1\2\3")};
  file.tensors = {tensor("quantized", {512, 3}, 12, 64), tensor("plain", {5, 2}, 0, 0)};
  file.alignment = 64;
  file.data = std::string(64 + 3 * 2 * 144, 'x');
  for (const std::uint32_t version : {2U, 3U}) {
    file.version = version;
    const Result<Contents> contents = parse_gguf(file.bytes());
    ASSERT_TRUE(contents.ok()) << contents.error().message;
    EXPECT_EQ(contents->metadata.at("general.architecture"), "llama");
    EXPECT_EQ(contents->metadata.at("a.number"), "-1");
    EXPECT_EQ(contents->metadata.at("a.float"), "1.5");
    EXPECT_EQ(contents->metadata.at("a.truth"), "true");
    EXPECT_EQ(contents->metadata.at("a.large"), "18446744073709551615");
    EXPECT_EQ(contents->metadata.at("words"), R"(["a\"b","plain"])");
    EXPECT_EQ(contents->metadata.at("nested"), "[[1,2,3]]");
    EXPECT_EQ(contents->data_offset % 64, 0U);
    ASSERT_EQ(contents->tensors.size(), 2U);
    EXPECT_EQ(contents->tensors[0].name, "plain");
    EXPECT_EQ(contents->tensors[0].dtype, DType::f32);
    EXPECT_EQ(contents->tensors[0].shape, (std::vector<std::uint64_t>{2, 5})) << "slowest first";
    EXPECT_EQ(contents->tensors[1].dtype, DType::u8);
    EXPECT_EQ(contents->tensors[1].quantization, "Q4_K");
    EXPECT_EQ(contents->tensors[1].shape, (std::vector<std::uint64_t>{3, 288})) << "rows of bytes";
    EXPECT_EQ(contents->tensors[1].offset, contents->data_offset + 64);
    EXPECT_EQ(contents->tensors[1].size_bytes, 3U * 288);
  }
}

TEST(Gguf, a_file_without_tensors_is_legal) {
  EXPECT_TRUE(parse_gguf(File{}.bytes()).ok());
}

TEST(Gguf, a_file_that_ends_within_its_header_is_called_that) {
  File file;
  file.pairs = {pair("words", 9, u32(8) + little_endian(2) + text("a") + text("b"))};
  file.tensors = {tensor("a", {4}, 0, 0)};
  file.data = std::string(16, 'x');
  const std::string all = file.bytes();
  for (std::size_t size = 0; size < all.size(); ++size) {
    const auto contents = parse_gguf(std::string_view(all).substr(0, size));
    ASSERT_FALSE(contents.ok()) << size;
    EXPECT_EQ(contents.error().code, Code::truncated) << contents.error().message;
  }
}

// Values lie across the ends of what is read at a time, wherever those are.
TEST(Gguf, a_long_header_is_read_piece_by_piece) {
  for (std::size_t shift = 0; shift < 20; ++shift) {
    const std::string long_word(shift % 10 == 0 ? 2'500'000 : 10, 'w');
    File file;
    file.pairs = {pair("shift", 8, text(std::string((1 << 20) - 80 + shift, 's')))};
    for (int i = 0; i < 9; ++i) file.pairs.push_back(pair("k" + std::to_string(i), 10, little_endian(1000 + i)));
    file.pairs.push_back(pair("words", 9, u32(8) + little_endian(2) + text(long_word) + text("last")));
    file.tensors = {tensor("a", {4}, 0, 0)};
    file.data = std::string(16, 'x');
    const Result<Contents> contents = parse_gguf(file.bytes());
    ASSERT_TRUE(contents.ok()) << contents.error().message;
    for (int i = 0; i < 9; ++i) EXPECT_EQ(contents->metadata.at("k" + std::to_string(i)), std::to_string(1000 + i));
    EXPECT_TRUE(contents->metadata.at("words") == "[\"" + long_word + "\",\"last\"]");
    EXPECT_EQ(contents->tensors.at(0).name, "a");
  }
}

TEST(Gguf, no_more_is_read_of_a_file_than_its_header) {
  const std::string header = File{}.bytes();
  std::uint64_t end = 0;
  const auto read = [&](std::uint64_t offset, std::span<char> bytes) {
    end = std::max(end, offset + bytes.size());
    std::ranges::fill(bytes, '\0');
    header.copy(bytes.data(), bytes.size(), offset);
    return Status();
  };
  EXPECT_TRUE(parse_gguf(read, std::uint64_t{1} << 40).ok());
  EXPECT_LE(end, 1U << 20);
}

TEST(Gguf, headers_and_metadata_have_an_end) {
  const std::string start = "GGUF" + u32(3);
  const std::string many = start + little_endian(0) + little_endian(300'000);
  EXPECT_NE(parse_gguf(many + std::string(5'000'000, '\0')).error().message.find("300000 metadata; 262144 are allowed"),
            std::string::npos);
  const std::string head =
      start + little_endian(0) + little_endian(1) + text("k") + u32(9) + u32(0) + little_endian(1 << 30);
  const auto read = [&](std::uint64_t offset, std::span<char> bytes) {
    EXPECT_LE(bytes.size(), 1U << 20) << "nothing is read of what is too long";
    std::ranges::fill(bytes, '\0');
    if (offset < head.size()) head.copy(bytes.data(), bytes.size(), offset);
    return Status();
  };
  EXPECT_NE(parse_gguf(read, std::uint64_t{1} << 40).error().message.find("more than 100,000,000 bytes"),
            std::string::npos);
}

TEST(MetadataValue, is_json_where_it_is_no_text) {
  const auto value = [](std::uint32_t type, const std::string& bytes) { return MetadataValue(type, bytes).text(); };
  const auto floats = [](std::vector<float> numbers) {
    std::string bytes = u32(6) + little_endian(numbers.size());
    return bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  };
  EXPECT_EQ(value(8, "as \"it\" is"), "as \"it\" is");
  EXPECT_EQ(value(1, "\xff"), "-1");
  EXPECT_EQ(value(9, floats({0.1F, 2, -1e-38F, 1e30F, INFINITY, NAN})), "[0.1,2.0,-1e-38,1e+30,null,null]");
  EXPECT_EQ(value(9, u32(7) + little_endian(2) + std::string("\0\1", 2)), "[false,true]");
  EXPECT_EQ(value(9, u32(8) + little_endian(1) + text("\"\\\t\x1f\x7fü")), "[\"\\\"\\\\\\t\\u001f\x7fü\"]");
}

TEST(MetadataValue, comes_in_pieces_where_it_is_long) {
  const std::string text_value(1'000'000, 'x');
  const std::string bytes = u32(0) + little_endian(1'000'000) + std::string(1'000'000, '\7');
  for (const MetadataValue& value : {MetadataValue(text_value), MetadataValue(9, bytes)}) {
    std::string all;
    value.write([&](std::string_view piece) {
      EXPECT_LE(piece.size(), 100'000U);
      all += piece;
    });
    EXPECT_TRUE(value == all);
  }
  EXPECT_EQ(MetadataValue(9, bytes).text().size(), 2'000'001U);
}

struct Broken {
  std::string bytes;
  std::string message;
};

TEST(Gguf, every_rule_has_a_message_of_its_own) {
  const std::string sixteen(16, 'x');
  const auto with_pairs = [](std::vector<std::string> pairs) { return File{.pairs = std::move(pairs)}.bytes(); };
  const auto with_tensors = [&](std::vector<std::string> tensors) {
    return File{.tensors = std::move(tensors), .data = sixteen}.bytes();
  };
  std::string deep = u32(0) + little_endian(0);
  for (int i = 0; i < 10; ++i) deep = u32(9) + little_endian(1) + deep;
  const std::string start = "GGUF" + u32(3);
  const Broken cases[] = {
      {"GGUX" + File{}.bytes().substr(4), "does not begin with GGUF"},
      {File{.version = 1}.bytes(), "GGUF version 1; 2 and 3 are known"},
      {File{.version = 4}.bytes(), "GGUF version 4; 2 and 3 are known"},
      {File{.version = 0x03000000}.bytes(), "big-endian"},
      {start + little_endian(UINT64_MAX) + little_endian(0), "tensors are more than the file has room for"},
      {start + little_endian(0) + little_endian(UINT64_MAX), "metadata are more than the file has room for"},
      {with_pairs({pair("", 0, "1")}), "a key of the metadata has 0 bytes"},
      {with_pairs({pair(std::string(65'536, 'k'), 0, "1")}), "a key of the metadata has 65536 bytes"},
      {with_pairs({little_endian(UINT64_MAX) + "12345"}), "the file ends within a key of the metadata"},
      {with_pairs({pair("k", 13, "12345678")}), R"(the metadata "k" is of the unknown type 13)"},
      {with_pairs({pair("k", 8, little_endian(UINT64_MAX))}), R"(the file ends within the metadata "k")"},
      {with_pairs({pair("k", 7, "\2")}), R"(the metadata "k": a boolean that is neither 0 nor 1)"},
      {with_pairs({pair("k", 10, "1234")}), "the file ends within a value of the metadata"},
      {with_pairs({pair("k", 9, u32(13) + little_endian(0))}), R"("k": an array of the unknown type 13)"},
      {with_pairs({pair("k", 9, u32(0) + little_endian(UINT64_MAX))}), "is longer than the file"},
      {with_pairs({pair("k", 9, u32(8) + little_endian(1) + little_endian(9))}),
       "ends within a string of the metadata"},
      {with_pairs({pair("k\xff", 0, "1")}), "a key of the metadata is not UTF-8"},
      {with_pairs({pair("k", 8, text("\xc0\x80"))}), R"(the metadata "k" is not UTF-8)"},
      {with_pairs({pair("k", 9, u32(8) + little_endian(2) + text("a") + text("\xed\xa0\x80"))}),
       R"("k": a string of the metadata is not UTF-8)"},
      {with_tensors({tensor("\xe2\x82", {4}, 0, 0)}), "the name of a tensor is not UTF-8"},
      {with_pairs({pair("k", 9, deep)}), "nested too deeply"},
      {with_pairs({pair("k", 0, "1"), pair("k", 0, "1")}), R"(the metadata "k" appears twice)"},
      {with_pairs({pair("general.alignment", 4, u32(48))}), "general.alignment is not a power of two"},
      {with_pairs({pair("general.alignment", 4, u32(0))}), "general.alignment is not a power of two"},
      {with_pairs({pair("general.alignment", 10, little_endian(32))}),
       "general.alignment is not a power of two, as u32"},
      {with_tensors({tensor("", {4}, 0, 0)}), "the name of a tensor has 0 bytes; 1 to 63"},
      {with_tensors({tensor(std::string(64, 'n'), {4}, 0, 0)}), "the name of a tensor has 64 bytes; 1 to 63"},
      {with_tensors({tensor("a", {1}, 24, 0), tensor("a", {1}, 24, 0)}), R"(tensor "a" appears twice)"},
      {with_tensors({tensor("a", {1, 1, 1, 1, 1}, 0, 0)}), R"(tensor "a": it has 5 dimensions; 4 are allowed)"},
      {with_tensors({tensor("a", {1}, 43, 0)}), R"(tensor "a": its type 43 is not known)"},
      {with_tensors({tensor("a", {1}, 4, 0)}), R"(tensor "a": its type Q4_2 was dropped by ggml)"},
      {with_tensors({tensor("a", {1}, 38, 0)}), R"(tensor "a": its type IQ4_NL_8_8 was dropped by ggml)"},
      {with_tensors({tensor("a", {1ULL << 40, 1ULL << 40}, 0, 0)}), R"(tensor "a": its shape has more elements)"},
      {with_tensors({tensor("a", {UINT64_MAX / 32 * 32}, 2, 0)}), "more elements than can be counted"},
      {with_tensors({tensor("a", {1ULL << 40, 1ULL << 40, 0}, 0, 0)}), "can be counted beside a dimension of 0"},
      {with_tensors({tensor("a", {0, 1ULL << 63}, 0, 0)}), "can be counted beside a dimension of 0"},
      {with_tensors({tensor("a", {33}, 2, 0)}), "rows of 33 elements are not whole blocks of 32 of Q4_0"},
      {with_tensors({tensor("a", {}, 2, 0)}), "rows of 1 elements are not whole blocks"},
      {with_tensors({tensor("a", {1}, 0, 8)}), R"(tensor "a": its offset 8 is not a multiple of the alignment 32)"},
      {with_tensors({tensor("a", {5}, 0, 0)}), "its 20 bytes at 0 reach past the end of the data"},
      {with_tensors({tensor("a", {1}, 0, UINT64_MAX / 32 * 32)}), "reach past the end of the data"},
      {with_tensors({tensor("a", {2}, 0, 0), tensor("b", {1}, 0, 0)}), R"(tensor "a": it overlaps the one before it)"},
      {File{.tensors = {tensor("a", {4}, 0, 0)}}.bytes(), "the file ends before its data begins"},
  };
  for (const Broken& each : cases) {
    const Result<Contents> contents = parse_gguf(each.bytes);
    ASSERT_FALSE(contents.ok()) << each.message;
    EXPECT_NE(contents.error().message.find(each.message), std::string::npos)
        << each.message << ": " << contents.error().message;
    EXPECT_FALSE(contents.error().hint.empty());
  }
}

TEST(Gguf, each_limit_may_be_reached_and_not_passed) {
  const auto nested = [](int arrays) {
    std::string value = u32(0) + little_endian(1) + "7";
    for (int i = 1; i < arrays; ++i) value = u32(9) + little_endian(1) + value;
    return File{.pairs = {pair("k", 9, value)}}.bytes();
  };
  const auto with_key = [](std::size_t bytes) {
    return File{.pairs = {pair(std::string(bytes, 'k'), 0, "1")}}.bytes();
  };
  const auto with_tensors = [](std::vector<std::string> tensors, std::size_t bytes) {
    return File{.pairs = {pair("general.alignment", 4, u32(1))},
                .tensors = std::move(tensors),
                .alignment = 1,
                .data = std::string(bytes, 'x')}
        .bytes();
  };
  constexpr std::uint32_t i8 = 24;
  const auto named = [&](std::size_t bytes) { return with_tensors({tensor(std::string(bytes, 'n'), {1}, i8, 0)}, 1); };
  const auto second_at = [&](std::uint64_t offset) {
    return with_tensors({tensor("a", {4}, i8, 0), tensor("b", {3}, i8, offset)}, 7);
  };
  const auto with_pairs = [](std::size_t count) {
    File file;
    for (std::size_t i = 0; i < count; ++i) file.pairs.push_back(pair(std::to_string(i), 0, "1"));
    return file.bytes();
  };
  const auto aligned_to = [](std::uint32_t alignment) {
    return File{.pairs = {pair("general.alignment", 4, u32(alignment))}}.bytes();
  };
  const struct {
    const char* limit;
    std::string reached;
    std::string passed;
  } limits[] = {
      {"arrays within arrays", nested(4), nested(5)},
      {"bytes of a key", with_key(65'535), with_key(65'536)},
      {"metadata", with_pairs(262'144), with_pairs(262'145)},
      {"alignment", aligned_to(1U << 30), aligned_to(1U << 31)},
      {"bytes of a name", named(63), named(64)},
      {"dimensions", with_tensors({tensor("a", {1, 1, 1, 1}, i8, 0)}, 1),
       with_tensors({tensor("a", {1, 1, 1, 1, 1}, i8, 0)}, 1)},
      {"the end of the data", with_tensors({tensor("a", {4}, i8, 0)}, 4), with_tensors({tensor("a", {5}, i8, 0)}, 4)},
      {"the tensor before it", second_at(4), second_at(3)},
      {"the end, by the second", second_at(4), second_at(5)},
  };
  for (const auto& each : limits) {
    const Result<Contents> reached = parse_gguf(each.reached);
    EXPECT_TRUE(reached.ok()) << each.limit << ": " << reached.error().message;
    EXPECT_FALSE(parse_gguf(each.passed).ok()) << each.limit;
  }
}

TEST(Gguf, blocks_have_the_size_that_ggml_gives_them) {
  const struct {
    std::uint32_t type;
    std::string name;
    std::uint64_t elements, bytes;
  } blocks[] = {{9, "Q8_1", 32, 36}, {40, "NVFP4", 64, 36}, {41, "Q1_0", 128, 18}, {42, "Q2_0", 64, 18}};
  for (const auto& block : blocks) {
    const File file{.tensors = {tensor("a", {2 * block.elements, 3}, block.type, 0)},
                    .data = std::string(6 * block.bytes, 'x')};
    const Result<Contents> contents = parse_gguf(file.bytes());
    ASSERT_TRUE(contents.ok()) << contents.error().message;
    EXPECT_EQ(contents->tensors[0].quantization, block.name);
    EXPECT_EQ(contents->tensors[0].shape, (std::vector<std::uint64_t>{3, 2 * block.bytes}));
  }
}

TEST(Gguf, the_table_of_types_has_each_once) {
  for (const RemovedType& type : removed_ggml_types) EXPECT_EQ(find_ggml_type(type.id), nullptr) << type.name;
  for (const GgmlType& type : ggml_types) {
    EXPECT_EQ(find_ggml_type(type.id), &type);
    EXPECT_EQ(find_ggml_type(type.name), &type);
    EXPECT_TRUE(!type.plain || dtype_bits(*type.plain) == 8 * type.block_bytes) << type.name;
  }
}

class GgufModel : public ModelTest {};

TEST_F(GgufModel, opens_also_with_a_header_longer_than_the_first_read) {
  File file;
  const std::string words(3 << 20, 'w');
  file.pairs = {pair("words", 8, text(words))};
  file.tensors = {tensor("a", {4}, 0, 0)};
  file.data = std::string(16, 'x');
  const Result<Model> model = Model::open(write("x.gguf", file.bytes()));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->files()[0].format, ModelFormat::gguf);
  EXPECT_TRUE(model->files()[0].metadata.at("words") == words);
  EXPECT_EQ(Model::open(folder_.string())->tensors().size(), 1U) << "a directory with one GGUF file is a model";
  write("y.gguf", file.bytes());
  EXPECT_NE(Model::open(folder_.string()).error().message.find("several models: x.gguf, y.gguf"), std::string::npos);
}

class SplitGguf : public ModelTest {
 protected:
  // One of several files: it has a tensor of its own.
  static std::string part(unsigned number, unsigned count, unsigned tensors) {
    File file;
    file.pairs = {pair("split.no", 2, little_endian(number, 2)), pair("split.count", 2, little_endian(count, 2)),
                  pair("split.tensors.count", 5, u32(tensors))};
    file.tensors = {tensor("blk." + std::to_string(number) + ".weight", {8}, 0, 0)};
    file.data = std::string(32, static_cast<char>('a' + number));
    return file.bytes();
  }
  static std::string name(unsigned number) { return "m-0000" + std::to_string(number) + "-of-00003.gguf"; }
  void write_all(unsigned tensors = 3) const {
    for (unsigned i = 0; i < 3; ++i) write(name(i + 1), part(i, 3, tensors));
  }
};

TEST_F(SplitGguf, is_opened_by_any_of_its_files_by_its_directory_and_as_a_list) {
  write_all();
  const std::string files[] = {path(name(3)), path(name(1)), path(name(2))};
  for (const auto& opened :
       {Model::open(path(name(1))), Model::open(path(name(2))), Model::open(folder_.string()), Model::open(files)}) {
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ(opened->files().size(), 3U);
    EXPECT_EQ(opened->tensors().size(), 3U);
    EXPECT_TRUE(opened->find("blk.2.weight").has_value());
  }
}

TEST_F(SplitGguf, a_part_that_is_missing_or_there_twice_is_named) {
  write_all();
  const std::string two[] = {path(name(1)), path(name(2))};
  EXPECT_NE(Model::open(two).error().message.find("one of 3 files of a split GGUF model, and 2 are given"),
            std::string::npos)
      << Model::open(two).error().message;
  const std::string alone = write("alone.gguf", part(0, 3, 3));
  EXPECT_NE(Model::open(alone).error().message.find("and 1 are given"), std::string::npos);
  std::filesystem::remove(path(name(2)));
  const Error missing = Model::open(path(name(1))).error();
  EXPECT_EQ(missing.code, Code::not_found);
  EXPECT_NE(missing.message.find(name(2)), std::string::npos) << missing.message;
  EXPECT_EQ(Model::open(folder_.string()).error().code, Code::invalid_argument) << "alone.gguf is another model";
  write(name(2), part(0, 3, 3));
  EXPECT_FALSE(Model::open(path(name(1))).ok());
}

TEST_F(SplitGguf, the_number_of_tensors_is_compared) {
  write_all(4);
  EXPECT_NE(Model::open(path(name(1))).error().message.find("4 tensors"), std::string::npos);
}

}  // namespace
}  // namespace penstock::models
