#include "services/models/safetensors.h"

#include <gtest/gtest.h>

#include "services/models/test_model.h"

namespace penstock::models {
namespace {

Result<Contents> parse(std::string_view json, std::uint64_t data_bytes) {
  return parse_safetensors(json, safetensors_length_bytes + json.size() + data_bytes);
}

TEST(Safetensors, a_file_says_what_is_in_it) {
  const std::string json = R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                           R"("a":{"shape":[],"dtype":"F32","data_offsets":[0,4]},)"
                           R"("empty":{"dtype":"F64","shape":[0,1099511627776],"data_offsets":[4,4]}}   )";
  const Result<Contents> contents = parse(json, 16);
  ASSERT_TRUE(contents.ok()) << contents.error().message;
  EXPECT_EQ(contents->metadata.at("format"), "pt");
  EXPECT_EQ(contents->data_offset, 8 + json.size());
  ASSERT_EQ(contents->tensors.size(), 3U);
  EXPECT_EQ(contents->tensors[0].name, "a");
  EXPECT_TRUE(contents->tensors[0].shape.empty());
  EXPECT_EQ(contents->tensors[1].name, "empty");
  EXPECT_EQ(contents->tensors[1].size_bytes, 0U);
  EXPECT_EQ(contents->tensors[2].dtype, DType::bf16);
  EXPECT_EQ(contents->tensors[2].shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(contents->tensors[2].offset, contents->data_offset + 4);
  EXPECT_EQ(contents->tensors[2].size_bytes, 12U);
}

TEST(Safetensors, an_entry_means_the_same_however_it_is_written) {
  for (const std::string_view entry : {
           R"({"dtype":"F16","shape":[2,3],"data_offsets":[0,12]})",
           R"({"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]})",
           R"( { "dtype" : "F16" , "shape" : [ 2 , 3 ] , "data_offsets" : [ 0 , 12 ] } )",
           "{\"dtype\":\n\"F16\",\t\"shape\":[2,3],\r\n\"data_offsets\":[0,12]}",
           R"({"data_offsets":[0,12],"shape":[2,3],"dtype":"F16"})",
           R"({"dtype":"F\u00316","shape":[2,3],"data_offsets":[0,12]})",
           R"({"\u0064type":"F16","shape":[2,3],"data_offsets":[0,12]})",
       }) {
    const Result<Contents> contents = parse(R"({"a":)" + std::string(entry) + "}", 12);
    ASSERT_TRUE(contents.ok()) << entry << ": " << contents.error().message;
    const TensorInfo& tensor = contents->tensors.at(0);
    EXPECT_EQ(tensor.dtype, DType::f16) << entry;
    EXPECT_EQ(tensor.shape, (std::vector<std::uint64_t>{2, 3})) << entry;
    EXPECT_EQ(tensor.offset, contents->data_offset) << entry;
    EXPECT_EQ(tensor.size_bytes, 12U) << entry;
  }
}

TEST(Safetensors, an_entry_that_is_nearly_as_usual_is_read_as_strictly) {
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return parse(R"({"a":{"dtype":")" + dtype + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}}",
                 2);
  };
  EXPECT_TRUE(entry("F16", "1", "0,2").ok());
  EXPECT_TRUE(entry("F16", "1,1,1,1,1,1,1,1,1,1", "0,2").ok());
  EXPECT_FALSE(entry(" F16", "1", "0,2").ok());
  EXPECT_FALSE(entry("F16 ", "1", "0,2").ok());
  EXPECT_FALSE(entry("", "1", "0,2").ok());
  for (const std::string wrong : {"01", "-1", "1.0", "1e0", "1,", ",1", "18446744073709551617", "1 1", "+1"}) {
    EXPECT_FALSE(entry("F16", wrong, "0,2").ok()) << wrong;
    EXPECT_FALSE(entry("F16", "1", "0," + wrong).ok()) << wrong;
  }
  EXPECT_FALSE(entry("F16", "1", "0").ok());
  EXPECT_FALSE(entry("F16", "1", "0,").ok());
  EXPECT_FALSE(entry("F16", "1", "0,2,2").ok());
  EXPECT_FALSE(parse(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2],"more":1}})", 2).ok());
}

TEST(Safetensors, tensors_are_told_in_the_order_of_their_bytes_and_without_bytes_in_that_of_the_header) {
  const auto entry = [](const std::string& name, std::uint64_t begin, std::uint64_t end) {
    return "\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(end - begin) + R"(],"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  const auto names = [](const std::string& entries, std::uint64_t bytes) {
    const Contents contents = parse("{" + entries + "}", bytes).value();
    std::string all;
    for (const TensorInfo& tensor : contents.tensors) all += tensor.name;
    return all;
  };
  EXPECT_EQ(names(entry("c", 0, 0) + "," + entry("a", 0, 0) + "," + entry("b", 0, 0), 0), "cab");
  EXPECT_EQ(names(entry("d", 4, 6) + "," + entry("z", 4, 4) + "," + entry("c", 3, 4) + "," + entry("y", 4, 4) + "," +
                      entry("a", 0, 2) + "," + entry("b", 2, 3),
                  6),
            "abczyd");
}

TEST(Safetensors, long_texts_are_cut_in_messages) {
  const std::string many(1 << 20, 'x');
  const Result<Contents> contents = parse(R"({"a":{"dtype":")" + many + R"(","shape":[],"data_offsets":[0,4]}})", 4);
  EXPECT_LT(contents.error().message.size(), 500U);
  EXPECT_EQ(in_quotes("short"), "\"short\"");
  EXPECT_EQ(in_quotes(std::string(199, 'x') + "ää"), "\"" + std::string(199, 'x') + "…\"");
}

TEST(Safetensors, a_file_without_tensors_is_legal) {
  EXPECT_TRUE(parse("{}", 0).ok());
}

TEST(Safetensors, types_of_less_than_a_byte_fill_whole_bytes_or_are_refused) {
  EXPECT_TRUE(parse(R"({"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", 3).ok());
  EXPECT_TRUE(parse(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3).ok());
}

TEST(Safetensors, every_type_has_its_name_and_its_bits) {
  EXPECT_EQ(dtype_from_name("BF16"), DType::bf16);
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
  for (int i = 0; i <= static_cast<int>(DType::c64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_bits(DType::f6_e3m2), 6U);
  EXPECT_EQ(dtype_bits(DType::f8_e8m0), 8U);
  EXPECT_EQ(dtype_bits(DType::c64), 64U);
}

struct Length {
  std::string first_bytes;
  std::uint64_t file_bytes;
  Code code;
  std::string message;
};

TEST(Safetensors, the_length_of_the_header_is_checked_before_it_is_read) {
  const Length cases[] = {
      {"", 0, Code::truncated, "it has 0 bytes"},
      {"1234567", 7, Code::truncated, "it has 7 bytes; a safetensors file has at least 8"},
      {little_endian(100'000'001), 1ULL << 40, Code::invalid_argument, "100,000,000 are allowed"},
      {little_endian(UINT64_MAX), 1ULL << 40, Code::invalid_argument, "100,000,000 are allowed"},
      {little_endian(100), 107, Code::truncated, "reaches past the end of the file at 107"},
  };
  for (const Length& each : cases) {
    const auto length = safetensors_header_bytes(each.first_bytes, each.file_bytes);
    ASSERT_FALSE(length.ok()) << each.message;
    EXPECT_EQ(length.error().code, each.code) << each.message;
    EXPECT_NE(length.error().message.find(each.message), std::string::npos) << length.error().message;
    EXPECT_FALSE(length.error().hint.empty());
  }
  EXPECT_EQ(safetensors_header_bytes(little_endian(100), 108).value(), 100U);
  EXPECT_EQ(safetensors_header_bytes(little_endian(100'000'000), 1ULL << 40).value(), 100'000'000U);
}

struct BrokenHeader {
  std::string json;
  std::uint64_t data_bytes;
  std::string message;
};

// A header of one tensor "a" whose entry has these fields.
std::string entry(const std::string& fields) {
  return R"({"a":{)" + fields + "}}";
}

TEST(Safetensors, every_rule_has_a_message_of_its_own) {
  const std::string dtype = R"("dtype":"U8")", shape = R"("shape":[4])", offsets = R"("data_offsets":[0,4])";
  const BrokenHeader cases[] = {
      {"", 0, "does not begin with {"},
      {" {}", 0, "does not begin with {"},
      {"\xef\xbb\xbf{}", 0, "does not begin with {"},
      {"[]", 0, "does not begin with {"},
      {"{", 0, "not valid JSON"},
      {"{}x", 0, "not valid JSON"},
      {std::string("{}\0", 3), 0, "not valid JSON from byte 2 on"},
      {"{\"\xff\":1}", 0, "not valid JSON"},
      {R"({"a":1})", 0, R"(tensor "a": its entry is not a JSON object)"},
      {R"({"a":[{}]})", 0, R"(tensor "a": its entry is not a JSON object)"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not a JSON object"},
      {R"({"__metadata__":null})", 0, "__metadata__ is not a JSON object"},
      {R"({"__metadata__":{"x":1}})", 0, R"(the metadata "x" is not a string)"},
      {R"({"__metadata__":{"x":["y"]}})", 0, R"(the metadata "x" is not a string)"},
      {R"({"__metadata__":{"x":{"y":"z"}}})", 0, R"(the metadata "x" is not a string)"},
      {R"({"__metadata__":{"x":"1","x":"2"}})", 0, R"(the key "x" appears twice)"},
      {R"({"a":{)" + dtype + "," + shape + "," + offsets + R"(},"a":{}})", 4, R"(the key "a" appears twice)"},
      {entry(dtype + "," + dtype + "," + shape + "," + offsets), 4, R"(the key "dtype" appears twice)"},
      {entry(shape + "," + offsets), 4, R"(tensor "a": it has no dtype)"},
      {entry(dtype + "," + offsets), 4, R"(tensor "a": it has no shape)"},
      {entry(dtype + "," + shape), 4, R"(tensor "a": it has no data_offsets)"},
      {entry(R"("dtype":"F128",)" + shape + "," + offsets), 4, R"(tensor "a": its dtype "F128" is not known)"},
      {entry(R"("dtype":8,)" + shape + "," + offsets), 4, R"(tensor "a": its dtype is not a string)"},
      {entry(R"("dtype":["U8"],)" + shape + "," + offsets), 4, R"(tensor "a": its dtype is not a string)"},
      {entry(dtype + R"(,"shape":4,)" + offsets), 4, R"(tensor "a": its shape is not a list)"},
      {entry(dtype + R"(,"shape":[-4],)" + offsets), 4, R"(tensor "a": its shape is not a list)"},
      {entry(dtype + R"(,"shape":[4.0],)" + offsets), 4, R"(tensor "a": its shape is not a list)"},
      {entry(dtype + R"(,"shape":[[4]],)" + offsets), 4, R"(tensor "a": its shape is not a list)"},
      {entry(dtype + R"(,"shape":[18446744073709551616],)" + offsets), 4, R"(tensor "a": its shape is not a list)"},
      {entry(dtype + "," + shape + R"(,"data_offsets":[0])"), 4, "no data_offsets of two numbers"},
      {entry(dtype + "," + shape + R"(,"data_offsets":[0,4,4])"), 4, "data_offsets are not two whole numbers"},
      {entry(dtype + "," + shape + R"(,"data_offsets":[-1,3])"), 4, "data_offsets are not two whole numbers"},
      {entry(dtype + "," + shape + R"(,"data_offsets":{})"), 4, "data_offsets are not two whole numbers"},
      {entry(dtype + "," + shape + "," + offsets + R"(,"more":1)"), 4, R"(an unknown key, "more")"},
      {entry(dtype + "," + shape + R"(,"data_offsets":[4,0])"), 4, "end at 0, before they begin at 4"},
      {entry(dtype + R"(,"shape":[5],)" + offsets), 4, "its shape needs 5 bytes, and its data_offsets have 4"},
      {entry(R"("dtype":"F4","shape":[7],)" + offsets), 4, "fills 28 bits of F4, not a whole number of bytes"},
      {entry(R"("dtype":"F32","shape":[4294967296,4294967296],)" + offsets), 4, "more elements than can be counted"},
      {entry(dtype + R"(,"shape":[2305843009213693952],)" + offsets), 4, "more elements than can be counted"},
      {entry(dtype + R"(,"shape":[0,9223372036854775808],)" + offsets), 4, "can be counted beside a dimension of 0"},
      {entry(dtype + R"(,"shape":[9223372036854775808,0],)" + offsets), 4, "can be counted beside a dimension of 0"},
      {entry(R"("dtype":"F32","shape":[4294967296,0,4294967296],)" + offsets), 4, "beside a dimension of 0"},
      {entry(dtype + R"(,"shape":[4],"data_offsets":[1,5])"), 5, "there is a hole before it: it begins at 1, not at 0"},
      {entry(dtype + "," + shape + "," + offsets), 3, "it ends at byte 4 of the data, of which the file has 3"},
      {entry(dtype + "," + shape + "," + offsets), 5, "the file has 1 bytes behind its last tensor"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
       7, R"(tensor "b": it overlaps the one before it: it begins at 3, not at 4)"},
  };
  for (const BrokenHeader& each : cases) {
    const Result<Contents> contents = parse(each.json, each.data_bytes);
    ASSERT_FALSE(contents.ok()) << each.json;
    EXPECT_NE(contents.error().message.find(each.message), std::string::npos)
        << each.json << ": " << contents.error().message;
    EXPECT_TRUE(contents.error().code == Code::invalid_argument || contents.error().code == Code::truncated);
    EXPECT_FALSE(contents.error().hint.empty());
  }
}

TEST(Safetensors, each_limit_may_be_reached_and_not_passed) {
  std::string metadata;
  for (std::size_t i = 0; i < metadata_limit; ++i) metadata += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  const auto with = [&](const std::string& more) { return parse(R"({"__metadata__":{)" + metadata + more + "}}", 0); };
  const Result<Contents> all = with("");
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(all->metadata.size(), metadata_limit);
  EXPECT_FALSE(with(R"(,"x":"")").ok());
  std::string ones = "1";
  for (std::size_t i = 1; i < dimension_limit; ++i) ones += ",1";
  EXPECT_TRUE(parse(entry(R"("dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1])"), 1).ok());
}

TEST(Safetensors, depth_and_dimensions_are_bounded) {
  const std::string deep(100'000, '[');
  EXPECT_FALSE(parse(R"({"a":)" + deep, 0).ok());
  EXPECT_FALSE(parse(R"({"__metadata__":)" + deep, 0).ok());
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  const Result<Contents> wide = parse(entry(R"("dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1])"), 1);
  ASSERT_FALSE(wide.ok());
  EXPECT_NE(wide.error().message.find("more than 64 dimensions"), std::string::npos);
}

}  // namespace
}  // namespace penstock::models
