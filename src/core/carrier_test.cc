#include "core/carrier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "core/test_simulation.h"

namespace penstock::core {
namespace {

using engine::Op;
using engine::OpKind;
using namespace std::chrono_literals;

constexpr std::uint64_t block = SimulatedDisk::block_bytes;
constexpr std::byte untouched{0xc5};

// One lane, or two, over a disk that does what the test decides. Memory lies at addresses that the disk can take.
class CarrierTest : public testing::Test {
 protected:
  CarrierTest() {
    for (std::size_t i = 0; i < disk_.bytes().size(); ++i) disk_.bytes()[i] = byte_at(i);
    decide([](const Op&) { return Fate{}; });
  }

  static Options options() {
    Options options;
    options.lanes = 2;
    options.operations_in_flight = 8;
    options.storage_chunk_bytes = 64 << 10;
    options.staging_slot_bytes = 256 << 10;
    options.staging_slots_per_lane = 1;
    return options;
  }
  static std::byte byte_at(std::uint64_t offset) { return static_cast<std::byte>(offset * 7 + offset / 512); }
  // `fate` of each operation, which is kept.
  void decide(std::function<Fate(const Op&)> fate) {
    disk_.let_decide([this, fate = std::move(fate)](const Op& op) {
      ops_.push_back(op);
      return fate(op);
    });
  }
  std::shared_ptr<Request> begin(OpKind kind, std::uint64_t offset, std::span<std::byte> memory,
                                 const RequestOptions& options = {}) {
    const Range range{&store_, offset, Region::host(memory.data(), memory.size())};
    return simulation_.submit(kind, {&range, 1}, options);
  }
  Outcome finish(const Request& request) {
    EXPECT_TRUE(simulation_.run_until([&] { return request.ended(); }));
    return request.outcome();
  }
  Outcome transfer(OpKind kind, std::uint64_t offset, std::span<std::byte> memory) {
    return finish(*begin(kind, offset, memory));
  }
  bool holds(std::span<const std::byte> memory, std::uint64_t offset) const {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (memory[i] != byte_at(offset + i)) return false;
    }
    return true;
  }
  static bool is_untouched(std::span<const std::byte> memory) {
    return std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == untouched; });
  }
  std::uint64_t quarantined() const { return simulation_.environment()->quarantined_bytes.load(); }
  Duration grace() const {
    return duration_from_seconds(simulation_.environment()->options.deadlines.cancel_grace_seconds);
  }
  // A read that the disk has and does not give back.
  std::shared_ptr<Request> begin_stuck(OpKind kind, std::uint64_t offset, std::span<std::byte> memory) {
    decide([](const Op&) { return Fate{.never = true}; });
    auto request = begin(kind, offset, memory);
    EXPECT_TRUE(simulation_.run_until([&] { return disk_.stuck() != 0; }));
    decide([](const Op&) { return Fate{}; });
    return request;
  }
  void come_home() {
    disk_.release_stuck();
    EXPECT_TRUE(simulation_.run_until([&] { return simulation_.is_idle(); }));
  }

  SimulatedDisk disk_{1, 1 << 20, {}};
  Simulation simulation_{disk_, options()};
  penstock::Store store_ = simulation_.open();
  alignas(4096) std::array<std::byte, 64 << 10> memory_{};
  std::vector<Op> ops_;
};

TEST_F(CarrierTest, continues_a_short_transfer_where_it_stopped) {
  for (const OpKind kind : {OpKind::read, OpKind::write}) {
    ops_.clear();
    decide([](const Op&) { return Fate{.bytes_most = 3 * block}; });
    const std::span memory = std::span(memory_).first(8 * block);
    if (kind == OpKind::write) std::fill(memory.begin(), memory.end(), std::byte{9});
    EXPECT_EQ(transfer(kind, 4096, memory), Outcome::done);
    ASSERT_EQ(ops_.size(), 3U);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      EXPECT_EQ(ops_[i].offset, 4096 + i * 3 * block);
      EXPECT_EQ(ops_[i].length, 8 * block - i * 3 * block);
      EXPECT_EQ(ops_[i].memory, memory.data() + i * 3 * block);
    }
    EXPECT_TRUE(kind == OpKind::write || holds(memory, 4096));
  }
  EXPECT_TRUE(std::all_of(disk_.bytes().begin() + 4096, disk_.bytes().begin() + 4096 + 8 * block,
                          [](std::byte byte) { return byte == std::byte{9}; }));
  EXPECT_EQ(disk_.bytes()[4095], byte_at(4095));
  EXPECT_EQ(disk_.bytes()[4096 + 8 * block], byte_at(4096 + 8 * block));
}

TEST_F(CarrierTest, does_a_block_again_that_a_short_transfer_ended_in) {
  decide([this](const Op&) { return Fate{.bytes_most = ops_.size() == 1 ? 2 * block + 100 : UINT64_MAX}; });
  const std::span memory = std::span(memory_).first(4 * block);
  const auto request = begin(OpKind::read, 0, memory);
  EXPECT_EQ(finish(*request), Outcome::done);
  ASSERT_EQ(ops_.size(), 2U);
  EXPECT_EQ(ops_[1].offset, 2 * block) << "a direct operation can't begin in a block";
  EXPECT_TRUE(holds(memory, 0));
  EXPECT_EQ(request->report().routes[static_cast<std::size_t>(Route::direct)], memory.size()) << "counted once";
}

TEST_F(CarrierTest, gives_up_where_less_than_a_block_comes_again_and_again) {
  decide([](const Op&) { return Fate{.bytes_most = 100}; });
  const auto request = begin(OpKind::read, 0, std::span(memory_).first(block));
  EXPECT_EQ(finish(*request), Outcome::failed);
  EXPECT_EQ(request->report().failures.at(0).code, Code::truncated);
  EXPECT_EQ(ops_.size(), 32U);
}

TEST_F(CarrierTest, fails_what_moves_nothing_at_all) {
  decide([](const Op&) { return Fate{.bytes_most = 0}; });
  const auto read = begin(OpKind::read, 0, std::span(memory_).first(block));
  EXPECT_EQ(finish(*read), Outcome::failed);
  EXPECT_EQ(read->report().failures.at(0).code, Code::truncated);
  const auto write = begin(OpKind::write, 0, std::span(memory_).first(block));
  EXPECT_EQ(finish(*write), Outcome::failed);
  EXPECT_EQ(write->report().failures.at(0).code, Code::no_space);
  EXPECT_EQ(ops_.size(), 2U);
}

TEST_F(CarrierTest, tries_again_what_the_system_had_no_room_for_or_was_interrupted_in) {
  for (const int error : {EAGAIN, EINTR}) {
    ops_.clear();
    decide([&](const Op&) { return Fate{.system_error = ops_.size() < 5 ? error : 0}; });
    const std::span memory = std::span(memory_).first(block);
    EXPECT_EQ(transfer(OpKind::read, 3 * block, memory), Outcome::done);
    EXPECT_EQ(ops_.size(), 5U);
    EXPECT_TRUE(holds(memory, 3 * block));
  }
}

TEST_F(CarrierTest, waits_longer_and_longer_and_then_gives_up) {
  std::vector<TimePoint> tries;
  decide([&](const Op&) {
    tries.push_back(Clock::now());
    return Fate{.system_error = EAGAIN};
  });
  const auto request = begin(OpKind::read, 0, std::span(memory_).first(block));
  EXPECT_EQ(finish(*request), Outcome::failed);
  EXPECT_EQ(request->report().failures.at(0).system_error, EAGAIN);
  ASSERT_EQ(tries.size(), 32U);
  EXPECT_GT(tries.back() - tries[tries.size() - 2], 10 * (tries[1] - tries[0]) / 4);
  EXPECT_LT(tries.back() - tries.front(), 1s);
  EXPECT_TRUE(simulation_.is_idle());
}

TEST_F(CarrierTest, releases_staging_memory_when_an_operation_on_it_has_failed) {
  const std::span memory = std::span(memory_).first(60'000);
  for (const OpKind kind : {OpKind::read, OpKind::write}) {
    decide([](const Op&) { return Fate{.system_error = EIO}; });
    // On two lanes, of which each has four granules.
    for (int i = 0; i < 12; ++i) {
      const auto request = begin(kind, 100, memory);
      ASSERT_EQ(finish(*request), Outcome::failed);
      ASSERT_NE(ops_.back().memory, memory.data()) << "staged";
    }
    decide([](const Op&) { return Fate{}; });
    for (int i = 0; i < 2; ++i) EXPECT_EQ(transfer(kind, 100, memory), Outcome::done);
  }
}

TEST_F(CarrierTest, reads_modifies_and_writes_the_block_around_an_unaligned_write) {
  const std::span memory = std::span(memory_).first(100);
  std::fill(memory.begin(), memory.end(), std::byte{9});
  auto expected = disk_.bytes();
  std::fill_n(expected.begin() + 700, 100, std::byte{9});
  EXPECT_EQ(transfer(OpKind::write, 700, memory), Outcome::done);
  ASSERT_EQ(ops_.size(), 2U);
  EXPECT_EQ(ops_[0].kind, OpKind::read);
  EXPECT_EQ(ops_[1].kind, OpKind::write);
  for (const Op& op : ops_) {
    EXPECT_EQ(op.offset, block);
    EXPECT_EQ(op.length, block);
  }
  EXPECT_EQ(disk_.bytes() == expected, true);
}

TEST_F(CarrierTest, keeps_what_lies_beside_an_unaligned_write_however_the_block_comes) {
  const std::span memory = std::span(memory_).first(100);
  std::fill(memory.begin(), memory.end(), std::byte{9});
  auto expected = disk_.bytes();
  std::fill_n(expected.begin() + 700, 100, std::byte{9});
  int failed = 0;
  decide([&](const Op&) {
    const bool fails = ops_.size() % 3 == 1;
    failed += fails ? 1 : 0;
    return fails ? Fate{.system_error = EAGAIN} : Fate{.bytes_most = ops_.size() % 3 == 2 ? 300 : UINT64_MAX};
  });
  EXPECT_EQ(transfer(OpKind::write, 700, memory), Outcome::done);
  EXPECT_GT(failed, 0);
  EXPECT_EQ(disk_.bytes() == expected, true);
}

TEST_F(CarrierTest, lets_two_writers_of_one_block_take_turns) {
  std::array<std::byte, 100> first{};
  std::array<std::byte, 50> second{};
  first.fill(std::byte{1});
  second.fill(std::byte{2});
  auto expected = disk_.bytes();
  std::fill_n(expected.begin() + block, 100, std::byte{1});
  std::fill_n(expected.begin() + block + 200, 50, std::byte{2});
  // On two lanes.
  const auto one = begin(OpKind::write, block, first);
  const auto other = begin(OpKind::write, block + 200, second);
  EXPECT_EQ(finish(*one), Outcome::done);
  EXPECT_EQ(finish(*other), Outcome::done);
  ASSERT_EQ(ops_.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(ops_[i].kind, i % 2 == 0 ? OpKind::read : OpKind::write) << i;
  EXPECT_EQ(disk_.bytes() == expected, true);
}

TEST_F(CarrierTest, leaves_a_block_to_others_when_a_write_of_it_has_failed_or_was_cancelled) {
  std::array<std::byte, 100> bytes{};
  decide([](const Op&) { return Fate{.system_error = EIO}; });
  EXPECT_EQ(transfer(OpKind::write, 700, bytes), Outcome::failed);
  decide([](const Op&) { return Fate{}; });
  const auto cancelled = begin(OpKind::write, 700, bytes);
  ops_.clear();
  EXPECT_TRUE(simulation_.run_until([&] { return !ops_.empty(); }));
  cancelled->stop(Code::cancelled);
  EXPECT_EQ(finish(*cancelled), Outcome::cancelled);
  EXPECT_EQ(ops_.size(), 1U) << "the block was read, and not written";
  EXPECT_EQ(transfer(OpKind::write, 700, bytes), Outcome::done);
}

TEST_F(CarrierTest, lets_no_file_take_a_name_while_a_write_to_it_has_failed) {
  store_ =
      client::Access::store(StoreEntry::open(*simulation_.environment(), "new", {.access = Access::replace}).value());
  const std::span memory = std::span(memory_).first(16 * block);
  decide([](const Op& op) { return Fate{.bytes_most = 4 * block, .system_error = op.offset >= 4 * block ? EIO : 0}; });
  EXPECT_EQ(transfer(OpKind::write, 0, memory), Outcome::failed);
  decide([](const Op&) { return Fate{}; });
  EXPECT_EQ(transfer(OpKind::write, 32 * block, memory), Outcome::done);
  const Status refused = store_.commit();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::invalid_argument);
  EXPECT_EQ(transfer(OpKind::write, 4 * block, memory.first(12 * block)), Outcome::done);
  EXPECT_FALSE(store_.commit().ok()) << "who asked for all of it has to write all of it";
  EXPECT_EQ(transfer(OpKind::write, 0, memory), Outcome::done);
  EXPECT_TRUE(store_.commit().ok());
}

TEST_F(CarrierTest, is_not_done_with_a_durable_write_that_was_cancelled_before_its_flush_had_ended) {
  for (const int error : {ECANCELED, 0}) {
    decide([&](const Op& op) {
      const bool is_flush = op.kind == OpKind::flush;
      return Fate{.system_error = is_flush ? error : 0, .never = is_flush};
    });
    const std::span memory = std::span(memory_).first(4 * block);
    const auto request = begin(OpKind::write, 0, memory, {.durable = true});
    ASSERT_TRUE(simulation_.run_until([&] { return disk_.stuck() != 0; }));
    EXPECT_EQ(request->bytes_done(), memory.size());
    request->stop(Code::cancelled);
    disk_.release_stuck();
    EXPECT_EQ(finish(*request), error != 0 ? Outcome::cancelled : Outcome::done) << "it ends as its flush does";
  }
}

TEST_F(CarrierTest, ends_a_cancelled_read_into_staging_memory_at_once) {
  const std::span memory = std::span(memory_).first(1000);
  std::fill(memory.begin(), memory.end(), untouched);
  const auto request = begin_stuck(OpKind::read, 100, memory);
  const TimePoint stopped = Clock::now();
  request->stop(Code::cancelled);
  EXPECT_EQ(finish(*request), Outcome::cancelled);
  EXPECT_EQ(Clock::now(), stopped);
  EXPECT_EQ(quarantined(), 0U);
  // The lane goes on beside it, with what is left of its staging memory.
  std::array<std::byte, 1000> other{};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(transfer(OpKind::read, 100, other), Outcome::done);
    EXPECT_TRUE(holds(other, 100));
  }
  std::fill(disk_.bytes().begin(), disk_.bytes().end(), std::byte{0xee});
  come_home();
  EXPECT_TRUE(is_untouched(memory)) << "it came back late, and the memory is the caller's again";
  EXPECT_EQ(simulation_.lanes_stuck(), 0U);
}

TEST_F(CarrierTest, waits_for_a_cancelled_write_from_staging_memory) {
  std::array<std::byte, 4 * block + 1> bytes{};
  const std::span odd = std::span(bytes).subspan(reinterpret_cast<std::uintptr_t>(bytes.data()) % 4 == 0 ? 1 : 0);
  const auto request = begin_stuck(OpKind::write, 0, odd.first(2 * block));
  ASSERT_NE(ops_.back().memory, odd.data()) << "staged";
  request->stop(Code::cancelled);
  for (int i = 0; i < 3; ++i) request->parts[0].lane->try_step(TimePoint::min());
  EXPECT_FALSE(request->ended()) << "it may still arrive, over what is written next";
  disk_.release_stuck();
  EXPECT_EQ(finish(*request), Outcome::done) << "all of it was written";
}

TEST_F(CarrierTest, abandons_a_read_into_the_callers_memory_after_the_grace) {
  const std::span memory = std::span(memory_).first(4 * block);
  std::fill(memory.begin(), memory.end(), untouched);
  const auto request = begin_stuck(OpKind::read, 0, memory);
  const TimePoint stopped = Clock::now();
  request->stop(Code::cancelled);
  EXPECT_EQ(finish(*request), Outcome::abandoned);
  EXPECT_GE(Clock::now(), stopped + grace());
  EXPECT_LT(Clock::now(), stopped + 2 * grace());
  EXPECT_EQ(quarantined(), memory.size());
  EXPECT_EQ(simulation_.lanes_stuck(), 1U);
  std::array<std::byte, 1000> other{};
  EXPECT_EQ(transfer(OpKind::read, 100, other), Outcome::done);
  come_home();
  EXPECT_EQ(quarantined(), 0U);
  EXPECT_TRUE(holds(memory, 0)) << "until then the disk may write to it";
  EXPECT_EQ(simulation_.lanes_stuck(), 1U);
}

TEST_F(CarrierTest, keeps_the_store_of_what_did_not_come_home) {
  auto request = begin_stuck(OpKind::read, 0, std::span(memory_).first(block));
  const std::weak_ptr<client::OpenStore> entry = client::Access::of(store_);
  request->stop(Code::cancelled);
  EXPECT_EQ(finish(*request), Outcome::abandoned);
  request.reset();
  store_ = penstock::Store();
  EXPECT_FALSE(entry.expired());
  come_home();
  EXPECT_TRUE(entry.expired());
}

TEST_F(CarrierTest, calls_a_lane_stuck_once_when_nothing_is_home_after_ten_graces) {
  const auto request = begin_stuck(OpKind::read, 100, std::span(memory_).first(1000));
  const TimePoint stopped = Clock::now();
  request->stop(Code::cancelled);
  EXPECT_EQ(finish(*request), Outcome::cancelled);
  EXPECT_EQ(simulation_.lanes_stuck(), 0U);
  EXPECT_TRUE(simulation_.run_until([&] { return simulation_.lanes_stuck() != 0; }));
  EXPECT_EQ(Clock::now(), stopped + 10 * grace());
  EXPECT_EQ(transfer(OpKind::read, 0, std::span(memory_).first(block)), Outcome::done) << "on the other lane";
  const auto another = begin_stuck(OpKind::read, 100, std::span(memory_).first(1000));
  ASSERT_EQ(another->parts[0].lane, request->parts[0].lane);
  another->stop(Code::cancelled);
  EXPECT_EQ(finish(*another), Outcome::cancelled);
  EXPECT_FALSE(simulation_.run_until([&] { return simulation_.lanes_stuck() > 1; })) << "once is enough";
  come_home();
}

TEST_F(CarrierTest, closes_a_lane_that_was_replaced_when_everything_is_home) {
  simulation_.replaces_lanes = true;
  const auto request = begin_stuck(OpKind::read, 0, std::span(memory_).first(block));
  request->stop(Code::cancelled);
  EXPECT_EQ(finish(*request), Outcome::abandoned);
  Lane& lane = *request->parts[0].lane;
  EXPECT_EQ(simulation_.lanes_stuck(), 1U);
  come_home();
  lane.try_step(TimePoint::min());
  Part late;
  EXPECT_FALSE(lane.post(late));
}

}  // namespace
}  // namespace penstock::core
