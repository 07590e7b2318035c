// Groups of tensors behind a budget of memory, in the host's.
#include "penstock/layers.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "integration/allocations.h"
#include "integration/context_fixture.h"
#include "support/layered_model.h"

namespace penstock::test {
namespace {

class LayersOfModel : public ContextTest {
 protected:
  static constexpr std::uint64_t slot = 68 << 10;  // of a layer, with what it is rounded up to

  LayersOptions options(std::uint64_t budget) const {
    return {.domain = Domain::host(), .budget_bytes = budget, .deadline_seconds = 20};
  }
  Layers open(const LayersOptions& options) {
    auto layers = Layers::open(context_, model_.model(), layer_groups(model_.model()).value(), options);
    EXPECT_TRUE(layers.ok()) << layers.error().message;
    return std::move(*layers);
  }
  testing::AssertionResult is_right(const Layers& layers, std::size_t group, std::span<const Region> tensors) const {
    const TensorGroup& info = layers.groups()[group];
    if (tensors.size() != info.tensors.size()) return testing::AssertionFailure() << tensors.size() << " tensors";
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto held = model_.holds({tensors[i].data, tensors[i].size_bytes}, info.tensors[i]);
      if (!held) return testing::AssertionFailure() << info.name << ", tensor " << i << ": " << held.message();
    }
    return testing::AssertionSuccess();
  }
  void pass(Layers& layers) {
    for (std::size_t i = 0; i < layers.groups().size(); ++i) {
      const auto tensors = layers.acquire(i);
      ASSERT_TRUE(tensors.ok()) << tensors.error().message;
      EXPECT_TRUE(is_right(layers, i, *tensors));
      EXPECT_TRUE(layers.release(i).ok());
    }
  }

  Context context_ = make_context();
  LayeredModel model_{context_, folder_, {.files = 3}};
};

TEST_F(LayersOfModel, are_grouped_by_the_first_number_of_their_names) {
  const auto groups = layer_groups(model_.model()).value();
  ASSERT_EQ(groups.size(), 9U);
  EXPECT_EQ(groups[0].name, "model.layers.0");
  EXPECT_EQ(groups[7].name, "model.layers.7");
  EXPECT_EQ(groups[8].name, "head");
  EXPECT_EQ(groups[7].tensors.size(), 2U);
}

TEST_F(LayersOfModel, layer_10_comes_behind_layer_9) {
  const LayeredModel longer(context_, folder_, {.layers = 12, .rows = 2, .columns = 2});
  const auto groups = layer_groups(longer.model()).value();
  EXPECT_EQ(groups[9].name, "model.layers.9");
  EXPECT_EQ(groups[10].name, "model.layers.10");
}

TEST_F(LayersOfModel, patterns_make_groups_of_their_own) {
  const std::vector<std::string> patterns = {"model.layers.*.bias", "model.layers.*/mat*"};
  const auto groups = layer_groups(model_.model(), patterns).value();
  ASSERT_EQ(groups.size(), 8U * 64 + 8 + 1);
  EXPECT_EQ(groups.back().name, "head");
  const auto row = std::ranges::find(groups, "model.layers.3/17", &TensorGroup::name);
  ASSERT_NE(row, groups.end());
  EXPECT_EQ(row->tensors[0].rows->begin, 17U);
  const std::vector<std::string> wrong = {"blk.*"};
  EXPECT_EQ(layer_groups(model_.model(), wrong).error().code, Code::not_found);
}

TEST_F(LayersOfModel, several_passes_through_a_part_of_the_memory_have_the_right_bytes) {
  for (const std::uint64_t budget : {4 * slot, 3 * slot, 6 * slot}) {
    Layers layers = open(options(budget));
    for (int i = 0; i < 4; ++i) pass(layers);
    const LayersReport report = layers.report();
    EXPECT_LE(report.memory_bytes, budget);
    EXPECT_EQ(report.all.hits + report.all.waits, 4 * layers.groups().size());
    EXPECT_GE(report.all.loaded_bytes, model_.model().size_bytes());
    EXPECT_EQ(report.all.held, 0U);
  }
}

TEST_F(LayersOfModel, what_fits_is_loaded_once_and_found_from_then_on) {
  Layers layers = open(options(16 * slot));
  for (int i = 0; i < 3; ++i) pass(layers);
  const LayersReport report = layers.report();
  EXPECT_EQ(report.all.loads, layers.groups().size());
  EXPECT_EQ(report.all.loaded_bytes, model_.model().size_bytes());
  EXPECT_GE(report.all.hits, 2 * layers.groups().size());
  EXPECT_TRUE(std::ranges::all_of(report.groups, &GroupReport::is_loaded));
}

TEST_F(LayersOfModel, a_pass_in_order_loads_less_than_everything_once_some_groups_stay) {
  Layers layers = open(options(6 * slot));
  for (int i = 0; i < 4; ++i) pass(layers);
  const std::uint64_t before = layers.report().all.loads;
  for (int i = 0; i < 10; ++i) pass(layers);
  EXPECT_LT(layers.report().all.loads - before, 10 * layers.groups().size() * 9 / 10);
}

TEST_F(LayersOfModel, what_fits_stays_in_the_page_cache_unless_told_otherwise) {
  const auto cached_after_passes = [&](std::optional<Cache> cache) {
    for (const std::string& path : model_.paths()) evict(path);
    LayersOptions given = options(3 * slot);
    given.cache = cache;
    Layers layers = open(given);
    for (int i = 0; i < 3; ++i) pass(layers);
    layers = Layers();
    std::uint64_t cached = 0;
    for (const std::string& path : model_.paths()) {
      const Store store = context_.open(path).value();
      cached += store.cached_bytes(0, store.info().size_bytes).value_or(0);
    }
    return cached;
  };
  if (!context_.open(model_.paths()[0]).value().info().direct) GTEST_SKIP() << "no direct I/O here";
  const std::uint64_t by_chance = cached_after_passes(Cache::bypass);
  EXPECT_LT(by_chance, model_.model().size_bytes() / 2);
  EXPECT_GE(cached_after_passes(std::nullopt), model_.model().size_bytes() * 3 / 4);
}

TEST_F(LayersOfModel, what_is_expected_is_loaded_before_it_is_asked_for) {
  Layers layers = open(options(4 * slot));
  EXPECT_TRUE(eventually([&] { return layers.report().groups[0].is_loaded; }));
  const auto loads = [&](std::size_t group) { return layers.report().groups[group].loads; };
  ASSERT_TRUE(layers.acquire(0).ok());
  EXPECT_EQ(layers.report().groups[0].hits, 1U);
  EXPECT_TRUE(eventually([&] { return loads(1) == 1 && loads(2) == 1; }));
  EXPECT_TRUE(layers.release(0).ok());
}

TEST_F(LayersOfModel, hints_are_loaded_in_their_order_and_are_not_evicted) {
  LayersOptions unordered = options(4 * slot);
  unordered.in_order = false;
  Layers layers = open(unordered);
  const std::vector<std::size_t> hints = {6, 2};
  ASSERT_TRUE(layers.hint(hints).ok());
  const auto is_loaded = [&](std::size_t group) { return layers.report().groups[group].is_loaded; };
  EXPECT_TRUE(eventually([&] { return is_loaded(6) && is_loaded(2); }));
  for (const std::size_t other : {0, 1, 3, 4, 5}) {
    ASSERT_TRUE(layers.acquire(other).ok());
    ASSERT_TRUE(layers.release(other).ok());
  }
  EXPECT_EQ(layers.report().groups[6].loads, 1U);
  EXPECT_TRUE(is_loaded(6));
  ASSERT_TRUE(layers.acquire(2).ok());
  EXPECT_EQ(layers.report().groups[2].hits, 1U);
  EXPECT_TRUE(layers.release(2).ok());
}

TEST_F(LayersOfModel, a_pinned_group_stays_at_its_place) {
  Layers layers = open(options(4 * slot));
  ASSERT_TRUE(layers.pin(5).ok());
  EXPECT_TRUE(eventually([&] { return layers.report().groups[5].is_loaded; }));
  const auto first = layers.acquire(5).value();
  const std::byte* const place = first[0].data;
  EXPECT_TRUE(layers.release(5).ok());
  for (int i = 0; i < 3; ++i) pass(layers);
  EXPECT_EQ(layers.acquire(5).value()[0].data, place);
  EXPECT_TRUE(layers.release(5).ok());
  EXPECT_EQ(layers.report().groups[5].loads, 1U);
  ASSERT_TRUE(layers.unpin(5).ok());
  for (int i = 0; i < 3; ++i) pass(layers);
}

TEST_F(LayersOfModel, an_acquire_that_waits_for_a_slot_gets_that_of_a_group_that_is_unpinned) {
  Layers layers = open(options(2 * slot));
  ASSERT_EQ(layers.report().slots.back().slots, 2U);
  ASSERT_TRUE(layers.pin(0).ok());
  ASSERT_TRUE(layers.acquire(0).ok());
  ASSERT_TRUE(layers.release(0).ok());
  ASSERT_TRUE(layers.acquire(1).ok());
  std::thread other([&] {
    const auto tensors = layers.acquire(2);
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_TRUE(is_right(layers, 2, *tensors));
    EXPECT_TRUE(layers.release(2).ok());
  });
  EXPECT_TRUE(eventually([&] { return layers.report().groups[2].waits == 1; }));
  // Once it sleeps: what it asks now and then is only whether a slot is free.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(layers.unpin(0).ok());
  other.join();
  EXPECT_TRUE(layers.release(1).ok());
}

TEST_F(LayersOfModel, pins_leave_a_slot_to_the_others) {
  Layers layers = open(options(3 * slot));
  const std::size_t slots = layers.report().slots.back().slots;
  Status status;
  std::size_t pinned = 0;
  while (pinned < 8 && (status = layers.pin(pinned)).ok()) ++pinned;
  EXPECT_EQ(pinned, slots - 1);
  EXPECT_EQ(status.error().code, Code::over_budget);
  pass(layers);
}

TEST_F(LayersOfModel, a_budget_smaller_than_a_group_is_refused) {
  const auto groups = layer_groups(model_.model()).value();
  const auto open_with = [&](std::uint64_t budget) {
    return Layers::open(context_, model_.model(), groups, options(budget));
  };
  const Error error = open_with(1000).error();
  EXPECT_EQ(error.code, Code::invalid_argument);
  const std::string begin = "a budget of 1000 bytes is smaller than the group \"model.layers.1\", which needs ";
  ASSERT_TRUE(error.message.starts_with(begin)) << error.message;
  const std::uint64_t needed = std::stoull(error.message.substr(begin.size()));
  EXPECT_TRUE(open_with(needed).ok()) << "the number that it names is enough";
  EXPECT_EQ(open_with(needed - 1).error().code, Code::invalid_argument);
}

TEST_F(LayersOfModel, a_gpu_that_is_not_there_is_told_of_before_the_budget_for_it) {
  const auto groups = layer_groups(model_.model()).value();
  const auto layers = Layers::open(context_, model_.model(), groups, {.domain = Domain::cuda(1000), .memory = {}});
  ASSERT_FALSE(layers.ok());
  EXPECT_EQ(layers.error().code, Code::no_device) << layers.error().message;
  EXPECT_EQ(layers.error().message.find("budget"), std::string::npos) << layers.error().message;
}

TEST_F(LayersOfModel, wrong_groups_are_refused_by_name) {
  const Model& model = model_.model();
  const auto refused = [&](std::vector<TensorGroup> groups) {
    const auto layers = Layers::open(context_, model, std::move(groups), options(16 * slot));
    return layers.ok() ? std::string() : layers.error().message;
  };
  EXPECT_EQ(refused({}), "0 groups");
  EXPECT_EQ(refused({{"", {{0}}}}), "group 0 has no name");
  EXPECT_EQ(refused({{"a", {{0}}}, {"a", {{1}}}}), "group 1: the name \"a\" is taken");
  EXPECT_EQ(refused({{"a", {{99}}}}), "group \"a\": tensor number 99 of 17");
  const std::uint32_t bias = model.find("model.layers.0.bias").value();
  EXPECT_NE(refused({{"a", {{bias, Interval{5, 14}}}}}), "");
  EXPECT_NE(refused({{"a", {{bias, Interval{5, 4}}}}}), "");
}

TEST_F(LayersOfModel, rows_of_a_tensor_are_a_group_too) {
  const std::uint32_t matrix = model_.model().find("model.layers.1.matrix").value();
  std::vector<TensorGroup> groups;
  for (std::uint64_t i = 0; i < 16; ++i) {
    groups.push_back({"expert" + std::to_string(i), {{matrix, Interval{4 * i, 4 * i + 4}}}});
  }
  groups.push_back({"nothing", {}});
  Layers layers = Layers::open(context_, model_.model(), groups, options(32 << 10)).value();
  for (int i = 0; i < 2; ++i) pass(layers);
}

TEST_F(LayersOfModel, packed_tensors_and_rows_of_them_are_unpacked) {
  constexpr std::uint64_t rows = 32, columns = 4096, layers_count = 5;
  std::mt19937_64 random(1);
  std::vector<std::vector<std::uint16_t>> values(layers_count);
  std::vector<TensorToSave> tensors;
  for (std::uint64_t i = 0; i < layers_count; ++i) {
    // BF16 of any sign and fraction, and of few exponents.
    for (std::uint64_t j = 0; j < rows * columns; ++j) {
      const std::uint64_t bits = random();
      values[i].push_back(static_cast<std::uint16_t>((bits & 0x807f) | ((120 + (bits >> 32) % 5) << 7)));
    }
    tensors.push_back({"layers." + std::to_string(i) + ".weight",
                       DType::bf16,
                       {rows, columns},
                       Region::host(values[i].data(), values[i].size() * 2)});
  }
  const std::string path = folder_.path("packed.safetensors");
  const auto saved = save_safetensors(context_, path, tensors, {.durable = false, .packed = true});
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  const Model model = Model::open(context_, path).value();
  ASSERT_LT(model.stored_bytes(), model.size_bytes());
  const std::vector<std::string> by_row = {"layers.*/weight"};
  for (const bool cut : {false, true}) {
    const auto groups =
        layer_groups(model, cut ? std::span<const std::string>(by_row) : std::span<const std::string>());
    Layers layers = Layers::open(context_, model, groups.value(), options(cut ? 100'000 : 600'000)).value();
    for (std::size_t i = 0; i < layers.groups().size(); ++i) {
      const auto held = layers.acquire(i);
      ASSERT_TRUE(held.ok()) << held.error().message;
      const GroupTensor& wanted = layers.groups()[i].tensors[0];
      const std::size_t layer = static_cast<std::size_t>(model.tensors()[wanted.tensor].name[7] - '0');
      const auto expected = std::as_bytes(std::span(values[layer]));
      const std::uint64_t begin = wanted.rows ? wanted.rows->begin * columns * 2 : 0;
      EXPECT_TRUE(
          same_bytes({held->front().data, held->front().size_bytes}, expected.subspan(begin, held->front().size_bytes)))
          << layers.groups()[i].name;
      ASSERT_TRUE(layers.release(i).ok());
    }
  }
}

TEST_F(LayersOfModel, misuse_is_an_error_and_nothing_else) {
  Layers layers = open(options(4 * slot));
  EXPECT_EQ(layers.acquire(9).error().code, Code::out_of_range);
  EXPECT_EQ(layers.release(9).error().code, Code::out_of_range);
  EXPECT_EQ(layers.pin(9).error().code, Code::out_of_range);
  const std::vector<std::size_t> hints = {0, 9};
  EXPECT_EQ(layers.hint(hints).error().code, Code::out_of_range);
  EXPECT_EQ(layers.release(0).error().code, Code::invalid_argument);
  EXPECT_EQ(layers.find("model.layers.3"), 3U);
  EXPECT_EQ(layers.find("model.layers.30"), std::nullopt);
  pass(layers);
  Layers moved = std::move(layers);
  EXPECT_EQ(layers.acquire(0).error().code, Code::invalid_argument);
  EXPECT_EQ(layers.acquire(0, CudaStream{}).error().code, Code::invalid_argument);
  EXPECT_EQ(layers.check().error().code, Code::invalid_argument);
  EXPECT_EQ(layers.release(0).error().code, Code::invalid_argument);
  EXPECT_TRUE(layers.groups().empty());
  pass(moved);
}

TEST_F(LayersOfModel, in_host_memory_an_acquire_with_a_stream_waits_as_one_without) {
  Layers layers = open(options(4 * slot));
  for (std::size_t i = 0; i < 2 * layers.groups().size(); ++i) {
    const std::size_t group = i % layers.groups().size();
    const auto tensors = layers.acquire(group, CudaStream{});
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_TRUE(is_right(layers, group, *tensors));
    EXPECT_TRUE(layers.release(group).ok());
  }
  EXPECT_TRUE(layers.check().ok());
}

TEST_F(LayersOfModel, when_all_slots_are_held_an_acquire_waits_for_a_release) {
  Layers layers = open(options(3 * slot));
  const std::size_t slots = layers.report().slots.back().slots;
  for (std::size_t i = 0; i < slots; ++i) ASSERT_TRUE(layers.acquire(i).ok());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(layers.release(0).ok());
  });
  const auto tensors = layers.acquire(7);
  later.join();
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  EXPECT_TRUE(is_right(layers, 7, *tensors));
}

TEST_F(LayersOfModel, when_all_slots_are_held_an_acquire_ends_by_its_deadline) {
  LayersOptions impatient = options(3 * slot);
  impatient.deadline_seconds = 0.05;
  Layers layers = open(impatient);
  const std::size_t slots = layers.report().slots.back().slots;
  // A load may take longer than that; it goes on.
  for (std::size_t i = 0; i < slots; ++i) ASSERT_TRUE(eventually([&] { return layers.acquire(i).ok(); }));
  const auto more = layers.acquire(7);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, Code::timed_out);
  EXPECT_NE(more.error().message.find("held"), std::string::npos);
}

TEST_F(LayersOfModel, a_group_that_is_there_is_acquired_and_released_without_allocating) {
  Layers layers = open(options(16 * slot));
  pass(layers);
  EXPECT_TRUE(eventually([&] { return std::ranges::all_of(layers.report().groups, &GroupReport::is_loaded); }));
  std::uint64_t fewest = UINT64_MAX;  // other threads may still end something
  for (int i = 0; i < 5; ++i) {
    const std::uint64_t before = allocation_count();
    for (std::size_t group = 0; group < layers.groups().size(); ++group) {
      ASSERT_TRUE(layers.acquire(group).ok());
      ASSERT_TRUE(layers.release(group).ok());
    }
    fewest = std::min(fewest, allocation_count() - before);
  }
  EXPECT_EQ(fewest, 0U);
}

TEST_F(LayersOfModel, threads_share_groups_and_each_is_loaded_once_at_a_time) {
  Layers layers = open(options(6 * slot));
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 300; ++i) {
        const std::size_t group = random() % layers.groups().size();
        const auto tensors = layers.acquire(group);
        ASSERT_TRUE(tensors.ok()) << tensors.error().message;
        ASSERT_TRUE(is_right(layers, group, *tensors));
        ASSERT_TRUE(layers.release(group).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const LayersReport report = layers.report();
  EXPECT_EQ(report.all.hits + report.all.waits, 1200U);
  EXPECT_EQ(report.all.held, 0U);
}

TEST_F(LayersOfModel, a_group_acquired_twice_is_held_until_two_releases) {
  Layers layers = open(options(3 * slot));
  const auto tensors = layers.acquire(0).value();
  ASSERT_TRUE(layers.acquire(0).ok());
  ASSERT_TRUE(layers.release(0).ok());
  for (std::size_t i = 1; i < 8; ++i) {
    ASSERT_TRUE(layers.acquire(i).ok());
    ASSERT_TRUE(layers.release(i).ok());
  }
  EXPECT_TRUE(is_right(layers, 0, tensors));
  EXPECT_TRUE(layers.release(0).ok());
  EXPECT_FALSE(layers.release(0).ok());
}

TEST_F(LayersOfModel, a_file_that_changed_is_told_by_acquire_and_the_others_go_on) {
  // Tensors are dealt out to the three files in turn: layer 0 has none in the third, layer 1 none in the second.
  std::filesystem::resize_file(model_.paths()[1], 100);
  LayersOptions unordered = options(4 * slot);
  unordered.in_order = false;
  Layers layers = open(unordered);
  std::size_t failed = 0;
  for (std::size_t i = 0; i < layers.groups().size(); ++i) {
    const auto tensors = layers.acquire(i);
    if (tensors.ok()) {
      EXPECT_TRUE(is_right(layers, i, *tensors));
      EXPECT_TRUE(layers.release(i).ok());
      continue;
    }
    ++failed;
    EXPECT_EQ(layers.release(i).error().code, Code::invalid_argument);
  }
  EXPECT_GT(failed, 0U);
  EXPECT_LT(failed, layers.groups().size());
  EXPECT_EQ(layers.report().all.failed_loads, failed);
}

TEST_F(LayersOfModel, a_file_that_is_overwritten_after_it_was_read_is_told_too) {
  LayersOptions unordered = options(4 * slot);
  unordered.in_order = false;
  Layers layers = open(unordered);
  pass(layers);
  for (const std::string& path : model_.paths()) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  std::size_t changed = 0;
  for (std::size_t i = 0; i < layers.groups().size(); ++i) {
    const auto tensors = layers.acquire(i);
    if (tensors.ok()) {
      EXPECT_TRUE(layers.release(i).ok());
    } else {
      EXPECT_EQ(tensors.error().code, Code::changed) << tensors.error().message;
      ++changed;
    }
  }
  EXPECT_GE(changed, layers.groups().size() - 4) << "four slots may hold what was loaded before";
}

TEST_F(LayersOfModel, close_tells_which_groups_are_held) {
  Layers layers = open(options(4 * slot));
  ASSERT_TRUE(layers.acquire(2).ok());
  const Status status = layers.close();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::in_use);
  EXPECT_EQ(status.error().message, "groups are held: \"model.layers.2\"");
  ASSERT_TRUE(layers.release(2).ok());
  EXPECT_TRUE(layers.close().ok());
  EXPECT_TRUE(layers.close().ok());
  EXPECT_EQ(layers.acquire(0).error().code, Code::closed);
}

TEST_F(LayersOfModel, closing_ends_acquires_that_wait) {
  for (int round = 0; round < 10; ++round) {
    Layers layers = open(options(2 * slot));
    ASSERT_TRUE(layers.acquire(0).ok());
    ASSERT_TRUE(layers.acquire(1).ok());
    std::atomic<int> begun{0};
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        ++begun;
        const auto tensors = layers.acquire(i % 4);
        EXPECT_TRUE(tensors.ok() || tensors.error().code == Code::closed);
      });
    }
    while (begun < 8) std::this_thread::yield();
    EXPECT_TRUE(layers.close(Layers::Held::released).ok());
    threads.clear();
    EXPECT_EQ(layers.release(0).error().code, Code::closed);
  }
}

TEST_F(LayersOfModel, are_destroyed_with_groups_held_and_loads_under_way) {
  for (int i = 0; i < 20; ++i) {
    Layers layers = open(options(4 * slot));
    if (i % 2 == 0) {
      ASSERT_TRUE(layers.acquire(static_cast<std::size_t>(i) % 8).ok());
    }
  }
}

TEST_F(LayersOfModel, in_a_forked_child_calls_fail) {
  if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
  Layers layers = open(options(4 * slot));
  ASSERT_TRUE(layers.acquire(0).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const std::vector<std::size_t> hints = {1};
    const bool closed = layers.acquire(1).error().code == Code::closed &&
                        layers.release(0).error().code == Code::closed &&
                        layers.hint(hints).error().code == Code::closed &&
                        layers.close().error().code == Code::closed && layers.report().groups.empty();
    layers = Layers();
    ::_exit(closed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(layers.release(0).ok());
  pass(layers);
}

}  // namespace
}  // namespace penstock::test
