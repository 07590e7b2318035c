// Random acquires and releases of Layers over an engine that misbehaves, driven from a seed and compared with a model
// of what is held: every call ends, bytes are right as long as a group is held, and no two groups share memory.
//
// PENSTOCK_ACQUIRES=N sets how many; PENSTOCK_SEED=N the seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "penstock/layers.h"
#include "support/environment.h"
#include "support/faulty_context.h"
#include "support/layered_model.h"
#include "support/support.h"

namespace penstock::test {

// In host memory; derived classes have them elsewhere.
class LayersRun {
 public:
  explicit LayersRun(std::uint64_t seed, std::uint32_t fault = 5)
      : random_(seed), context_(faulty_context(seed, fault)) {}
  virtual ~LayersRun() = default;

  void go(std::uint64_t acquires) {
    const std::uint64_t acquires_of_a_cache = std::min<std::uint64_t>(5000, acquires / 8 + 1);
    while (done_ < acquires && !testing::Test::HasFailure()) {
      make_layers();
      for (std::uint64_t i = 0; i < acquires_of_a_cache && done_ < acquires && !testing::Test::HasFailure(); ++i)
        step();
      finish();
      check_report();
      failures_ += layers_.report().all.failed_loads;
      held_.clear();
      layers_ = Layers();
    }
    EXPECT_GT(failures_, 0U) << "no fault was met";
  }

 protected:
  // A group that is held, and its memory when it was acquired.
  struct Held {
    std::uint32_t times = 0;
    std::vector<Region> tensors;
  };

  virtual Domain domain() const { return Domain::host(); }
  virtual Result<std::span<const Region>> acquire(std::size_t group) { return layers_.acquire(group); }
  virtual Status release(std::size_t group) { return layers_.release(group); }
  virtual void check_bytes(std::size_t group) {
    const Held& held = held_[group];
    for (std::size_t i = 0; i < held.tensors.size(); ++i) {
      const Region& memory = held.tensors[i];
      ASSERT_TRUE(model_->holds({memory.data, memory.size_bytes}, layers_.groups()[group].tensors[i]))
          << layers_.groups()[group].name;
    }
  }
  // Whether a load that failed is told once.
  virtual bool tells_once() const { return true; }
  // The last acquire of these Layers was made.
  virtual void finish() {}

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

 private:
  void make_layers() {
    const LayerShape shape{
        .layers = 1 + below(30), .rows = 2 + below(6), .columns = 1 + below(3000), .files = 1 + below(3)};
    plain_.emplace(Context::create({.lanes = 1}).value());
    model_.emplace(*plain_, folder_, shape);
    const std::vector<std::string> rows = {"model.layers.*/matrix"};
    const bool cut = below(3) == 0;
    auto groups =
        layer_groups(model_->model(), cut ? std::span<const std::string>(rows) : std::span<const std::string>());
    ASSERT_TRUE(groups.ok()) << groups.error().message;
    std::uint64_t most = 0;
    for (const TensorInfo& tensor : model_->model().tensors()) most = std::max(most, tensor.size_bytes);
    budget_ = (most / 4096 + 2) * 4096 * (1 + below(2 * shape.layers));
    auto layers = Layers::open(context_, model_->model(), *groups,
                               {.domain = domain(),
                                .budget_bytes = budget_,
                                .ahead_bytes = below(2) == 0 ? 0 : most * 3,
                                .deadline_seconds = 60,
                                .in_order = below(2) == 0});
    ASSERT_TRUE(layers.ok()) << layers.error().message;
    layers_ = std::move(*layers);
    acquired_ = 0;
    told_ = 0;
  }

  void step() {
    switch (below(12)) {
      case 0: {
        std::vector<std::size_t> hints(below(6));
        for (std::size_t& group : hints) group = below(layers_.groups().size());
        EXPECT_TRUE(layers_.hint(hints).ok());
        break;
      }
      case 1: {
        const std::size_t group = below(layers_.groups().size());
        const Status status = below(3) == 0 ? layers_.pin(group) : layers_.unpin(group);
        if (!status.ok()) {
          EXPECT_EQ(status.error().code, Code::over_budget) << status.error().message;
        }
        break;
      }
      case 2:
      case 3:
      case 4:
        release_one();
        break;
      default:
        acquire_one();
    }
  }

  void acquire_one() {
    // Most groups have a place next to the last: a pass in order, with detours.
    next_ = below(4) == 0 ? below(layers_.groups().size()) : (next_ + 1) % layers_.groups().size();
    // One is held while another is acquired, unless all of their size, and of others, share one slot.
    while (!held_.empty() && !held_.contains(next_) && !has_room()) release_one();
    ++done_;
    ++acquired_;
    const auto tensors = acquire(next_);
    if (!tensors.ok()) {
      ++told_;
      EXPECT_EQ(tensors.error().code, Code::io_error) << tensors.error().message;
      return;
    }
    Held& held = held_[next_];
    if (held.times++ == 0) {
      held.tensors.assign(tensors->begin(), tensors->end());
      check_overlap(next_);
    }
    check_bytes(next_);
  }

  // Whether one more group can be held, whatever its size.
  bool has_room() const {
    std::size_t fewest = SIZE_MAX;
    std::size_t pinned = 0;
    const LayersReport report = layers_.report();
    for (const SlotsReport& each : report.slots) {
      if (each.slots < each.groups) fewest = std::min(fewest, each.slots);
    }
    for (const GroupReport& each : report.groups) pinned += each.is_pinned ? 1 : 0;
    return fewest > held_.size() + pinned;
  }

  void release_one() {
    if (held_.empty()) {
      EXPECT_EQ(layers_.release(below(layers_.groups().size())).error().code, Code::invalid_argument);
      return;
    }
    const auto held = std::next(held_.begin(), static_cast<std::ptrdiff_t>(below(held_.size())));
    check_bytes(held->first);
    const Status status = release(held->first);
    EXPECT_TRUE(status.ok()) << status.error().message;
    if (--held->second.times == 0) held_.erase(held);
  }

  void check_overlap(std::size_t group) {
    for (const Region& mine : held_[group].tensors) {
      for (const auto& [number, other] : held_) {
        if (number == group) continue;
        for (const Region& theirs : other.tensors) {
          ASSERT_TRUE(mine.data + mine.size_bytes <= theirs.data || theirs.data + theirs.size_bytes <= mine.data)
              << layers_.groups()[group].name << " and " << layers_.groups()[number].name;
        }
      }
    }
  }

  void check_report() {
    const LayersReport report = layers_.report();
    EXPECT_LE(report.memory_bytes, budget_);
    EXPECT_EQ(report.all.hits + report.all.waits, acquired_);
    if (tells_once()) {
      EXPECT_GE(report.all.failed_loads, told_);
    }
    for (std::size_t i = 0; i < report.groups.size(); ++i) {
      EXPECT_EQ(report.groups[i].held, held_.contains(i) ? held_[i].times : 0U);
      EXPECT_EQ(report.groups[i].loaded_bytes, report.groups[i].loads * layers_.size_bytes(i));
    }
  }

  std::mt19937_64 random_;
  TemporaryFolder folder_;

 protected:
  Context context_;
  std::optional<Context> plain_;
  std::optional<LayeredModel> model_;
  Layers layers_;
  std::map<std::size_t, Held> held_;

 private:
  std::uint64_t budget_ = 0;
  std::size_t next_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t acquired_ = 0;
  std::uint64_t told_ = 0;
  std::uint64_t failures_ = 0;
};

}  // namespace penstock::test
