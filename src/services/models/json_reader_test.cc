#include "services/models/json_reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace penstock::models {
namespace {

using Kind = JsonReader::Kind;

bool accepts(std::string_view json) {
  JsonReader reader(json);
  return reader.end(reader.skip()).ok();
}

// As text that shows what was read, and in which order.
bool write_value(JsonReader& json, std::string& out) {
  switch (json.next()) {
    case Kind::object:
      out += "{";
      if (!json.object([&](std::string_view key) {
            out += std::string(key) + "=";
            return write_value(json, out);
          })) {
        return false;
      }
      out += "}";
      return true;
    case Kind::array:
      out += "[";
      if (!json.array([&] { return write_value(json, out); })) return false;
      out += "]";
      return true;
    case Kind::string: {
      std::string_view text;
      if (!json.string(text)) return false;
      out += "'" + std::string(text) + "' ";
      return true;
    }
    case Kind::number: {
      std::optional<std::uint64_t> number;
      if (!json.number(number)) return false;
      out += (number ? std::to_string(*number) : "not whole") + " ";
      return true;
    }
    case Kind::other:
    case Kind::none:
      break;
  }
  out += "other ";
  return json.skip();
}

TEST(JsonReader, gives_every_value_in_its_place) {
  JsonReader json(R"( {"a": {"b": [1, -2, "x", {"c": null}]}, "d": true, "e": [ ], "f" : { } } )");
  std::string seen;
  const bool taken = write_value(json, seen);
  ASSERT_TRUE(json.end(taken).ok());
  EXPECT_EQ(seen, "{a={b=[1 not whole 'x' {c=other }]}d=other e=[]f={}}");
}

TEST(JsonReader, decodes_text_as_another_parser_does) {
  for (const std::string text : {R"("plain")", R"("\"\\\/\b\f\n\r\t")", R"("\u0041\u00e9\u20AC\uD83D\uDE00 \u0000x")",
                                 "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"", R"("")", R"("a\nb")"}) {
    JsonReader json(text);
    std::string_view decoded;
    ASSERT_TRUE(json.end(json.string(decoded)).ok()) << text;
    EXPECT_EQ(decoded, nlohmann::json::parse(text).get<std::string>());
  }
}

TEST(JsonReader, refuses_and_accepts_what_another_parser_does) {
  for (const std::string text : {"",
                                 " ",
                                 "{",
                                 "}",
                                 "[",
                                 "[1",
                                 "[1,",
                                 "[1,]",
                                 "[,1]",
                                 "{,}",
                                 "{\"a\"}",
                                 "{\"a\":}",
                                 "{\"a\":1,}",
                                 "{a:1}",
                                 "nul",
                                 "nulll",
                                 "true",
                                 "tru",
                                 "false",
                                 "null",
                                 "0",
                                 "-0",
                                 "01",
                                 "-",
                                 "1.",
                                 ".5",
                                 "1.5",
                                 "1e",
                                 "1e5",
                                 "1E+5",
                                 "1e-5",
                                 "+1",
                                 "1 2",
                                 "\"",
                                 "\"\\\"",
                                 "\"\\x\"",
                                 "\"\\u12\"",
                                 "\"\\u12g4\"",
                                 "\"\\ud800\"",
                                 "\"\\udc00\"",
                                 "\"\\ud800\\u0041\"",
                                 "\"\\ud800x\"",
                                 "\"\t\"",
                                 "\"\x7f\"",
                                 "\"\x80\"",
                                 "\"\xc0\x80\"",
                                 "\"\xc1\xbf\"",
                                 "\"\xc2\"",
                                 "\"\xc2\x80\"",
                                 "\"\xe0\x80\x80\"",
                                 "\"\xe0\xa0\x80\"",
                                 "\"\xed\xa0\x80\"",
                                 "\"\xed\x9f\xbf\"",
                                 "\"\xf0\x80\x80\x80\"",
                                 "\"\xf0\x90\x80\x80\"",
                                 "\"\xf4\x8f\xbf\xbf\"",
                                 "\"\xf4\x90\x80\x80\"",
                                 "\"\xf5\x80\x80\x80\"",
                                 "\"\xe2\x82\"",
                                 "[]",
                                 "{}",
                                 "[[],{}]",
                                 "// x\n1",
                                 "1//",
                                 "'a'",
                                 "NaN",
                                 "\f1",
                                 "[1 2]",
                                 "{\"a\" 1}",
                                 "{\"a\":1 \"b\":2}"}) {
    EXPECT_EQ(accepts(text), nlohmann::json::accept(text)) << testing::PrintToString(text);
  }
}

TEST(JsonReader, takes_whole_numbers_up_to_the_largest) {
  const auto number_in = [](std::string_view text) {
    JsonReader json(text);
    std::optional<std::uint64_t> number = 7;
    EXPECT_TRUE(json.end(json.number(number)).ok());
    return number;
  };
  EXPECT_EQ(number_in("18446744073709551615"), UINT64_MAX);
  for (const std::string_view other : {"18446744073709551616", "99999999999999999999999", "-1", "1.0", "1e0"}) {
    EXPECT_EQ(number_in(other), std::nullopt) << other;
  }
}

TEST(JsonReader, refuses_a_value_of_another_kind) {
  JsonReader json("[1]");
  std::string_view text;
  const bool taken = json.array([&] { return json.string(text); });
  EXPECT_EQ(json.end(taken).error().message, "it is not valid JSON from byte 1 on");
}

TEST(JsonReader, finds_what_is_not_plain_wherever_it_is_in_a_text) {
  const std::string plain(20, 'x');
  for (std::size_t place = 0; place < plain.size(); ++place) {
    for (int c = 0; c < 256; ++c) {
      std::string text = plain;
      text[place] = static_cast<char>(c);
      const std::string json = '"' + text + '"';
      EXPECT_EQ(accepts(json), nlohmann::json::accept(json)) << "character " << c << " at " << place;
    }
  }
}

TEST(JsonReader, refuses_a_key_that_is_there_twice_however_many_there_are) {
  std::string json = "{";
  for (int i = 0; i < 100; ++i) json += "\"key" + std::to_string(i) + "\":{\"a\":1},";
  EXPECT_TRUE(accepts(json + "\"a\":1}"));
  EXPECT_FALSE(accepts(json + "\"key0\":1}"));
  EXPECT_FALSE(accepts(json + "\"key99\":1}"));
  EXPECT_FALSE(accepts(json + R"("k\u0065y50":1})")) << "however it is written";
  EXPECT_FALSE(accepts(R"({"a":1,"a":1})"));
  EXPECT_TRUE(accepts(R"([{"a":1},{"a":1}])"));
}

TEST(JsonReader, keeps_the_texts_that_it_gave_out_when_it_skips_others) {
  const std::string skipped = R"([{"\u0061": "\n", "b": ["\t", "a longer text with an escape\n"]}, "\n"])";
  const std::string text =
      R"({"kept": "a text that was given out\n", "sk\u0069pped": )" + skipped + R"(, "skipped": 1})";
  JsonReader json(text);
  std::string_view kept;
  const bool taken = json.object([&](std::string_view key) { return key == "kept" ? json.string(kept) : json.skip(); });
  EXPECT_EQ(kept, "a text that was given out\n");
  EXPECT_EQ(json.end(taken).error().message, "the key \"skipped\" appears twice");
}

TEST(JsonReader, refuses_zero_bytes_and_depth) {
  EXPECT_FALSE(accepts(std::string_view("{}\0", 3)));
  EXPECT_FALSE(accepts(std::string_view("\0", 1)));
  EXPECT_FALSE(accepts(std::string_view("[1\0]", 4)));
  EXPECT_TRUE(accepts("[[[[[[[[]]]]]]]]"));
  EXPECT_FALSE(accepts("[[[[[[[[[]]]]]]]]]"));
  EXPECT_FALSE(accepts(std::string(1 << 20, '[')));
  EXPECT_FALSE(accepts(std::string(1 << 20, '{')));
}

TEST(JsonReader, ends_where_its_user_says) {
  JsonReader json("[1,2,3]");
  int count = 0;
  const bool taken = json.array([&] {
    std::optional<std::uint64_t> number;
    ++count;
    return json.number(number) && (number != 2 || json.fail("enough"));
  });
  EXPECT_EQ(json.end(taken).error().message, "enough");
  EXPECT_EQ(count, 2);
}

}  // namespace
}  // namespace penstock::models
