// Groups whose files lie on several disks.
#include <gtest/gtest.h>

#include <algorithm>

#include "api/context_builder.h"
#include "penstock/layers.h"
#include "support/gated_engine.h"
#include "support/layered_model.h"

namespace penstock::test {
namespace {

constexpr std::uint64_t mib = 1 << 20;

// Even layers lie on the first disk, odd ones on the second; the head lies on the first.
class LayersOnDisks : public testing::Test {
 protected:
  static constexpr std::uint64_t window_bytes = 8 * mib;  // of a disk that nothing is known of
  static constexpr std::size_t layer_count = 12;

  Layers open(std::uint64_t ahead_bytes) {
    auto opened = Layers::open(
        context_, model_.model(), layer_groups(model_.model()).value(),
        {.domain = Domain::host(), .budget_bytes = 64 * mib, .ahead_bytes = ahead_bytes, .deadline_seconds = 20});
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return std::move(*opened);
  }
  static bool is_first(std::size_t layer) { return layer % 2 == 0; }
  // How many layers of a disk were loaded.
  static std::size_t loaded(const Layers& layers, bool of_first) {
    const LayersReport report = layers.report();
    std::size_t count = 0;
    for (std::size_t i = 0; i < layer_count; ++i) {
      count += is_first(i) == of_first && report.groups[i].is_loaded ? 1 : 0;
    }
    return count;
  }
  void expect_all(Layers& layers) {
    for (std::size_t i = 0; i < layers.groups().size(); ++i) {
      const auto tensors = layers.acquire(i);
      ASSERT_TRUE(tensors.ok()) << tensors.error().message;
      for (std::size_t j = 0; j < tensors->size(); ++j) {
        const Region& memory = (*tensors)[j];
        EXPECT_TRUE(model_.holds({memory.data, memory.size_bytes}, layers.groups()[i].tensors[j]));
      }
      EXPECT_TRUE(layers.release(i).ok());
    }
  }
  static Context make_context(const std::shared_ptr<Gate>& first, const std::shared_ptr<Gate>& second) {
    engine::Table engines;
    engines.push_back(std::make_unique<GatedEngine>(std::vector{first, second}));
    return ContextBuilder::build(std::move(engines), {.lanes = 2, .deadlines = patient}).value();
  }

  TemporaryFolder folder_;
  Context plain_ = Context::create({.lanes = 1}).value();
  LayeredModel model_{
      plain_, folder_, {.layers = layer_count, .rows = 4, .columns = mib, .files = 2, .whole_layers = true}};
  std::shared_ptr<Gate> first_ = std::make_shared<Gate>("model0");
  std::shared_ptr<Gate> second_ = std::make_shared<Gate>("model1");
  Context context_ = make_context(first_, second_);
};

TEST_F(LayersOnDisks, are_read_from_both_at_once_each_at_its_own_depth) {
  first_->close();
  second_->close();
  Layers opened = open(64 * mib);
  EXPECT_TRUE(eventually([&] {
    return first_->counts().in_flight_bytes >= window_bytes && second_->counts().in_flight_bytes >= window_bytes;
  })) << first_->counts().in_flight_bytes
      << " and " << second_->counts().in_flight_bytes;
  for (const auto& disk : {first_, second_}) {
    EXPECT_LE(disk->counts().in_flight_bytes, 2 * window_bytes) << "it has a window of its own, and no more";
    EXPECT_EQ(disk->counts().ended, 0U);
  }
  first_->open();
  second_->open();
  expect_all(opened);
}

TEST_F(LayersOnDisks, a_disk_that_does_not_answer_holds_back_nothing_on_the_other) {
  for (const bool first_is_slow : {true, false}) {
    const auto& slow = first_is_slow ? first_ : second_;
    const auto& fast = first_is_slow ? second_ : first_;
    slow->close();
    const std::uint64_t slow_before = slow->counts().ended;
    const std::uint64_t fast_before = fast->counts().ended;
    Layers opened = open(64 * mib);
    EXPECT_TRUE(eventually([&] { return loaded(opened, !first_is_slow) == layer_count / 2; }));
    EXPECT_EQ(loaded(opened, first_is_slow), 0U);
    EXPECT_EQ(slow->counts().ended, slow_before);
    EXPECT_GT(fast->counts().ended, fast_before);
    EXPECT_TRUE(eventually([&] { return slow->counts().in_flight_bytes >= window_bytes; }))
        << "it is asked all the same";
    const std::size_t of_fast = first_is_slow ? 1 : 0;
    ASSERT_TRUE(opened.acquire(of_fast).ok());
    EXPECT_EQ(opened.report().groups[of_fast].hits, 1U);
    EXPECT_TRUE(opened.release(of_fast).ok());
    slow->open();
    expect_all(opened);
  }
}

TEST_F(LayersOnDisks,
       what_is_asked_for_is_loaded_though_all_that_may_be_loaded_ahead_is_on_a_disk_that_does_not_answer) {
  first_->close();
  second_->close();
  Layers opened = open(0);
  EXPECT_TRUE(eventually([&] { return first_->counts().in_flight != 0 && second_->counts().in_flight != 0; }))
      << "two groups are loaded ahead, whatever their size";
  second_->open();
  EXPECT_TRUE(eventually([&] { return loaded(opened, false) == 1 && second_->counts().in_flight == 0; }));
  const auto tensors = opened.acquire(7);
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  EXPECT_TRUE(opened.release(7).ok());
  EXPECT_EQ(loaded(opened, true), 0U);
  first_->open();
  expect_all(opened);
}

// A read that was abandoned may still land in its slot.
TEST_F(LayersOnDisks, the_slot_of_a_load_that_was_abandoned_is_not_used_again) {
  engine::Table engines;
  engines.push_back(std::make_unique<GatedEngine>(std::vector{first_, second_}));
  const Options options{.lanes = 2, .deadlines = {.stall_seconds = 1, .cancel_grace_seconds = 0.05}};
  Context context = ContextBuilder::build(std::move(engines), options).value();
  std::vector<TensorGroup> groups = layer_groups(model_.model()).value();
  groups.resize(layer_count);
  Layers layers = Layers::open(context, model_.model(), groups,
                               {.domain = Domain::host(), .budget_bytes = 9 * mib, .deadline_seconds = 2})
                      .value();
  ASSERT_EQ(layers.report().slots.size(), 1U);
  ASSERT_EQ(layers.report().slots[0].slots, 2U);
  const auto is_right = [&](std::size_t group, std::span<const Region> tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::span<const std::byte> bytes(tensors[i].data, tensors[i].size_bytes);
      EXPECT_TRUE(model_.holds(bytes, layers.groups()[group].tensors[i])) << group;
    }
  };
  first_->hang();
  Code code = Code::timed_out;
  for (int i = 0; i < 10 && code == Code::timed_out; ++i) code = layers.acquire(0).error().code;
  EXPECT_EQ(code, Code::abandoned);
  ASSERT_EQ(layers.report().slots[0].lost, 1U);
  const auto held = layers.acquire(1);
  ASSERT_TRUE(held.ok()) << held.error().message;
  const auto refused = layers.acquire(3);
  ASSERT_FALSE(refused.ok()) << "the only slot that may be used is held";
  EXPECT_EQ(refused.error().code, Code::timed_out);
  // Before there is a slot to load ahead into: the next load could be of the disk that hangs, and lose it too.
  first_->open();
  ASSERT_TRUE(layers.release(1).ok());
  const auto next = layers.acquire(3);
  ASSERT_TRUE(next.ok()) << next.error().message;
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
  is_right(3, *next);
}

}  // namespace
}  // namespace penstock::test
