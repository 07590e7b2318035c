#include "penstock/result.h"

#include <gtest/gtest.h>

#include <stdexcept>
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

// In tests: see tests/support/failed_access.cc. That it ends other programs is seen in tests/abi.
TEST(Result, asked_for_what_it_has_not_fails_the_test_and_not_the_process) {
  const auto message_of = [](auto&& ask) -> std::string {
    try {
      ask();
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(message_of([] { (void)Result<int>(broken).value(); }), "value of a failed Result: it is broken; mend it");
  const std::string of_error = "error of a Result or Status that is ok";
  EXPECT_EQ(message_of([] { (void)Result<int>(7).error(); }), of_error);
  EXPECT_EQ(message_of([] { (void)Status().error(); }), of_error);
}

}  // namespace
}  // namespace penstock
