// Places in streams where the GPU asks and the CPU answers.
#include <atomic>
#include <cstring>
#include <numeric>

#include "gpu/stream_order_test.h"

namespace penstock::test {
namespace {

class Meetings : public InStreamOrder {
 protected:
  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    if (gpu().api().stream_wait_value == nullptr) GTEST_SKIP() << "the driver has no waits for words";
    context_.emplace(make_context());
    ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
    stream_ = make_stream(cuda::cu_stream_non_blocking);
  }
  std::optional<Context> context_;
  cuda::CuStream stream_ = nullptr;
};

TEST_F(Meetings, bring_what_is_asked_to_the_cpu_and_the_answer_back) {
  const Buffer pinned = context_->allocate(Domain::pinned(), 4096).value();
  const Buffer memory = context_->allocate(Domain::cuda(0), 4096).value();
  auto* const words = reinterpret_cast<std::uint32_t*>(pinned.data());
  const std::uint64_t address = gpu_address(Domain::cuda(0), pinned.data()).value();
  const auto on_gpu = reinterpret_cast<std::uint64_t>(memory.data());
  Rendezvous meeting = Rendezvous::make(Domain::cuda(0), [&](const Crew&) { words[1] = words[0] + 1; }).value();
  std::array<std::uint32_t, 2> values = {1, 0};
  fill(memory.region().part(0, 8), std::as_bytes(std::span(values)));
  // Each answer is the next question.
  const std::array<GpuCopy, 1> question = {{{on_gpu, address, 4}}};
  const std::array<GpuCopy, 2> answer = {{{address + 4, on_gpu, 4}, {address + 4, on_gpu + 4, 4}}};
  for (std::uint32_t round = 1; round <= 20; ++round) {
    ASSERT_TRUE(meeting.enqueue({stream_}, question, answer).ok());
    ASSERT_EQ(wait_for(stream_), cuda::cu_success);
    EXPECT_TRUE(meeting.is_idle());
    EXPECT_EQ(meeting.rounds(), round);
    const auto bytes = bytes_of(memory.region().part(0, 8));
    std::memcpy(values.data(), bytes.data(), 8);
    EXPECT_EQ(values[0], round + 1);
    EXPECT_EQ(values[1], round + 1);
  }
}

TEST_F(Meetings, have_kernels_in_place_of_copies) {
  if (gpu().kernels().find("scatter") == nullptr) GTEST_SKIP() << "there are no kernels";
  const Buffer pinned = context_->allocate(Domain::pinned(), 4096).value();
  const Buffer memory = context_->allocate(Domain::cuda(0), 4096).value();
  const std::uint64_t address = gpu_address(Domain::cuda(0), pinned.data()).value();
  const auto on_gpu = reinterpret_cast<std::uint64_t>(memory.data());
  auto* const words = reinterpret_cast<std::uint32_t*>(pinned.data());
  auto* const copies = reinterpret_cast<GpuCopy*>(pinned.data() + 64);
  copies[0] = {on_gpu, address, 4};
  copies[1] = {address + 4, on_gpu, 4};
  Rendezvous meeting = Rendezvous::make(Domain::cuda(0), [&](const Crew&) { words[1] = words[0] + 1; }).value();
  std::uint32_t value = 41;
  fill(memory.region().part(0, 4), std::as_bytes(std::span(&value, 1)));
  const GpuKernel question{"scatter", address + 64, 1};
  const GpuKernel answer{"scatter", address + 64 + sizeof(GpuCopy), 1};
  ASSERT_TRUE(meeting.enqueue_kernels({stream_}, question, answer).ok());
  ASSERT_EQ(wait_for(stream_), cuda::cu_success);
  std::memcpy(&value, bytes_of(memory.region().part(0, 4)).data(), 4);
  EXPECT_EQ(value, 42U);
  const Status unknown = meeting.enqueue_kernels({stream_}, question, {"gather", 0, 0});
  EXPECT_EQ(unknown.error().code, Code::unsupported);
  EXPECT_NE(unknown.error().message.find("gather"), std::string::npos) << unknown.error().message;
  EXPECT_EQ(Rendezvous().enqueue_kernels({stream_}, question, answer).error().code, Code::invalid_argument);
  Blocker earlier(gpu(), stream_);
  ASSERT_TRUE(meeting.enqueue_kernels({stream_}, question, answer).ok());
  EXPECT_EQ(meeting.enqueue_kernels({stream_}, question, answer).error().code, Code::invalid_argument)
      << "one at a time";
  earlier.let_go();
  EXPECT_EQ(wait_for(stream_), cuda::cu_success);
}

TEST_F(Meetings, have_one_round_at_a_time) {
  Rendezvous meeting = Rendezvous::make(Domain::cuda(0), [](const Crew&) {}).value();
  Blocker earlier(gpu(), stream_);
  ASSERT_TRUE(meeting.enqueue({stream_}, {}, {}).ok());
  EXPECT_FALSE(meeting.is_idle());
  EXPECT_EQ(meeting.enqueue({stream_}, {}, {}).error().code, Code::invalid_argument);
  earlier.let_go();
  EXPECT_EQ(wait_for(stream_), cuda::cu_success);
  EXPECT_TRUE(meeting.enqueue({stream_}, {}, {}).ok());
  EXPECT_EQ(wait_for(stream_), cuda::cu_success);
  EXPECT_EQ(meeting.rounds(), 2U);
}

TEST_F(Meetings, that_nobody_holds_any_more_are_still_kept) {
  std::atomic<int> answered{0};
  Blocker earlier(gpu(), stream_);
  {
    Rendezvous meeting = Rendezvous::make(Domain::cuda(0), [&](const Crew&) { ++answered; }).value();
    ASSERT_TRUE(meeting.enqueue({stream_}, {}, {}).ok());
  }
  EXPECT_EQ(answered, 0);
  earlier.let_go();
  EXPECT_EQ(wait_for(stream_), cuda::cu_success);
  EXPECT_EQ(answered, 1);
}

TEST_F(Meetings, are_answered_by_a_crew_that_does_each_part_once) {
  std::vector<std::atomic<int>> parts(1000);
  const auto share = [&](const Crew& crew) {
    crew.share(0, [](std::size_t) { FAIL(); });
    crew.share(parts.size(), [&](std::size_t i) { ++parts[i]; });
  };
  Rendezvous meeting = Rendezvous::make(Domain::cuda(0), share).value();
  for (int round = 1; round <= 10; ++round) {
    ASSERT_TRUE(meeting.enqueue({stream_}, {}, {}).ok());
    ASSERT_EQ(wait_for(stream_), cuda::cu_success);
    for (const auto& part : parts) ASSERT_EQ(part, round);
  }
}

TEST_F(Meetings, that_make_no_sense_are_refused) {
  const auto answer = [](const Crew&) {};
  EXPECT_EQ(Rendezvous::make(Domain::host(), answer).error().code, Code::invalid_argument);
  EXPECT_EQ(Rendezvous::make(Domain::cuda(0), nullptr).error().code, Code::invalid_argument);
  EXPECT_EQ(Rendezvous::make(Domain::cuda(99), answer).error().code, Code::no_device);
  Rendezvous meeting = Rendezvous::make(Domain::cuda(0), answer).value();
  const std::vector<GpuCopy> many(Rendezvous::copies_limit + 1);
  EXPECT_EQ(meeting.enqueue({stream_}, many, {}).error().code, Code::invalid_argument);
  EXPECT_EQ(meeting.enqueue({stream_}, {}, many).error().code, Code::invalid_argument);
  const Rendezvous moved = std::move(meeting);
  EXPECT_EQ(meeting.enqueue({stream_}, {}, {}).error().code, Code::invalid_argument);
  EXPECT_TRUE(meeting.is_idle() && moved.is_idle());
  EXPECT_EQ(meeting.rounds(), 0U);
}

}  // namespace
}  // namespace penstock::test
