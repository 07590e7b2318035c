// Reads to a GPU of files of which a part is cached: an engine of the test's own says which, notes which thread ran
// what, and fails when it is told to. Synchronous ones are carried out by their callers as far as the bytes are cached.
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "core/environment.h"
#include "core/lane_set.h"
#include "core/request.h"
#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

constexpr std::uint64_t half_cached_bytes = 16 * mib;

// What the engine says and does, and what was asked of it.
class HalfCached {
 public:
  struct Seen {
    engine::Path path = engine::Path::cached;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  // that were moved
    std::thread::id by;
  };

  explicit HalfCached(std::uint64_t cached) : cached_bytes(cached) {}

  std::uint64_t cached_bytes;                 // from the beginning on; changed between requests
  std::function<void()> on_first_past_cache;  // called by the thread that finds bytes that are not cached
  bool holds_cached = false;                  // shared reads stay in flight until they are cancelled
  bool fails_cached = false;

  std::uint64_t cached_in(std::uint64_t offset, std::uint64_t length) const {
    return offset >= cached_bytes ? 0 : std::min(length, cached_bytes - offset);
  }
  engine::Done run(const engine::Op& op) {
    engine::Done done{.cookie = op.cookie, .bytes = op.length, .route = engine::route_of(op.path)};
    if (op.path == engine::Path::cached && fails_cached) {
      return {.cookie = op.cookie, .code = Code::io_error, .system_error = EIO};
    }
    // Others read on, and wait.
    if (op.is_shared) {
      done.bytes = cached_in(op.offset, op.length);
      if (done.bytes < op.length && on_first_past_cache) std::exchange(on_first_past_cache, nullptr)();
      if (done.bytes == 0) return {.cookie = op.cookie, .code = Code::io_error, .system_error = EAGAIN};
    }
    const auto bytes = content(31, op.offset, done.bytes);
    std::memcpy(op.memory, bytes.data(), bytes.size());
    const std::scoped_lock lock(mutex_);
    seen_.push_back({op.path, op.offset, done.bytes, std::this_thread::get_id()});
    return done;
  }
  std::vector<Seen> seen() const {
    const std::scoped_lock lock(mutex_);
    return seen_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Seen> seen_;
};

class HalfCachedEngine : public engine::Engine {
 public:
  explicit HalfCachedEngine(HalfCached& half) : half_(half) {}
  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions&) override {
    StoreInfo info;
    info.name = name;
    info.device = "half cached";
    info.size_bytes = half_cached_bytes;
    info.alignments = {.offset = 512, .memory = 512};
    info.direct = true;
    info.page_cache = true;
    return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(info), half_));
  }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions&) override {
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(half_));
  }

 private:
  class Store : public engine::Store, private engine::PageCache {
   public:
    Store(StoreInfo info, HalfCached& half) : engine::Store(std::move(info)), half_(half) {}
    Result<engine::State> state() const override { return engine::State{info_.identity, info_.size_bytes}; }
    engine::PageCache* page_cache() override { return this; }

   private:
    std::optional<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) const override {
      return half_.cached_in(offset, length);
    }
    std::optional<double> timed_read_seconds(std::uint64_t, std::uint64_t) const override { return std::nullopt; }
    Status prefetch(std::uint64_t, std::uint64_t) override { return {}; }
    void drop(std::uint64_t, std::uint64_t) override {}

    HalfCached& half_;
  };

  class Queue : public engine::Queue {
   public:
    explicit Queue(HalfCached& half) : half_(half) {}
    std::size_t submit(std::span<const engine::Op> ops) override {
      for (const engine::Op& op : ops) {
        if (op.is_shared && half_.holds_cached) {
          held_.push_back(op.cookie);
        } else {
          ended_.push_back(half_.run(op));
        }
      }
      return ops.size();
    }
    std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override {
      std::unique_lock lock(mutex_);
      if (ended_.empty()) changed_.wait_until(lock, std::min(deadline, Clock::now() + longest), [&] { return woken_; });
      woken_ = false;
      const std::size_t count = std::min(done.size(), ended_.size());
      std::copy_n(ended_.begin(), count, done.begin());
      ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
      return count;
    }
    void wake() override {
      const std::scoped_lock lock(mutex_);
      woken_ = true;
      changed_.notify_one();
    }
    void cancel(std::uint64_t cookie) override {
      if (std::erase(held_, cookie) != 0) ended_.push_back({.cookie = cookie, .code = Code::cancelled});
    }

   private:
    static constexpr Duration longest = std::chrono::milliseconds(10);
    HalfCached& half_;
    std::vector<engine::Done> ended_;
    std::vector<std::uint64_t> held_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool woken_ = false;
  };

  HalfCached& half_;
  const engine::Description description_{
      .name = "half-cached", .schemes = {"file"}, .sleeps_in_kernel = true, .inline_queue = true, .shares_reads = true};
};

class HalfCachedFile : public GpuTest {
 protected:
  HalfCachedFile() { options_.lanes = 16; }
  Context make_context(HalfCached& half) {
    engine::Table table;
    table.push_back(std::make_unique<HalfCachedEngine>(half));
    return ContextBuilder::build(std::move(table), options_).value();
  }
};

TEST_F(HalfCachedFile, what_is_not_cached_is_read_by_lanes) {
  for (const std::uint64_t cached : {mib / 4, 5 * mib + 4096, half_cached_bytes - mib}) {
    HalfCached half(cached);
    Context context = make_context(half);
    const Store store = context.open("x").value();
    const Buffer memory = context.allocate(Domain::cuda(0), half_cached_bytes).value();
    fill(memory.region(), std::vector<std::byte>(half_cached_bytes));
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_EQ(report.bytes, half_cached_bytes);
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 31, 0)) << cached;
    std::uint64_t by_caller = 0;
    std::uint64_t by_lanes = 0;
    for (const HalfCached::Seen& one : half.seen()) {
      const bool is_callers = one.by == std::this_thread::get_id();
      (is_callers ? by_caller : by_lanes) += one.bytes;
      EXPECT_TRUE(is_callers || one.offset + one.bytes >= cached) << "what was cached is not left to them";
    }
    // With the rest of the slots that the caller had begun to fill.
    EXPECT_GE(by_caller, cached);
    EXPECT_LE(by_caller, cached + 4 * mib);
    EXPECT_EQ(by_lanes, half_cached_bytes - by_caller) << "each byte once";
    EXPECT_GE(report.routes[static_cast<std::size_t>(Route::cached_staged)], cached);
  }
}

TEST_F(HalfCachedFile, a_caller_that_does_not_want_to_go_on_ends_it_and_no_lane_goes_on_with_it) {
  HalfCached half(half_cached_bytes);
  half.holds_cached = true;
  Context context = make_context(half);
  const Store store = context.open("x").value();
  const Buffer memory = context.allocate(Domain::cuda(0), half_cached_bytes).value();
  int asked = 0;
  RequestOptions options;
  options.keep_going = [&] { return ++asked < 3; };
  const Report report = context.read(store, 0, memory.region(), options);
  EXPECT_EQ(report.outcome, Outcome::cancelled);
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(half.seen().empty());
  half.holds_cached = false;
  EXPECT_TRUE(context.read(store, 0, memory.region()).ok()) << "and the next has its lane and its slots";
  for (const HalfCached::Seen& one : half.seen()) EXPECT_EQ(one.by, std::this_thread::get_id());
}

TEST_F(HalfCachedFile, what_is_not_cached_is_cancelled_where_the_lanes_have_been_closed_meanwhile) {
  HalfCached half(5 * mib);
  Context context = make_context(half);
  const Buffer memory = context.allocate(Domain::cuda(0), half_cached_bytes).value();
  auto table = std::make_shared<engine::Table>();
  table->push_back(std::make_unique<HalfCachedEngine>(half));
  const auto environment = std::make_shared<core::Environment>(table, options_, Machine::detect());
  const penstock::Store store = client::Access::store(core::StoreEntry::open(*environment, "x", {}).value());
  const Range range{&store, 0, memory.region()};
  const auto request = core::Request::create(environment, {&range, 1}, {.lanes = options_.lanes}).value();
  const auto lanes = std::make_shared<core::LaneSet>(environment);
  half.on_first_past_cache = [&] { lanes->close(); };
  EXPECT_TRUE(lanes->drive_while_cached(request, {}));
  ASSERT_TRUE(request->ended());
  const Report report = request->report();
  EXPECT_EQ(report.outcome, Outcome::cancelled);
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, Code::closed) << report.error->message;
  EXPECT_LT(report.bytes, half_cached_bytes);
}

TEST_F(HalfCachedFile, what_is_not_cached_fails_where_no_lane_can_be_started) {
  HalfCached half(half_cached_bytes);
  Context context = make_context(half);
  const Store store = context.open("x").value();
  const Buffer memory = context.allocate(Domain::cuda(0), half_cached_bytes).value();
  ASSERT_TRUE(context.read(store, 0, memory.region()).ok()) << "without a lane, but with all threads of the driver";
  half.cached_bytes = 5 * mib;
  {
    const NoMoreThreads none;
    const Report report = context.read(store, 0, memory.region());
    EXPECT_EQ(report.outcome, Outcome::failed);
    ASSERT_TRUE(report.error);
    EXPECT_EQ(report.error->code, Code::out_of_memory) << report.error->message;
    EXPECT_NE(report.error->hint.find("ulimit -u"), std::string::npos) << report.error->hint;
  }
  EXPECT_TRUE(context.read(store, 0, memory.region()).ok());
}

// The place that limits how many slots are filled from the page cache at once, and the slot itself.
TEST_F(HalfCachedFile, a_read_that_failed_leaves_its_place_to_the_next_on_the_same_lane) {
  for (const std::uint32_t lanes : {1U, 16U}) {
    options_.lanes = lanes;
    options_.staging_slot_bytes = mib;
    options_.staging_slots_per_lane = 2;
    HalfCached half(half_cached_bytes);
    Context context = make_context(half);
    const Store store = context.open("x").value();
    const Buffer memory = context.allocate(Domain::cuda(0), half_cached_bytes).value();
    const RequestOptions soon{.deadline_seconds = 20};
    const auto read_by = [&](bool caller) {
      const Range range{&store, 0, memory.region().part(0, 4 * mib)};
      if (caller) return context.read(store, 0, range.memory);
      Ticket ticket = context.submit(Direction::read, {&range, 1}, soon).value();
      ticket.wait();
      return ticket.report();
    };
    for (const bool by_caller : {false, true}) {
      half.fails_cached = true;
      for (int i = 0; i < 12; ++i) {
        const Report failed = read_by(by_caller && lanes > 1);
        EXPECT_EQ(failed.outcome, Outcome::failed);
        ASSERT_TRUE(failed.error);
        ASSERT_EQ(failed.error->code, Code::io_error) << failed.error->message;
      }
      half.fails_cached = false;
      const Report report = read_by(by_caller && lanes > 1);
      ASSERT_TRUE(report.ok()) << report.error->message;
    }
  }
}

}  // namespace
}  // namespace penstock::test
