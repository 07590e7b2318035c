// What is planned for GPU memory is what happens.
#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

class Planned : public GpuTest {};

TEST_F(Planned, for_gpu_memory_is_what_then_happens) {
  const std::string name = folder_.path("file");
  write_file(name, content(1, 0, 2 * mib));
  Context context = make_context();
  const Store store = context.open(name).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 2 * mib).value();
  const Plan plan = context.plan(store, Direction::read, Domain::cuda(0)).value();
  ASSERT_EQ(plan.routes.size(), 2U);
  EXPECT_FALSE(plan.device_reason.empty());
  for (const PlannedRoute& planned : plan.routes) {
    if (planned.bytes == "in the page cache") {
      warm(name);
    } else {
      evict(name);
    }
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report.routes[static_cast<std::size_t>(planned.route.value())], 2 * mib) << planned.bytes;
  }
}

}  // namespace
}  // namespace penstock::test
