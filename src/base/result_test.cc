#include "penstock/result.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

const Error broken{Code::io_error, 5, "it is broken", "mend it"};

TEST(Result, has_a_value_or_an_error) {
  const Result<int> value(7);
  EXPECT_TRUE(value.ok());
  EXPECT_EQ(*value, 7);
  const Result<int> error(broken);
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.error().message, "it is broken");
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status(broken).error().code, Code::io_error);
}

TEST(ResultDeathTest, asked_for_a_value_that_is_not_there_ends_with_the_error) {
  EXPECT_DEATH((void)Result<int>(broken).value(), "penstock: value of a failed Result: it is broken");
}

TEST(ResultDeathTest, asked_for_an_error_that_is_not_there_ends_with_a_message) {
  const char* const message = "penstock: error of a Result or Status that is ok";
  const Result<std::string> right("right");
  const Status done;
  EXPECT_DEATH((void)right.error(), message);
  EXPECT_DEATH((void)Result<int>(7).error(), message);
  EXPECT_DEATH((void)done.error(), message);
  EXPECT_DEATH((void)Status().error(), message);
}

}  // namespace
}  // namespace penstock
