// Sets of queues in host memory, used by threads as kernels use them on a GPU: the same code but for the platform. What
// arrives is right, whatever the server does, and every wait ends.
//
// PENSTOCK_OPERATIONS=N sets how many the seeded test does; PENSTOCK_SEED=N its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <random>
#include <thread>

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "engines/made/engine.h"
#include "engines/posix/engine.h"
#include "penstock/gpu_array.h"
#include "penstock/gpu_queues.h"
#include "services/gpu_queues/server.h"
#include "support/environment.h"
#include "support/queue_faults.h"
#include "support/queue_set_platform.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using device::IoStatus;

constexpr std::uint64_t set_file_bytes = 1 << 20;
constexpr std::uint64_t guard_bytes = 64;

// Memory of a caller's, with guards around it that must stay as they are.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes + 2 * guard_bytes, std::byte{0xa5}) {}
  std::byte* data() { return bytes_.data() + guard_bytes; }
  std::span<const std::byte> bytes() const {
    return std::span(bytes_).subspan(guard_bytes, bytes_.size() - 2 * guard_bytes);
  }
  bool is_whole() const {
    const auto is_guard = [](std::byte byte) { return byte == std::byte{0xa5}; };
    return std::ranges::all_of(std::span(bytes_).first(guard_bytes), is_guard) &&
           std::ranges::all_of(std::span(bytes_).last(guard_bytes), is_guard);
  }

 private:
  std::vector<std::byte> bytes_;
};

class GpuQueuesTest : public testing::Test {
 protected:
  void SetUp() override { memory_ = content(1, 0, set_file_bytes); }

  void start(gpu_queues::FaultPlan faults = {}, const fault::FaultPlan& engine_faults = {}, std::uint32_t threads = 2) {
    engine::Table engines;
    engines.push_back(fault::make_engine(posix::make_engine(), engine_faults));
    engines.push_back(made::make_engine());
    context_ = std::make_unique<Context>(
        ContextBuilder::build(std::move(engines), {.lanes = 2, .deadlines = patient}).value());
    server_ = gpu_queues::Server::start(*context_, {.threads = threads}, std::move(faults)).value();
  }
  GpuStore memory(bool writable = false) {
    return {.memory = Region::host(memory_.data(), memory_.size()), .writable = writable};
  }
  GpuStore file(const std::string& name, const OpenOptions& options = {}) {
    const auto bytes = content(1, 0, set_file_bytes);
    write_file(folder_.path(name), bytes);
    return {.store = context_->open(folder_.path(name), options).value(), .writable = options.access != Access::read};
  }
  void open(std::vector<GpuStore> stores, double timeout_seconds = 60) {
    set_ = server_
               ->open({.gpu = Domain::host(),
                       .stores = std::move(stores),
                       .queues = 2,
                       .depth = 64,
                       .place_bytes = 4096,
                       .ahead_places = 4,
                       .timeout_seconds = timeout_seconds,
                       .stall_seconds = 60})
               .value();
  }
  void TearDown() override {
    if (server_) server_->close();
    set_.reset();
  }

  // Reads that must be right. Returns how many were.
  std::uint64_t read_at_random(std::uint64_t seed, std::uint64_t count, std::uint64_t most_bytes) {
    ThreadIo io(set_->handle(), static_cast<std::uint32_t>(seed));
    std::mt19937_64 random(seed);
    std::uint64_t right = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = 512 * (1 + random() % (most_bytes / 512));
      const std::uint64_t offset = 512 * (random() % ((set_file_bytes - bytes) / 512 + 1));
      Guarded to(bytes);
      const auto result = io.read({offset, bytes}, to.data());
      if (result.ok() && same_bytes(to.bytes(), std::span(memory_).subspan(offset, bytes)) && to.is_whole()) ++right;
    }
    return right;
  }
  std::uint64_t read_by_threads(std::uint32_t threads, std::uint64_t count, std::uint64_t most_bytes) {
    std::atomic<std::uint64_t> right = 0;
    std::vector<std::jthread> all;
    for (std::uint32_t i = 0; i < threads; ++i) {
      all.emplace_back([&, i] { right += read_at_random(i + 1, count, most_bytes); });
    }
    all.clear();
    return right;
  }

  TemporaryFolder folder_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Context> context_;
  std::shared_ptr<gpu_queues::Server> server_;
  std::shared_ptr<gpu_queues::Set> set_;
};

TEST_F(GpuQueuesTest, bring_what_is_in_memory) {
  start();
  open({memory()});
  EXPECT_EQ(read_by_threads(4, 200, 20'000), 800U);
  EXPECT_EQ(set_->report().requests, 0U);
}

TEST_F(GpuQueuesTest, bring_what_is_cached_without_requests) {
  start();
  open({file("cached")});
  if (set_->mappings().empty()) GTEST_SKIP() << "the kernel does not tell what is in the page cache here";
  EXPECT_EQ(read_by_threads(4, 200, 20'000), 800U);
  const GpuQueuesReport report = set_->report();
  EXPECT_GT(report.mapped_bytes, report.read_bytes / 2);
}

TEST_F(GpuQueuesTest, bring_all_else_by_requests_of_many_commands) {
  start({}, {.short_transfer = 50, .again = 20, .interrupted = 20, .delay = 20, .reorder = true});
  open({file("written", {.access = Access::write})});
  EXPECT_EQ(read_by_threads(8, 50, 20'000), 400U);
  const GpuQueuesReport report = set_->report();
  EXPECT_GT(report.requests, 0U);
  EXPECT_EQ(report.mapped_bytes, 0U);
}

TEST_F(GpuQueuesTest, write_what_reads_find_again) {
  start();
  open({memory(true), file("written", {.access = Access::write})});
  ThreadIo io(set_->handle(), 0);
  for (const std::uint32_t store : {0U, 1U}) {
    const auto bytes = content(2, 0, 10'240);
    ASSERT_TRUE(io.write({512, bytes.size(), store}, bytes.data()).ok());
    Guarded to(bytes.size());
    ASSERT_TRUE(io.read({512, bytes.size(), store}, to.data()).ok());
    EXPECT_TRUE(same_bytes(to.bytes(), bytes));
    EXPECT_TRUE(to.is_whole());
  }
  EXPECT_EQ(set_->report().writes, 6U);
}

TEST_F(GpuQueuesTest, begin_reads_ahead_as_far_as_there_are_places) {
  start();
  open({memory()});
  ThreadIo io(set_->handle(), 0);
  std::array<device::Pending, 9> pending;
  for (std::size_t i = 0; i < pending.size(); ++i) pending[i] = io.begin_read({i * 4096, 4096});
  const auto is_begun = [](const device::Pending& one) { return one.place != device::Pending::not_begun; };
  EXPECT_EQ(std::ranges::count_if(pending, is_begun), 4);
  for (std::size_t i = 0; i < pending.size(); ++i) {
    Guarded to(4096);
    ASSERT_TRUE(io.finish(pending[i], to.data()).ok());
    EXPECT_TRUE(same_bytes(to.bytes(), std::span(memory_).subspan(i * 4096, 4096)));
  }
  // All places are free again.
  device::Pending one = io.begin_read({0, 512});
  EXPECT_TRUE(is_begun(one));
  EXPECT_TRUE(io.finish(one, nullptr).ok()) << "nobody wants it";
  EXPECT_EQ(io.finish(one, nullptr).status, IoStatus::nothing_pending) << "twice";
}

TEST_F(GpuQueuesTest, finish_a_read_that_was_begun_once_only) {
  static_assert(!std::is_copy_constructible_v<device::Pending> && !std::is_copy_assignable_v<device::Pending>);
  start();
  open({memory()});
  ThreadIo io(set_->handle(), 0);
  Guarded to(512);
  device::Pending first = io.begin_read({0, 512});
  device::Pending second = std::move(first);
  EXPECT_EQ(io.finish(first, to.data()).status, IoStatus::nothing_pending) << "moved elsewhere";
  EXPECT_TRUE(io.finish(second, to.data()).ok());
  EXPECT_TRUE(same_bytes(to.bytes(), std::span(memory_).first(512)));
  first = io.begin_read({512, 512});  // in the same place
  EXPECT_EQ(io.finish(second, to.data()).status, IoStatus::nothing_pending);
  EXPECT_TRUE(io.finish(first, to.data()).ok());
  EXPECT_TRUE(same_bytes(to.bytes(), std::span(memory_).subspan(512, 512)));
  device::Pending never;
  EXPECT_EQ(io.finish(never, to.data()).status, IoStatus::nothing_pending);
  EXPECT_TRUE(to.is_whole());
}

TEST_F(GpuQueuesTest, forget_reads_that_were_begun_before_a_reset) {
  start();
  open({memory()});
  Guarded to(512);
  device::Pending before = ThreadIo(set_->handle(), 0).begin_read({0, 512});
  ASSERT_TRUE(server_->reset(*set_).ok());
  ThreadIo io(set_->handle(), 0);
  std::array<device::Pending, 4> all;  // in every place
  for (device::Pending& one : all) one = io.begin_read({512, 512});
  EXPECT_EQ(io.finish(before, to.data()).status, IoStatus::nothing_pending);
  for (device::Pending& one : all) {
    EXPECT_TRUE(io.finish(one, to.data()).ok());
    EXPECT_TRUE(same_bytes(to.bytes(), std::span(memory_).subspan(512, 512)));
  }
}

TEST_F(GpuQueuesTest, say_what_is_wrong_with_an_extent) {
  start();
  GpuStore window = memory();
  window.window = {4096, 8192};
  open({window, memory()});
  ThreadIo io(set_->handle(), 0);
  std::array<std::byte, 1024> to;
  const auto status = [&](const device::Extent& extent) { return io.read(extent, to.data()).status; };
  EXPECT_EQ(status({4096, 512}), IoStatus::done);
  EXPECT_EQ(status({11776, 512}), IoStatus::done) << "the last block of the window";
  EXPECT_EQ(status({3584, 512}), IoStatus::out_of_window);
  EXPECT_EQ(status({11776, 1024}), IoStatus::out_of_window);
  EXPECT_EQ(status({UINT64_MAX - 511, 1024}), IoStatus::out_of_window);
  EXPECT_EQ(status({4097, 512}), IoStatus::misaligned);
  EXPECT_EQ(status({4096, 100}), IoStatus::misaligned);
  EXPECT_EQ(status({4096, 512, 2}), IoStatus::no_such_store);
  EXPECT_EQ(io.read({4096, 512}, nullptr).status, IoStatus::no_memory);
  EXPECT_EQ(io.write({4096, 512}, to.data()).status, IoStatus::read_only);
  EXPECT_EQ(io.begin_read({0, 512}).result.status, IoStatus::out_of_window);
  EXPECT_EQ(set_->report().refused, 0U) << "nothing of it came to the server";
}

// A kernel that was built against other rules, or whose memory was overwritten.
TEST_F(GpuQueuesTest, refuse_commands_that_are_not_in_order) {
  start();
  GpuStore window = memory();
  window.window = {4096, 8192};
  open({window});
  nvme::QueuePairState& state = set_->handle()->queues[0];
  const auto send = [&](const std::function<void(nvme::Command&)>& spoil) {
    ThreadPlatform platform;
    nvme::QueuePair<ThreadPlatform> queue(state, platform);
    nvme::Command command{};
    command.opcode = static_cast<std::uint8_t>(nvme::IoOpcode::read);
    command.flags = nvme::sgl::in_command;
    command.nsid = 1;
    command.prp2 = nvme::sgl::pack(nvme::sgl::offset, 512);
    command.set_first_block(8);
    spoil(command);
    const auto tickets = queue.take(true, UINT64_MAX);
    EXPECT_TRUE(queue.send(tickets, command, nullptr));
    EXPECT_EQ(queue.wait(queue.token_of(tickets.own), UINT64_MAX), nvme::Waited::done);
    const std::uint16_t bits = nvme::QueuePair<ThreadPlatform>::status_of(queue.token_of(tickets.own)).bits;
    queue.let_go(tickets.own);
    return bits;
  };
  using nvme::Command;
  EXPECT_EQ(send([](Command&) {}), nvme::status::success.bits);
  EXPECT_EQ(send([](Command& c) { c.opcode = 9; }), nvme::status::invalid_opcode.bits);
  EXPECT_EQ(send([](Command& c) { c.nsid = 0; }), nvme::status::invalid_namespace.bits);
  EXPECT_EQ(send([](Command& c) { c.nsid = 2; }), nvme::status::invalid_namespace.bits);
  EXPECT_EQ(send([](Command& c) { c.flags = 0; }), nvme::status::invalid_field.bits);
  EXPECT_EQ(send([](Command& c) { c.prp2 = nvme::sgl::pack(nvme::sgl::address, 512); }),
            nvme::status::invalid_field.bits);
  EXPECT_EQ(send([](Command& c) { c.prp2 = nvme::sgl::pack(nvme::sgl::offset, 0); }), nvme::status::invalid_field.bits);
  EXPECT_EQ(send([](Command& c) { c.prp2 = nvme::sgl::pack(nvme::sgl::offset, 8192); }),
            nvme::status::invalid_field.bits);
  EXPECT_EQ(send([](Command& c) { c.prp1 = UINT64_MAX - 100; }), nvme::status::invalid_field.bits);
  EXPECT_EQ(send([](Command& c) { c.prp1 = (2 * 64 + 4) * 4096 - 511; }), nvme::status::invalid_field.bits);
  EXPECT_EQ(send([](Command& c) { c.dw12 = 1; }), nvme::status::invalid_field.bits);
  EXPECT_EQ(send([](Command& c) { c.set_first_block(7); }), nvme::status::lba_out_of_range.bits);
  EXPECT_EQ(send([](Command& c) { c.set_first_block(24); }), nvme::status::lba_out_of_range.bits);
  EXPECT_EQ(send([](Command& c) { c.set_first_block(UINT64_MAX); }), nvme::status::lba_out_of_range.bits);
  EXPECT_EQ(send([](Command& c) { c.opcode = 1; }), nvme::status::write_protected.bits);
  EXPECT_EQ(set_->report().refused, 14U);
}

TEST_F(GpuQueuesTest, tell_the_thread_that_a_store_failed) {
  start({}, {.io_error = 1000});
  open({file("broken", {.access = Access::write})});
  ThreadIo io(set_->handle(), 0);
  Guarded to(512);
  const auto result = io.read({0, 512}, to.data());
  EXPECT_EQ(result.status, IoStatus::failed);
  EXPECT_EQ(result.field, nvme::status::unrecovered_read.bits);
  EXPECT_TRUE(to.is_whole());
  ASSERT_TRUE(set_->report().last_error.has_value());
  EXPECT_EQ(set_->report().last_error->code, Code::io_error);
}

TEST_F(GpuQueuesTest, end_a_wait_for_a_command_that_was_lost) {
  std::atomic<bool> loses = true;
  start([&](const nvme::Command&) { return loses ? gpu_queues::Fault::lose : gpu_queues::Fault::none; });
  open({memory()}, 0.5);
  ThreadIo io(set_->handle(), 0);
  Guarded to(512);
  EXPECT_EQ(io.read({0, 512}, to.data()).status, IoStatus::timed_out);
  device::Pending pending = io.begin_read({0, 512});
  EXPECT_EQ(io.finish(pending, to.data()).status, IoStatus::timed_out);
  EXPECT_TRUE(set_->report().timed_out);
  loses = false;
  EXPECT_TRUE(io.read({0, 512}, to.data()).ok()) << "others go on";
  ASSERT_TRUE(server_->reset(*set_).ok());
  EXPECT_FALSE(set_->report().timed_out);
  EXPECT_EQ(read_by_threads(2, 200, 4096), 400U) << "more than there are slots";
}

// Each command is answered within the timeout, and all of them together are not.
TEST_F(GpuQueuesTest, keep_one_deadline_for_all_pieces_of_a_call) {
  std::atomic<int> served = 0;
  start([&](const nvme::Command&) {
    ++served;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return gpu_queues::Fault::none;
  });
  open({memory(true)});
  ThreadIo io(set_->handle(), 0);
  std::vector<std::byte> to(100 * 4096);
  EXPECT_EQ(io.read({0, to.size()}, to.data(), 100'000'000).status, IoStatus::timed_out);
  EXPECT_LT(served, 50);
  EXPECT_EQ(io.write({0, to.size()}, to.data(), 100'000'000).status, IoStatus::timed_out);
  EXPECT_LT(served, 100);
}

TEST_F(GpuQueuesTest, wait_as_long_as_there_is_time_if_told_so) {
  static_assert(device::deadline_after(5, UINT64_MAX) == UINT64_MAX);
  start([](const nvme::Command&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return gpu_queues::Fault::none;
  });
  open({memory()});
  ThreadIo io(set_->handle(), 0);
  Guarded to(512);
  EXPECT_TRUE(io.read({0, 512}, to.data(), UINT64_MAX).ok());
}

TEST_F(GpuQueuesTest, give_up_a_queue_that_makes_no_room) {
  start([](const nvme::Command&) { return gpu_queues::Fault::lose; });
  set_ = server_
             ->open({.gpu = Domain::host(),
                     .stores = {memory()},
                     .queues = 1,
                     .depth = 64,
                     .timeout_seconds = 0.001,
                     .stall_seconds = 0.05})
             .value();
  ThreadIo io(set_->handle(), 0);
  std::array<std::byte, 512> to;
  IoStatus status = IoStatus::timed_out;
  for (int i = 0; i < 64 && status == IoStatus::timed_out; ++i) status = io.read({0, 512}, to.data()).status;
  EXPECT_EQ(status, IoStatus::stalled);
  EXPECT_TRUE(set_->report().stalled);
}

TEST_F(GpuQueuesTest, end_all_waits_when_told_to_stop) {
  start([](const nvme::Command&) { return gpu_queues::Fault::lose; });
  open({memory()});
  std::atomic<int> closed = 0;
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::array<std::byte, 512> to;
      if (ThreadIo(set_->handle(), i).read({0, 512}, to.data()).status == IoStatus::closed) ++closed;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(set_->stop().ok());
  threads.clear();
  EXPECT_EQ(closed, 4);
}

TEST_F(GpuQueuesTest, outlive_a_thread_of_the_server) {
  std::atomic<bool> dies = true;
  start([&](const nvme::Command&) {
    return dies.exchange(false) ? gpu_queues::Fault::end_thread : gpu_queues::Fault::none;
  });
  open({memory()}, 0.05);
  std::array<std::byte, 512> to;
  ThreadIo io(set_->handle(), 0);
  EXPECT_EQ(io.read({0, 512}, to.data()).status, IoStatus::timed_out);
  EXPECT_TRUE(server_->is_dead());
  ASSERT_TRUE(server_->reset(*set_).ok());
  EXPECT_FALSE(server_->is_dead());
  EXPECT_TRUE(io.read({0, 512}, to.data()).ok());
}

TEST_F(GpuQueuesTest, are_opened_and_closed_while_others_are_used) {
  start();
  open({memory()});
  std::jthread reader([&] { EXPECT_EQ(read_at_random(1, 500, 8192), 500U); });
  for (int i = 0; i < 20; ++i) {
    auto other = server_->open({.gpu = Domain::host(), .stores = {memory()}, .queues = 3}).value();
    std::array<std::byte, 512> to;
    EXPECT_TRUE(ThreadIo(other->handle(), 2).read({512, 512}, to.data()).ok());
    server_->close(other);
    EXPECT_EQ(ThreadIo(other->handle(), 2).read({512, 512}, to.data()).status, IoStatus::closed);
  }
}

TEST_F(GpuQueuesTest, cost_nothing_without_a_set) {
  start({}, {}, 4);
  open({memory()});
  EXPECT_EQ(read_at_random(1, 10, 4096), 10U);
  server_->close(set_);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 50);
}

TEST_F(GpuQueuesTest, are_refused_with_options_out_of_range) {
  start();
  const auto code = [&](const GpuQueuesOptions& options) {
    const auto set = server_->open(options);
    return set ? Code::ok : set.error().code;
  };
  const std::vector<GpuStore> stores = {memory()};
  EXPECT_EQ(code({.gpu = Domain::host()}), Code::invalid_argument);
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = stores, .depth = 100}), Code::invalid_argument);
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = stores, .place_bytes = 4 << 20}), Code::invalid_argument);
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = stores, .timeout_seconds = -1}), Code::invalid_argument);
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = stores, .timeout_seconds = 0}), Code::invalid_argument);
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = stores, .stall_seconds = 0}), Code::invalid_argument);
  EXPECT_EQ(code({.gpu = Domain::pinned(), .stores = stores}), Code::invalid_argument);
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = {GpuStore{}}}), Code::invalid_argument);
  GpuStore both = file("both");
  both.memory = memory().memory;
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = {both}}), Code::invalid_argument);
  GpuStore odd = memory();
  odd.block_bytes = 100;
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = {odd}}), Code::invalid_argument);
  GpuStore long_window = memory();
  long_window.window = {512, set_file_bytes};
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = {long_window}}), Code::out_of_range);
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = {file("read")}}), Code::ok);
  GpuStore read_only = file("read");
  read_only.writable = true;
  EXPECT_EQ(code({.gpu = Domain::host(), .stores = {read_only}}), Code::read_only);
}

// The public handles, as a program has them.
TEST(GpuQueues, are_handles_that_may_be_empty) {
  GpuQueues nothing;
  EXPECT_EQ(nothing.handle(), nullptr);
  EXPECT_EQ(nothing.stop().error().code, Code::invalid_argument);
  EXPECT_EQ(nothing.reset().error().code, Code::invalid_argument);
  EXPECT_EQ(nothing.report().reads, 0U);
  nothing.close();
  GpuServer none;
  EXPECT_EQ(none.open({}).error().code, Code::invalid_argument);
  EXPECT_EQ(none.threads(), 0U);

  auto context = Context::create().value();
  auto server = GpuServer::start(context, {.threads = 1}).value();
  std::vector<std::byte> memory = content(3, 0, 4096);
  auto queues = server.open({.gpu = Domain::host(), .stores = {{.memory = Region::host(memory.data(), 4096)}}}).value();
  EXPECT_EQ(queues.options().queues, 4U);
  EXPECT_EQ(queues.options().stores[0].window.length, 4096U);
  EXPECT_EQ(queues.options().stores[0].block_bytes, 512U);
  std::array<std::byte, 512> to;
  EXPECT_TRUE(ThreadIo(queues.handle(), 0).read({512, 512}, to.data()).ok());
  EXPECT_TRUE(same_bytes(to, std::span(memory).subspan(512, 512)));
  EXPECT_EQ(queues.report().reads, 1U);
  EXPECT_FALSE(queues.report().server_dead);
  ASSERT_TRUE(queues.stop().ok());
  EXPECT_EQ(ThreadIo(queues.handle(), 0).read({512, 512}, to.data()).status, IoStatus::closed);
  ASSERT_TRUE(queues.reset().ok());
  EXPECT_TRUE(ThreadIo(queues.handle(), 0).read({512, 512}, to.data()).ok());
  server.close();
  EXPECT_EQ(server.open({}).error().code, Code::invalid_argument);
  EXPECT_FALSE(queues) << "closed with its server";
  EXPECT_EQ(queues.handle(), nullptr);
  EXPECT_EQ(queues.stop().error().code, Code::closed);
  EXPECT_EQ(queues.reset().error().code, Code::closed);
  EXPECT_EQ(queues.report().reads, 2U) << "what it did can still be asked";
  EXPECT_FALSE(queues.report().server_dead);
  EXPECT_EQ(GpuArray::open(context, queues).error().code, Code::invalid_argument);
}

// A server that fails, lies and repeats itself, and a store that misbehaves: every operation is exact or says that it
// is not, and nothing is written outside of its memory.
TEST_F(GpuQueuesTest, are_exact_whatever_befalls_them) {
  const std::uint64_t seed = from_environment("PENSTOCK_SEED", 1);
  const std::uint64_t operations = from_environment("PENSTOCK_OPERATIONS", under_thread_sanitizer ? 2'000 : 8'000);
  std::atomic<std::uint64_t> number = seed;
  std::atomic<std::uint64_t> spoilt = 0;
  const auto plan = [&](const nvme::Command&) {
    const gpu_queues::Fault fault = drawn_fault(number.fetch_add(1));
    if (fault != gpu_queues::Fault::none) ++spoilt;
    return fault;
  };
  start(plan, {.seed = seed, .short_transfer = 50, .io_error = 2, .again = 20, .interrupted = 20, .reorder = true});
  open({memory(), file("cached"), file("written", {.access = Access::write})});
  std::atomic<std::uint64_t> wrong = 0;
  std::atomic<std::uint64_t> right = 0;
  std::atomic<std::uint64_t> failed = 0;
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      ThreadIo io(set_->handle(), i);
      std::mt19937_64 random(seed * 4 + i);
      for (std::uint64_t done = 0; done < operations / 4; ++done) {
        const std::uint64_t bytes = 512 * (1 + random() % 8);
        const device::Extent extent{512 * (random() % ((set_file_bytes - bytes) / 512 + 1)), bytes,
                                    static_cast<std::uint32_t>(random() % 16 == 0 ? 2 : random() % 2)};
        Guarded to(bytes);
        device::Pending pending;
        const bool is_ahead = random() % 4 == 0;
        if (is_ahead) pending = io.begin_read(extent);
        const auto result = is_ahead ? io.finish(pending, to.data()) : io.read(extent, to.data());
        const bool is_exact = same_bytes(to.bytes(), std::span(memory_).subspan(extent.offset, bytes));
        if (!to.is_whole() || (result.ok() && !is_exact) || (!result.ok() && result.status != IoStatus::failed))
          ++wrong;
        ++(result.ok() ? right : failed);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(right, operations / 2);
  EXPECT_GT(failed, 0U);
  EXPECT_GT(spoilt, 0U);
}

}  // namespace
}  // namespace penstock::test
