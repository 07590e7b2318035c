// What opening refuses, and how it says so.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

class OpenErrors : public ContextTest {
 protected:
  Code code_of(const std::string& name, const OpenOptions& options = {}) {
    const auto store = context_.open(name, options);
    if (store) return Code::ok;
    EXPECT_FALSE(store.error().message.empty());
    EXPECT_FALSE(store.error().hint.empty()) << store.error().message;
    return store.error().code;
  }
  Context context_ = make_context();
};

TEST_F(OpenErrors, say_what_is_wrong_with_the_name) {
  EXPECT_EQ(code_of(folder_.path("missing")), Code::not_found);
  EXPECT_EQ(code_of(folder_.path("missing/file"), {.access = Access::create}), Code::not_found);
  EXPECT_EQ(code_of(folder_.path("")), Code::is_directory);
  EXPECT_EQ(code_of(folder_.path("."), {.access = Access::replace}), Code::is_directory);
  EXPECT_EQ(code_of("warp://drive/file"), Code::unknown_scheme);
  EXPECT_EQ(code_of(""), Code::invalid_argument);
  EXPECT_EQ(code_of("file:"), Code::invalid_argument);
  EXPECT_EQ(code_of(make_file("file") + std::string(1, '\0')), Code::invalid_argument);
  EXPECT_EQ(code_of("file:" + folder_.path("file%00")), Code::invalid_argument);
  EXPECT_EQ(code_of("/dev/null"), Code::unsupported);
}

TEST_F(OpenErrors, come_at_once_for_a_pipe_that_nobody_writes_to) {
  ASSERT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of(folder_.path("pipe")), Code::unsupported);
}

TEST_F(OpenErrors, say_when_permission_is_missing) {
  const std::string path = make_file("secret", 10);
  std::filesystem::permissions(folder_.path(""), std::filesystem::perms(0755));
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const Code reading = code_of(path);
  const Code writing = code_of(path, {.access = Access::write});
  const Code making = root ? code_of(folder_.path("new"), {.access = Access::create}) : Code::permission_denied;
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(reading, Code::permission_denied);
  EXPECT_EQ(writing, Code::permission_denied);
  EXPECT_EQ(making, Code::permission_denied);
}

}  // namespace
}  // namespace penstock::test
