#include "services/kinds/dictionary.h"

#include <gtest/gtest.h>

namespace penstock::kinds {
namespace {

std::string with_kinds(const std::string& kinds) {
  return R"({"schema": "penstock.kinds/1", "block_bytes": 512, "kinds": [)" + kinds + "]}";
}

const std::string users =
    R"({"id": 1, "name": "users", "start_byte": 0, "length_bytes": 640, "record_bytes": 64, "type": "F32",
        "shape": [4, 4], "records": 10})";
const std::string edges =
    R"({"id": 7, "name": "edges", "start_lba": 2, "length_bytes": 100, "record_bytes": 3, "records": 0})";

// A kind with one member written otherwise.
std::string edges_with(const std::string& member, const std::string& value) {
  const std::size_t at = edges.find("\"" + member + "\"");
  const std::size_t end = edges.find_first_of(",}", at);
  std::string text = edges;
  return text.replace(at, end - at, value.empty() ? "\"id2\": 1" : "\"" + member + "\": " + value);
}

Code code_of(const std::string& json) {
  const auto parsed = parse(json);
  EXPECT_FALSE(parsed.ok()) << json;
  if (parsed) return Code::ok;
  EXPECT_FALSE(parsed.error().message.empty() || parsed.error().hint.empty()) << json;
  return parsed.error().code;
}

testing::AssertionResult says(const std::string& json, const std::string& words) {
  if (code_of(json) != Code::invalid_argument) return testing::AssertionFailure() << "another code";
  const std::string message = parse(json).error().message;
  if (message.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << message;
}

TEST(KindsDictionary, reads_kinds_by_byte_and_by_block_in_the_order_of_their_places) {
  const Dictionary dictionary = parse(with_kinds(edges + "," + users)).value();
  ASSERT_EQ(dictionary.kinds.size(), 2U);
  EXPECT_EQ(dictionary.kinds[0].name, "users");
  EXPECT_EQ(dictionary.kinds[0].capacity(), 10U);
  EXPECT_EQ(dictionary.kinds[1].start_byte, 1024U);
  EXPECT_TRUE(dictionary.kinds[1].starts_at_lba);
  EXPECT_EQ(dictionary.kinds[1].capacity(), 33U);
  EXPECT_EQ(dictionary.find(7), &dictionary.kinds[1]);
  EXPECT_EQ(dictionary.find("users"), &dictionary.kinds[0]);
  EXPECT_EQ(dictionary.find("nobody"), nullptr);
}

TEST(KindsDictionary, comes_back_from_its_text) {
  Dictionary dictionary = parse(with_kinds(edges + "," + users)).value();
  dictionary.device_bytes = 1 << 20;
  dictionary.kinds[0].name = "a \"quoted\" näme/with\\odd 名";
  const Dictionary again = parse(to_text(dictionary).value()).value();
  EXPECT_EQ(again.kinds, dictionary.kinds);
  EXPECT_EQ(again.device_bytes, dictionary.device_bytes);
  EXPECT_TRUE(parse(to_text(Dictionary{}).value()).value().kinds.empty());
}

TEST(KindsDictionary, refuses_what_is_cut_anywhere) {
  const std::string whole = with_kinds(users + "," + edges);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(code_of(whole.substr(0, size)), Code::invalid_argument) << size;
  }
}

TEST(KindsDictionary, refuses_another_version_by_name) {
  const auto of = [](const std::string& schema) { return R"({"schema": ")" + schema + R"(", "kinds": []})"; };
  EXPECT_EQ(code_of(of("penstock.kinds/2")), Code::unsupported);
  EXPECT_EQ(code_of(of("penstock.kinds/")), Code::unsupported);
  EXPECT_EQ(code_of(of("penstock.rows/1")), Code::invalid_argument);
  EXPECT_EQ(code_of(R"({"kinds": []})"), Code::invalid_argument);
  // Whatever a later version has beside it.
  EXPECT_EQ(code_of(R"({"schema": "penstock.kinds/9", "kinds": {"a": null}})"), Code::unsupported);
}

TEST(KindsDictionary, refuses_kinds_that_overlap_or_share_an_id_or_a_name) {
  EXPECT_TRUE(says(with_kinds(users + "," + edges_with("start_lba", "1")), "overlap"));
  EXPECT_TRUE(says(with_kinds(users + "," + edges_with("id", "1")), "another has its id"));
  EXPECT_TRUE(says(with_kinds(users + "," + edges_with("name", "\"users\"")), "two kinds have the name"));
  EXPECT_TRUE(says(R"({"schema": "penstock.kinds/1", "kinds": [], "kinds": []})", "kinds"));
}

TEST(KindsDictionary, refuses_numbers_that_are_none_or_overflow) {
  for (const char* member : {"id", "start_lba", "length_bytes", "record_bytes", "records"}) {
    for (const char* value : {"-1", "1.5", "1e3", "9223372036854775808", "18446744073709551616", "\"1\"", "null", ""}) {
      EXPECT_EQ(code_of(with_kinds(edges_with(member, value))), Code::invalid_argument) << member << value;
    }
  }
  EXPECT_TRUE(says(with_kinds(edges_with("id", "4294967296")), "above 4294967295"));
  EXPECT_TRUE(says(with_kinds(edges_with("id", "0")), "id is 0"));
  EXPECT_TRUE(says(with_kinds(edges_with("start_lba", "9223372036854775807")), "beyond 2^63"));
  EXPECT_TRUE(says(with_kinds(edges_with("length_bytes", "9223372036854775807")), "beyond 2^63"));
  EXPECT_TRUE(says(with_kinds(edges_with("record_bytes", "0")), "no bytes"));
  EXPECT_TRUE(says(with_kinds(edges_with("record_bytes", "101")), "no room for a record"));
  EXPECT_TRUE(says(with_kinds(edges_with("records", "34")), "has room for 33"));
}

TEST(KindsDictionary, refuses_members_that_it_does_not_know_or_that_contradict_each_other) {
  EXPECT_TRUE(says(with_kinds(edges_with("records", "1, \"lenght\": 7")), "unknown member"));
  EXPECT_TRUE(says(with_kinds(edges_with("start_lba", "1, \"start_byte\": 512")), "one of start_byte and start_lba"));
  EXPECT_TRUE(says(R"({"schema": "penstock.kinds/1", "kinds": [)" + edges + "]}", "no block_bytes"));
  EXPECT_TRUE(says(R"({"schema": "penstock.kinds/1", "block_bytes": 500, "kinds": []})", "which no block has"));
  EXPECT_TRUE(says(with_kinds(edges_with("records", "0, \"type\": \"F33\"")), "not known"));
  EXPECT_TRUE(says(with_kinds(edges_with("records", "0, \"type\": \"F32\"")), "take 4 bytes"));
  EXPECT_TRUE(says(with_kinds(edges_with("records", "0, \"shape\": [3]")), "no type"));
  EXPECT_TRUE(says(with_kinds(edges_with("records", "0, \"type\": \"F64\", \"shape\": [4294967296, 4294967296]")),
                   "more elements than can be counted"));
  EXPECT_TRUE(says(with_kinds(edges_with("name", "\"a\\u0000b\"")), "control characters"));
}

TEST(KindsDictionary, names_the_kind_that_has_a_wrong_member_wherever_its_name_stands) {
  for (const std::string member : {R"("lenght": {"a": [1]})", R"("records": "1")", R"("shape": 7)",
                                   R"("shape": [null])", R"("type": 7)", R"("id": -1)"}) {
    EXPECT_TRUE(says(with_kinds("{" + member + R"(, "name": "later"})"), "kind \"later\": it")) << member;
    EXPECT_TRUE(says(with_kinds(users + ", {" + member + "}"), "kind 2 of the list: it")) << member;
  }
  EXPECT_TRUE(says(with_kinds(users + ", 7"), "kind 2 of its list is not an object"));
  EXPECT_TRUE(says(with_kinds(R"({"name": 7})"), "its name is not a string"));
}

TEST(KindsDictionary, says_that_it_must_be_an_object) {
  for (const char* text : {"[]", "7", "\"kinds\"", "null"}) EXPECT_TRUE(says(text, "must be an object")) << text;
  EXPECT_TRUE(says("", "not valid JSON"));
}

TEST(KindsDictionary, says_what_a_new_kind_may_be) {
  Dictionary dictionary = parse(with_kinds(users)).value();
  const auto hint = [&](const NewKind& kind) { return add(dictionary, kind, 0).error().hint; };
  EXPECT_NE(hint({.name = "x", .capacity = 1, .type = "f4"}).find("F32"), std::string::npos);
  EXPECT_EQ(hint({.name = "x", .capacity = 1, .record_bytes = 4, .records = 2}), "give at most 1");
  EXPECT_EQ(hint({.name = "x", .id = 1, .capacity = 1, .record_bytes = 1}), "choose an id that no other kind has");
  EXPECT_EQ(hint({.name = "x", .start_byte = 639, .capacity = 1, .record_bytes = 1}),
            "choose a place where no other kind is");
  EXPECT_EQ(hint({.name = "x", .capacity = 1}), "give one of them");
}

TEST(KindsDictionary, refuses_names_that_nobody_could_ask_for) {
  for (const std::string& name :
       std::vector<std::string>{"", "123", " a", "a ", "a\nb", "\xff", std::string(256, 'x')}) {
    Dictionary dictionary;
    const auto added = add(dictionary, {.name = name, .capacity = 1, .record_bytes = 1}, 0);
    ASSERT_FALSE(added.ok()) << name;
    EXPECT_EQ(added.error().code, Code::invalid_argument);
  }
}

TEST(KindsDictionary, places_kinds_behind_what_is_there_or_in_the_first_gap) {
  Dictionary dictionary;
  const auto place_of = [&](const NewKind& kind, std::uint64_t behind) {
    return dictionary.kinds[add(dictionary, kind, behind).value()].start_byte;
  };
  EXPECT_EQ(place_of({.name = "a", .capacity = 1000, .record_bytes = 10}, 5000), 8192U);
  EXPECT_EQ(place_of({.name = "b", .length_bytes = 4096, .record_bytes = 10}, 0), 0U);
  EXPECT_EQ(place_of({.name = "c", .length_bytes = 4097, .record_bytes = 10}, 0), 20480U);
  EXPECT_EQ(place_of({.name = "d", .length_bytes = 4096, .record_bytes = 10}, 0), 4096U);
  EXPECT_EQ(place_of({.name = "e", .start_lba = 1000, .capacity = 1, .type = "F64"}, 0), 512'000U);
  EXPECT_EQ(dictionary.find("e")->id, 5U);
  EXPECT_EQ(dictionary.find("e")->record_bytes, 8U);
  EXPECT_EQ(place_of({.name = "f", .id = 100, .start_byte = 512'008, .capacity = 1, .record_bytes = 3}, 0), 512'008U);
  EXPECT_EQ(parse(to_text(dictionary).value()).value().kinds, dictionary.kinds);
}

TEST(KindsDictionary, gives_no_id_twice) {
  Dictionary dictionary;
  const auto add_one = [&](const char* name) {
    return dictionary.kinds[add(dictionary, {.name = name, .capacity = 1, .record_bytes = 1}, 0).value()].id;
  };
  EXPECT_EQ(add_one("a"), 1U);
  EXPECT_EQ(add_one("b"), 2U);
  dictionary.kinds.clear();
  dictionary = parse(to_text(dictionary).value()).value();
  EXPECT_EQ(add_one("c"), 3U);
  EXPECT_EQ(to_text(dictionary).value().find("last_id"), std::string::npos) << "the kinds tell it";
  dictionary.last_id = UINT32_MAX;
  EXPECT_FALSE(add(dictionary, {.name = "d", .capacity = 1, .record_bytes = 1}, 0));
  EXPECT_FALSE(parse(R"({"schema": "penstock.kinds/1", "last_id": 4294967296, "kinds": []})"));
}

TEST(KindsDictionary, refuses_new_kinds_without_room_and_stays_as_it_was) {
  Dictionary dictionary = parse(with_kinds(users)).value();
  const auto refuses = [&](const NewKind& kind) {
    const auto added = add(dictionary, kind, 0);
    return !added && added.error().code == Code::invalid_argument && dictionary.kinds.size() == 1 &&
           !added.error().hint.empty() &&
           added.error().hint.find("dictionary") == std::string::npos;  // it is not the one to correct
  };
  EXPECT_TRUE(refuses({.name = "users", .capacity = 1, .record_bytes = 1}));
  EXPECT_TRUE(refuses({.name = "x", .id = 1, .capacity = 1, .record_bytes = 1}));
  EXPECT_TRUE(refuses({.name = "x", .start_byte = 639, .capacity = 1, .record_bytes = 1}));
  EXPECT_TRUE(refuses({.name = "x", .start_byte = 1000, .start_lba = 2, .capacity = 1, .record_bytes = 1}));
  EXPECT_TRUE(refuses({.name = "x", .start_lba = UINT64_MAX / 2, .capacity = 1, .record_bytes = 1}));
  EXPECT_TRUE(refuses({.name = "x", .record_bytes = 1}));
  EXPECT_TRUE(refuses({.name = "x", .capacity = 1}));
  EXPECT_TRUE(refuses({.name = "x", .capacity = 1, .length_bytes = 1, .record_bytes = 1}));
  EXPECT_TRUE(refuses({.name = "x", .capacity = UINT64_MAX, .record_bytes = 2}));
  EXPECT_TRUE(refuses({.name = "x", .capacity = 1, .type = "F31"}));
  EXPECT_TRUE(refuses({.name = "x", .capacity = 1, .type = "F32", .shape = {0}}));
  EXPECT_TRUE(refuses({.name = "x", .capacity = 1, .record_bytes = 4, .records = 2}));
}

TEST(KindsDictionary, knows_the_store_that_it_is_of) {
  Dictionary dictionary = parse(with_kinds(users)).value();
  StoreInfo store{.name = "disk", .kind = StoreKind::block_device, .size_bytes = 640, .block_bytes = 512};
  EXPECT_TRUE(check_store(dictionary, store).ok());
  store.size_bytes = 639;
  EXPECT_EQ(check_store(dictionary, store).error().code, Code::out_of_range);
  store.size_bytes = 4096;
  dictionary.device_bytes = 8192;
  EXPECT_EQ(check_store(dictionary, store).error().code, Code::invalid_argument);
  dictionary.device_bytes = 4096;
  store.block_bytes = 4096;
  EXPECT_EQ(check_store(dictionary, store).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::kinds
