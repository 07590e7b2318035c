// Which engine serves, and what is said about those that do not.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "api/context_builder.h"
#include "integration/context_fixture.h"
#include "integration/machine.h"

namespace penstock::test {
namespace {

class EngineVariable : public ContextTest {
 protected:
  void TearDown() override { ::unsetenv("PENSTOCK_ENGINE"); }
};

TEST_F(EngineVariable, overrides_the_options) {
  ::setenv("PENSTOCK_ENGINE", "posix", 1);
  options_.engine = "uring";
  Context context = make_context();
  EXPECT_EQ(context.options().engine, "posix");
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  EXPECT_EQ(report.engine, "posix");
  EXPECT_NE(context.explain(store).find("asked for"), std::string::npos) << context.explain(store);
}

TEST_F(EngineVariable, is_refused_when_there_is_no_such_engine) {
  ::setenv("PENSTOCK_ENGINE", "pigeon", 1);
  const auto context = Context::create();
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.error().code, Code::unknown_engine);
  EXPECT_NE(context.error().message.find("pigeon"), std::string::npos);
  ::setenv("PENSTOCK_ENGINE", "", 1);
  EXPECT_TRUE(Context::create().ok()) << "empty is unset";
}

TEST_F(ContextTest, plans_what_then_happens_and_explains_it_whole) {
  Context context = make_context();
  const std::string name = make_file("file");
  const Store store = context.open(name).value();
  const Plan plan = context.plan(store).value();
  ASSERT_EQ(plan.routes.size(), 2U) << "what is cached, and what is not";
  std::vector<std::byte> memory(size_bytes);
  for (const PlannedRoute& planned : plan.routes) {
    ASSERT_TRUE(planned.route);
    if (planned.bytes == "in the page cache") {
      warm(name);
    } else {
      evict(name);
    }
    const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report.routes[static_cast<std::size_t>(*planned.route)], size_bytes) << planned.bytes;
    EXPECT_NE(report.reason.find(planned.reason), std::string::npos) << report.reason;
    EXPECT_NE(plan.text().find(planned.reason), std::string::npos) << plan.text();
  }
  EXPECT_EQ(context.read(store, 0, Region::host(memory.data(), 4096)).engine, plan.engine);
  EXPECT_EQ(context.explain(store), plan.text());
  EXPECT_NE(plan.text().find(plan.engine_reason), std::string::npos);
  EXPECT_GE(plan.in_flight_bytes, plan.operation_bytes);

  Options forbidding;
  forbidding.allowed_routes = {Route::mapped};
  Context strict = Context::create(forbidding).value();
  const Plan none = strict.plan(strict.open(name).value()).value();
  EXPECT_FALSE(none.routes[0].route);
  EXPECT_FALSE(none.routes[1].route);
  EXPECT_EQ(context.plan(Store()).error().code, Code::invalid_argument);
  EXPECT_EQ(context.plan(store, Direction::read, Domain::cuda(99)).error().code, Code::no_device);
}

TEST_F(ContextTest, is_served_by_posix_where_io_uring_is_refused_and_says_why) {
  engine::Table table;
  table.push_back(uring::make_engine({.simulated_refusal = EPERM}));
  table.push_back(posix::make_engine());
  Context context = ContextBuilder::build(std::move(table), options_).value();
  const auto engines = context.engines();
  ASSERT_EQ(engines.size(), 2U);
  EXPECT_FALSE(engines[0].available);
  EXPECT_FALSE(engines[0].reason.empty());
  EXPECT_FALSE(engines[0].remedy.empty());
  EXPECT_TRUE(engines[1].available);
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(holds_content(memory, 1, 0));
  EXPECT_EQ(report.engine, "posix");
  EXPECT_NE(report.reason.find("uring not used: " + engines[0].reason), std::string::npos) << report.reason;
  EXPECT_NE(context.explain(store).find("uring not used"), std::string::npos) << context.explain(store);
}

}  // namespace
}  // namespace penstock::test
