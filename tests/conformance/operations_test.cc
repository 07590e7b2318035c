// What every engine must do with operations that have no memory, flush, zero, deallocate and calls: at its queue, as
// core drives it, and through the public API.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "conformance/every_engine.h"

namespace penstock::test {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using namespace std::chrono_literals;

bool all_zero(std::span<const std::byte> bytes) {
  return all_are(bytes, std::byte{0});
}

// An engine with a store and a queue of its own.
class Bench {
 public:
  Bench(std::unique_ptr<engine::Engine> engine, const std::string& name, const OpenOptions& options)
      : engine_(std::move(engine)),
        store_(std::move(engine_->open(name, options)).value()),
        queue_(std::move(engine_->make_queue({.depth = 4, .sharers = 3})).value()) {}

  engine::Store& store() { return *store_; }
  // As often as it takes: what was done is admitted, and may be less than was asked for.
  Done run(OpKind kind, std::uint64_t offset = 0, std::uint64_t length = 0) {
    return run({.kind = kind, .store = store_.get(), .offset = offset, .length = length, .cookie = 7});
  }
  // The last of its parts; the bytes of all.
  Done run(Op op) {
    std::uint64_t bytes = 0;
    Done done = run_once(op);
    while (done.code == Code::ok && done.bytes != 0 && done.bytes < op.length) {
      bytes += done.bytes;
      op.offset += done.bytes;
      op.length -= done.bytes;
      if (op.memory != nullptr) op.memory += done.bytes;
      done = run_once(op);
    }
    done.bytes += bytes;
    return done;
  }

 private:
  Done run_once(const Op& op) {
    Done done{.code = Code::timed_out};
    const TimePoint deadline = Clock::now() + 20s;
    EXPECT_EQ(queue_->submit({&op, 1}), 1U);
    while (queue_->poll({&done, 1}, deadline) == 0 && Clock::now() < deadline) {
    }
    EXPECT_EQ(done.cookie, op.cookie);
    return done;
  }

  const std::unique_ptr<engine::Engine> engine_;
  const std::unique_ptr<engine::Store> store_;
  const std::unique_ptr<engine::Queue> queue_;
};

// Waits until it may end.
class CountedCall : public engine::Call {
 public:
  void run() override {
    std::unique_lock lock(mutex_);
    ++runs_;
    changed_.wait(lock, [this] { return may_end_; });
  }
  void let_end() {
    const std::lock_guard lock(mutex_);
    may_end_ = true;
    changed_.notify_all();
  }
  int runs() {
    const std::lock_guard lock(mutex_);
    return runs_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool may_end_ = false;
  int runs_ = 0;
};

std::size_t poll_for(engine::Queue& queue, Done& done, Duration time) {
  std::size_t count = 0;
  for (const TimePoint end = Clock::now() + time; count == 0 && Clock::now() < end;)
    count = queue.poll({&done, 1}, end);
  return count;
}

constexpr std::uint64_t block = 4096;  // a multiple of every store's

struct Part {
  std::uint64_t offset;
  std::uint64_t length;
};

TEST_P(EveryEngine, runs_a_call_once) {
  const auto engine = GetParam().make();
  const auto queue = engine->make_queue({.depth = 4}).value();
  CountedCall call;
  call.let_end();
  const Op op{.kind = OpKind::call, .call = &call, .cookie = 5};
  ASSERT_EQ(queue->submit({&op, 1}), 1U);
  Done done;
  ASSERT_EQ(poll_for(*queue, done, 20s), 1U);
  EXPECT_EQ(done.cookie, 5U);
  EXPECT_EQ(done.code, Code::ok);
  EXPECT_EQ(call.runs(), 1);
}

TEST_P(EveryEngine, holds_nothing_up_while_a_call_waits) {
  const auto engine = GetParam().make();
  if (engine->description().may_wait == nullptr) GTEST_SKIP() << "its calls don't wait";
  make_store("file", block);
  const auto store = engine->open(engine_name("file"), to_write()).value();
  const auto queue = engine->make_queue({.depth = 4, .threads = 2}).value();
  CountedCall call;
  const Op op{.kind = OpKind::call, .call = &call, .cookie = 5};
  ASSERT_EQ(queue->submit({&op, 1}), 1U);
  const Op flush{.kind = OpKind::flush, .store = store.get(), .cookie = 6};
  ASSERT_EQ(queue->submit({&flush, 1}), 1U);
  Done done;
  ASSERT_EQ(poll_for(*queue, done, 20s), 1U);
  EXPECT_EQ(done.cookie, 6U);
  EXPECT_TRUE(eventually([&] { return call.runs() == 1; }));
  EXPECT_EQ(poll_for(*queue, done, 10ms), 0U);
  call.let_end();
  ASSERT_EQ(poll_for(*queue, done, 20s), 1U);
  EXPECT_EQ(done.cookie, 5U);
}

TEST_P(EveryEngine, shares_a_read_or_does_not_and_brings_the_same) {
  constexpr std::size_t size = (5 << 20) + 333;
  const auto engine = GetParam().make();
  if (!engine->description().shares_reads) GTEST_SKIP() << "its reads are not shared";
  if (engine->description().host != engine::HostReach::any) GTEST_SKIP() << "it wants memory that is attached";
  if (engine->description().lends) GTEST_SKIP() << "its bytes are lent";
  make_store("file", size);
  make_cached("file");
  Bench bench(GetParam().make(), engine_name("file"), {});
  for (const std::uint64_t offset : {0, 4097, 1 << 20}) {
    std::vector<std::byte> memory(size - offset + 1);
    const Op whole{.path = engine::Path::cached,
                   .store = &bench.store(),
                   .offset = offset,
                   .length = memory.size() - 1,
                   .memory = memory.data(),
                   .cookie = 7,
                   .is_shared = true};
    const Done done = bench.run(whole);
    EXPECT_EQ(done.code, Code::ok);
    EXPECT_EQ(done.bytes, size - offset);
    EXPECT_EQ(done.route, Route::cached);
    EXPECT_TRUE(holds_content(std::span(memory).first(size - offset), 1, offset));
    EXPECT_EQ(memory.back(), std::byte{0});
    Op past_the_end = whole;
    past_the_end.offset = size - 100;
    const Done end = bench.run(past_the_end);
    EXPECT_EQ(end.code, Code::ok);
    EXPECT_EQ(end.bytes, 100U) << "as of a call";
  }
}

TEST_P(EveryEngine, zeroes_blocks_and_nothing_beside_them) {
  for (const Part part : {Part{0, block}, Part{3 * block, 2 * block}, Part{7 * block, 1 << 20}}) {
    make_store("file", 2 << 20);
    Bench bench(GetParam().make(), engine_name("file"), to_write());
    EXPECT_EQ(bench.run(OpKind::zero, part.offset, part.length).code, Code::ok);
    EXPECT_EQ(bench.run(OpKind::flush).code, Code::ok);
    const auto bytes = bytes_in("file");
    const std::span<const std::byte> all(bytes);
    ASSERT_EQ(all.size(), std::size_t{2} << 20);
    EXPECT_TRUE(holds_content(all.first(part.offset), 1, 0));
    EXPECT_TRUE(all_zero(all.subspan(part.offset, part.length)));
    EXPECT_TRUE(holds_content(all.subspan(part.offset + part.length), 1, part.offset + part.length));
  }
}

TEST_P(EveryEngine, zeroes_parts_of_blocks_or_says_that_it_can_not) {
  make_store("file", 3 * block);
  Bench bench(GetParam().make(), engine_name("file"), to_write());
  const bool any_part = bench.store().writer()->edges() == engine::Writer::Edges::buffered;
  const Done done = bench.run(OpKind::zero, 100, block);
  EXPECT_EQ(done.code, any_part ? Code::ok : Code::invalid_argument);
  const auto bytes = bytes_in("file");
  const std::span<const std::byte> all(bytes);
  EXPECT_TRUE(holds_content(all.first(100), 1, 0));
  EXPECT_TRUE(any_part ? testing::AssertionResult(all_zero(all.subspan(100, block)))
                       : holds_content(all.subspan(100, block), 1, 100));
  EXPECT_TRUE(holds_content(all.subspan(100 + block), 1, 100 + block));
}

TEST_P(EveryEngine, deallocates_blocks_and_nothing_beside_them) {
  make_store("file", 16 * block);
  Bench bench(GetParam().make(), engine_name("file"), to_write());
  const Done done = bench.run(OpKind::deallocate, 4 * block, 8 * block);
  if (done.code == Code::unsupported) GTEST_SKIP() << "the store can't deallocate";
  EXPECT_EQ(done.code, Code::ok);
  const auto bytes = bytes_in("file");
  const std::span<const std::byte> all(bytes);
  ASSERT_EQ(all.size(), 16 * block);
  EXPECT_TRUE(holds_content(all.first(4 * block), 1, 0));
  EXPECT_TRUE(holds_content(all.subspan(12 * block), 1, 12 * block));
  // Files have a hole there; a disk may keep any of the blocks.
  for (std::uint64_t at = 4 * block; at < 12 * block; at += block) {
    const auto one = all.subspan(at, block);
    EXPECT_TRUE(all_zero(one) || (!are_files() && holds_content(one, 1, at))) << at;
  }
}

TEST_P(EveryEngine, changes_no_block_of_a_store_that_was_opened_for_reading) {
  make_store("file", 4 * block);
  Bench bench(GetParam().make(), engine_name("file"), {});
  EXPECT_EQ(bench.store().writer(), nullptr);
  EXPECT_EQ(bench.run(OpKind::zero, 0, block).code, Code::read_only);
  EXPECT_EQ(bench.run(OpKind::deallocate, 0, block).code, Code::read_only);
  EXPECT_TRUE(holds_content(bytes_in("file"), 1, 0));
}

TEST_P(EveryEngine, grows_files_by_zeros_and_nothing_else) {
  make_store("file", 4 * block);
  Bench bench(GetParam().make(), engine_name("file"), to_write());
  const std::uint64_t end = bench.store().info().size_bytes;
  EXPECT_EQ(bench.run(OpKind::deallocate, end, block).code, are_files() ? Code::ok : Code::out_of_range);
  EXPECT_TRUE(holds_content(bytes_in("file"), 1, 0));
  EXPECT_EQ(bytes_in("file").size(), 4 * block);
  EXPECT_EQ(bench.run(OpKind::zero, end, block).code, are_files() ? Code::ok : Code::out_of_range);
  const auto bytes = bytes_in("file");
  EXPECT_TRUE(holds_content(std::span(bytes).first(4 * block), 1, 0));
  EXPECT_EQ(bytes.size(), are_files() ? 5 * block : 4 * block);
  EXPECT_TRUE(all_zero(std::span(bytes).subspan(4 * block)));
}

TEST_P(EveryEngine, zeroes_every_alignment_and_touches_nothing_else) {
  Context context = make_context(small_lanes());
  const std::size_t size = (2 << 20) + 777;
  Store store = context.open(make_store("file", size), to_write()).value();
  auto expected = content(1, 0, size);
  // Apart from one another.
  for (const Part part : {Part{1, 1}, Part{511, 4097}, Part{8192, 8192}, Part{20'000, 1 << 20},
                          Part{(3 << 19) + 1, 777}, Part{size - 5000, 5000}, Part{0, size}}) {
    const Report report = context.zero(store, part.offset, part.length, {.durable = true});
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_EQ(report.bytes, part.length);
    EXPECT_EQ(report.routes, RouteBytes{}) << "nothing was moved";
    const auto bytes = bytes_in("file");
    ASSERT_EQ(bytes.size(), size);
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(part.offset), part.length, std::byte{0});
    ASSERT_TRUE(same_bytes(bytes, expected)) << part.offset << " + " << part.length;
    std::vector<std::byte> memory(part.length, std::byte{1});
    ASSERT_TRUE(context.read(store, part.offset, Region::host(memory.data(), memory.size())).ok());
    ASSERT_TRUE(all_zero(memory));
  }
}

TEST_P(EveryEngine, deallocates_whole_blocks_within_a_range_and_writes_them_again) {
  Context context = make_context(small_lanes());
  const std::size_t size = 3 << 20;
  Store store = context.open(make_store("file", size), to_write()).value();
  const std::uint64_t end = 100 + (2 << 20);
  const Report report = context.deallocate(store, 100, end - 100);
  if (!report.ok() && report.error->code == Code::unsupported) GTEST_SKIP() << report.error->message;
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_GT(report.bytes, std::uint64_t{1} << 20);
  EXPECT_LT(report.bytes, end - 100) << "the ends fill no block";
  EXPECT_EQ(report.bytes % 512, 0U);
  for (const auto& route : context.statistics().routes) EXPECT_EQ(route.bytes, 0U) << "nothing was moved";
  const auto bytes = bytes_in("file");
  EXPECT_TRUE(holds_content(std::span(bytes).first(100), 1, 0));
  EXPECT_TRUE(holds_content(std::span(bytes).subspan(end), 1, end));

  const auto more = content(5, 0, size);
  std::vector<std::byte> memory = more;
  ASSERT_TRUE(context.write(store, 0, Region::host(memory.data(), size)).ok());
  EXPECT_TRUE(holds_content(bytes_in("file"), 5, 0));

  const Report within = context.deallocate(store, 10, 100);
  EXPECT_TRUE(within.ok());
  EXPECT_EQ(within.bytes, 0U) << "no whole block";
  EXPECT_TRUE(holds_content(bytes_in("file"), 5, 0));
}

TEST_P(EveryEngine, refuses_to_zero_and_deallocate_what_it_must_not) {
  Context context = make_context();
  const std::string name = make_store("file", 4 * block);
  {
    Store store = context.open(name).value();
    EXPECT_EQ(context.zero(store, 0, block).error->code, Code::read_only);
    EXPECT_EQ(context.deallocate(store, 0, block).error->code, Code::read_only);
  }
  Store store = context.open(name, to_write()).value();
  const std::uint64_t end = store.info().size_bytes;
  EXPECT_EQ(context.deallocate(store, end - block, 2 * block).error->code, Code::out_of_range);
  EXPECT_EQ(context.zero(store, UINT64_MAX, 10).error->code, Code::invalid_argument);
  EXPECT_TRUE(context.zero(store, 0, 0).ok());
  EXPECT_TRUE(holds_content(bytes_in("file"), 1, 0));
  const Report grown = context.zero(store, end - 10, 1010);
  if (are_files()) {
    ASSERT_TRUE(grown.ok()) << grown.error->message;
    EXPECT_EQ(bytes_in("file").size(), end + 1000);
    EXPECT_TRUE(all_zero(std::span<const std::byte>(bytes_in("file")).subspan(end - 10)));
  } else {
    EXPECT_EQ(grown.error->code, Code::no_space);
  }
}

}  // namespace
}  // namespace penstock::test
