// Requests that streams begin by a word and wait for by another, and those whose ranges are known only when they begin.
#include "gpu/stream_order_test.h"
#include "support/echo.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

class StandingBy : public InStreamOrder {
 protected:
  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    stream_ = make_stream(cuda::cu_stream_non_blocking);
  }
  // In each round another part of the file.
  RangeSource next_part(const Store& store, Region memory) {
    return [this, &store, memory]() -> Result<std::vector<Range>> {
      return std::vector<Range>{{&store, part_++ * 1000, memory}};
    };
  }

  cuda::CuStream stream_ = nullptr;
  std::atomic<std::uint64_t> part_{0};
};

TEST_F(StandingBy, begin_whenever_a_stream_comes_to_them) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 100'000).value();
  Standing standing = context.stand_by(Direction::read, Domain::cuda(0), next_part(store, memory.region())).value();
  EXPECT_EQ(standing.report().outcome, Outcome::pending);
  for (std::uint64_t round = 0; round < 20; ++round) {
    ASSERT_TRUE(standing.enqueue({stream_}).ok());
    ASSERT_EQ(wait_for(stream_), cuda::cu_success);
    EXPECT_EQ(standing.rounds(), round + 1);
    ASSERT_TRUE(standing.report().ok());
    ASSERT_TRUE(holds_content(bytes_of(memory.region()), 1, round * 1000)) << round;
  }
}

TEST_F(StandingBy, let_the_stream_go_on_where_a_round_fails) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  std::vector<std::byte> host(10);
  const std::vector<Result<std::vector<Range>>> answers = {
      Error{Code::not_found, 0, "nothing to read", ""},
      std::vector<Range>{{&store, 4 * mib, memory.region()}},
      std::vector<Range>{{&store, 0, Region::host(host.data(), host.size())}},
      std::vector<Range>{},
      std::vector<Range>{{&store, 3 * mib, memory.region()}},
  };
  const auto answer = [&]() -> Result<std::vector<Range>> { return answers[part_++]; };
  Standing standing = context.stand_by(Direction::read, Domain::cuda(0), answer).value();
  const std::array codes = {Code::not_found, Code::out_of_range, Code::invalid_argument, Code::ok, Code::ok};
  for (const Code code : codes) {
    ASSERT_TRUE(standing.enqueue({stream_}).ok());
    ASSERT_EQ(wait_for(stream_), cuda::cu_success);
    const Report report = standing.report();
    EXPECT_EQ(report.ok(), code == Code::ok);
    EXPECT_EQ(report.error ? report.error->code : Code::ok, code);
  }
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 3 * mib));
}

TEST_F(StandingBy, rounds_that_were_refused_let_no_file_be_replaced) {
  Context context = make_context();
  const std::string name = folder_.path("replaced");
  write_file(name, content(1, 0, 1000));
  Store store = context.open(name, {.access = Access::replace}).value();
  std::vector<std::byte> host(1000);
  const auto answer = [&]() -> Result<std::vector<Range>> {
    return std::vector<Range>{{&store, 0, Region::host(host.data(), host.size())}};
  };
  Standing standing = context.stand_by(Direction::write, Domain::cuda(0), answer).value();
  ASSERT_TRUE(standing.enqueue({stream_}).ok());
  ASSERT_EQ(wait_for(stream_), cuda::cu_success);
  EXPECT_FALSE(standing.report().ok());
  EXPECT_FALSE(store.commit().ok());
  EXPECT_TRUE(holds_content(read_file(name), 1, 0));
}

TEST_F(StandingBy, let_streams_go_on_when_they_end) {
  const auto never = []() -> Result<std::vector<Range>> { return std::vector<Range>{}; };
  Context context = make_context();
  Standing standing = context.stand_by(Direction::read, Domain::cuda(0), never).value();
  Standing other = context.stand_by(Direction::read, Domain::cuda(0), never).value();
  Standing moved = std::move(standing);
  EXPECT_EQ(standing.enqueue({stream_}).error().code, Code::invalid_argument);
  EXPECT_FALSE(standing.report().ok());
  EXPECT_EQ(standing.begin_word(), 0U);
  EXPECT_NE(moved.begin_word(), other.begin_word());
  moved = Standing();
  { const Context closed = std::move(context); }
  EXPECT_EQ(other.report().outcome, Outcome::pending) << "outlives its Context";
  EXPECT_EQ(gpu().stream_waits(), 0U);
}

TEST_F(StandingBy, are_refused_where_they_make_no_sense) {
  Context context = make_context();
  const auto never = []() -> Result<std::vector<Range>> { return std::vector<Range>{}; };
  EXPECT_EQ(context.stand_by(Direction::read, Domain::host(), never).error().code, Code::invalid_argument);
  EXPECT_EQ(context.stand_by(Direction::read, Domain::cuda(0), nullptr).error().code, Code::invalid_argument);
  EXPECT_EQ(context.stand_by(Direction::read, Domain::cuda(99), never).error().code, Code::no_device);
  EXPECT_EQ(context.submit(Direction::read, Domain::cuda(0), never, {}).error().code, Code::invalid_argument);
}

TEST_F(StandingBy, many_rounds_of_several_beside_plain_requests) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  std::vector<Standing> standing;
  std::vector<cuda::CuStream> streams;
  for (std::size_t i = 0; i < 3; ++i) {
    const Region place = memory.region().part(i * mib, mib);
    const auto ranges = [&store, place, i]() -> Result<std::vector<Range>> {
      return std::vector<Range>{{&store, i * 4096, place}};
    };
    standing.push_back(context.stand_by(Direction::read, Domain::cuda(0), ranges).value());
    streams.push_back(make_stream(cuda::cu_stream_non_blocking));
  }
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(standing[i].enqueue({streams[i]}).ok());
    ASSERT_TRUE(context.read(store, 0, memory.region().part(3 * mib, mib)).ok());
    for (std::size_t i = 0; i < 3; ++i) ASSERT_EQ(wait_for(streams[i]), cuda::cu_success);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(standing[i].rounds(), 10U);
    EXPECT_TRUE(holds_content(bytes_of(memory.region().part(i * mib, mib)), 1, i * 4096));
  }
}

TEST_F(StandingBy, ranges_are_asked_for_when_the_stream_has_come_to_the_request) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  RequestOptions options;
  options.stream = CudaStream{stream_};
  Blocker earlier(gpu(), stream_);
  const Ticket ticket =
      context.submit(Direction::read, Domain::cuda(0), next_part(store, memory.region()), options).value();
  EXPECT_FALSE(ticket.wait_for(20ms));
  EXPECT_EQ(part_, 0U);
  part_ = 7;
  earlier.let_go();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 7000));

  const auto error = []() -> Result<std::vector<Range>> { return Error{Code::not_found, 0, "no index", ""}; };
  const Ticket failed = context.submit(Direction::read, Domain::cuda(0), error, options).value();
  EXPECT_EQ(failed.wait(), Outcome::failed);
  EXPECT_NE(failed.report().error->message.find("no index"), std::string::npos);
  EXPECT_EQ(wait_for(stream_), cuda::cu_success);
}

}  // namespace
}  // namespace penstock::test
