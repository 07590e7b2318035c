#include "engines/cufile/library.h"

#include <unistd.h>

#include "fakes/cufile/support.h"

namespace penstock::cufile {
namespace {

class CuFileLibrary : public WithFakes {
 protected:
  // A process of its own may start threads only if it is a new one.
  CuFileLibrary() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CuFileLibrary, is_one_for_the_process_and_counted) {
  auto first = Library::acquire().value();
  auto second = Library::acquire().value();
  EXPECT_EQ(first, second);
  EXPECT_EQ(first->version(), 1150);
  EXPECT_EQ(first->path(), test::built(FAKE_CUFILE_LIBRARY));
  ASSERT_TRUE(first->open({.compat = true}).ok());
  ASSERT_TRUE(second->open({.compat = false}).ok());
  EXPECT_EQ(cufile_.counters().driver_opens, 1U);
  first.reset();
  EXPECT_EQ(cufile_.counters().driver_closes, 0U);
  second.reset();
  EXPECT_EQ(cufile_.counters().driver_closes, 1U);
}

TEST_F(CuFileLibrary, forbids_the_fallback_unless_it_is_wished_for) {
  cufile_.set_mode(fake_cufile_gds);
  for (const bool compat : {false, true}) {
    auto library = Library::acquire().value();
    ASSERT_TRUE(library->open({.compat = compat}).ok());
    EXPECT_EQ(library->state().compat_allowed, compat);
    EXPECT_FALSE(library->opened_by_others());
  }
}

// In a process of its own, which can't use cuFile any more.
TEST_F(CuFileLibrary, never_tries_again_once_opening_failed) {
  const auto fails_twice = [this] {
    cufile_.fail("cuFileDriverOpen", 1, 5004, 0);  // a second call would succeed
    for (int i = 0; i < 2; ++i) {
      const Status status = Library::acquire().value()->open({.compat = true});
      if (status.ok() || status.error().system_error != 5004) return 1;
      if (status.error().code != Code::engine_unavailable || status.error().hint.empty()) return 2;
    }
    return cufile_.counters().driver_opens == 0 ? 0 : 3;
  };
  EXPECT_EXIT(::_exit(fails_twice()), testing::ExitedWithCode(0), "");
}

TEST_F(CuFileLibrary, opens_for_nothing_where_there_is_neither_a_way_nor_leave_to_fall_back) {
  const auto number = [] { return Library::acquire().value()->open({.compat = false}).error().system_error - 5000; };
  EXPECT_EXIT(::_exit(number()), testing::ExitedWithCode(1), "");
}

TEST_F(CuFileLibrary, sees_that_somebody_else_was_first) {
  cufile_.set_mode(fake_cufile_gds);
  cufile_.open_by_others(1);
  auto library = Library::acquire().value();
  ASSERT_TRUE(library->open({.compat = false}).ok());
  EXPECT_TRUE(library->opened_by_others());
  EXPECT_TRUE(library->state().compat_allowed);
  library.reset();
  EXPECT_EQ(cufile_.counters().driver_closes, 0U);
}

TEST_F(CuFileLibrary, believes_a_refusal_to_open_twice) {
  cufile_.set_mode(fake_cufile_gds);
  cufile_.fail("cuFileDriverOpen", 1, cf_driver_already_open, 0);
  auto library = Library::acquire().value();
  ASSERT_TRUE(library->open({}).ok());
  EXPECT_TRUE(library->opened_by_others());
}

TEST_F(CuFileLibrary, counts_operations_only_where_the_layout_is_known) {
  cufile_.set_mode(fake_cufile_gds);
  for (const auto& [version, known] :
       {std::pair(1140, false), {1150, true}, {1181, true}, {1191, true}, {1200, false}}) {
    cufile_.set_version(version);
    auto library = Library::acquire().value();
    ASSERT_TRUE(library->open({}).ok());
    EXPECT_EQ(library->counts().has_value(), known) << version;
  }
}

}  // namespace
}  // namespace penstock::cufile
