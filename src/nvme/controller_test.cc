#include "nvme/controller.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "nvme/errors.h"
#include "nvme/soft_test_support.h"

namespace penstock::nvme {
namespace {

// Every eight bytes of the disk differ.
void fill_disk(Bench& bench) {
  for (std::uint64_t i = 0; i < bench.disk().size(); i += sizeof i) std::memcpy(&bench.disk()[i], &i, sizeof i);
}

std::byte pattern(std::uint64_t offset) {
  return static_cast<std::byte>(offset / 8 * 8 >> offset % 8 * 8);
}

// For disks that nobody has written to since.
bool holds_disk(Bench& bench, std::uint64_t data_offset, std::uint64_t offset, std::uint64_t length) {
  return std::memcmp(bench.data() + data_offset, &bench.disk()[offset], length) == 0;
}

TEST(Controller, tells_what_the_device_is) {
  Bench bench({.serial = "S-1", .mdts = 2, .block_bytes = 4096, .io_queues = 3});
  const ControllerInfo& info = bench.controller().info();
  EXPECT_EQ(info.serial, "S-1");
  EXPECT_EQ(info.model, "Penstock soft controller");
  EXPECT_EQ(info.max_transfer_bytes, 16384U);
  EXPECT_EQ(info.io_queues, 3U);
  ASSERT_EQ(bench.controller().namespaces().size(), 1U);
  EXPECT_EQ(bench.space().info.block_bytes, 4096U);
  EXPECT_EQ(bench.space().info.size_bytes(), Bench::disk_bytes);
  EXPECT_EQ(bench.controller().find_namespace(2).error().code, Code::not_found);
}

// The shapes that a controller may have: depth, stride, transfer limit, block size.
struct Shape {
  std::uint32_t entries, stride;
  std::uint8_t mdts;
  std::uint32_t block;
  std::uint64_t transfer = 256 << 10;
};

TEST(Controller, reads_and_writes_with_every_shape_of_controller) {
  const Shape shapes[] = {{2, 0, 1, 512}, {3, 3, 0, 4096}, {1024, 1, 5, 4096}, {64, 0, 0, 512, 4 << 20}};
  for (const Shape& shape : shapes) {
    ControllerOptions options = quick_options();
    options.max_transfer_bytes = shape.transfer;
    Bench bench({.max_queue_entries = shape.entries,
                 .doorbell_stride = shape.stride,
                 .mdts = shape.mdts,
                 .block_bytes = shape.block},
                {}, options);
    ASSERT_EQ(bench.error().message, "");
    fill_disk(bench);
    auto queue = bench.controller().make_queue().value();
    // Offsets in memory that begin anywhere in a page; lengths of one page, two, a list, and chained lists.
    for (const std::uint64_t length : {std::uint64_t{4096}, std::uint64_t{8192}, std::uint64_t{600 * 4096}}) {
      for (const std::uint64_t at : {0, 4, 4092}) {
        std::memset(bench.data(), 0xee, at + length + 1);
        const IoDone done = bench.run(*queue, bench.io(IoKind::read, 8192, length, at));
        ASSERT_EQ(done.code, Code::ok);
        ASSERT_EQ(done.bytes, length);
        ASSERT_TRUE(holds_disk(bench, at, 8192, length)) << length << " at " << at;
        ASSERT_EQ(bench.data()[at + length], std::byte{0xee});
      }
    }
    std::memset(bench.data(), 0x5a, 1 << 20);
    ASSERT_EQ(bench.run(*queue, bench.io(IoKind::write, 4096, 1 << 20, 4)).bytes, 1U << 20);
    EXPECT_EQ(bench.disk()[4096 + (1 << 20) - 5], std::byte{0x5a});
    EXPECT_EQ(bench.disk()[4096 + (1 << 20)], pattern(4096 + (1 << 20)));
  }
}

TEST(Controller, flushes_zeroes_and_deallocates) {
  for (const bool native : {true, false}) {
    Bench bench({.write_zeroes = native});
    fill_disk(bench);
    auto queue = bench.controller().make_queue().value();
    EXPECT_EQ(bench.run(*queue, bench.io(IoKind::flush, 0, 0)).code, Code::ok);
    EXPECT_EQ(bench.run(*queue, bench.io(IoKind::zero, 512, 1 << 20)).bytes, 1U << 20);
    EXPECT_EQ(bench.disk()[511], pattern(511));
    EXPECT_EQ(bench.disk()[512], std::byte{0});
    EXPECT_EQ(bench.disk()[511 + (1 << 20)], std::byte{0});
    EXPECT_EQ(bench.disk()[512 + (1 << 20)], pattern(512 + (1 << 20)));
    EXPECT_EQ(bench.run(*queue, bench.io(IoKind::deallocate, 4 << 20, 4096)).bytes, 4096U);
    EXPECT_EQ(bench.disk()[4 << 20], std::byte{0});
    EXPECT_EQ(bench.disk()[(4 << 20) + 4096], pattern((4 << 20) + 4096));
  }
  Bench without({.deallocate = false});
  auto queue = without.controller().make_queue().value();
  EXPECT_EQ(without.run(*queue, without.io(IoKind::deallocate, 0, 512)).code, Code::unsupported);
}

TEST(Controller, splits_zeroing_and_deallocation_as_the_controller_wants) {
  Bench bench({.zeroes_exponent = 1, .deallocate_blocks = 3});
  fill_disk(bench);
  auto queue = bench.controller().make_queue().value();
  const std::uint64_t before = bench.soft().counters().commands;
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::zero, 512, 20'480)).bytes, 20'480U);
  EXPECT_EQ(bench.soft().counters().commands - before, 3U) << "8192 bytes at a time";
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::deallocate, 1 << 20, 4096)).bytes, 4096U);
  EXPECT_EQ(bench.soft().counters().commands - before, 6U) << "3 blocks at a time";
  EXPECT_EQ(bench.disk()[511], pattern(511));
  EXPECT_EQ(bench.disk()[512], std::byte{0});
  EXPECT_EQ(bench.disk()[512 + 20'479], std::byte{0});
  EXPECT_EQ(bench.disk()[512 + 20'480], pattern(512 + 20'480));
  EXPECT_EQ(bench.disk()[(1 << 20) + 4095], std::byte{0});
  EXPECT_EQ(bench.disk()[(1 << 20) + 4096], pattern((1 << 20) + 4096));
}

TEST(Controller, needs_no_limits_to_be_told) {
  SoftShape shape;
  shape.alter_identify = [](std::uint32_t cns, std::byte* data) {
    if (cns == identify_command_set) std::memset(data, 0xff, 16);
  };
  Bench bench(shape);
  ASSERT_EQ(bench.error().message, "");
  EXPECT_EQ(bench.controller().info().max_zeroes_bytes, UINT64_MAX) << "beyond what a command can have";
}

TEST(Controller, polls_for_completions_of_queues_without_an_interrupt_of_their_own) {
  Bench bench({}, {}, quick_options(), {.interrupts = 2});
  fill_disk(bench);
  auto first = bench.controller().make_queue().value();
  auto second = bench.controller().make_queue().value();
  EXPECT_TRUE(first->interrupt());
  EXPECT_FALSE(second->interrupt());
  for (IoQueue* queue : {first.get(), second.get()}) {
    std::memset(bench.data(), 0, 8192);
    EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 4096, 8192)).code, Code::ok);
    EXPECT_TRUE(holds_disk(bench, 0, 4096, 8192));
  }
}

TEST(Controller, touches_no_byte_beside_memory_that_begins_and_ends_within_pages) {
  Bench bench;
  fill_disk(bench);
  auto queue = bench.controller().make_queue().value();
  constexpr std::uint64_t margin = 64;
  for (const std::uint64_t length : {512, 1024, 3584, 4608, 7 * 512, 8192 + 512, (64 << 10) + 1536}) {
    for (const std::uint64_t at : {64, 512, 2048, 3584, 4096 - 64, 4092, 4096, 4096 + 1536}) {
      std::memset(bench.data(), 0xee, at + length + margin);
      ASSERT_EQ(bench.run(*queue, bench.io(IoKind::read, 1536, length, at)).bytes, length);
      ASSERT_TRUE(holds_disk(bench, at, 1536, length)) << length << " at " << at;
      for (std::uint64_t i = 1; i <= margin; ++i) {
        ASSERT_EQ(bench.data()[at - i], std::byte{0xee}) << length << " at " << at;
        ASSERT_EQ(bench.data()[at + length + i - 1], std::byte{0xee}) << length << " at " << at;
      }
    }
  }
}

TEST(Controller, refuses_blocks_outside_of_the_namespace_and_its_window) {
  Bench bench;
  auto queue = bench.controller().make_queue().value();
  const auto code_of_io = [&](IoKind kind, std::uint64_t offset, std::uint64_t length, std::uint64_t at = 0) {
    return bench.run(*queue, bench.io(kind, offset, length, at)).code;
  };
  EXPECT_EQ(code_of_io(IoKind::read, Bench::disk_bytes - 512, 1024), Code::out_of_range);
  EXPECT_EQ(code_of_io(IoKind::read, UINT64_MAX - 511, 512), Code::out_of_range);
  EXPECT_EQ(code_of_io(IoKind::read, 100, 512), Code::invalid_argument);
  EXPECT_EQ(code_of_io(IoKind::read, 512, 100), Code::invalid_argument);
  EXPECT_EQ(code_of_io(IoKind::read, 0, 512, 2), Code::invalid_argument);
  bench.space().first_writable = 8;
  bench.space().writable_blocks = 2;
  for (const IoKind kind : {IoKind::write, IoKind::zero, IoKind::deallocate}) {
    EXPECT_EQ(code_of_io(kind, 7 * 512, 512), Code::read_only);
    EXPECT_EQ(code_of_io(kind, 8 * 512, 3 * 512), Code::read_only);
    EXPECT_EQ(code_of_io(kind, 10 * 512, 512), Code::read_only);
    EXPECT_EQ(code_of_io(kind, 8 * 512, 1024), Code::ok);
  }
  EXPECT_EQ(code_of_io(IoKind::read, 0, 512), Code::ok);
  bench.space().writable_blocks = 0;
  EXPECT_EQ(code_of_io(IoKind::write, 8 * 512, 512), Code::read_only);
}

TEST(Controller, rings_once_for_a_batch) {
  Bench bench;
  auto queue = bench.controller().make_queue().value();
  std::vector<Io> ios;
  for (std::uint64_t i = 0; i < 64; ++i) ios.push_back(bench.io(IoKind::read, i * 512, 512, i * 512));
  EXPECT_EQ(queue->submit(ios), 64U);
  std::size_t ended = 0;
  std::array<IoDone, 64> done;
  while (ended < 64) ended += queue->poll(done);
  EXPECT_EQ(queue->state().doorbells, 1U);
  EXPECT_EQ(bench.soft().counters().commands, 64U);
  EXPECT_EQ(bench.soft().counters().doorbells, 1U);
}

TEST(Controller, serves_a_queue_for_each_of_many_threads_and_no_more_than_it_has) {
  Bench bench({.io_queues = 4});
  fill_disk(bench);
  std::vector<std::unique_ptr<IoQueue>> queues;
  for (int i = 0; i < 4; ++i) queues.push_back(bench.controller().make_queue().value());
  EXPECT_EQ(bench.controller().make_queue().error().code, Code::unsupported);
  const std::uint64_t data = bench.io(IoKind::read, 0, 0).address;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < queues.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        const std::uint64_t offset = (t * 50 + i) * 4096;
        const Io io{IoKind::read, &bench.space(), offset, 4096, data + t * 4096, i};
        IoDone done;
        ASSERT_EQ(queues[t]->submit({&io, 1}), 1U);
        while (queues[t]->poll({&done, 1}) == 0) std::this_thread::yield();
        ASSERT_EQ(done.bytes, 4096U);
        ASSERT_TRUE(holds_disk(bench, t * 4096, offset, 4096));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  queues.pop_back();
  EXPECT_TRUE(bench.controller().make_queue().ok());
}

TEST(Controller, tells_every_status_apart_from_success) {
  for (std::uint32_t type = 0; type < 8; ++type) {
    for (std::uint32_t code = type == 0 ? 1 : 0; code < 256; ++code) {
      const StatusField field = make_status(type, code);
      EXPECT_NE(code_of(field), Code::ok);
      EXPECT_FALSE(is_transient(make_status(type, code, true)));
      EXPECT_EQ(number_of(field) == EAGAIN, is_transient(field));
      EXPECT_NE(text_of(field), "");
    }
  }
  SoftFaults faults{.seed = 1, .fail = 1000, .statuses = {status::unrecovered_read}};
  Bench bench({}, faults);
  auto queue = bench.controller().make_queue().value();
  const IoDone done = bench.run(*queue, bench.io(IoKind::read, 0, 4096));
  EXPECT_EQ(done.code, Code::io_error);
  EXPECT_EQ(done.system_error, 0x10281);
  EXPECT_EQ(done.bytes, 0U);
}

// Each step of the ladder, when the ones before it don't help.
TEST(Controller, aborts_a_command_that_takes_too_long) {
  Bench bench({}, {.seed = 1, .lose = 1000});
  auto queue = bench.controller().make_queue().value();
  const IoDone done = bench.run(*queue, bench.io(IoKind::read, 0, 4096));
  EXPECT_EQ(done.system_error, EAGAIN);
  EXPECT_EQ(bench.soft().counters().aborts, 1U);
  EXPECT_EQ(bench.soft().counters().deleted_queues, 0U);
}

TEST(Controller, deletes_the_queue_of_a_command_that_can_not_be_aborted) {
  Bench bench({}, {.seed = 1, .lose = 1000, .ignores_abort = true});
  auto queue = bench.controller().make_queue().value();
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).system_error, EAGAIN);
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).system_error, EAGAIN) << "the queue was made again";
  EXPECT_EQ(bench.soft().counters().deleted_queues, 2U);
  EXPECT_EQ(bench.controller().resets(), 0U);
}

TEST(Controller, keeps_what_is_completed_while_its_queue_is_deleted) {
  ControllerOptions options = quick_options();
  options.admin_time = std::chrono::seconds(30);
  const auto hold = std::make_shared<Hold>();
  Bench bench({}, {}, options, {}, hold);
  auto queue = bench.controller().make_queue().value();
  // The queue is not deleted before the backend has done its part, and that is told.
  std::thread backend([&] {
    while (bench.soft().counters().aborts == 0 && hold->is_held()) std::this_thread::yield();
    hold->release();
  });
  const IoDone done = bench.run(*queue, bench.io(IoKind::read, 0, 4096));
  hold->release();
  backend.join();
  EXPECT_EQ(done.code, Code::ok) << done.system_error;
  EXPECT_EQ(done.bytes, 4096U);
  EXPECT_EQ(bench.soft().counters().deleted_queues, 1U);
  EXPECT_EQ(bench.controller().resets(), 0U);
}

TEST(Controller, ends_what_is_cancelled_before_a_command_of_it_was_sent) {
  ControllerOptions options = quick_options();
  options.command_time = std::chrono::seconds(60);
  options.max_transfer_bytes = 64 << 10;
  const auto hold = std::make_shared<Hold>();
  Bench bench({.max_queue_entries = 4}, {}, options, {}, hold);
  auto queue = bench.controller().make_queue().value();
  // The first has more commands than the queue takes.
  const std::array<Io, 2> ios = {bench.io(IoKind::read, 0, 1 << 20), bench.io(IoKind::read, 0, 4096, 2 << 20)};
  ASSERT_EQ(queue->submit(ios), 2U);
  ASSERT_TRUE(hold->wait_for(1));
  queue->cancel(ios[1].cookie);
  IoDone cancelled;
  EXPECT_EQ(queue->poll({&cancelled, 1}), 1U);
  EXPECT_EQ(cancelled.code, Code::cancelled);
  EXPECT_EQ(cancelled.cookie, ios[1].cookie);
  hold->release();
  EXPECT_EQ(bench.wait(*queue).bytes, 1U << 20);
}

TEST(Controller, resets_when_a_queue_can_not_be_deleted_and_gives_up_in_the_end) {
  ControllerOptions options = quick_options();
  options.admin_time = std::chrono::milliseconds(250);
  Bench bench({}, {.seed = 1, .lose = 1000, .ignores_abort = true, .ignores_delete = true}, options);
  auto queue = bench.controller().make_queue().value();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).system_error, EAGAIN);
  }
  EXPECT_EQ(bench.soft().counters().resets, 3U);
  const IoDone last = bench.run(*queue, bench.io(IoKind::read, 0, 4096));
  EXPECT_EQ(last.code, Code::io_error);
  EXPECT_NE(last.system_error, EAGAIN);
  EXPECT_NE(bench.controller().failure(), "");
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).code, Code::io_error) << "and it stays so";
  EXPECT_EQ(bench.controller().make_queue().error().code, Code::io_error);
}

TEST(Controller, isolates_what_does_not_even_obey_a_reset) {
  Bench bench({}, {.seed = 1, .lose = 1000, .ignores_abort = true, .ignores_delete = true, .ignores_disable = true});
  auto queue = bench.controller().make_queue().value();
  const IoDone done = bench.run(*queue, bench.io(IoKind::read, 0, 4096));
  EXPECT_EQ(done.code, Code::io_error);
  EXPECT_NE(done.system_error, EAGAIN);
  EXPECT_NE(bench.controller().failure(), "");
}

TEST(Controller, resets_after_a_fatal_status_and_goes_on) {
  Bench bench({}, {.seed = 1, .fatal_after = 10});
  fill_disk(bench);
  auto first = bench.controller().make_queue().value();
  auto second = bench.controller().make_queue().value();
  for (std::uint64_t i = 0; i < 30; ++i) {
    IoQueue& queue = i % 2 == 0 ? *first : *second;
    IoDone done = bench.run(queue, bench.io(IoKind::read, i * 4096, 4096));
    if (done.system_error == EAGAIN) done = bench.run(queue, bench.io(IoKind::read, i * 4096, 4096));
    ASSERT_EQ(done.bytes, 4096U);
    ASSERT_TRUE(holds_disk(bench, 0, i * 4096, 4096));
  }
  EXPECT_EQ(bench.controller().resets(), 1U);
}

TEST(Controller, notices_that_the_device_is_gone) {
  Bench bench({}, {.seed = 1, .vanish_after = 5});
  auto queue = bench.controller().make_queue().value();
  IoDone done;
  for (int i = 0; i < 6; ++i) done = bench.run(*queue, bench.io(IoKind::read, 0, 4096));
  EXPECT_EQ(done.code, Code::io_error);
  EXPECT_NE(bench.controller().failure().find("gone"), std::string::npos);
}

TEST(Controller, keeps_what_was_completed_before_the_device_was_gone) {
  Bench bench({}, {.vanish_after = 5});
  auto queue = bench.controller().make_queue().value();
  std::vector<Io> ios;
  for (std::uint64_t i = 0; i < 6; ++i) ios.push_back(bench.io(IoKind::read, i * 512, 512, i * 512));
  ASSERT_EQ(queue->submit(std::span(ios).first(5)), 5U);
  pollfd interrupt{queue->interrupt().value(), POLLIN, 0};
  ASSERT_EQ(::poll(&interrupt, 1, 30'000), 1) << "five completions";
  ASSERT_EQ(queue->submit(std::span(ios).last(1)), 1U);
  Registers registers = bench.soft().registers();
  while (registers.read32(reg::csts) != all_ones) std::this_thread::yield();
  queue->after_sleep();  // acknowledges the interrupt
  queue->after_sleep();  // looks at the controller
  ASSERT_NE(bench.controller().failure(), "") << "given up before the completions were looked at";
  std::uint32_t good = 0;
  std::uint32_t failed = 0;
  while (good + failed < 6) ++(Bench::wait(*queue).code == Code::ok ? good : failed);
  EXPECT_EQ(good, 5U);
}

// All ones may come from the bus: memory is given back only if the transport says that the device can't reach it.
TEST(Controller, keeps_the_memory_of_a_device_that_is_gone_and_can_not_be_isolated) {
  Bench bench({}, {.vanish_after = 1}, quick_options(), {.can_isolate = false});
  auto queue = bench.controller().make_queue().value();
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).code, Code::ok);
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).code, Code::timed_out);
  EXPECT_TRUE(queue->is_stuck());
  const int mapped = bench.way().mapped();
  queue.reset();
  EXPECT_EQ(bench.way().mapped(), mapped);
  Way& way = bench.way();
  auto controller = bench.release_controller();
  EXPECT_TRUE(controller->is_unstoppable());
  controller.reset();
  EXPECT_EQ(way.mapped(), mapped);
}

TEST(Controller, leaves_everything_to_one_that_nothing_stops) {
  Bench bench({}, {.lose = 1000, .ignores_abort = true, .ignores_delete = true, .ignores_disable = true},
              quick_options(), {.can_isolate = false});
  auto queue = bench.controller().make_queue().value();
  EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).code, Code::timed_out);
  ASSERT_TRUE(queue->is_stuck());
  EXPECT_EQ(queue->in_flight(), 1U) << "its memory is not the caller's yet";
  EXPECT_EQ(queue->next_deadline(), TimePoint::max()) << "there is nothing to wait for";
  const Io another = bench.io(IoKind::read, 0, 4096);
  ASSERT_EQ(queue->submit({&another, 1}), 1U);
  const IoDone refused = Bench::wait(*queue);
  EXPECT_EQ(refused.cookie, another.cookie) << "what the controller never heard of comes back";
  EXPECT_EQ(refused.code, Code::io_error);
  EXPECT_NE(refused.system_error, EAGAIN);
  EXPECT_EQ(bench.controller().make_queue().error().code, Code::io_error);
  const int mapped = bench.way().mapped();
  queue.reset();
  EXPECT_EQ(bench.way().mapped(), mapped);
}

// In software that is a file whose disk does not answer.
TEST(Controller, does_not_wait_for_ever_for_a_backend_that_hangs) {
  const auto hold = std::make_shared<Hold>();
  SoftShape shape;
  shape.stop_time = std::chrono::milliseconds(20);
  ControllerOptions options = quick_options();
  options.command_time = options.admin_time = options.ready_time = std::chrono::milliseconds(500);
  {
    Bench bench(shape, {}, options, {}, hold);
    auto queue = bench.controller().make_queue().value();
    EXPECT_EQ(bench.run(*queue, bench.io(IoKind::read, 0, 4096)).code, Code::timed_out);
    EXPECT_TRUE(queue->is_stuck());
  }
  // The thread is left behind, with all that it uses, until the disk answers.
  hold->release();
  EXPECT_TRUE(hold->wait_until_gone());
}

TEST(Controller, takes_back_a_pair_that_was_half_made) {
  Bench refuses({}, {.refused_queues = 1});
  EXPECT_FALSE(refuses.controller().make_queue().ok());
  EXPECT_EQ(refuses.controller().resets(), 0U);
  auto queue = refuses.controller().make_queue().value();
  EXPECT_EQ(refuses.run(*queue, refuses.io(IoKind::read, 0, 4096)).code, Code::ok);
  queue.reset();
  // Its completion queue can't be deleted either: only a reset makes the memory ours again.
  Bench keeps({}, {.refused_queues = 1, .refuses_delete = true});
  EXPECT_FALSE(keeps.controller().make_queue().ok());
  EXPECT_EQ(keeps.controller().resets(), 1U);
  auto again = keeps.controller().make_queue().value();
  EXPECT_EQ(keeps.run(*again, keeps.io(IoKind::read, 0, 4096)).code, Code::ok);
}

TEST(Controller, rings_no_doorbell_beyond_the_registers) {
  constexpr std::uint32_t stride_exponent = 10;
  constexpr std::size_t stride = 4U << stride_exponent;
  const SoftShape shape{.doorbell_stride = stride_exponent, .io_queues = 8};
  Bench two(shape, {}, quick_options(), {.register_bytes = reg::doorbells + 5 * stride + 4});
  EXPECT_EQ(two.controller().info().io_queues, 2U);
  auto first = two.controller().make_queue().value();
  auto second = two.controller().make_queue().value();
  EXPECT_EQ(two.run(*second, two.io(IoKind::read, 0, 4096)).code, Code::ok);
  for (const std::size_t bytes : {std::size_t{reg::doorbells + 8}, reg::doorbells + 3 * stride}) {
    const Bench none(shape, {}, quick_options(), {.register_bytes = bytes});
    EXPECT_EQ(none.error().code, Code::unsupported) << bytes;
  }
}

TEST(Controller, waits_for_one_that_is_starting_before_it_resets_it) {
  const Bench bench({}, {.starting_at_first = true});
  EXPECT_EQ(bench.error().message, "");
}

TEST(Controller, resets_one_that_starts_with_a_fatal_status_but_not_for_ever) {
  Bench once({}, {.fatal_starts = 1});
  ASSERT_EQ(once.error().message, "");
  auto queue = once.controller().make_queue().value();
  EXPECT_EQ(once.run(*queue, once.io(IoKind::read, 0, 4096)).code, Code::ok);
  const Bench always({}, {.fatal_starts = 100});
  EXPECT_EQ(always.error().code, Code::io_error);
  EXPECT_NE(always.error().message.find("fatal"), std::string::npos);
}

TEST(Controller, refuses_one_that_never_becomes_ready) {
  const Bench bench({}, {.never_ready = true});
  EXPECT_EQ(bench.error().code, Code::timed_out);
}

// What identify tells may be anything; no lie may lead to worse than an error.
TEST(Controller, survives_lies_in_every_field_of_identify) {
  const auto with_lie = [](std::uint32_t lying_cns, std::size_t at, std::uint8_t value) {
    SoftShape shape;
    shape.alter_identify = [=](std::uint32_t cns, std::byte* data) {
      if (cns == lying_cns) data[at] = static_cast<std::byte>(value);
    };
    return shape;
  };
  struct Fields {
    std::uint32_t cns;
    std::size_t begin, end;
  };
  // Those that a driver looks at, all around them.
  const Fields fields[] = {{identify_controller, 2, 6},     {identify_controller, 62, 84},
                           {identify_controller, 510, 528}, {identify_namespace, 0, 32},
                           {identify_namespace, 126, 134},  {identify_active_namespaces, 0, 8},
                           {identify_command_set, 0, 17}};
  for (const auto& [cns, begin, end] : fields) {
    for (std::size_t at = begin; at < end; ++at) {
      Bench bench(with_lie(cns, at, 0xff));
      if (bench.error().message.empty() && bench.space().info.size_blocks != 0) {
        auto queue = bench.controller().make_queue().value();
        const std::uint64_t block = bench.space().info.block_bytes;
        (void)bench.run(*queue, bench.io(IoKind::read, bench.space().info.size_bytes() - block, block));
      }
    }
  }
}

// The bytes that came before, of the list of namespaces, would do for one of a block of 512 bytes.
TEST(Controller, takes_nothing_for_identify_data_that_was_there_before) {
  SoftShape shape;
  shape.alter_identify = [](std::uint32_t cns, std::byte* data) {
    if (cns == identify_active_namespaces) data[offsetof(IdentifyNamespace, formats) + 2] = std::byte{9};
  };
  Bench bench(shape, {.untold_namespaces = true});
  ASSERT_EQ(bench.error().message, "");
  EXPECT_FALSE(bench.controller().find_namespace(1).ok());
}

TEST(Controller, refuses_a_namespace_whose_bytes_can_not_be_counted) {
  const auto has_namespace = [](std::uint64_t blocks) {
    SoftShape shape;
    shape.alter_identify = [blocks](std::uint32_t cns, std::byte* data) {
      if (cns == identify_namespace) std::memcpy(data, &blocks, sizeof blocks);
    };
    Bench bench(shape);
    return bench.controller().find_namespace(1).ok();
  };
  EXPECT_TRUE(has_namespace((std::uint64_t{1} << 54) - 1));
  EXPECT_FALSE(has_namespace(std::uint64_t{1} << 54)) << "of 512 bytes: an offset has 63 bits";
  EXPECT_FALSE(has_namespace(std::uint64_t{1} << 55));
  EXPECT_FALSE(has_namespace(0));
}

TEST(Controller, refuses_namespaces_with_metadata_or_protection) {
  const auto refusal = [](std::size_t at, std::uint8_t value) {
    SoftShape shape;
    shape.alter_identify = [=](std::uint32_t cns, std::byte* data) {
      if (cns == identify_namespace) data[at] = static_cast<std::byte>(value);
    };
    const Bench bench(shape);
    return const_cast<Bench&>(bench).controller().find_namespace(1).error().message;
  };
  EXPECT_NE(refusal(128, 8).find("metadata"), std::string::npos);
  EXPECT_NE(refusal(29, 1).find("protection"), std::string::npos);
  EXPECT_NE(refusal(130, 20).find("size"), std::string::npos);
}

// Each command of a batch is completed, as failed, when the one before it is fetched.
TEST(Controller, believes_no_completion_of_a_command_that_was_not_fetched) {
  Bench bench({}, {.seed = 1, .unfetched = 1000});
  fill_disk(bench);
  auto queue = bench.controller().make_queue().value();
  constexpr std::uint64_t count = 64;
  std::vector<Io> ios;
  for (std::uint64_t i = 0; i < count; ++i) ios.push_back(bench.io(IoKind::read, i * 512, 512, i * 512));
  ASSERT_EQ(queue->submit(ios), count);
  for (std::uint64_t i = 0; i < count; ++i) EXPECT_EQ(Bench::wait(*queue).code, Code::ok);
  EXPECT_TRUE(holds_disk(bench, 0, 0, count * 512));
  EXPECT_EQ(queue->state().strange_completions, count);
}

// As firmware does that notes the head when it fetches a command, and completes later ones first.
TEST(Controller, takes_heads_that_are_out_of_order) {
  Bench bench({}, {.seed = 1, .shuffle = 500, .old_head = 1000});
  fill_disk(bench);
  auto queue = bench.controller().make_queue().value();
  for (std::uint64_t round = 0; round < 10; ++round) {
    constexpr std::uint64_t count = 64;
    std::vector<Io> ios;
    for (std::uint64_t i = 0; i < count; ++i) ios.push_back(bench.io(IoKind::read, i * 512, 512, i * 512));
    ASSERT_EQ(queue->submit(ios), count);
    for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(Bench::wait(*queue).code, Code::ok);
  }
  EXPECT_EQ(queue->state().strange_completions, 0U);
  EXPECT_EQ(bench.controller().resets(), 0U);
}

// A seeded run with every fault at once: every operation comes back once, and with the right bytes.
TEST(Controller, loses_and_duplicates_nothing_under_seeded_faults) {
  SoftFaults faults{.seed = 7,
                    .delay = 20,
                    .shuffle = 200,
                    .lose = 1,
                    .duplicate = 30,
                    .unknown = 20,
                    .unfetched = 20,
                    .old_head = 100,
                    .fail = 30};
  faults.statuses = {status::internal_error, status::data_transfer_error, status::namespace_not_ready};
  faults.max_delay = std::chrono::microseconds(100);
  ControllerOptions options = quick_options();
  options.queue_entries = 16;
  options.command_time = std::chrono::milliseconds(20);
  Bench bench({}, faults, options);
  fill_disk(bench);
  auto queue = bench.controller().make_queue().value();
  constexpr std::uint64_t operations = 5'000;
  constexpr std::size_t depth = 12;
  std::mt19937_64 random(7);
  std::vector<Io> slots(depth);
  std::vector<bool> busy(depth, false);
  std::uint64_t started = 0;
  std::uint64_t ended = 0;
  std::vector<std::size_t> again;
  const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
  while (ended < operations && Clock::now() < deadline) {
    for (std::size_t slot = 0; slot < depth && started < operations; ++slot) {
      if (busy[slot]) continue;
      const std::uint64_t blocks = 1 + random() % 16;
      slots[slot] = bench.io(IoKind::read, random() % 10'000 * 512, blocks * 512, slot * 8192);
      slots[slot].cookie = slot;
      ASSERT_EQ(queue->submit({&slots[slot], 1}), 1U);
      busy[slot] = true;
      ++started;
    }
    std::array<IoDone, depth> done;
    const std::size_t count = queue->poll(done);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t slot = done[i].cookie;
      ASSERT_LT(slot, depth);
      ASSERT_TRUE(busy[slot]) << "came back twice";
      if (done[i].system_error == EAGAIN) {
        ASSERT_EQ(queue->submit({&slots[slot], 1}), 1U);
        continue;
      }
      ASSERT_EQ(done[i].code, Code::ok);
      ASSERT_EQ(done[i].bytes, slots[slot].length);
      ASSERT_TRUE(holds_disk(bench, slot * 8192, slots[slot].offset, slots[slot].length));
      busy[slot] = false;
      ++ended;
    }
    if (count == 0) std::this_thread::yield();
  }
  EXPECT_EQ(ended, operations);
  EXPECT_GT(queue->state().strange_completions, 0U);
  EXPECT_GT(bench.soft().counters().aborts, 0U);
}

}  // namespace
}  // namespace penstock::nvme
