#include "services/models/json_walk.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace penstock::models {
namespace {

using Kind = JsonEvent::Kind;

bool accepts(std::string_view json) {
  return walk_json(json, [](const JsonEvent&) { return JsonProblem(); }).ok();
}

TEST(JsonWalk, tells_every_value_with_its_path) {
  std::vector<std::string> seen;
  const Status status =
      walk_json(R"( {"a": {"b": [1, -2, "x", {"c": null}]}, "d": true} )", [&](const JsonEvent& event) {
        std::string text = std::to_string(static_cast<int>(event.kind)) + (event.in_array ? "[]" : "");
        for (const std::string_view key : event.path) text += "/" + std::string(key);
        seen.push_back(text + " " + std::string(event.text) + std::to_string(event.number));
        return JsonProblem();
      });
  ASSERT_TRUE(status.ok()) << status.error().message;
  const std::vector<std::string> expected = {"0 0",       "0/a 0",      "2/a/b 0",   "4[]/a/b 1",
                                             "5[]/a/b 0", "3[]/a/b x0", "0[]/a/b 0", "5/a/b/c 0",
                                             "1[]/a/b 0", "1/a 0",      "5/d 0",     "1 0"};
  EXPECT_EQ(seen, expected);
}

TEST(JsonWalk, decodes_text_as_another_parser_does) {
  for (const std::string text : {R"("plain")", R"("\"\\\/\b\f\n\r\t")", R"("\u0041\u00e9\u20AC\uD83D\uDE00 \u0000x")",
                                 "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"", R"("")", R"("a\nb")"}) {
    std::string decoded;
    const Status status = walk_json(text, [&](const JsonEvent& event) {
      decoded = event.text;
      return JsonProblem();
    });
    ASSERT_TRUE(status.ok()) << text;
    EXPECT_EQ(decoded, nlohmann::json::parse(text).get<std::string>());
  }
}

TEST(JsonWalk, refuses_and_accepts_what_another_parser_does) {
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

TEST(JsonWalk, takes_whole_numbers_up_to_the_largest) {
  const auto kind_of = [](std::string_view json) {
    Kind kind = Kind::object;
    std::uint64_t number = 0;
    EXPECT_TRUE(walk_json(json, [&](const JsonEvent& event) {
                  kind = event.kind;
                  number = event.number;
                  return JsonProblem();
                }).ok());
    return std::pair(kind, number);
  };
  EXPECT_EQ(kind_of("18446744073709551615"), std::pair(Kind::number, UINT64_MAX));
  EXPECT_EQ(kind_of("18446744073709551616").first, Kind::other);
  EXPECT_EQ(kind_of("99999999999999999999999").first, Kind::other);
  EXPECT_EQ(kind_of("-1").first, Kind::other);
  EXPECT_EQ(kind_of("1.0").first, Kind::other);
  EXPECT_EQ(kind_of("1e0").first, Kind::other);
}

TEST(JsonWalk, finds_what_is_not_plain_wherever_it_is_in_a_text) {
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

TEST(JsonWalk, refuses_a_key_that_is_there_twice_however_many_there_are) {
  std::string json = "{";
  for (int i = 0; i < 100; ++i) json += "\"key" + std::to_string(i) + "\":{\"a\":1},";
  EXPECT_TRUE(accepts(json + "\"a\":1}"));
  EXPECT_FALSE(accepts(json + "\"key0\":1}"));
  EXPECT_FALSE(accepts(json + "\"key99\":1}"));
  EXPECT_FALSE(accepts(json + R"("k\u0065y50":1})")) << "however it is written";
  EXPECT_FALSE(accepts(R"({"a":1,"a":1})"));
  EXPECT_TRUE(accepts(R"([{"a":1},{"a":1}])"));
}

TEST(JsonWalk, refuses_zero_bytes_and_depth) {
  EXPECT_FALSE(accepts(std::string_view("{}\0", 3)));
  EXPECT_FALSE(accepts(std::string_view("\0", 1)));
  EXPECT_FALSE(accepts(std::string_view("[1\0]", 4)));
  EXPECT_TRUE(accepts("[[[[[[[[]]]]]]]]"));
  EXPECT_FALSE(accepts("[[[[[[[[[]]]]]]]]]"));
  EXPECT_FALSE(accepts(std::string(1 << 20, '[')));
  EXPECT_FALSE(accepts(std::string(1 << 20, '{')));
}

TEST(JsonWalk, ends_where_its_visitor_says) {
  int count = 0;
  const Status status = walk_json("[1,2,3]", [&](const JsonEvent& event) {
    ++count;
    return event.number == 2 ? JsonProblem("enough") : JsonProblem();
  });
  EXPECT_EQ(status.error().message, "enough");
  EXPECT_EQ(count, 3);
}

}  // namespace
}  // namespace penstock::models
