#include "services/tuning/text.h"

#include <gtest/gtest.h>

namespace penstock::tuning {
namespace {

Tuning example() {
  Tuning tuning{.key = {"ext4", "/dev/nvme0n1p2", "/data with space", "NVIDIA H200"},
                .options = {},
                .when = "2026-01-31T12:00:00Z",
                .version = "0.1.0",
                .cached = TuningSpeed{50.25e9, 53.1e9},
                .cold = std::nullopt};
  tuning.options.lanes = 8;
  tuning.options.storage_chunk_bytes = 2 << 20;
  return tuning;
}

// The text of `example` with one piece replaced.
std::string with(std::string_view piece, std::string_view other) {
  std::string text = *format({example()});
  const std::size_t at = text.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return text.replace(at, piece.size(), other);
}

TEST(TuningText, comes_back_as_it_was) {
  Tuning other = example();
  other.key.memory = "host";
  other.cold = TuningSpeed{1.1e9, 1.3e9};
  const std::vector<Tuning> all = {example(), other};
  const auto parsed = parse(*format(all));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(*parsed, all);
  EXPECT_TRUE(parse(*format({}))->empty());
}

TEST(TuningText, holds_only_the_options_that_differ) {
  const std::string text = *format({example()});
  EXPECT_NE(text.find("\"lanes\": 8"), std::string::npos);
  EXPECT_EQ(text.find("operations_in_flight"), std::string::npos);
}

TEST(TuningText, anything_that_is_not_understood_is_refused) {
  const std::string broken[] = {
      "",
      "{",
      "[]",
      "{}",
      "{\"schema\": \"penstock.tuning/1\"}",
      "{\"schema\": \"penstock.tuning/1\", \"tunings\": {}}",
      "{\"schema\": \"penstock.tuning/1\", \"tunings\": [1]}",
      with("tuning/1", "tuning/2"),
      with("\"when\"", "\"then\""),
      with("\"when\":", "\"more\": 1, \"when\":"),
      with("\"lanes\"", "\"engine\""),
      with("\"lanes\"", "\"pinned_budget_bytes\""),
      with("\"lanes\": 8", "\"lanes\": -8"),
      with("\"lanes\": 8", "\"lanes\": 8.5"),
      with("\"lanes\": 8", "\"lanes\": \"8\""),
      with("\"lanes\": 8", "\"lanes\": 1000000"),
      with("\"lanes\": 8", "\"lanes\": 99999999999999999999999"),
      with("2097152", "2097151"),
      with("\"cold\": null", "\"cold\": 1"),
      with("\"cold\": null", "\"cold\": {}"),
      with("50250000000.0", "-1"),
      with("50250000000.0", "\"fast\""),
      with("\"ext4\"", "4"),
      with("ext4", std::string(5000, 'x')),
      std::string(file_limit_bytes + 1, ' '),
  };
  for (const std::string& text : broken) {
    const auto parsed = parse(text);
    ASSERT_FALSE(parsed.ok()) << text.substr(0, 400);
    EXPECT_EQ(parsed.error().code, Code::invalid_argument);
    EXPECT_FALSE(parsed.error().message.empty());
  }
}

TEST(TuningText, names_that_json_cannot_hold_are_refused_and_not_mangled) {
  Tuning tuning = example();
  tuning.key.mount_point = "/\xff";
  const auto text = format({tuning});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Code::unsupported);
}

TEST(TuningText, does_not_grow_beyond_what_is_read) {
  const auto text = format(std::vector<Tuning>(4000, example()));
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Code::unsupported);
}

}  // namespace
}  // namespace penstock::tuning
