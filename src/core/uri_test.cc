#include "core/uri.h"

#include <gtest/gtest.h>

#include <array>

namespace penstock::core {
namespace {

constexpr std::array<std::string_view, 3> schemes = {"file", "nvme", "s3+http"};

void expect_uri(std::string_view text, std::string_view scheme, std::string_view name) {
  const auto uri = parse_uri(text, schemes);
  ASSERT_TRUE(uri.ok()) << text << ": " << uri.error().message;
  EXPECT_EQ(uri->scheme, scheme) << text;
  EXPECT_EQ(uri->name, name) << text;
}

void expect_error(std::string_view text, Code code) {
  const auto uri = parse_uri(text, schemes);
  ASSERT_FALSE(uri.ok()) << text;
  EXPECT_EQ(uri.error().code, code) << text;
  EXPECT_FALSE(uri.error().hint.empty()) << text;
}

TEST(Uri, everything_without_a_known_scheme_is_a_path_as_it_is) {
  for (const char* path : {"x", "/a/b", "./x", "../x", "./s3://b", "a b", "100%", "/x%20y", "s3:x", "C:\\x", "S3://b",
                           "x:y", ":", "1a://x", "a/b://c", "-ab://x", "a_b://x"}) {
    expect_uri(path, "file", path);
  }
}

TEST(Uri, file_uris_are_percent_decoded_paths) {
  expect_uri("file:x", "file", "x");
  expect_uri("file:/a/b%20c", "file", "/a/b c");
  expect_uri("file:///a%2fb", "file", "/a/b");
  expect_uri("file://localhost/a", "file", "/a");
  expect_uri("file:nvme:0", "file", "nvme:0");
  expect_uri("file:%25", "file", "%");
}

TEST(Uri, registered_schemes_keep_the_rest_for_their_engine) {
  expect_uri("nvme:0000:01:00.0/1", "nvme", "0000:01:00.0/1");
  expect_uri("s3+http://bucket/key%3f", "s3+http", "bucket/key?");
  expect_uri("nvme:///dev/x", "nvme", "/dev/x");
}

TEST(Uri, unregistered_schemes_with_slashes_are_errors_that_list_the_known_ones) {
  expect_error("s3://bucket", Code::unknown_scheme);
  expect_error("http://x/y", Code::unknown_scheme);
  const auto uri = parse_uri("gs://x", schemes);
  EXPECT_NE(uri.error().message.find("gs:"), std::string::npos);
  EXPECT_NE(uri.error().hint.find("nvme:"), std::string::npos);
}

TEST(Uri, what_can_not_be_a_name_is_refused) {
  for (const char* text : {"", "file:", "nvme:", "nvme://", "file://", "file://host/x", "file://localhost", "file:%",
                           "file:%2", "file:%zz", "nvme:a%0", "file:%00", "file:a%00b"}) {
    expect_error(text, Code::invalid_argument);
  }
  expect_error(std::string_view("a\0b", 3), Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::core
