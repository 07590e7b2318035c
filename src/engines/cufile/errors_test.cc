#include "engines/cufile/errors.h"

#include <gtest/gtest.h>

namespace penstock::cufile {
namespace {

TEST(CuFileErrors, say_the_vendors_name_and_number) {
  const Error error = make_error({5008, 0}, "register /x with cuFile");
  EXPECT_EQ(error.code, Code::unsupported);
  EXPECT_EQ(error.system_error, 5008);
  EXPECT_EQ(error.message, "register /x with cuFile: CU_FILE_IO_NOT_SUPPORTED (5008)");
  EXPECT_FALSE(error.hint.empty());
}

TEST(CuFileErrors, pass_on_what_cuda_said) {
  const Error error = make_error({5011, 700}, "read");
  EXPECT_NE(error.message.find("CUDA result 700"), std::string::npos);
  EXPECT_EQ(error.code, Code::device_error);
}

TEST(CuFileErrors, prefer_a_hint_that_knows_more) {
  EXPECT_EQ(make_error({5027, 0}, "register", "write that file").hint, "write that file");
}

TEST(CuFileErrors, leave_an_unknown_number_a_number) {
  const Error error = make_error({5999, 0}, "read");
  EXPECT_EQ(error.code, Code::io_error);
  EXPECT_EQ(error.message, "read: unknown cuFile error (5999)");
  EXPECT_FALSE(error.hint.empty());
}

TEST(CuFileErrors, that_are_known_all_have_a_code_and_a_hint) {
  int known = 0;
  for (int number = cf_error_base; number < cf_error_base + 100; ++number) {
    if (error_name(number) == "unknown cuFile error") continue;
    ++known;
    EXPECT_NE(code_from_number(number), Code::ok) << number;
    EXPECT_NE(code_from_number(number), Code::internal) << number;
    EXPECT_FALSE(error_hint(number).empty()) << number;
  }
  EXPECT_EQ(known, 47);
}

}  // namespace
}  // namespace penstock::cufile
