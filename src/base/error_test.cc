#include "penstock/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

namespace penstock {
namespace {

TEST(Error, names_of_codes_are_unique_and_lead_back) {
  std::set<std::string_view> seen;
  for (int index = 0; index <= static_cast<int>(Code::internal); ++index) {
    const auto code = static_cast<Code>(index);
    EXPECT_TRUE(seen.insert(code_name(code)).second) << code_name(code);
    EXPECT_EQ(code_from_name(code_name(code)), code);
  }
  EXPECT_EQ(code_name(Code::not_found), "not_found");
  EXPECT_EQ(code_name(Code::truncated), "truncated");
  EXPECT_EQ(code_name(Code::would_deadlock), "would_deadlock");
}

TEST(Error, names_outside_the_list_are_internal) {
  EXPECT_EQ(code_from_name("no such code"), Code::internal);
  EXPECT_EQ(code_name(static_cast<Code>(200)), "internal");
}

TEST(Error, system_errors_keep_their_meaning) {
  EXPECT_EQ(code_from_errno(0), Code::ok);
  EXPECT_EQ(code_from_errno(ENOENT), Code::not_found);
  EXPECT_EQ(code_from_errno(EACCES), Code::permission_denied);
  EXPECT_EQ(code_from_errno(EISDIR), Code::is_directory);
  EXPECT_EQ(code_from_errno(EROFS), Code::read_only);
  EXPECT_EQ(code_from_errno(EBUSY), Code::in_use);
  EXPECT_EQ(code_from_errno(EDQUOT), Code::no_space);
  EXPECT_EQ(code_from_errno(ENOMEM), Code::out_of_memory);
  EXPECT_EQ(code_from_errno(EIO), Code::io_error);
  EXPECT_EQ(code_from_errno(123456), Code::io_error);
}

TEST(Error, a_system_error_says_what_happened_to_what) {
  const Error error = system_error(ENOENT, "open /x", "check the path");
  EXPECT_EQ(error.code, Code::not_found);
  EXPECT_EQ(error.system_error, ENOENT);
  EXPECT_EQ(error.message, "open /x: No such file or directory");
  EXPECT_EQ(error.hint, "check the path");
}

}  // namespace
}  // namespace penstock
