// Bytes between files and GPU memory, through staging.
#include <set>
#include <thread>

#include "gpu/gpu_test.h"
#include "support/cache_limit.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

std::uint64_t bytes_by(const Report& report, Route route) {
  return report.routes[static_cast<std::size_t>(route)];
}

class Staging : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    options_.engine = GetParam();
    options_.lanes = 2;
    for (const EngineInfo& engine : make_context().engines()) {
      if (engine.name == options_.engine && !engine.available) GTEST_SKIP() << engine.reason;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Staging, testing::Values("uring", "posix"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(Staging, a_cold_file_that_fits_arrives_through_the_page_cache_and_stays_there) {
  const auto bytes = content(1, 0, 3 * mib + 777);
  write_file(folder_.path("file"), bytes);
  evict(folder_.path("file"));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  if (!store.info().direct) GTEST_SKIP() << "no direct I/O here";
  const Buffer memory = context.allocate(Domain::cuda(0), bytes.size()).value();
  for (const Route route : {Route::buffered_staged, Route::cached_staged}) {
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
    EXPECT_EQ(bytes_by(report, route), bytes.size()) << report.reason;
  }
}

TEST_P(Staging, a_cold_file_that_does_not_fit_arrives_past_the_page_cache) {
  const CacheLimit limit(1);
  const auto bytes = content(1, 0, 11 * mib + 777);
  write_file(folder_.path("file"), bytes);
  for (const std::uint32_t lanes : {1U, 2U, 16U}) {
    evict(folder_.path("file"));
    options_.lanes = lanes;
    Context context = make_context();
    Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), bytes.size()).value();
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
    EXPECT_EQ(report.bytes, bytes.size());
    if (store.info().direct) {
      EXPECT_EQ(bytes_by(report, Route::direct_staged), bytes.size()) << report.reason;
    }
    EXPECT_EQ(bytes_by(report, Route::direct) + bytes_by(report, Route::cached), 0U) << "those are routes to the host";
    EXPECT_GT(report.cpu_seconds, 0);
  }
}

TEST_P(Staging, a_cached_file_arrives_from_the_page_cache) {
  const auto bytes = content(2, 0, 9 * mib + 1);
  write_file(folder_.path("file"), bytes);
  warm(folder_.path("file"));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), bytes.size()).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 2, 0));
  EXPECT_EQ(bytes_by(report, Route::cached_staged), bytes.size()) << report.reason;
}

// Long slots of 256 KiB, for requests of 4 MiB or more.
class LongSlots : public Staging {
 protected:
  static constexpr std::uint64_t tensor_bytes = 4 * mib + 12'345, size = 8 * tensor_bytes;
  static constexpr std::uint64_t usual_bytes = 64 << 10;

  void SetUp() override {
    Staging::SetUp();
    if (IsSkipped()) return;
    options_.lanes = 16;
    options_.staging_slot_bytes = usual_bytes;
    options_.trace_events = 4096;
    write_file(folder_.path("file"), content(21, 0, size));
    warm(folder_.path("file"));
  }
  // Of tensors that begin and end anywhere, two of which may share what a lane takes at once.
  Report load(const Context& context, const Buffer& memory) {
    const Store store = context.open(folder_.path("file")).value();
    std::vector<Range> tensors;
    for (std::uint64_t at = 0; at < size; at += tensor_bytes) {
      tensors.push_back({&store, at, memory.region().part(at, tensor_bytes)});
    }
    Ticket ticket = context.submit(Direction::read, tensors).value();
    ticket.wait();
    return ticket.report();
  }
  // The lanes that made long copies.
  static std::set<std::uint32_t> lanes_with_long_slots(const Context& context) {
    std::set<std::uint32_t> lanes;
    for (const TraceEvent& event : context.trace().events) {
      if (event.kind == TraceKind::copy && event.bytes > usual_bytes) lanes.insert(event.lane);
    }
    return lanes;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, LongSlots, testing::Values("uring", "posix"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(LongSlots, of_one_of_many_lanes_bring_cached_files) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  for (int round = 0; round < 5; ++round) {
    fill(memory.region(), std::vector<std::byte>(size));
    const Report report = load(context, memory);
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 21, 0));
    EXPECT_EQ(bytes_by(report, Route::cached_staged), size) << report.reason;
  }
  EXPECT_EQ(lanes_with_long_slots(context), std::set<std::uint32_t>{0}) << "all requests to one GPU keep to one";
}

TEST_P(LongSlots, are_given_up_where_the_file_is_not_cached_any_more) {
  for (const std::uint64_t cached : {std::uint64_t{0}, size / 3, size - mib}) {
    evict(folder_.path("file"));
    warm(folder_.path("file"), cached);
    Context context = make_context();
    const Buffer memory = context.allocate(Domain::cuda(0), size).value();
    const Report report = load(context, memory);
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 21, 0)) << cached;
  }
}

TEST_P(LongSlots, that_are_given_up_late_are_no_reason_to_take_other_lanes_for_stalled) {
  if (!fake_) GTEST_SKIP() << "no GPU is that slow";
  // On a machine that is busy with other things a lane may stall for as long by itself.
  for (const unsigned scale : {1U, 2U, 4U}) {
    fake_->set_delays(22, scale * 20'000);
    options_.deadlines.stall_seconds = scale * 0.5;
    evict(folder_.path("file"));
    warm(folder_.path("file"), size - mib);
    Context context = make_context();
    const Buffer memory = context.allocate(Domain::cuda(0), size).value();
    const Report report = load(context, memory);
    if (!report.ok() && scale < 4) continue;
    EXPECT_TRUE(report.ok()) << report.error->message;
    EXPECT_GT(report.seconds, options_.deadlines.stall_seconds);
    break;
  }
}

TEST_P(LongSlots, are_used_beside_empty_ranges_and_not_for_host_memory) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  const Range empty{&store, 5, memory.region().part(7, 0)};
  std::vector<std::byte> host(size);
  const std::array to_host{Range{&store, 0, Region::host(host.data(), size)}, empty};
  ASSERT_TRUE(context.transfer(Direction::read, to_host).ok());
  EXPECT_TRUE(holds_content(host, 21, 0));
  EXPECT_TRUE(lanes_with_long_slots(context).empty());
  const std::array to_gpu{empty, Range{&store, 0, memory.region()}, empty};
  ASSERT_TRUE(context.transfer(Direction::read, to_gpu).ok());
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 21, 0));
  EXPECT_FALSE(lanes_with_long_slots(context).empty());
}

TEST_P(LongSlots, that_the_gpu_does_not_get_to_know_are_given_back) {
  if (!fake_) GTEST_SKIP() << "a GPU knows all memory";
  Context context = make_context();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  // The lanes have their own memory by now.
  const std::uint64_t before = context.statistics().pinned_bytes;
  fake_->fail_call("cuMemHostRegister_v2", 1, cuda::cu_out_of_memory, 1);
  const Report report = load(context, memory);
  fake_->fail_call("cuMemHostRegister_v2", 0, 0, 0);
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 21, 0));
  EXPECT_TRUE(lanes_with_long_slots(context).empty());
  EXPECT_EQ(context.statistics().pinned_bytes, before);
}

TEST_P(LongSlots, are_done_without_where_the_budget_has_no_room_for_them) {
  constexpr std::uint64_t lanes_bytes = 16 * 3 * usual_bytes;
  options_.pinned_budget_bytes = lanes_bytes + 8 * mib;  // and callers' lanes
  Context context = make_context();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  std::vector<Buffer> taken;
  while (auto more = context.allocate(Domain::pinned(), 128 << 10)) taken.push_back(std::move(*more));
  const Report report = load(context, memory);
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 21, 0));
  EXPECT_TRUE(lanes_with_long_slots(context).empty());
  taken.clear();
  ASSERT_TRUE(load(context, memory).ok());
  EXPECT_FALSE(lanes_with_long_slots(context).empty()) << "there is room again";
}

TEST_P(LongSlots, serve_several_requests_at_once_and_those_that_are_cancelled) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  std::vector<Buffer> memories;
  for (int i = 0; i < 4; ++i) memories.push_back(context.allocate(Domain::cuda(0), size).value());
  for (std::size_t round = 0; round < 10; ++round) {
    std::vector<Ticket> tickets;
    for (const Buffer& memory : memories) {
      const Range range{&store, 0, memory.region()};
      tickets.push_back(context.submit(Direction::read, {&range, 1}).value());
    }
    tickets[round % 4].cancel();
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      const Outcome outcome = tickets[i].wait();
      if (outcome == Outcome::done) {
        EXPECT_TRUE(holds_content(bytes_of(memories[i].region()), 21, 0));
      } else {
        EXPECT_EQ(i, round % 4) << tickets[i].report().error->message;
      }
    }
  }
}

TEST_P(LongSlots, of_a_file_that_ends_early_fail_from_there_on) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  const Store store = context.open(folder_.path("file")).value();
  std::filesystem::resize_file(folder_.path("file"), size / 2);
  const Range range{&store, 0, memory.region()};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  EXPECT_EQ(ticket.wait(), Outcome::failed);
  EXPECT_LE(ticket.report().bytes, size / 2 + mib);
}

// Synchronous reads of cached files, which their callers carry out themselves.
class ReadByCaller : public Staging {
 protected:
  static constexpr std::uint64_t size = 16 * mib;

  void SetUp() override {
    Staging::SetUp();
    if (IsSkipped()) return;
    options_.lanes = 16;
    options_.trace_events = 4096;
    write_file(folder_.path("file"), content(22, 0, size));
    warm(folder_.path("file"));
  }
  static std::set<std::uint32_t> lanes_that_read(const Context& context) {
    std::set<std::uint32_t> lanes;
    for (const TraceEvent& event : context.trace().events) {
      if (event.kind == TraceKind::storage) lanes.insert(event.lane);
    }
    return lanes;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, ReadByCaller, testing::Values("uring", "posix"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(ReadByCaller, KeepsToOneLane) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  for (const std::uint64_t length : {256 * mib / 1024, mib, 5 * mib + 1, size - 3}) {
    fill(memory.region(), std::vector<std::byte>(size));
    const Report report = context.read(store, 3, memory.region().part(0, length));
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region().part(0, length)), 22, 3)) << length;
    EXPECT_EQ(bytes_by(report, Route::cached_staged), length) << report.reason;
    EXPECT_EQ(report.bytes, length);
  }
  EXPECT_EQ(lanes_that_read(context).size(), 1U);
}

TEST_P(ReadByCaller, LeavesToLanesWhatIsNotCached) {
  for (const std::uint64_t cached : {256 * mib / 1024, size / 3, size - mib}) {
    evict(folder_.path("file"));
    warm(folder_.path("file"), cached);
    Context context = make_context();
    const Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), size).value();
    fill(memory.region(), std::vector<std::byte>(size));
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_EQ(report.bytes, size);
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 22, 0)) << cached;
    // The rest of the piece that was begun comes through the page cache, what follows past it.
    EXPECT_EQ(bytes_by(report, Route::cached_staged) + bytes_by(report, Route::buffered_staged) +
                  bytes_by(report, Route::direct_staged),
              size);
    // More than that piece.
    const bool was_left = bytes_by(report, Route::cached_staged) < size - 4 * mib;
    EXPECT_TRUE(!was_left || lanes_that_read(context).size() > 1);
  }
}

TEST_P(ReadByCaller, GoesToLanesWhereManyCallersDoTheSame) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 8 * mib).value();
  std::vector<std::jthread> callers;
  for (std::uint64_t caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      for (std::uint64_t round = 0; round < 10; ++round) {
        const Region own = memory.region().part(caller * mib, mib);
        const std::uint64_t offset = (caller + round * 7) % 15 * mib;
        ASSERT_TRUE(context.read(store, offset, own).ok());
        ASSERT_TRUE(holds_content(bytes_of(own), 22, offset));
      }
    });
  }
}

TEST_P(ReadByCaller, FailsFromTheEndOfAFileThatEndsEarly) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  const Store store = context.open(folder_.path("file")).value();
  std::filesystem::resize_file(folder_.path("file"), size / 2);
  const Report report = context.read(store, 0, memory.region());
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_LE(report.bytes, size / 2 + mib);
  EXPECT_TRUE(context.read(store, 0, memory.region().part(0, size / 4)).ok()) << "and the lane goes on";
}

TEST_P(ReadByCaller, GoesToLanesWithoutRoomForSlots) {
  options_.pinned_budget_bytes = 12 * mib;
  options_.staging_slot_bytes = 256 << 10;
  options_.staging_slots_per_lane = 2;
  Context context = make_context();
  auto pinned = context.allocate(Domain::pinned(), 3 * mib);
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 22, 0));
}

TEST_P(ReadByCaller, PastThePageCacheTakesOneLane) {
  options_.cache = Cache::bypass;
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  if (!store.info().direct) GTEST_SKIP() << "no direct I/O here";
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  for (const std::uint64_t length : {256 * mib / 1024 + 1, mib, 4 * mib}) {
    fill(memory.region(), std::vector<std::byte>(size));
    const Report report = context.read(store, 3, memory.region().part(0, length));
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region().part(0, length)), 22, 3)) << length;
    EXPECT_EQ(bytes_by(report, Route::direct_staged), length) << report.reason;
  }
  if (options_.engine == "uring") {
    EXPECT_EQ(lanes_that_read(context).size(), 1U);
  }
}

TEST_P(ReadByCaller, PastThePageCacheServesManyCallers) {
  options_.cache = Cache::bypass;
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  constexpr std::size_t callers_max = 12;
  const Buffer memory = context.allocate(Domain::cuda(0), callers_max * mib).value();
  std::vector<std::jthread> callers;
  for (std::uint64_t caller = 0; caller < callers_max; ++caller) {
    callers.emplace_back([&, caller] {
      for (std::uint64_t round = 0; round < 10; ++round) {
        const Region own = memory.region().part(caller * mib, mib);
        const std::uint64_t offset = (caller + round * 7) % 15 * mib;
        ASSERT_TRUE(context.read(store, offset, own).ok());
        ASSERT_TRUE(holds_content(bytes_of(own), 22, offset));
      }
    });
  }
}

TEST_P(ReadByCaller, PastThePageCacheFailsAtTheEndOfAFileThatEndsEarly) {
  options_.cache = Cache::bypass;
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  const Store store = context.open(folder_.path("file")).value();
  std::filesystem::resize_file(folder_.path("file"), size / 2);
  const Report report = context.read(store, 0, memory.region());
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_LE(report.bytes, size / 2);
  EXPECT_TRUE(context.read(store, 0, memory.region().part(0, size / 4)).ok()) << "and the lane goes on";
}

TEST_P(ReadByCaller, PastThePageCacheIsCancelledAndItsMemoryComesBack) {
  PENSTOCK_NEEDS_FAKE();
  options_.cache = Cache::bypass;
  options_.deadlines.cancel_grace_seconds = 0.05;
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  fake_->hang(0, 1);
  const Report report = context.read(store, 0, memory.region(), {.keep_going = [] { return false; }});
  EXPECT_EQ(report.outcome, Outcome::abandoned);
  EXPECT_GT(context.statistics().quarantined_bytes, 0U);
  fake_->hang(0, 0);
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
  EXPECT_TRUE(context.read(store, 0, memory.region()).ok());
}

// Threads that write to one file of tmpfs wait for each other.
TEST_P(ReadByCaller, AWriteToMemoryTakesOneLaneToo) {
  const TemporaryFolder in_memory("/dev/shm");
  const std::string path = in_memory.path("file");
  write_file(path, std::vector<std::byte>(size + 3));
  Context context = make_context();
  Store store = context.open(path, {.access = Access::write}).value();
  if (store.info().locality != Locality::memory) GTEST_SKIP() << "/dev/shm is not in memory";
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  fill(memory.region(), content(7, 0, size));
  for (const std::uint64_t length : {256 * mib / 1024 + 1, mib, 4 * mib, size}) {
    const Report report = context.write(store, 3, memory.region().part(0, length), {.durable = true});
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_EQ(report.bytes, length);
    EXPECT_TRUE(holds_content(read_file(path, 3, length), 7, 0)) << length;
  }
  EXPECT_EQ(lanes_that_read(context).size(), 1U);
}

TEST_P(Staging, a_half_cached_file_takes_both_ways) {
  const CacheLimit limit(1);
  const auto bytes = content(3, 0, 16 * mib);
  write_file(folder_.path("file"), bytes);
  evict(folder_.path("file"));
  warm(folder_.path("file"), 8 * mib);
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), bytes.size()).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 3, 0));
  if (store.info().direct && context.machine().cachestat) {
    // Read-ahead may have brought in some more.
    EXPECT_GE(bytes_by(report, Route::cached_staged), 7 * mib) << report.reason;
    EXPECT_GE(bytes_by(report, Route::direct_staged), 4 * mib) << report.reason;
  }
}

TEST_P(Staging, every_alignment_of_file_and_memory_is_read_and_nothing_else_is_touched) {
  const auto bytes = content(4, 0, 3 * mib);
  write_file(folder_.path("file"), bytes);
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib + 8192).value();
  for (const bool cold : {false, true}) {
    for (const std::uint64_t offset : {0U, 1U, 511U, 4095U, 4097U, 1048575U}) {
      for (const std::uint64_t size : {1U, 2U, 512U, 4096U, 65537U, 1048577U}) {
        const Region around = memory.region().part(0, size + 4096);
        const std::vector<std::byte> background(around.size_bytes, std::byte{0x5a});
        for (const std::uint64_t place : {0U, 1U, 255U}) {
          fill(around, background);
          if (cold) evict(folder_.path("file"));
          const Report report = context.read(store, offset, memory.region().part(place, size));
          ASSERT_TRUE(report.ok()) << report.error->message;
          auto after = bytes_of(around);
          const auto from = after.begin() + static_cast<std::ptrdiff_t>(place);
          const auto to = from + static_cast<std::ptrdiff_t>(size);
          ASSERT_TRUE(holds_content({from, to}, 4, offset)) << offset << " " << size << " " << place << " " << cold;
          std::fill(from, to, std::byte{0x5a});
          ASSERT_TRUE(same_bytes(after, background)) << offset << " " << size << " " << place << " " << cold;
        }
      }
    }
  }
}

// Blocks that fill a caller's staging memory, that don't fit it, and that are longer than a slot.
TEST_P(Staging, blocks_as_long_as_staging_memory_or_longer_are_read_and_written) {
  write_file(folder_.path("file"), content(20, 0, 3 * mib + 5));
  struct Case {
    std::uint64_t alignment;
    std::uint64_t slot;
  };
  for (const auto& [alignment, slot] :
       {Case{256 << 10, 4 * mib}, Case{mib, 4 * mib}, Case{128 << 10, 64 << 10}, Case{mib, 384 << 10}}) {
    options_.alignment_bytes = alignment;
    options_.staging_slot_bytes = slot;
    options_.deadlines.stall_seconds = 5;
    Context context = make_context();
    Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 3 * mib).value();
    std::vector<std::byte> host(3 * mib + 1);
    for (const bool cold : {true, false}) {
      for (const std::size_t size : {std::size_t{5000}, std::size_t{100'000}, std::size_t{3 * mib}}) {
        for (const Region& region : {memory.region(), Region::host(host.data() + 1, 3 * mib)}) {
          const std::string what = std::to_string(alignment) + " " + std::to_string(slot) + " " + std::to_string(size);
          if (cold) evict(folder_.path("file"));
          const Report report = context.read(store, 0, region.part(0, size));
          ASSERT_TRUE(report.ok()) << what << ": " << report.error->message;
          const Range range{&store, 5, region.part(0, size)};
          Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
          ASSERT_EQ(ticket.wait(), Outcome::done) << what << ": " << ticket.report().error->message;
          EXPECT_TRUE(holds_content(bytes_of(region.part(0, size)), 20, 5)) << what;
          Store out = context.open(folder_.path("out"), {.access = Access::create}).value();
          const Report written = context.write(out, 5, region.part(0, size));
          ASSERT_TRUE(written.ok()) << what << ": " << written.error->message;
          EXPECT_TRUE(holds_content(read_file(folder_.path("out"), 5, size), 20, 5)) << what;
        }
      }
    }
  }
}

TEST_P(Staging, what_is_written_from_a_gpu_is_in_the_file) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), 6 * mib).value();
  fill(memory.region(), content(5, 0, memory.size_bytes()));
  for (const std::uint64_t offset : {0U, 1U, 4096U, 12345U}) {
    for (const std::uint64_t size : std::array<std::uint64_t, 6>{1, 4095, 4096, 8192, 2 * mib, 5 * mib + 3}) {
      const std::uint64_t end = offset + size + 100'000;
      write_file(folder_.path("file"), content(6, 0, end));
      Store store = context.open(folder_.path("file"), {.access = Access::write}).value();
      const Report report = context.write(store, offset, memory.region().part(7, size), {.durable = true});
      ASSERT_TRUE(report.ok()) << report.error->message;
      EXPECT_EQ(report.bytes, size);
      ASSERT_TRUE(holds_content(read_file(folder_.path("file"), offset, size), 5, 7)) << offset << " " << size;
      ASSERT_TRUE(holds_content(read_file(folder_.path("file"), 0, offset), 6, 0));
      ASSERT_TRUE(holds_content(read_file(folder_.path("file"), offset + size, 100'000), 6, offset + size));
      ASSERT_EQ(std::filesystem::file_size(folder_.path("file")), end);
    }
  }
}

TEST_P(Staging, thousands_of_small_ranges_land_where_they_belong) {
  constexpr std::size_t count = 5000;
  constexpr std::size_t size = 1000;
  const auto bytes = content(7, 0, count * 4096);
  write_file(folder_.path("file"), bytes);
  warm(folder_.path("file"));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), count * size).value();
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t from = i * 7919 % count;
    ranges.push_back({&store, from * 4096, memory.region().part(i * size, size)});
  }
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << report.error->message;
  const auto after = bytes_of(memory.region());
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(holds_content({after.data() + i * size, size}, 7, i * 7919 % count * 4096)) << i;
  }
  if (fake_) {
    const std::uint64_t launches = fake_->calls("cuLaunchKernel") + fake_->calls("cuMemcpyBatchAsync_v2");
    EXPECT_LT(launches, count / 2) << "many go in one call";
    const bool has_batches = gpu().kernels()[cuda::Kernel::scatter] != nullptr || gpu().api().copy_batch != nullptr;
    EXPECT_TRUE(!has_batches || fake_->calls("cuMemcpyHtoDAsync_v2") < count / 2);
  }
}

TEST_P(Staging, ranges_in_several_allocations_by_turns_are_looked_up_once_for_each) {
  constexpr std::size_t count = 3000, size = 64;
  write_file(folder_.path("file"), content(8, 0, count * size));
  warm(folder_.path("file"));
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  std::vector<Buffer> memories;
  for (int i = 0; i < 3; ++i) memories.push_back(context.allocate(Domain::cuda(0), count * size).value());
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < count; ++i) {
    ranges.push_back({&store, i * size, memories[i % 3].region().part(i * size, size)});
  }
  const std::uint64_t asked = fake_ ? fake_->calls("cuPointerGetAttribute") : 0;
  ASSERT_TRUE(context.transfer(Direction::read, ranges).ok());
  if (fake_) {
    EXPECT_LT(fake_->calls("cuPointerGetAttribute") - asked, 100U);
  }
  for (std::size_t memory = 0; memory < 3; ++memory) {
    const auto after = bytes_of(memories[memory].region());
    for (std::size_t i = memory; i < count; i += 3) {
      ASSERT_TRUE(holds_content({after.data() + i * size, size}, 8, i * size)) << i;
    }
  }
}

TEST_P(Staging, a_kernel_that_does_not_start_fails_its_request_and_no_other) {
  PENSTOCK_NEEDS_FAKE();
  if (gpu().kernels()[cuda::Kernel::scatter] == nullptr) GTEST_SKIP() << "there are no kernels";
  write_file(folder_.path("file"), content(8, 0, mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  fake_->fail_call("cuLaunchKernel", 1, cuda::cu_invalid_value, 1);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 64; ++i) ranges.push_back({&store, i * 4096, memory.region().part(i * 4096, 100)});
  const Report report = context.transfer(Direction::read, ranges);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::device_error);
  fake_->clear_injections();
  EXPECT_TRUE(context.transfer(Direction::read, ranges).ok()) << "and the Context goes on";
}

TEST_P(Staging, host_and_gpu_ranges_share_a_request) {
  write_file(folder_.path("file"), content(9, 0, 4 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer there = context.allocate(Domain::cuda(0), 2 * mib).value();
  std::vector<std::byte> here(2 * mib);
  const std::array ranges = {Range{&store, 0, there.region()},
                             Range{&store, 2 * mib, Region::host(here.data(), here.size())}};
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(bytes_of(there.region()), 9, 0));
  EXPECT_TRUE(holds_content(here, 9, 2 * mib));
}

TEST_P(Staging, small_ranges_of_the_host_and_of_a_gpu_take_turns) {
  constexpr std::size_t size = 1000;
  write_file(folder_.path("file"), content(19, 0, mib));
  evict(folder_.path("file"));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer there = context.allocate(Domain::cuda(0), 64 * size).value();
  std::vector<std::byte> here(64 * size);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 128; ++i) {
    const Region memory = i % 2 == 0 ? there.region() : Region::host(here.data(), here.size());
    ranges.push_back({&store, i * 4096, memory.part(i / 2 * size, size)});
  }
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << report.error->message;
  const auto on_gpu = bytes_of(there.region());
  for (std::size_t i = 0; i < 128; ++i) {
    const std::byte* const from = (i % 2 == 0 ? on_gpu.data() : here.data()) + i / 2 * size;
    ASSERT_TRUE(holds_content({from, size}, 19, i * 4096)) << i;
  }
}

TEST_P(Staging, several_gpus_are_filled_at_once) {
  if (driver_->devices().size() < 2) GTEST_SKIP() << "one GPU";
  write_file(folder_.path("file"), content(10, 0, 4 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer first = context.allocate(Domain::cuda(0), 2 * mib).value();
  const Buffer second = context.allocate(Domain::cuda(1), 2 * mib).value();
  const std::array ranges = {Range{&store, 0, first.region()}, Range{&store, 2 * mib, second.region()}};
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(bytes_of(first.region()), 10, 0));
  EXPECT_TRUE(holds_content(bytes_of(second.region()), 10, 2 * mib));
}

TEST_P(Staging, many_requests_at_once_with_delays_everywhere) {
  if (fake_) fake_->set_delays(11, 300);
  const auto bytes = content(11, 0, 8 * mib);
  write_file(folder_.path("file"), bytes);
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 8 * mib).value();
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 64; ++i) {
    const Range range{&store, i * 128 * 1024, memory.region().part(i * 128 * 1024, 128 * 1024 - i)};
    tickets.push_back(context.submit(Direction::read, {&range, 1}).value());
  }
  for (const Ticket& ticket : tickets) EXPECT_EQ(ticket.wait(), Outcome::done);
  const auto after = bytes_of(memory.region());
  for (std::size_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(holds_content({after.data() + i * 128 * 1024, 128 * 1024 - i}, 11, i * 128 * 1024)) << i;
  }
}

TEST_P(Staging, a_small_request_runs_on_the_callers_thread) {
  write_file(folder_.path("file"), content(12, 0, mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4096).value();
  for (std::uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(context.read(store, i * 4096 + i, memory.region()).ok());
    ASSERT_TRUE(holds_content(bytes_of(memory.region()), 12, i * 4096 + i));
  }
}

TEST_P(Staging, memory_stays_within_its_budgets) {
  options_.lanes = 4;
  options_.device_budget_bytes = 32 * mib;
  write_file(folder_.path("file"), content(13, 0, 32 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const auto too_much = context.allocate(Domain::cuda(0), 33 * mib);
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.error().code, Code::over_budget);
  const Buffer memory = context.allocate(Domain::cuda(0), 32 * mib).value();
  ASSERT_TRUE(context.read(store, 0, memory.region()).ok());
  EXPECT_LE(context.statistics().pinned_bytes, options_.pinned_budget_bytes);
  EXPECT_LE(context.statistics().pinned_bytes, 4 * 12 * mib);
}

TEST_P(Staging, a_copy_that_fails_ends_the_request_with_the_gpus_error) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(14, 0, 4 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  fake_->fail_call("cuMemcpyHtoDAsync_v2", 2, cuda::cu_invalid_value, 0);
  const Report report = context.read(store, 0, memory.region());
  ASSERT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.error->code, Code::device_error);
  EXPECT_TRUE(context.read(store, 0, memory.region()).ok()) << "and the Context goes on";
}

TEST_P(Staging, after_a_sticky_error_everything_says_so_and_the_host_is_served_on) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(15, 0, 4 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  {
    const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
    fake_->fail_copy(0, 1, cuda::cu_illegal_address);
    const Report report = context.read(store, 0, memory.region());
    ASSERT_EQ(report.outcome, Outcome::failed);
    EXPECT_EQ(report.error->code, Code::device_lost);
    EXPECT_NE(report.error->hint.find("new one"), std::string::npos) << report.error->hint;
    EXPECT_EQ(context.read(store, 0, memory.region()).error->code, Code::device_lost);
    std::vector<std::byte> host(4 * mib);
    EXPECT_TRUE(context.read(store, 0, Region::host(host.data(), host.size())).ok());
    fake_->clear_injections();
  }
}

TEST_P(Staging, a_gpu_that_hangs_costs_its_request_not_the_context) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(16, 0, 2 * mib));
  options_.deadlines.cancel_grace_seconds = 0.05;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  Buffer memory = context.allocate(Domain::cuda(0), 2 * mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  fake_->hang(0, 1);
  const Report report = past_deadline(
      [&](double seconds) { return context.read(store, 0, memory.region(), {.deadline_seconds = seconds}); });
  EXPECT_EQ(report.outcome, Outcome::abandoned);
  EXPECT_GT(context.statistics().quarantined_bytes, 0U);
  const auto used = fake_->counters().allocations;
  memory = Buffer();
  EXPECT_EQ(fake_->counters().allocations, used) << "the late copy must not land in somebody else's memory";
  std::vector<std::byte> host(2 * mib);
  EXPECT_TRUE(context.read(store, 0, Region::host(host.data(), host.size())).ok());
  fake_->hang(0, 0);
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
}

TEST_P(Staging, a_full_bus_is_the_limit_of_a_cached_file) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(20, 0, 16 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 16 * mib).value();
  // Slow enough beside code that is slower still.
  fake_->set_bandwidth(0, (under_thread_sanitizer ? 20 : 100) * mib);
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(limit_name(report.limit), "copy");
  EXPECT_GT(report.copy_seconds, report.storage_seconds);
}

TEST_P(Staging, what_copies_need_is_made_once_and_counts_for_neither_the_disk_nor_the_bus) {
  PENSTOCK_NEEDS_FAKE();
  options_.lanes = 1;
  write_file(folder_.path("file"), content(21, 0, 2 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 2 * mib).value();
  fake_->delay_call("cuMemHostRegister_v2", 600);
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok());
  EXPECT_GE(report.seconds, 0.6) << "it was made in the request";
  EXPECT_LT(report.storage_seconds + report.copy_seconds + report.cpu_seconds, report.seconds - 0.5);
}

TEST_P(Staging, cancelling_ends_a_long_load_soon) {
  if (fake_) fake_->set_bandwidth(0, 20 * mib);
  write_file(folder_.path("file"), content(17, 0, 64 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 64 * mib).value();
  const Range range{&store, 0, memory.region()};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  const auto begun = std::chrono::steady_clock::now();
  const Outcome outcome = ticket.cancel();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  EXPECT_NE(outcome, Outcome::pending);
  if (fake_) fake_->set_bandwidth(0, 0);
}

TEST_P(Staging, a_file_that_shrinks_under_the_read_is_reported) {
  write_file(folder_.path("file"), content(18, 0, 4 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  std::filesystem::resize_file(folder_.path("file"), 3 * mib);
  const Report report = context.read(store, 0, memory.region());
  ASSERT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.error->code, Code::truncated);
}

}  // namespace
}  // namespace penstock::test
