// What a user's program sees: the public headers and the shared library, nothing else.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

#include "penstock/penstock.h"

namespace {

using penstock::Code;
using penstock::Context;
using penstock::Region;

class Library : public testing::Test {
 protected:
  Library() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock-abi-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    if (fd < 0) std::abort();
    ::close(fd);
    path_ = name;
    std::ofstream file(path_, std::ios::binary);
    for (int i = 0; i < 300'000; ++i) file.put(static_cast<char>(i * 7));
  }
  ~Library() override { std::filesystem::remove(path_); }

  static bool right(const std::byte* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      if (bytes[i] != static_cast<std::byte>(i * 7)) return false;
    }
    return true;
  }

  std::string path_;
};

TEST_F(Library, loads_a_file_and_tells_how) {
  Context context = Context::create().value();
  const penstock::Store store = context.open(path_).value();
  EXPECT_EQ(store.info().size_bytes, 300'000U);
  const penstock::Buffer memory = context.allocate(penstock::Domain::host(), store.info().size_bytes).value();
  const penstock::Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(right(memory.data(), memory.size_bytes()));
  EXPECT_EQ(report.bytes, 300'000U);
  EXPECT_EQ(std::accumulate(report.routes.begin(), report.routes.end(), std::uint64_t{0}), 300'000U);
  EXPECT_GT(report.seconds, 0);
  EXPECT_FALSE(report.engine.empty());
  EXPECT_FALSE(report.reason.empty());
  EXPECT_TRUE(report.failures.empty());
  EXPECT_FALSE(report.error);
  EXPECT_EQ(outcome_name(report.outcome), "done");
}

TEST_F(Library, serves_tickets_and_callbacks) {
  std::atomic<int> ended{0};
  std::vector<std::byte> memory(300'000);
  {
    Context context = Context::create().value();
    const penstock::Store store = context.open(path_).value();
    const penstock::Range range{&store, 0, Region::host(memory.data(), memory.size())};
    penstock::RequestOptions options;
    options.on_end = [&](const penstock::Report& report) { ended += report.ok() ? 1 : 100; };
    const penstock::Ticket ticket = context.submit(penstock::Direction::read, {&range, 1}, options).value();
    EXPECT_EQ(ticket.wait(), penstock::Outcome::done);
    EXPECT_EQ(ticket.report().bytes, memory.size());
  }
  EXPECT_EQ(ended, 1);
  EXPECT_TRUE(right(memory.data(), memory.size()));
}

TEST_F(Library, says_what_went_wrong) {
  Context context = Context::create().value();
  const auto missing = context.open(path_ + ".missing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_EQ(code_name(missing.error().code), "not_found");
  EXPECT_NE(missing.error().message.find(path_), std::string::npos);
  penstock::Options wrong;
  wrong.engine = "pigeon";
  EXPECT_EQ(Context::create(wrong).error().code, Code::unknown_engine);
}

TEST_F(Library, takes_options_to_json_and_back) {
  penstock::Options options;
  options.cache = penstock::Cache::keep;
  options.lanes = 3;
  options.engine = "posix";
  options.allowed_routes = {penstock::Route::cached, penstock::Route::buffered};
  options.deadlines.stall_seconds = 1.5;
  const auto back = penstock::Options::from_json(options.to_json());
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, options);
  EXPECT_EQ(penstock::Options::from_json(options.to_json(2)).value(), options);
  const auto unknown = penstock::Options::from_json(R"({"lames": 3})");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, Code::invalid_argument);
  EXPECT_NE(unknown.error().message.find("lames"), std::string::npos);
}

TEST_F(Library, writes_statistics_as_json) {
  Context context = Context::create().value();
  const penstock::Store store = context.open(path_).value();
  std::vector<std::byte> memory(300'000);
  ASSERT_TRUE(context.read(store, 0, Region::host(memory.data(), memory.size())).ok());
  const std::string json = context.statistics().to_json();
  EXPECT_NE(json.find("\"requests\":1"), std::string::npos) << json;
  EXPECT_NE(json.find("\"routes\":[{"), std::string::npos) << json;
  context.reset_statistics();
  EXPECT_NE(context.statistics().to_json().find("\"routes\":[]"), std::string::npos);
}

TEST_F(Library, knows_its_parts) {
  EXPECT_FALSE(penstock::version().empty());
  penstock::Checksum checksum;
  checksum.add({});
  EXPECT_EQ(checksum.hex(), "2d06800538d394c2");  // of no bytes, by the definition of XXH3
  EXPECT_EQ(penstock::Domain::parse("cuda:3").value(), penstock::Domain::cuda(3));
  EXPECT_GE(penstock::Machine::detect().usable_cpus, 1U);
  const auto engines = Context::create().value().engines();
  EXPECT_TRUE(std::any_of(engines.begin(), engines.end(), [](const auto& engine) { return engine.name == "posix"; }));
}

std::string library_path() {
  Dl_info info{};
  return ::dladdr(reinterpret_cast<const void*>(&penstock::code_name), &info) != 0 ? info.dli_fname : "";
}

// Lines such as "000000000001c01c T penstock::Buffer::Buffer()".
std::vector<std::string> exported_symbols() {
  std::vector<std::string> lines;
  FILE* pipe = ::popen(("nm --dynamic --demangle --defined-only '" + library_path() + "' 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return lines;
  std::array<char, 16384> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) lines.emplace_back(line.data());
  ::pclose(pipe);
  return lines;
}

TEST(SharedLibrary, is_what_this_test_runs_with) {
  EXPECT_NE(library_path().find("libpenstock.so"), std::string::npos) << library_path();
}

TEST(SharedLibrary, exports_the_public_api_and_nothing_of_its_inside) {
  const auto lines = exported_symbols();
  if (lines.empty()) GTEST_SKIP() << "nm can't be run here";
  // Weak symbols are templates of the standard library, which every C++ library has; names of ours among their
  // arguments are no exports.
  const std::regex standard("^\\S+ [WVu] .*");
  const std::regex ours("^\\S+ [TDBR] penstock::([a-z_0-9]+(\\[abi:cxx11\\])?\\(|[A-Z]\\w*::).*\n");
  // What programs derive from.
  const std::regex base_class("^\\S+ [VD] (vtable|typeinfo|typeinfo name) for penstock::[A-Z]\\w*\n");
  int exported = 0;
  for (const std::string& line : lines) {
    if (std::regex_match(line, base_class)) continue;
    if (std::regex_match(line.substr(0, line.find('\n')), standard)) {
      EXPECT_EQ(line.find("nlohmann"), std::string::npos) << line;
      const std::string name = line.substr(0, line.find_first_of("<("));  // behind what it returns, if that is told
      EXPECT_TRUE(name.find(" penstock::") == std::string::npos || name.find(" std::") != std::string::npos) << line;
      continue;
    }
    ++exported;
    EXPECT_TRUE(std::regex_match(line, ours)) << line;
  }
  EXPECT_GT(exported, 50);
}

// As programs are compiled that have -Wextra.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"
TEST(PublicOptions, may_be_given_one_by_one) {
  EXPECT_TRUE(penstock::Options{.lanes = 2}.publish.empty());
  EXPECT_FALSE(penstock::RequestOptions{.durable = true}.on_end);
  EXPECT_FALSE(penstock::LoadOptions{.columns = penstock::Columns::automatic}.request.durable);
  EXPECT_FALSE(penstock::SaveOptions{.durable = false}.progress);
  EXPECT_FALSE(penstock::PackOptions{.threads = 1}.progress);
  EXPECT_FALSE(penstock::LayersOptions{.budget_bytes = 1}.cache);
  EXPECT_FALSE(penstock::OpenOptions{.access = penstock::Access::write}.growing);
  EXPECT_FALSE(penstock::GatherOptions{.zeros_for_missing = true}.keep_going);
  EXPECT_TRUE(penstock::KindsOptions{.lock_seconds = 1}.dictionary.empty());
  EXPECT_TRUE(penstock::TensorPart({.tensor = 1, .memory = {}}).intervals.empty());
}
#pragma GCC diagnostic pop

TEST(ResultDeathTest, asked_for_a_value_that_is_not_there_ends_with_the_error) {
  const penstock::Error broken{Code::io_error, 5, "it is broken", "mend it"};
  EXPECT_DEATH((void)penstock::Result<int>(broken).value(), "penstock: value of a failed Result: it is broken");
}

TEST(ResultDeathTest, asked_for_an_error_that_is_not_there_ends_with_a_message) {
  const char* const message = "penstock: error of a Result or Status that is ok";
  const penstock::Result<std::string> right("right");
  const penstock::Status done;
  EXPECT_DEATH((void)right.error(), message);
  EXPECT_DEATH((void)penstock::Result<int>(7).error(), message);
  EXPECT_DEATH((void)done.error(), message);
  EXPECT_DEATH((void)penstock::Status().error(), message);
}

}  // namespace
