// Without memory on threads of the library's own, requests to and from GPU memory end, and so do the waits of streams.
#include <atomic>

#include "gpu/stream_order_test.h"
#include "integration/without_memory.h"
#include "penstock/cuda.h"
#include "support/echo.h"

namespace penstock::test {
namespace {

using Which = FailingAllocation::Which;

class GpuWithoutMemory : public InStreamOrder, public testing::WithParamInterface<Which> {
 protected:
  static constexpr std::size_t file_bytes = 3 << 19;

  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    PENSTOCK_NEEDS_FAKE();
    FailingAllocation::spare(fake_->is_inside);
    write_file(path_, content(1, 0, file_bytes));
  }
  void TearDown() override {
    FailingAllocation::spare(nullptr);
    InStreamOrder::TearDown();
  }

  // Each time in a Context of its own, whose lanes go on.
  int try_every_allocation(std::set<Code> with_memory, std::function<Code()> action) {
    const auto begin = [&] {
      context_.emplace(make_context());
      store_ = context_->open(path_).value();
      memory_ = context_->allocate(Domain::cuda(0), file_bytes).value();
    };
    const auto end = [&] {
      const Report report = context_->read(store_, 0, memory_.region());
      EXPECT_TRUE(report.ok()) << report.error->message;
      EXPECT_TRUE(holds_content(bytes_of(memory_.region()), 1, 0));
      memory_ = {};
      store_ = {};
      context_.reset();
    };
    return try_every_allocation_elsewhere({.which = GetParam(),
                                           .with_memory = std::move(with_memory),
                                           .before = begin,
                                           .action = std::move(action),
                                           .after = end});
  }
  std::vector<Range> ranges_of(std::size_t count) const {
    std::vector<Range> ranges;
    const std::size_t each = file_bytes / count;
    for (std::size_t i = 0; i < count; ++i)
      ranges.push_back({&store_, i * each, memory_.region().part(i * each, each)});
    return ranges;
  }

  const std::string path_ = folder_.path("file");
  std::optional<Context> context_;
  Store store_;
  Buffer memory_;
};

INSTANTIATE_TEST_SUITE_P(Allocations, GpuWithoutMemory, testing::Values(Which::one, Which::all),
                         [](const auto& which) { return which.param == Which::one ? "one_fails" : "all_fail"; });

TEST_P(GpuWithoutMemory, reads_end) {
  EXPECT_GT(try_every_allocation({Code::ok},
                                 [&] {
                                   evict(path_);
                                   warm(path_, file_bytes / 3);
                                   return carry_out(*context_, Direction::read, ranges_of(3));
                                 }),
            0);
  EXPECT_GT(try_every_allocation({Code::ok}, [&] { return carry_out(*context_, Direction::read, ranges_of(96)); }), 0);
}

TEST_P(GpuWithoutMemory, writes_end) {
  EXPECT_GT(try_every_allocation({Code::ok},
                                 [&] {
                                   const std::string path = folder_.path("written");
                                   const Store written = context_->open(path, {.access = Access::create}).value();
                                   const Range range{&written, 77, memory_.region()};
                                   return carry_out(*context_, Direction::write, {&range, 1}, {.durable = true});
                                 }),
            0);
}

TEST_P(GpuWithoutMemory, copies_that_fail_are_told) {
  try_every_allocation({Code::device_error}, [&] {
    fake_->fail_call("cuMemcpyHtoDAsync_v2", 1, cuda::cu_invalid_value, 1);
    const Code code = carry_out(*context_, Direction::read, ranges_of(3));
    fake_->clear_injections();
    return code;
  });
}

TEST_P(GpuWithoutMemory, transforms_make_what_they_can) {
  const EchoFile file(123, {5, 4096, 100'000, 300'001, 8192});
  write_file(folder_.path("stored"), file.bytes);
  options_.staging_slot_bytes = 1 << 20;
  for (const bool has_kernels : {true, false}) {
    const int refused = try_every_allocation({Code::ok}, [&] {
      const Store stored_in = context_->open(folder_.path("stored")).value();
      const auto echo = std::make_shared<Echo>();
      echo->has_kernels = has_kernels;
      std::vector<Stored> stored;
      std::vector<Range> ranges;
      file.add_ranges(stored_in, echo, memory_.region(), stored, ranges);
      return carry_out(*context_, Direction::read, ranges);
    });
    EXPECT_GT(refused, 0);
  }
}

TEST_P(GpuWithoutMemory, buffers_that_are_gone_are_freed) {
  try_every_allocation({Code::ok}, [&] {
    Buffer pinned = context_->allocate(Domain::pinned(), file_bytes).value();
    const Range range{&store_, 0, pinned.region()};
    const Ticket ticket = context_->submit(Direction::read, {&range, 1}).value();
    pinned = {};
    EXPECT_TRUE(ticket.wait_for(std::chrono::seconds(20)));
    return told_by(ticket.report());
  });
}

TEST_P(GpuWithoutMemory, streams_go_on_behind_requests) {
  cuda::CuStream const stream = make_stream(cuda::cu_stream_non_blocking);
  EXPECT_GT(try_every_allocation({Code::ok},
                                 [&] {
                                   Blocker blocker(gpu(), stream);  // so that it is the gate's thread that begins it
                                   const Ticket ticket =
                                       read_in_order(*context_, store_, memory_.region(), stream).value();
                                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                   blocker.let_go();
                                   EXPECT_EQ(wait_for(stream), cuda::cu_success);
                                   EXPECT_TRUE(ticket.wait_for(std::chrono::seconds(20)));
                                   return told_by(ticket.report());
                                 }),
            0);
}

TEST_P(GpuWithoutMemory, streams_go_on_behind_rounds) {
  cuda::CuStream const stream = make_stream(cuda::cu_stream_non_blocking);
  EXPECT_GT(try_every_allocation({Code::ok},
                                 [&] {
                                   const auto source = [&]() -> Result<std::vector<Range>> {
                                     return std::vector<Range>{{&store_, 0, memory_.region()}};
                                   };
                                   Standing standing =
                                       context_->stand_by(Direction::read, Domain::cuda(0), source).value();
                                   EXPECT_TRUE(standing.enqueue({stream}).ok());
                                   EXPECT_EQ(wait_for(stream), cuda::cu_success);
                                   return told_by(standing.report());
                                 }),
            0);
}

}  // namespace
}  // namespace penstock::test
