#include "engines/nvme/engine.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "api/context_builder.h"
#include "engines/posix/engine.h"
#include "nvme/errors.h"
#include "nvme/soft_test_support.h"
#include "penstock/penstock.h"

namespace penstock::nvme {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;

// A store on a controller with blocks in RAM, behind a way that can fail.
class OwningWay : public Way {
 public:
  OwningWay(std::unique_ptr<SoftController> soft, const WayFaults& faults)
      : Way(*soft, faults), soft_(std::move(soft)) {}

 private:
  const std::unique_ptr<SoftController> soft_;
};
struct Controlled {
  explicit Controlled(const SoftShape& shape, const SoftFaults& faults = {}, const WayFaults& way = {}) {
    Settings settings;
    settings.description.name = "controlled";
    settings.controller = quick_options();
    settings.connect = [=](const std::string&, const OpenOptions&) {
      Device device;
      auto soft = std::make_unique<SoftController>(std::make_unique<RamBackend>(1 << 20), shape, faults);
      device.transport = std::make_unique<OwningWay>(std::move(soft), way);
      return device;
    };
    engine = make_engine(std::move(settings));
    store = engine->open("it", {.access = Access::write}).value();
  }

  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<engine::Store> store;
};

class SoftNvme : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "penstock-nvme-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    file_ = folder_ / "disk.img";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void make_file(std::size_t size) {
    std::ofstream out(file_, std::ios::binary);
    for (std::size_t i = 0; i < size; ++i) out.put(static_cast<char>(byte_at(i)));
  }
  static std::byte byte_at(std::uint64_t offset) { return static_cast<std::byte>(offset * 7 + offset / 512); }
  std::vector<std::byte> file_bytes() const {
    std::ifstream in(file_, std::ios::binary);
    std::vector<std::byte> bytes(std::filesystem::file_size(file_));
    in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }
  static Context context(const SoftShape& shape = {}, const SoftFaults& faults = {},
                         const ControllerOptions& options = {}) {
    engine::Table table;
    table.push_back(make_soft_engine(posix::make_engine(), shape, faults, options));
    Options small;
    small.lanes = 2;
    return ContextBuilder::build(std::move(table), small).value();
  }
  std::string name() const { return "soft-nvme:" + file_.string(); }

  static Done run(engine::Queue& queue, const Op& op) {
    Done done{.code = Code::timed_out};
    EXPECT_EQ(queue.submit({&op, 1}), 1U);
    EXPECT_EQ(queue.poll({&done, 1}, Clock::now() + std::chrono::seconds(20)), 1U);
    return done;
  }

  static std::unique_ptr<engine::Attached> attach(engine::Engine& engine, std::span<std::byte> memory) {
    return engine.memory()->attach(Region::host(memory.data(), memory.size())).value();
  }

  std::filesystem::path folder_;
  std::filesystem::path file_;
};

TEST_F(SoftNvme, brings_the_right_bytes_whatever_the_controller_does) {
  make_file(1'000'003);
  SoftFaults faults{.seed = 3, .delay = 50, .shuffle = 300, .lose = 2, .duplicate = 50, .unknown = 50, .fail = 50};
  faults.statuses = {status::internal_error, status::abort_requested, make_status(status::path, 0)};
  ControllerOptions options;
  options.command_time = std::chrono::milliseconds(50);
  Context context = SoftNvme::context({.max_queue_entries = 16, .doorbell_stride = 2, .mdts = 1}, faults, options);
  Store store = context.open(name(), {.access = Access::write}).value();
  std::vector<std::byte> memory(1'000'003 - 5);
  const Report read = context.read(store, 5, Region::host(memory.data(), memory.size()));
  ASSERT_TRUE(read.ok()) << read.error->message;
  for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory[i], byte_at(i + 5)) << i;

  for (std::byte& byte : memory) byte ^= std::byte{0xff};
  const Report written = context.write(store, 5, Region::host(memory.data(), memory.size()), {.durable = true});
  ASSERT_TRUE(written.ok()) << written.error->message;
  const auto now = file_bytes();
  ASSERT_EQ(now.size(), 1'000'003U) << "the file keeps its size";
  EXPECT_EQ(now[4], byte_at(4));
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), now.begin() + 5));
}

TEST_F(SoftNvme, tells_what_the_controller_said_about_bad_media) {
  make_file(1 << 20);
  Context context = SoftNvme::context({}, {.seed = 1, .fail = 1000, .statuses = {status::unrecovered_read}});
  Store store = context.open(name()).value();
  std::vector<std::byte> memory(4096);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::io_error);
  ASSERT_FALSE(report.failures.empty());
  EXPECT_EQ(report.failures[0].system_error, 0x10281);
  EXPECT_NE(report.error->message.find(text_of(status::unrecovered_read)), std::string::npos) << report.error->message;
}

TEST_F(SoftNvme, refuses_what_it_can_not_open) {
  Context context = SoftNvme::context();
  EXPECT_EQ(context.open(name()).error().code, Code::not_found);
  EXPECT_EQ(context.open("soft-nvme:" + folder_.string()).error().code, Code::is_directory);
  EXPECT_EQ(context.open(name(), {.access = Access::create}).error().code, Code::unsupported);
  EXPECT_FALSE(std::filesystem::exists(file_));
  make_file(1000);
  const Store store = context.open(name()).value();
  EXPECT_EQ(store.info().size_bytes, 1000U);
  EXPECT_EQ(store.info().block_bytes, 512U);
}

TEST_F(SoftNvme, zeroes_and_deallocates_blocks_and_nothing_else) {
  make_file(64 << 10);
  auto engine = make_soft_engine(posix::make_engine());
  auto store = engine->open(file_.string(), {.access = Access::write}).value();
  auto queue = engine->make_queue({}).value();
  const Op zero{
      .kind = OpKind::zero, .path = engine::Path::direct, .store = store.get(), .offset = 512, .length = 1024};
  EXPECT_EQ(run(*queue, zero).bytes, 1024U);
  Op deallocate = zero;
  deallocate.kind = OpKind::deallocate;
  deallocate.offset = 8192;
  deallocate.length = 4096;
  EXPECT_EQ(run(*queue, deallocate).code, Code::ok);
  const auto now = file_bytes();
  for (std::size_t i = 0; i < now.size(); ++i) {
    const bool zeroed = (i >= 512 && i < 1536) || (i >= 8192 && i < 12288);
    ASSERT_EQ(now[i], zeroed ? std::byte{0} : byte_at(i)) << i;
  }
  queue.reset();
}

// Whatever asks: a queue that is handed a write to such a store does not send it.
TEST_F(SoftNvme, changes_nothing_that_was_opened_for_reading) {
  make_file(64 << 10);
  auto engine = make_soft_engine(posix::make_engine());
  auto store = engine->open(file_.string(), {}).value();
  EXPECT_EQ(store->writer(), nullptr);
  auto queue = engine->make_queue({}).value();
  alignas(4096) std::array<std::byte, 4096> memory{};
  const auto attached = attach(*engine, memory);
  for (const OpKind kind : {OpKind::write, OpKind::zero, OpKind::deallocate}) {
    const Op op{
        .kind = kind, .store = store.get(), .length = 4096, .memory = memory.data(), .attached = attached.get()};
    EXPECT_EQ(run(*queue, op).code, Code::read_only);
  }
  EXPECT_EQ(file_bytes()[100], byte_at(100));
  queue.reset();
}

TEST_F(SoftNvme, takes_no_more_than_its_depth_and_goes_on_after) {
  make_file(1 << 20);
  auto engine = make_soft_engine(posix::make_engine());
  auto store = engine->open(file_.string(), {}).value();
  auto queue = engine->make_queue({.depth = 4}).value();
  std::vector<std::byte> memory(16 * 4096);
  const auto attached = attach(*engine, memory);
  std::vector<Op> ops;
  for (std::uint64_t i = 0; i < 16; ++i) {
    ops.push_back({.store = store.get(),
                   .offset = i * 4096,
                   .length = 4096,
                   .memory = &memory[i * 4096],
                   .attached = attached.get(),
                   .cookie = i});
  }
  std::size_t sent = 0;
  std::size_t ended = 0;
  while (ended < ops.size()) {
    sent += queue->submit(std::span(ops).subspan(sent));
    EXPECT_LE(sent - ended, 4U);
    std::array<Done, 8> done;
    const std::size_t count = queue->poll(done, Clock::now() + std::chrono::seconds(20));
    ASSERT_GT(count, 0U);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(done[i].bytes, 4096U);
    ended += count;
  }
  for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory[i], byte_at(i));
  queue.reset();
}

// A controller with one queue, and places for three commands in it.
TEST_F(SoftNvme, shares_the_queues_that_there_are_among_all_lanes) {
  make_file(1 << 20);
  for (const bool interrupts : {true, false}) {
    SoftShape shape{.max_queue_entries = 4, .io_queues = 1};
    shape.interrupts = interrupts;
    auto engine = make_soft_engine(posix::make_engine(), shape);
    auto store = engine->open(file_.string(), {.access = Access::write}).value();
    std::atomic<std::uint32_t> wrong{0};
    std::vector<std::thread> lanes;
    for (std::uint64_t lane = 0; lane < 16; ++lane) {
      lanes.emplace_back([&, lane] {
        auto queue = engine->make_queue({.depth = 8}).value();
        std::vector<std::byte> memory(8 * 4096);
        const auto attached = attach(*engine, memory);
        std::vector<Op> ops;
        for (std::uint64_t i = 0; i < 8; ++i) {
          ops.push_back({.store = store.get(),
                         .offset = (lane * 8 + i) * 4096,
                         .length = 4096,
                         .memory = &memory[i * 4096],
                         .attached = attached.get(),
                         .cookie = i});
        }
        for (int round = 0; round < 4; ++round) {
          if (queue->submit(ops) != 8) ++wrong;
          std::array<Done, 8> done;
          for (std::size_t ended = 0; ended < 8;) {
            const std::size_t count = queue->poll(done, Clock::now() + std::chrono::seconds(20));
            for (std::size_t i = 0; i < count; ++i) wrong += done[i].bytes == 4096 ? 0 : 1;
            ended += count;
          }
          for (std::size_t i = 0; i < memory.size(); ++i) {
            if (memory[i] != byte_at(lane * 8 * 4096 + i)) ++wrong;
          }
        }
      });
    }
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(store->writer()->commit(true).ok());
    for (auto& lane : lanes) lane.join();
    EXPECT_EQ(wrong, 0U);
  }
}

TEST_F(SoftNvme, refuses_operations_on_memory_that_the_controller_can_not_reach) {
  constexpr std::size_t longest = 64 << 10;
  Controlled controlled({.max_queue_entries = 8}, {}, {.longest_mapping = longest});
  auto queue = controlled.engine->make_queue({}).value();
  alignas(4096) static std::array<std::byte, 2 * longest> memory{};
  engine::Memory& known = *controlled.engine->memory();
  Op op{.store = controlled.store.get(), .length = 4096, .memory = memory.data()};
  EXPECT_EQ(run(*queue, op).code, Code::out_of_memory) << "it is not attached";
  const auto enough = attach(*controlled.engine, std::span(memory).first(longest));
  op.attached = enough.get();
  EXPECT_TRUE(known.reaches(*enough, *controlled.store));
  EXPECT_EQ(run(*queue, op).code, Code::ok);
  op.memory += 2;
  EXPECT_EQ(run(*queue, op).code, Code::out_of_memory) << "it is not aligned";
  op.memory -= 2;
  const auto too_much = attach(*controlled.engine, memory);
  op.attached = too_much.get();
  EXPECT_FALSE(known.reaches(*too_much, *controlled.store));
  EXPECT_EQ(run(*queue, op).code, Code::out_of_memory);
}

TEST_F(SoftNvme, copies_what_is_no_buffer_and_says_so) {
  make_file(1 << 20);
  Context context = SoftNvme::context();
  const Store store = context.open(name()).value();
  const auto route_of = [&](Region memory) {
    const Report report = context.read(store, 0, memory);
    EXPECT_TRUE(report.ok()) << report.error->message;
    for (std::size_t i = 0; i < memory.size_bytes; ++i) EXPECT_EQ(memory.data[i], byte_at(i));
    const auto bytes_by = [&](Route route) { return report.routes[static_cast<std::size_t>(route)]; };
    EXPECT_EQ(bytes_by(Route::direct) + bytes_by(Route::direct_staged), memory.size_bytes);
    return bytes_by(Route::direct) == memory.size_bytes ? Route::direct : Route::direct_staged;
  };
  std::vector<std::byte> plain(1 << 20);
  EXPECT_EQ(route_of(Region::host(plain.data(), plain.size())), Route::direct_staged);
  const std::uint64_t pinned_before = context.statistics().pinned_bytes;
  {
    Buffer buffer = context.allocate(Domain::host(), 1 << 20).value();
    EXPECT_EQ(route_of(buffer.region()), Route::direct) << "attached when it was first used";
    EXPECT_EQ(context.statistics().pinned_bytes, pinned_before + (1 << 20));
    EXPECT_EQ(route_of(buffer.region()), Route::direct);
  }
  EXPECT_EQ(context.statistics().pinned_bytes, pinned_before) << "detached with the Buffer";
  ASSERT_TRUE(context.attach(Region::host(plain.data(), plain.size())).ok());
  EXPECT_EQ(route_of(Region::host(plain.data(), plain.size())), Route::direct);
  ASSERT_TRUE(context.detach(Region::host(plain.data(), plain.size())).ok());
  EXPECT_EQ(route_of(Region::host(plain.data(), plain.size())), Route::direct_staged);
}

TEST_F(SoftNvme, tries_a_commit_again_but_not_for_ever) {
  Controlled busy({}, {.seed = 1, .fail = 500, .statuses = {status::namespace_not_ready}});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(busy.store->writer()->commit(true).ok());
  Controlled broken({}, {.fail = 1000, .statuses = {status::namespace_not_ready}});
  EXPECT_EQ(broken.store->writer()->commit(true).error().code, Code::io_error);
  Controlled unstoppable({}, {.lose = 1000, .ignores_abort = true, .ignores_delete = true, .ignores_disable = true},
                         {.can_isolate = false});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(unstoppable.store->writer()->commit(true).error().code, Code::io_error);
}

TEST_F(SoftNvme, sleeps_until_the_deadline_or_a_wake) {
  auto engine = make_soft_engine(posix::make_engine());
  auto queue = engine->make_queue({}).value();
  Done done;
  const TimePoint soon = Clock::now() + std::chrono::milliseconds(2);
  EXPECT_EQ(queue->poll({&done, 1}, soon), 0U);
  EXPECT_GE(Clock::now(), soon);
  queue->wake();
  EXPECT_EQ(queue->poll({&done, 1}, TimePoint::max()), 0U) << "a wake that came before is not lost";
}

bool is_readable_within(int descriptor, std::chrono::milliseconds time) {
  pollfd wanted{descriptor, POLLIN, 0};
  return ::poll(&wanted, 1, static_cast<int>(time.count())) == 1;
}

// Blocks that are given when the test lets them be; those of the store `quick` at once.
struct Held {
  explicit Held(const SoftShape& shape) {
    Settings settings;
    settings.description.name = "held";
    settings.controller.command_time = std::chrono::seconds(60);
    settings.connect = [this, shape](const std::string& name, const OpenOptions&) {
      std::unique_ptr<BlockBackend> backend = std::make_unique<RamBackend>(1 << 20);
      if (name != "quick") backend = std::make_unique<HeldBackend>(1 << 20, hold);
      Device device;
      device.transport = std::make_unique<SoftController>(std::move(backend), shape, SoftFaults{});
      return device;
    };
    engine = make_engine(std::move(settings));
    store = engine->open("slow", {}).value();
    queue = engine->make_queue({.depth = 4}).value();
  }
  ~Held() {
    hold->release();
    queue.reset();
  }

  const std::shared_ptr<Hold> hold = std::make_shared<Hold>();
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<engine::Store> store;
  std::unique_ptr<engine::Queue> queue;
};

TEST_F(SoftNvme, tells_of_each_end_by_its_event) {
  Held held({});
  engine::Queue& queue = *held.queue;
  std::vector<std::byte> memory(4096);
  Done done;
  const auto attached = attach(*held.engine, memory);
  const auto read = [&](std::uint64_t cookie) {
    const Op op{.store = held.store.get(),
                .length = 4096,
                .memory = memory.data(),
                .attached = attached.get(),
                .cookie = cookie};
    EXPECT_EQ(queue.submit({&op, 1}), 1U);
    return queue.poll({&done, 1}, TimePoint::min());
  };
  EXPECT_EQ(read(0), 0U);
  ASSERT_TRUE(held.hold->wait_for(1));
  EXPECT_FALSE(is_readable_within(queue.event(), std::chrono::milliseconds(0)));
  held.hold->release();
  std::size_t count = 0;
  for (std::uint64_t cookie = 0; cookie < 4; ++cookie) {
    if (cookie > 0) count = read(cookie);
    while (count == 0) {
      ASSERT_TRUE(is_readable_within(queue.event(), std::chrono::seconds(20)));
      count = queue.poll({&done, 1}, TimePoint::min());
    }
    EXPECT_EQ(done.cookie, cookie);
    EXPECT_EQ(done.bytes, 4096U);
  }
}

TEST_F(SoftNvme, is_not_kept_awake_by_a_controller_that_has_nothing_to_do) {
  Held held({});
  engine::Queue& queue = *held.queue;
  const auto quick = held.engine->open("quick", {}).value();
  std::vector<std::byte> memory(4096);
  const auto attached = attach(*held.engine, memory);
  Done done;
  int event = -1;
  for (int round = 0; round < 2; ++round) {
    const Op op{.store = quick.get(), .length = 4096, .memory = memory.data(), .attached = attached.get(), .cookie = 1};
    ASSERT_EQ(queue.submit({&op, 1}), 1U);
    if (round == 0) event = queue.event();
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    while (queue.poll({&done, 1}, TimePoint::min()) == 0 && Clock::now() < deadline) {
    }
  }
  // The last end was found before anyone had been told of it.
  EXPECT_TRUE(is_readable_within(event, std::chrono::seconds(20)));
  const Op op{
      .store = held.store.get(), .length = 4096, .memory = memory.data(), .attached = attached.get(), .cookie = 2};
  ASSERT_EQ(queue.submit({&op, 1}), 1U);
  ASSERT_TRUE(held.hold->wait_for(1));
  EXPECT_EQ(queue.poll({&done, 1}, TimePoint::min()), 0U);
  bool is_quiet = false;
  for (const TimePoint deadline = Clock::now() + std::chrono::seconds(20); !is_quiet && Clock::now() < deadline;) {
    is_quiet = !is_readable_within(queue.event(), std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_quiet);
  held.hold->release();
  EXPECT_TRUE(is_readable_within(event, std::chrono::seconds(20)));
  EXPECT_EQ(queue.poll({&done, 1}, Clock::now() + std::chrono::seconds(20)), 1U);
}

TEST_F(SoftNvme, has_no_event_where_the_controller_raises_no_interrupts) {
  SoftShape shape;
  shape.interrupts = false;
  Held held(shape);
  std::vector<std::byte> memory(4096);
  const auto attached = attach(*held.engine, memory);
  const Op op{.store = held.store.get(), .length = 4096, .memory = memory.data(), .attached = attached.get()};
  ASSERT_EQ(held.queue->submit({&op, 1}), 1U);
  Done done;
  EXPECT_EQ(held.queue->poll({&done, 1}, TimePoint::min()), 0U);
  EXPECT_EQ(held.queue->event(), -1);
  held.hold->release();
  EXPECT_EQ(held.queue->poll({&done, 1}, Clock::now() + std::chrono::seconds(20)), 1U);
}

TEST_F(SoftNvme, holds_nothing_of_a_store_that_is_gone) {
  make_file(64 << 10);
  const auto open_files = [] {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  auto engine = make_soft_engine(posix::make_engine());
  auto queue = engine->make_queue({}).value();
  alignas(4096) static std::array<std::byte, 4096> memory{};
  const std::size_t before = open_files();
  for (int i = 0; i < 3; ++i) {
    auto store = engine->open(file_.string(), {}).value();
    auto attached = attach(*engine, memory);
    const Op op{.store = store.get(), .length = 4096, .memory = memory.data(), .attached = attached.get()};
    EXPECT_EQ(run(*queue, op).bytes, 4096U);
    EXPECT_EQ(memory[77], byte_at(77));
    if (i == 1) store.reset();  // before the memory is detached, or after
    attached.reset();
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace penstock::nvme
