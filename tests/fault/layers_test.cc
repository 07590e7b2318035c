// Random acquires and releases over an engine that misbehaves, in host memory.
#include "support/layers_run.h"

namespace penstock::test {
namespace {

TEST(LayersSeeded, what_is_held_has_the_right_bytes_and_a_place_of_its_own) {
  const std::uint64_t seed = from_environment("PENSTOCK_SEED", 1);
  LayersRun run(seed);
  run.go(from_environment("PENSTOCK_ACQUIRES", under_thread_sanitizer ? 5'000 : 15'000));
  if (testing::Test::HasFailure()) std::printf("PENSTOCK_SEED=%llu\n", static_cast<unsigned long long>(seed));
}

TEST(LayersSeeded, a_store_that_always_fails_is_told_at_every_acquire) {
  Context plain = Context::create({.lanes = 1}).value();
  const TemporaryFolder folder;
  const LayeredModel model(plain, folder);
  Context context = faulty_context(1, 900);
  Layers layers = Layers::open(context, model.model(), layer_groups(model.model()).value(),
                               {.domain = Domain::host(), .budget_bytes = 300 << 10, .deadline_seconds = 60})
                      .value();
  for (std::size_t i = 0; i < 2 * layers.groups().size(); ++i) {
    const auto tensors = layers.acquire(i % layers.groups().size());
    ASSERT_FALSE(tensors.ok());
    EXPECT_EQ(tensors.error().code, Code::io_error) << tensors.error().message;
  }
}

}  // namespace
}  // namespace penstock::test
