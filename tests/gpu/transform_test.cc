// Ranges whose bytes are made of what is stored, in GPU memory: by kernels, or by the CPU.
#include <atomic>

#include "gpu/gpu_test.h"
#include "penstock/cuda.h"
#include "support/echo.h"

namespace penstock::test {
namespace {

class TransformedOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    options_.lanes = 2;
    options_.staging_slot_bytes = 1 << 20;
  }
  void open(const EchoFile& file) {
    write_file(folder_.path("file"), file.bytes);
    context_.emplace(make_context());
    store_ = context_->open(folder_.path("file")).value();
    memory_ = context_->allocate(Domain::cuda(0), file.memory_bytes()).value();
    file.add_ranges(store_, echo_, memory_.region(), stored_, ranges_);
  }
  void expect_content(const EchoFile& file, std::optional<std::size_t> but = std::nullopt) {
    const auto bytes = bytes_of(memory_.region());
    for (std::size_t i = 0, at = 0; i < ranges_.size(); at += file.expected[i++].size()) {
      const bool is_there = same_bytes(file.expected[i], std::span(bytes).subspan(at, file.expected[i].size()));
      EXPECT_TRUE(i == but || is_there) << i;
    }
  }

  const std::vector<std::uint64_t> lengths_ = {5, 4096, 100'000, 777, 600'000, 300'001, 64, 8192, 599'999, 4097};
  const std::shared_ptr<Echo> echo_ = std::make_shared<Echo>();
  std::optional<Context> context_;
  Store store_;
  Buffer memory_;
  std::vector<Stored> stored_;
  std::vector<Range> ranges_;
};

TEST_F(TransformedOnGpu, is_made_by_kernels_where_there_are_some_and_else_by_the_cpu) {
  for (const bool has_kernels : {true, false}) {
    SCOPED_TRACE(has_kernels);
    echo_->has_kernels = has_kernels;
    stored_.clear();
    ranges_.clear();
    const EchoFile file(77, lengths_);
    open(file);
    const Report report = context_->transfer(Direction::read, ranges_);
    ASSERT_TRUE(report.ok()) << report.error->message;
    expect_content(file);
    EXPECT_EQ(report.bytes, file.memory_bytes());
    EXPECT_EQ(report.stored_bytes, file.stored_bytes());
    EXPECT_EQ(echo_->by_gpu_count, static_cast<int>(lengths_.size()));
    EXPECT_EQ(echo_->by_cpu_count, has_kernels ? 0 : static_cast<int>(lengths_.size()));
  }
}

TEST_F(TransformedOnGpu, fails_by_what_a_kernel_writes) {
  for (const bool has_kernels : {true, false}) {
    echo_->has_kernels = has_kernels;
    stored_.clear();
    ranges_.clear();
    EchoFile file(0, lengths_);
    file.damage(4, std::byte{3});
    open(file);
    const Report report = context_->transfer(Direction::read, ranges_);
    ASSERT_EQ(report.outcome, Outcome::failed);
    EXPECT_NE(report.error->message.find("piece 4 can't be transformed: status 3"), std::string::npos)
        << report.error->message;
    EXPECT_EQ(report.failure_count, 1U);
    expect_content(file, 4);
  }
}

TEST_F(TransformedOnGpu, fails_where_kernels_can_not_be_started) {
  echo_->has_kernels = true;
  echo_->refuses = true;
  const EchoFile file(0, lengths_);
  open(file);
  const Report report = context_->transfer(Direction::read, ranges_);
  ASSERT_EQ(report.outcome, Outcome::failed);
  EXPECT_NE(report.error->message.find("no kernel today"), std::string::npos) << report.error->message;
  EXPECT_EQ(report.failure_count, lengths_.size());
}

TEST_F(TransformedOnGpu, needs_no_kernel_while_a_stream_waits) {
  echo_->has_kernels = true;
  const EchoFile file(0, lengths_);
  open(file);
  ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
  const Ticket ticket =
      context_->submit(Direction::read, ranges_, {.stream = CudaStream{make_stream(cuda::cu_stream_non_blocking)}})
          .value();
  ASSERT_EQ(ticket.wait(), Outcome::done);
  expect_content(file);
  EXPECT_EQ(echo_->by_gpu_count, 0);
}

TEST_F(TransformedOnGpu, is_read_over_the_bus_where_there_is_no_room_for_the_scratch) {
  echo_->has_kernels = true;
  const EchoFile file(0, lengths_);
  options_.device_budget_bytes = file.memory_bytes() + (256 << 10);
  open(file);
  const Report report = context_->transfer(Direction::read, ranges_);
  ASSERT_TRUE(report.ok()) << report.error->message;
  expect_content(file);
  EXPECT_EQ(echo_->by_gpu_count, static_cast<int>(lengths_.size()));
}

TEST_F(TransformedOnGpu, has_32_mib_of_scratch_at_the_most) {
  PENSTOCK_NEEDS_FAKE();
  echo_->has_kernels = true;
  options_.lanes = 6;
  options_.staging_slot_bytes = 8 << 20;
  const EchoFile file(0, std::vector<std::uint64_t>(60, 300'000));
  open(file);
  const auto free_bytes = [&] {
    const cuda::Current current(gpu());
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(gpu().api().memory_get_info(&free, &total), cuda::cu_success);
    return free;
  };
  const std::size_t before = free_bytes();
  const Report report = context_->transfer(Direction::read, ranges_);
  ASSERT_TRUE(report.ok()) << report.error->message;
  expect_content(file);
  EXPECT_EQ(echo_->by_gpu_count, 60);
  EXPECT_LE(before - free_bytes(), 32 * mib);
}

TEST_F(TransformedOnGpu, is_left_to_the_same_eight_lanes_in_every_request) {
  echo_->has_kernels = true;
  options_.lanes = 12;
  const EchoFile file(0, std::vector<std::uint64_t>(120, 300'000));
  open(file);
  for (int i = 0; i < 3; ++i) {
    const Report report = context_->transfer(Direction::read, ranges_);
    ASSERT_TRUE(report.ok()) << report.error->message;
  }
  EXPECT_EQ(echo_->by_gpu_count, 3 * 120);
  EXPECT_LE(echo_->lanes.size(), 8U);
}

TEST_F(TransformedOnGpu, is_made_by_the_cpu_where_kernels_reach_no_stored_bytes) {
  PENSTOCK_NEEDS_FAKE();
  echo_->has_kernels = true;
  const EchoFile file(0, lengths_);
  options_.device_budget_bytes = file.memory_bytes() + (256 << 10);
  fake_->fail_call("cuMemHostRegister_v2", 1, cuda::cu_out_of_memory, 1);
  open(file);
  const Report report = context_->transfer(Direction::read, ranges_);
  ASSERT_TRUE(report.ok()) << report.error->message;
  expect_content(file);
  EXPECT_EQ(echo_->by_gpu_count, 0);
}

TEST_F(TransformedOnGpu, leaves_words_alone_that_streams_still_look_at) {
  PENSTOCK_NEEDS_FAKE();
  echo_->has_kernels = true;
  const EchoFile file(0, lengths_);
  open(file);
  ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
  const cuda::CuStream stream = make_stream(cuda::cu_stream_non_blocking);
  Buffer pinned = context_->allocate(Domain::pinned(), 4096).value();
  auto* const word = reinterpret_cast<std::atomic<std::uint32_t>*>(pinned.data());
  *word = 0;
  {
    // Work of the program's own, for as long as it likes.
    const cuda::Current current(gpu());
    const std::uint64_t address = gpu_address(Domain::cuda(0), pinned.data()).value();
    ASSERT_EQ(gpu().api().stream_wait_value(stream, address, 1, cuda::cu_wait_value_geq), cuda::cu_success);
  }
  const Range plain{&store_, 0, memory_.region().part(0, 4096)};
  Ticket ordered = context_->submit(Direction::read, {&plain, 1}, {.stream = CudaStream{stream}}).value();
  EXPECT_EQ(ordered.cancel(), Outcome::cancelled);
  // What the stream will wait for has been let go of, and is used again.
  ASSERT_TRUE(context_->transfer(Direction::read, ranges_).ok());
  EXPECT_GT(echo_->by_gpu_count, 0);
  const Standing standing = context_
                                ->stand_by(Direction::read, Domain::cuda(0),
                                           []() -> Result<std::vector<Range>> { return std::vector<Range>{}; })
                                .value();
  *word = 1;
  const cuda::Current current(gpu());
  EXPECT_EQ(driver_->api().stream_synchronize(stream), cuda::cu_success);
}

TEST_F(TransformedOnGpu, releases_its_staging_memory_where_no_word_is_left_for_a_kernel) {
  PENSTOCK_NEEDS_FAKE();
  using cuda::ControlMemory;
  echo_->has_kernels = true;
  options_.lanes = 1;
  options_.staging_slots_per_lane = 1;
  const EchoFile file(0, {200'000});
  open(file);
  const RequestOptions soon{.deadline_seconds = 20};
  const Report first = context_->transfer(Direction::read, ranges_, soon);
  ASSERT_TRUE(first.ok()) << first.error->message;
  std::vector<ControlMemory::Cell> all;
  fake_->fail_call("cuMemHostRegister_v2", 1, cuda::cu_out_of_memory, 1);
  while (const auto cell = ControlMemory::of_process().take(gpu(), ControlMemory::other_word_bytes)) {
    all.push_back(*cell);
  }
  for (int i = 0; i < 6; ++i) {
    const Report report = context_->transfer(Direction::read, ranges_, soon);
    ASSERT_EQ(report.outcome, Outcome::failed);
    EXPECT_NE(report.error->message.find("register control memory"), std::string::npos) << report.error->message;
  }
  fake_->clear_injections();
  for (const ControlMemory::Cell& cell : all) ControlMemory::of_process().give_back(cell);
  const Report report = context_->transfer(Direction::read, ranges_, soon);
  ASSERT_TRUE(report.ok()) << report.error->message;
  expect_content(file);
}

TEST_F(TransformedOnGpu, touches_no_request_that_is_gone) {
  PENSTOCK_NEEDS_FAKE();
  echo_->has_kernels = true;
  options_.deadlines.cancel_grace_seconds = 0.05;
  const EchoFile file(0, lengths_);
  open(file);
  ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
  fake_->hang(0, 1);
  const Report report = past_deadline(
      [&](double seconds) { return context_->transfer(Direction::read, ranges_, {.deadline_seconds = seconds}); });
  EXPECT_EQ(report.outcome, Outcome::abandoned);
  memory_ = Buffer();
  fake_->hang(0, 0);
  EXPECT_TRUE(eventually([&] { return context_->statistics().quarantined_bytes == 0; }));
}

}  // namespace
}  // namespace penstock::test
