// Engines that are loaded at run time.
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/penstock.h"
#include "support/built.h"
#include "support/far_engine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

const std::string far_module = built("tests/modules/libfar_module.so");

Error refusal(const std::string& path) {
  const auto context = Context::create({.modules = {path}});
  EXPECT_FALSE(context.ok());
  return context.ok() ? Error{} : context.error();
}

TEST(Modules, are_engines_like_others) {
  Context context = Context::create({.modules = {far_module}}).value();
  const auto engines = context.engines();
  EXPECT_TRUE(std::any_of(engines.begin(), engines.end(), [](const auto& engine) { return engine.name == "far"; }));
  const Store store = context.open("far:3000000").value();
  std::vector<std::byte> memory(3'000'000);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(FarEngine::holds_content(memory, 0));
}

TEST(Modules, can_be_loaded_again_and_outlive_their_context) {
  for (int i = 0; i < 2; ++i) {
    Ticket ticket;
    std::vector<std::byte> memory(1000);
    {
      Context context = Context::create({.modules = {far_module}}).value();
      const Store store = context.open("far:1000").value();
      const Range range{&store, 0, Region::host(memory.data(), memory.size())};
      ticket = context.submit(Direction::read, {&range, 1}).value();
      EXPECT_EQ(ticket.wait(), Outcome::done);
    }
    EXPECT_TRUE(ticket.report().ok());
  }
}

TEST(Modules, of_another_build_are_refused) {
  const Error error = refusal(built("tests/modules/libother_module.so"));
  EXPECT_EQ(error.code, Code::engine_unavailable);
  EXPECT_NE(error.message.find("another Penstock"), std::string::npos) << error.message;
}

TEST(Modules, that_are_none_are_refused_with_the_reason) {
  EXPECT_NE(refusal(built("tests/modules/libno_module.so")).message.find("not an engine module"), std::string::npos);
  EXPECT_NE(refusal("/nowhere/at/all.so").message.find("/nowhere/at/all.so"), std::string::npos);
  EXPECT_NE(refusal("libc.so.6").message.find("not a path"), std::string::npos);
  const auto twice = Context::create({.modules = {far_module, far_module}});
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.error().message.find("named far already"), std::string::npos) << twice.error().message;
}

}  // namespace
}  // namespace penstock::test
