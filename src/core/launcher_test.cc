#include "core/launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/test_scripted_engine.h"
#include "core/test_simulation.h"

namespace penstock::core {
namespace {

using engine::Op;
using engine::OpKind;

constexpr std::size_t launcher_kib = 1 << 10;

class LauncherTest : public testing::Test {
 protected:
  static Options options() {
    Options options;
    options.lanes = 1;
    options.operations_in_flight = 16;
    options.storage_chunk_bytes = 64 * launcher_kib;
    options.bytes_in_flight = 128 * launcher_kib;
    options.staging_slot_bytes = 128 * launcher_kib;
    options.staging_slots_per_lane = 1;
    return options;
  }
  std::shared_ptr<Request> begin(OpKind kind, const penstock::Store& store, std::uint64_t offset, std::size_t length,
                                 std::size_t place = 0, const RequestOptions& options = {}) {
    const Range range{&store, offset, Region::host(memory_->region().data + place, length)};
    return simulation_.submit(kind, {&range, 1}, options);
  }
  bool step_until_stuck(std::uint64_t count) {
    return simulation_.run_until([&] { return disk_.stuck() == count; });
  }

  SimulatedDisk disk_{1, 1 << 20, {}};
  Simulation simulation_{disk_, options()};
  const std::unique_ptr<memory::Allocation> memory_ =
      memory::Allocation::create({.domain = Domain::host(), .size_bytes = 1 << 20}).value();
};

TEST_F(LauncherTest, starts_what_another_store_needs_while_one_has_enough_in_flight) {
  const penstock::Store slow = simulation_.open();
  const penstock::Store quick = simulation_.open();
  ASSERT_NE(&StoreEntry::of(&slow)->flow(Direction::read), &StoreEntry::of(&quick)->flow(Direction::read));
  disk_.let_decide([&](const Op& op) { return Fate{.never = op.store == &StoreEntry::of(&slow)->store()}; });
  const auto waits = begin(OpKind::read, slow, 0, 512 * launcher_kib);
  ASSERT_TRUE(step_until_stuck(2)) << "as much as may be in flight";
  const auto goes = begin(OpKind::read, quick, 0, 512 * launcher_kib, 512 * launcher_kib);
  EXPECT_TRUE(simulation_.run_until([&] { return goes->ended(); }));
  EXPECT_EQ(goes->outcome(), Outcome::done);
  EXPECT_EQ(disk_.stuck(), 2U) << "the other has no more in flight than it may";
  EXPECT_FALSE(waits->ended());
  disk_.let_decide([](const Op&) { return Fate{}; });
  disk_.release_stuck();
  EXPECT_TRUE(simulation_.run_until([&] { return waits->ended(); }));
  EXPECT_EQ(waits->outcome(), Outcome::done);
}

TEST_F(LauncherTest, has_no_more_in_flight_than_there_are_places) {
  const penstock::Store store = simulation_.open();
  disk_.let_decide([](const Op&) { return Fate{.never = true}; });
  std::vector<std::shared_ptr<Request>> requests;
  for (std::size_t i = 0; i < 40; ++i) requests.push_back(begin(OpKind::read, store, i * 512, 512, i * 512));
  ASSERT_TRUE(step_until_stuck(16));
  for (int i = 0; i < 3; ++i) simulation_.lanes()[0]->try_step(TimePoint::min());
  EXPECT_EQ(disk_.stuck(), 16U);
  disk_.let_decide([](const Op&) { return Fate{}; });
  disk_.release_stuck();
  for (const auto& request : requests) {
    EXPECT_TRUE(simulation_.run_until([&] { return request->ended(); }));
    EXPECT_EQ(request->outcome(), Outcome::done);
  }
}

TEST_F(LauncherTest, waits_for_staging_memory_that_others_have) {
  const penstock::Store store = simulation_.open();
  for (std::size_t i = 0; i < disk_.bytes().size(); ++i) disk_.bytes()[i] = static_cast<std::byte>(i * 7 + i / 512);
  std::size_t most_at_once = 0;
  disk_.let_decide([&](const Op&) { return Fate{.never = true}; });
  std::vector<std::shared_ptr<Request>> requests;
  // Each needs a granule, and there are two.
  for (std::size_t i = 0; i < 6; ++i) {
    requests.push_back(begin(OpKind::read, store, i * 65536 + 100, 60'000, i * 65536));
  }
  for (const auto& request : requests) {
    simulation_.run_until([&] {
      most_at_once = std::max<std::size_t>(most_at_once, disk_.stuck());
      if (simulation_.lanes()[0]->next_due() > Clock::now()) disk_.release_stuck();
      return request->ended();
    });
    EXPECT_EQ(request->outcome(), Outcome::done);
  }
  EXPECT_EQ(most_at_once, 2U);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(std::equal(memory_->region().data + i * 65536, memory_->region().data + i * 65536 + 60'000,
                           disk_.bytes().begin() + static_cast<std::ptrdiff_t>(i * 65536 + 100)));
  }
}

TEST_F(LauncherTest, flushes_each_store_once_when_all_was_written) {
  const penstock::Store first = simulation_.open();
  const penstock::Store second = simulation_.open();
  std::vector<Op> ops;
  disk_.let_decide([&](const Op& op) {
    ops.push_back(op);
    return Fate{};
  });
  const std::array<Range, 3> ranges{Range{&first, 0, Region::host(memory_->region().data, 256 * launcher_kib)},
                                    Range{&second, 512 << 10, Region::host(memory_->region().data, 100)},
                                    Range{&first, 300 << 10, Region::host(memory_->region().data, 512)}};
  const auto request = simulation_.submit(OpKind::write, ranges, {.durable = true});
  EXPECT_TRUE(simulation_.run_until([&] { return request->ended(); }));
  EXPECT_EQ(request->outcome(), Outcome::done);
  ASSERT_GE(ops.size(), 2U);
  const auto is_flush = [](const Op& op) { return op.kind == OpKind::flush; };
  EXPECT_EQ(std::count_if(ops.begin(), ops.end(), is_flush), 2);
  EXPECT_TRUE(std::all_of(ops.end() - 2, ops.end(), is_flush));
  EXPECT_NE(ops[ops.size() - 1].store, ops[ops.size() - 2].store);
}

TEST_F(LauncherTest, does_not_flush_what_was_not_written) {
  const penstock::Store store = simulation_.open();
  std::vector<Op> ops;
  disk_.let_decide([&](const Op& op) {
    ops.push_back(op);
    return Fate{.system_error = EIO};
  });
  const auto request = begin(OpKind::write, store, 0, 4096, 0, {.durable = true});
  EXPECT_TRUE(simulation_.run_until([&] { return request->ended(); }));
  EXPECT_EQ(request->outcome(), Outcome::failed);
  ASSERT_EQ(ops.size(), 1U);
  EXPECT_EQ(ops[0].kind, OpKind::write);
}

// What was let go of may come back late, or never.
TEST(Launcher, starts_more_though_an_operation_that_was_let_go_of_has_not_come_back) {
  Options options;
  options.lanes = 1;
  options.bytes_in_flight = 64 * launcher_kib;
  options.staging_slot_bytes = 256 * launcher_kib;
  options.staging_slots_per_lane = 1;
  const auto memory = memory::Allocation::create({.domain = Domain::host(), .size_bytes = 256 << 10}).value();
  SimulatedDisk disk(1, 1 << 20, {});
  Simulation simulation(disk, options);
  const penstock::Store store = simulation.open();
  const auto read = [&](std::uint64_t offset, std::size_t length) {
    const Range range{&store, offset, Region::host(memory->region().data, length)};
    return simulation.submit(OpKind::read, {&range, 1});
  };
  disk.let_decide([](const Op&) { return Fate{.never = true}; });
  const auto stuck = read(100, 70'000);  // through staging memory, and as much as may be in flight
  ASSERT_TRUE(simulation.run_until([&] { return disk.stuck() != 0; }));
  stuck->stop(Code::cancelled);
  EXPECT_TRUE(simulation.run_until([&] { return stuck->ended(); }));
  disk.let_decide([](const Op&) { return Fate{}; });
  const auto next = read(0, 128 * launcher_kib);
  EXPECT_TRUE(simulation.run_until([&] { return next->ended(); }));
  EXPECT_EQ(next->outcome(), Outcome::done);
  EXPECT_NE(disk.stuck(), 0U);
}

TEST(Launcher, fails_every_range_of_a_store_whose_queue_can_not_be_made) {
  Script script;
  script.name = "without";
  script.info = {.name = "x", .size_bytes = 1 << 20, .alignments = {.offset = 512, .memory = 512}, .direct = true};
  script.size_now = script.info.size_bytes;
  auto table = std::make_shared<engine::Table>();
  table->push_back(std::make_unique<ScriptedEngine>(script));
  Options options;
  options.lanes = 1;
  const auto environment = std::make_shared<Environment>(table, options, Machine{});
  const penstock::Store store = client::Access::store(StoreEntry::open(*environment, "x", {}).value());
  std::vector<std::byte> memory(8192);
  const std::array<Range, 2> ranges{Range{&store, 0, Region::host(memory.data(), 4096)},
                                    Range{&store, 8192, Region::host(memory.data() + 4096, 4096)}};
  const auto request = Request::create(environment, ranges, {}).value();
  Lane lane(environment, {.runner = Runner::one_caller, .depth = 4, .is_inline = true}, nullptr);
  request->parts[0].hold = request;
  lane.drive(request->parts[0]);
  EXPECT_EQ(request->outcome(), Outcome::failed);
  const Report report = request->report();
  ASSERT_EQ(report.failures.size(), 2U);
  EXPECT_EQ(report.failures[0].code, Code::unsupported);
  EXPECT_EQ(report.failures[1].offset, 8192U);
}

// Ends one operation each time it is asked, moves nothing, and notes how much there was at most.
class CountingQueue : public engine::Queue {
 public:
  explicit CountingQueue(std::uint64_t& bytes_most) : bytes_most_(bytes_most) {}
  std::size_t submit(std::span<const Op> ops) override {
    for (const Op& op : ops) bytes_ += op.length;
    ops_.insert(ops_.end(), ops.begin(), ops.end());
    bytes_most_ = std::max(bytes_most_, bytes_);
    return ops.size();
  }
  std::size_t poll(std::span<engine::Done> done, TimePoint) override {
    if (ops_.empty()) return 0;
    const Op op = ops_.front();
    ops_.erase(ops_.begin());
    bytes_ -= op.length;
    done[0] = {.cookie = op.cookie, .bytes = op.length, .route = Route::buffered};
    return 1;
  }
  void wake() override {}
  void cancel(std::uint64_t) override {}

 private:
  std::uint64_t& bytes_most_;
  std::uint64_t bytes_ = 0;
  std::vector<Op> ops_;
};

TEST(Launcher, keeps_little_in_flight_where_the_kernel_reads_ahead) {
  constexpr std::uint64_t size_bytes = 32 << 20;
  const auto most_in_flight = [](std::uint32_t lanes) {
    std::uint64_t bytes_most = 0;
    Script script;
    script.name = "counting";
    script.info = {.name = "x", .size_bytes = size_bytes, .page_cache = true};
    script.size_now = size_bytes;
    script.resident_bytes = [](std::uint64_t, std::uint64_t) { return 0; };
    script.make_queue = [&](const engine::QueueOptions&) { return std::make_unique<CountingQueue>(bytes_most); };
    auto table = std::make_shared<engine::Table>();
    table->push_back(std::make_unique<ScriptedEngine>(script));
    Options options;
    options.lanes = lanes;
    options.storage_chunk_bytes = 1 << 20;
    const auto environment = std::make_shared<Environment>(table, options, Machine{});
    const penstock::Store store = client::Access::store(StoreEntry::open(*environment, "x", {}).value());
    std::vector<std::byte> memory(size_bytes);
    const Range range{&store, 0, Region::host(memory.data(), size_bytes)};
    const auto request = Request::create(environment, {&range, 1}, {}, {.cache = Cache::keep}).value();
    Lane lane(environment, {.runner = Runner::one_caller, .depth = 64, .cached_bytes_most = 64 << 20}, nullptr);
    request->parts[0].hold = request;
    lane.drive(request->parts[0]);
    EXPECT_EQ(request->outcome(), Outcome::done);
    return bytes_most;
  };
  EXPECT_EQ(most_in_flight(1), 4U << 20);
  EXPECT_EQ(most_in_flight(16), 1U << 20) << "one operation each";
}

}  // namespace
}  // namespace penstock::core
