// One call that opens, allocates and reads.
#include <gtest/gtest.h>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

class ByName : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    write_file(folder_.path("file"), content(1, 0, size));
  }
  static constexpr std::size_t size = 100'000;
  bool name_is_refused_ = false;
};

TEST_F(ByName, reads_all_of_a_store_into_memory_of_its_own) {
  Context context = make_context();
  const auto loaded = context.read(folder_.path("file"), {}, Domain::host());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->buffer.size_bytes(), size);
  EXPECT_TRUE(holds_content(loaded->buffer.bytes(), 1, 0));
  EXPECT_EQ(loaded->report.bytes, size);
  EXPECT_FALSE(loaded->report.reason.empty());
}

TEST_F(ByName, reads_part_of_it) {
  Context context = make_context();
  const auto part = context.read(folder_.path("file"), {.offset = 12'345, .length = 678}, Domain::pinned());
  ASSERT_TRUE(part.ok()) << part.error().message;
  EXPECT_EQ(part->buffer.size_bytes(), 678U);
  EXPECT_TRUE(holds_content(part->buffer.bytes(), 1, 12'345));
  EXPECT_EQ(context.read(folder_.path("file"), {.offset = 99'000}, Domain::host())->buffer.size_bytes(), 1000U);
}

TEST_F(ByName, says_what_is_wrong) {
  Context context = make_context();
  EXPECT_EQ(context.read(folder_.path("none"), {}, Domain::host()).error().code, Code::not_found);
  EXPECT_EQ(context.read(folder_.path("file"), {.offset = 99'000, .length = 2000}, Domain::host()).error().code,
            Code::out_of_range);
}

TEST_F(ByName, finds_nothing_at_the_end_and_no_such_place_past_it) {
  Context context = make_context();
  const auto nothing = context.read(folder_.path("file"), {.offset = size}, Domain::host());
  ASSERT_TRUE(nothing.ok()) << nothing.error().message;
  EXPECT_EQ(nothing->buffer.size_bytes(), 0U);
  EXPECT_EQ(context.read(folder_.path("file"), {.offset = size + 1}, Domain::host()).error().code, Code::out_of_range);
}

TEST_F(ByName, a_scheme_that_was_added_is_opened_by_its_function) {
  Context context = make_context();
  std::string asked;
  const auto resolve = [&](std::string_view name, const OpenOptions& options) {
    asked = name;
    return context.open(folder_.path("file"), options);
  };
  ASSERT_TRUE(context.add_scheme("tier", resolve).ok());
  const auto loaded = context.read("tier:a%20b", {.offset = 10, .length = 100}, Domain::host());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(asked, "a b");
  EXPECT_TRUE(holds_content(loaded->buffer.bytes(), 1, 10));
  EXPECT_TRUE(context.open(folder_.path("file")).ok()) << "others are opened as before";
  EXPECT_EQ(context.open("tiers://x").error().code, Code::unknown_scheme);
  EXPECT_EQ(context.open("tier:50%").error().code, Code::invalid_argument) << "it can't be decoded";
  EXPECT_EQ(context.open("./tier:x").error().code, Code::not_found) << "that is a path";
}

TEST_F(ByName, what_a_function_opens_may_be_a_recipe_or_an_error) {
  Context context = make_context();
  ASSERT_TRUE(context
                  .add_scheme("made-of",
                              [&](std::string_view name, const OpenOptions&) -> Result<Store> {
                                if (name != "sevens") return Error{Code::not_found, 0, "only sevens", "ask for those"};
                                return context.open(Recipe{"sevens", 1000, [](auto, auto memory) {
                                                             std::fill(memory.begin(), memory.end(), std::byte{7});
                                                             return Status();
                                                           }});
                              })
                  .ok());
  const auto error = context.read("made-of:eights", {}, Domain::host());
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.error().message, "only sevens");
  const auto sevens = context.read("made-of:sevens", {}, Domain::host());
  ASSERT_TRUE(sevens.ok()) << sevens.error().message;
  EXPECT_EQ(std::count(sevens->buffer.bytes().begin(), sevens->buffer.bytes().end(), std::byte{7}), 1000);
}

TEST_F(ByName, a_scheme_may_stand_for_paths) {
  Context context = make_context();
  int commits = 0;
  const auto locate = [&](std::string_view name, const OpenOptions& options) -> Result<Location> {
    if (name == "none") return Error{Code::not_found, 0, "there is none", ""};
    Location location{folder_.path(std::string(name)), options};
    location.options.on_commit = [&]() -> Status {
      ++commits;
      return name_is_refused_ ? Status(Error{Code::in_use, 0, "refused", ""}) : Status();
    };
    return location;
  };
  ASSERT_TRUE(context.redirect("there", locate).ok());
  EXPECT_EQ(context.redirect("there", locate).error().code, Code::invalid_argument);
  EXPECT_EQ(context.redirect("none", nullptr).error().code, Code::invalid_argument);
  EXPECT_EQ(*context.path_of("there:file"), folder_.path("file"));
  EXPECT_EQ(*context.path_of("there:50%20%"), folder_.path("50%20%")) << "as it was written";
  EXPECT_EQ(*context.path_of("a path"), "a path");
  EXPECT_EQ(context.path_of("there:none").error().code, Code::not_found);
  EXPECT_EQ(context.open("there:none").error().message, "there is none");
  const auto loaded = context.read("there:file", {}, Domain::host());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(holds_content(loaded->buffer.bytes(), 1, 0));
  for (const bool refused : {false, true}) {
    name_is_refused_ = refused;
    auto written = context.open("there:new", {.access = Access::replace});
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_EQ(written->commit().ok(), !refused);
  }
  EXPECT_EQ(commits, 2);
}

TEST_F(ByName, a_scheme_is_served_once) {
  Context context = make_context();
  const auto resolve = [](std::string_view, const OpenOptions&) -> Result<Store> {
    return Error{Code::not_found, 0, "nothing", ""};
  };
  for (const char* scheme : {"file", "", "a", "Tier", "9p", "with space", "a:b"}) {
    EXPECT_EQ(context.add_scheme(scheme, resolve).error().code, Code::invalid_argument) << scheme;
  }
  const Error without_function = context.add_scheme("tier", {}).error();
  EXPECT_EQ(without_function.code, Code::invalid_argument);
  EXPECT_EQ(without_function.hint, "give a function that opens its names");
  EXPECT_TRUE(context.add_scheme("tier", resolve).ok());
  const Error again = context.add_scheme("tier", resolve).error();
  EXPECT_EQ(again.code, Code::invalid_argument);
  EXPECT_EQ(again.message, "this Context has a function for tier: already");
}

TEST_F(ByName, the_name_of_a_unit_is_not_empty) {
  Context context = make_context();
  const Error error = context.open("tier:").error();
  EXPECT_EQ(error.code, Code::invalid_argument);
  EXPECT_EQ(error.message, "tier: names no unit");
}

}  // namespace
}  // namespace penstock::test
