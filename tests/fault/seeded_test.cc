// Core over an engine that misbehaves, driven from a seed: every request ends exactly once, the bytes are right,
// nothing else is touched, budgets hold, and what was abandoned stays quarantined.
//
// PENSTOCK_SEED=N runs one seed, to reproduce a failure; PENSTOCK_SEEDS=N runs the first N;
// PENSTOCK_OPERATIONS=N sets the storage operations of each.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <sstream>

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "engines/nvme/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"
#include "support/environment.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

std::vector<std::uint64_t> seeds() {
  if (const auto one = from_environment("PENSTOCK_SEED", 0); one != 0) return {one};
  std::vector<std::uint64_t> all(from_environment("PENSTOCK_SEEDS", 1));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i + 1;
  return all;
}

std::uint64_t operations() {
  return from_environment("PENSTOCK_OPERATIONS", under_thread_sanitizer ? 5'000 : 15'000);
}

constexpr std::byte canary{0xc5};
constexpr std::size_t area_bytes = 256 << 10;
constexpr std::size_t area_count = 16;

// A byte is stored that stands for two.
struct Doubled : Transform {
  static std::byte made(std::byte stored) { return stored ^ std::byte{0x5a}; }
  Status by_cpu(const Piece& piece) const override {
    for (std::size_t i = 0; i < piece.memory.size(); ++i) piece.memory[i] = made(piece.stored[i / 2]);
    return {};
  }
};

// One live request on one area of the file, with the memory it uses.
struct Live {
  std::size_t area = 0;
  Direction direction = Direction::read;
  std::unique_ptr<GuardedMemory> memory;
  std::vector<Range> ranges;
  std::vector<Stored> stored;  // of some of them
  std::shared_ptr<std::atomic<int>> ends = std::make_shared<std::atomic<int>>(0);
  Ticket ticket;
};

class SeededRun {
 public:
  SeededRun(std::uint64_t seed, const fault::FaultPlan& plan, std::unique_ptr<engine::Engine> inner)
      : random_(seed), control_(std::make_shared<fault::FaultControl>()) {
    model_ = content(seed, 0, area_bytes * area_count);
    write_file(folder_.path("file"), model_);
    Options options;
    options.lanes = 2;
    options.operations_in_flight = 16;
    options.storage_chunk_bytes = 16 << 10;
    options.staging_slot_bytes = 256 << 10;
    options.pinned_budget_bytes = 4 << 20;
    options.deadlines = patient;
    options.deadlines.stall_seconds = 20;
    engine::Table table;
    table.push_back(fault::make_engine(std::move(inner), plan, control_));
    context_ = std::make_unique<Context>(ContextBuilder::build(std::move(table), options).value());
    store_ = context_->open(folder_.path("file"), {.access = Access::write}).value();
  }

  void go(std::uint64_t operations) {
    while (operations_done() < operations && !testing::Test::HasFailure()) {
      while (live_.size() < 6) start();
      finish(live_.begin() + static_cast<std::ptrdiff_t>(random_() % live_.size()));
    }
    while (!live_.empty() && !testing::Test::HasFailure()) finish(live_.begin());
    EXPECT_TRUE(same_bytes(model_, read_file(folder_.path("file"))));
  }

  std::uint64_t operations_done() const {
    std::uint64_t operations = 0;
    for (const auto& route : context_->statistics().routes) operations += route.operations + route.failed;
    return operations;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }

  std::size_t free_area() {
    while (true) {
      const std::size_t area = below(area_count);
      const bool taken = std::any_of(live_.begin(), live_.end(), [&](const Live& live) { return live.area == area; });
      if (!taken) return area;
    }
  }

  void start() {
    Live live;
    live.area = free_area();
    live.direction = below(2) == 0 ? Direction::read : Direction::write;
    add_ranges(live);
    RequestOptions options;
    options.durable = below(20) == 0;
    options.on_end = [ends = live.ends](const Report&) { ++*ends; };
    live.ticket = context_->submit(live.direction, live.ranges, options).value();
    if (below(40) == 0) live.ticket.cancel();
    live_.push_back(std::move(live));
  }

  // Ranges in ascending order with gaps in the file, and with canaries between them in memory.
  void add_ranges(Live& live) {
    struct Extent {
      std::size_t offset;
      std::size_t length;
    };
    std::vector<Extent> extents;
    std::size_t memory_bytes = 0;
    for (std::size_t at = below(5000); at < area_bytes && extents.size() < 40;) {
      const std::size_t most = below(3) == 0 ? area_bytes : 9000;
      const std::size_t aligned = below(3) == 0 ? 4096 : 1;
      const std::size_t begin =
          at / aligned * aligned == at ? at : std::min(area_bytes, at / aligned * aligned + aligned);
      const std::size_t length = std::min(area_bytes - begin, (1 + below(most)) / aligned * aligned);
      extents.push_back({begin, length});
      memory_bytes += length + 1 + below(16);
      at = begin + length + 1 + below(9000);
    }
    live.memory = std::make_unique<GuardedMemory>(memory_bytes);
    const auto bytes = live.memory->bytes();
    std::fill(bytes.begin(), bytes.end(), canary);
    std::size_t used = 0;
    live.stored.reserve(extents.size());  // ranges point there
    for (const auto& extent : extents) {
      const std::uint64_t offset = live.area * area_bytes + extent.offset;
      const auto part = bytes.subspan(used, extent.length);
      if (live.direction == Direction::write) {
        const auto written = content(random_(), 0, part.size());
        std::copy(written.begin(), written.end(), part.begin());
      }
      live.ranges.push_back({&store_, offset, Region::host(part.data(), part.size())});
      if (live.direction == Direction::read && extent.length != 0 && below(4) == 0) {
        live.stored.push_back({doubled_, (extent.length + 1) / 2});
        live.ranges.back().stored = &live.stored.back();
      }
      used += extent.length + 1;
    }
  }

  void finish(std::vector<Live>::iterator place) {
    Live live = std::move(*place);
    live_.erase(place);
    ASSERT_TRUE(live.ticket.wait_for(60s)) << "a request did not end";
    const Report report = live.ticket.report();
    ASSERT_NE(report.outcome, Outcome::pending);
    ASSERT_NE(report.outcome, Outcome::abandoned) << "nothing was stuck in this run";
    ASSERT_LE(context_->statistics().pinned_bytes, context_->options().pinned_budget_bytes);
    check_canaries(live);
    live.direction == Direction::read ? check_read(live, report) : check_write(live, report);
    eventually([&] { return *live.ends != 0; });
    ASSERT_EQ(*live.ends, 1) << "the callback runs exactly once";
  }

  void check_canaries(const Live& live) {
    const std::byte* at = live.memory->bytes().data();
    for (const Range& range : live.ranges) {
      ASSERT_TRUE(all_are({at, static_cast<const std::byte*>(range.memory.data)}, canary));
      at = range.memory.data + range.memory.size_bytes;
    }
    const std::byte* end = live.memory->bytes().data() + live.memory->bytes().size();
    ASSERT_TRUE(all_are({at, end}, canary));
  }

  // Whether the report vouches for this range.
  static bool is_right(const Report& report, std::size_t index) {
    if (report.ok()) return true;
    if (report.outcome != Outcome::failed || report.failure_count > report.failures.size()) return false;
    return std::none_of(report.failures.begin(), report.failures.end(),
                        [&](const Failure& failure) { return failure.range == index; });
  }

  void check_read(const Live& live, const Report& report) {
    for (std::size_t i = 0; i < live.ranges.size(); ++i) {
      const Range& range = live.ranges[i];
      if (!is_right(report, i)) continue;
      const auto stored = model(range.offset, range.memory.size_bytes);
      std::vector<std::byte> expected(stored.begin(), stored.end());
      for (std::size_t j = 0; range.stored != nullptr && j < expected.size(); ++j) {
        expected[j] = Doubled::made(stored[j / 2]);
      }
      ASSERT_TRUE(same_bytes(bytes_of(range), expected)) << "range " << i << " of a read";
    }
  }

  void check_write(const Live& live, const Report& report) {
    const std::uint64_t begin = live.area * area_bytes;
    const auto area = read_file(folder_.path("file"), begin, area_bytes);
    const auto now = [&](std::uint64_t offset, std::size_t length) {
      return std::span(area).subspan(offset - begin, length);
    };
    const auto expect_unchanged = [&](std::uint64_t from, std::uint64_t to) {
      ASSERT_TRUE(same_bytes(now(from, to - from), model(from, to - from))) << "bytes outside of the ranges of a write";
    };
    std::uint64_t at = begin;
    for (std::size_t i = 0; i < live.ranges.size(); ++i) {
      const Range& range = live.ranges[i];
      expect_unchanged(at, range.offset);
      at = range.offset + range.memory.size_bytes;
      if (is_right(report, i)) {
        ASSERT_TRUE(same_bytes(bytes_of(range), now(range.offset, range.memory.size_bytes)))
            << "range " << i << " of a write: " << describe(range, now(range.offset, range.memory.size_bytes));
      }
    }
    expect_unchanged(at, begin + area_bytes);
    // What failed or was cancelled may or may not be there: from now on, what is there is right.
    std::copy(area.begin(), area.end(), model_.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  // Which bytes are wrong, whether they are those of before, and what is on the disk: the page cache may keep old ones.
  std::string describe(const Range& range, std::span<const std::byte> found) const {
    const auto wanted = bytes_of(range);
    const auto first = std::mismatch(wanted.begin(), wanted.end(), found.begin()).first - wanted.begin();
    const auto last = wanted.rend() - std::mismatch(wanted.rbegin(), wanted.rend(), found.rbegin()).first;
    const auto part = [&](std::span<const std::byte> bytes) {
      return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
    };
    const std::uint64_t begin = range.offset / 4096 * 4096;
    const auto on_disk = read_past_cache(folder_.path("file"), begin, area_bytes);
    const bool disk_is_right =
        same_bytes(part(std::span(on_disk).subspan(range.offset - begin, wanted.size())), part(wanted));
    std::ostringstream text;
    text << "bytes " << first << " to " << last << " of " << wanted.size() << " at " << range.offset << "; "
         << (same_bytes(part(found), part(model(range.offset, wanted.size()))) ? "those of before" : "others") << "; "
         << (disk_is_right ? "right on the disk" : "wrong on the disk too");
    return text.str();
  }

  static std::span<const std::byte> bytes_of(const Range& range) {
    return {range.memory.data, range.memory.size_bytes};
  }
  std::span<const std::byte> model(std::uint64_t offset, std::size_t length) const {
    return std::span(model_).subspan(offset, length);
  }

  std::mt19937_64 random_;
  TemporaryFolder folder_;
  std::vector<std::byte> model_;
  std::shared_ptr<fault::FaultControl> control_;
  const std::shared_ptr<const Transform> doubled_ = std::make_shared<Doubled>();
  std::unique_ptr<Context> context_;
  Store store_;
  std::vector<Live> live_;
};

fault::FaultPlan plan_of(std::uint64_t seed) {
  fault::FaultPlan plan;
  plan.seed = seed;
  plan.short_transfer = 100;
  plan.io_error = seed % 2 == 0 ? 2 : 0;
  plan.again = 50;
  plan.interrupted = 50;
  plan.delay = 50;
  plan.max_delay = 500us;
  plan.reorder = true;
  return plan;
}

TEST(Seeded, requests_survive_faults_over_posix) {
  for (const auto seed : seeds()) {
    SCOPED_TRACE("PENSTOCK_SEED=" + std::to_string(seed));
    SeededRun(seed, plan_of(seed), posix::make_engine()).go(operations());
  }
}

TEST(Seeded, requests_survive_faults_over_uring) {
  if (const auto probe = uring::make_engine()->probe(); !probe.available) GTEST_SKIP() << probe.reason;
  for (const auto seed : seeds()) {
    SCOPED_TRACE("PENSTOCK_SEED=" + std::to_string(seed));
    SeededRun(seed, plan_of(seed), uring::make_engine()).go(operations());
  }
}

// On a file, where any byte can be zeroed, and on blocks, whose parts are read and written.
TEST(Seeded, zeroing_and_deallocation_survive_faults) {
  const auto over_blocks = [] { return nvme::make_soft_engine(posix::make_engine()); };
  for (const bool blocks : {false, true}) {
    fault::FaultPlan plan = plan_of(1);
    plan.short_transfer = 300;
    const TemporaryFolder folder;
    auto model = content(1, 0, 4 << 20);
    write_file(folder.path("file"), model);
    engine::Table table;
    table.push_back(fault::make_engine(blocks ? over_blocks() : posix::make_engine(), plan));
    Options options;
    options.lanes = 2;
    Context context = ContextBuilder::build(std::move(table), options).value();
    const std::string name = (blocks ? "soft-nvme:" : "file:") + folder.path("file");
    Store store = context.open(name, {.access = Access::write}).value();
    std::mt19937_64 random(1);
    for (int i = 0; i < 60; ++i) {
      const std::size_t length = 1 + random() % (200 << 10);
      const std::uint64_t offset = random() % (model.size() - length);
      const Report zeroed = context.zero(store, offset, length);
      ASSERT_TRUE(zeroed.ok()) << zeroed.error->message;
      std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(offset), length, std::byte{0});
      // Of zeros alone, which is what is left behind, whatever the engine admits of it.
      const Report freed = context.deallocate(store, offset, length);
      ASSERT_TRUE(freed.ok() || freed.error->code == Code::unsupported) << freed.error->message;
      ASSERT_TRUE(same_bytes(read_file(folder.path("file")), model)) << i << ": " << length << " at " << offset;
      std::vector<std::byte> more = content(static_cast<std::uint64_t>(i), 0, 5000);
      ASSERT_TRUE(context.write(store, offset / 2, Region::host(more.data(), more.size())).ok());
      std::copy(more.begin(), more.end(), model.begin() + static_cast<std::ptrdiff_t>(offset / 2));
    }
    EXPECT_TRUE(same_bytes(read_file(folder.path("file")), model));
  }
}

TEST(Seeded, zeroing_that_fails_says_what_did) {
  const TemporaryFolder folder;
  write_file(folder.path("file"), content(1, 0, 1 << 20));
  engine::Table table;
  table.push_back(fault::make_engine(posix::make_engine(), {.io_error = 1000}));
  Context context = ContextBuilder::build(std::move(table), {}).value();
  Store store = context.open(folder.path("file"), {.access = Access::write}).value();
  const Report report = context.zero(store, 4096, 4096);
  ASSERT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.error->code, Code::io_error);
  EXPECT_NE(report.error->message.find("zeroing of 4096 bytes at offset 4096"), std::string::npos)
      << report.error->message;
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_EQ(report.bytes, 0U);
}

}  // namespace
}  // namespace penstock::test
