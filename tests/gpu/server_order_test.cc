// Requests in the order of a CUDA stream, about files of a server that may not answer.
#include "gpu/stream_order_test.h"
#include "support/served_engine.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

// Files of which only a server knows what they are like.
class InStreamOrderOfAServer : public InStreamOrder {
 protected:
  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    write_file(folder_.path("served"), content(2, 0, 4 * mib));
  }
  void TearDown() override {
    server_->answer();
    InStreamOrder::TearDown();
  }
  Context make_context() {
    engine::Table table;
    table.push_back(std::make_unique<ServedEngine>(server_));
    return ContextBuilder::build(std::move(table), options_).value();
  }
  // The server answers when the request is made, and no more when the stream has come to it.
  Ticket read_from_silent_server(const Context& context, Region memory, cuda::CuStream stream, double deadline = 0) {
    server_->answer();
    const Store store = context.open(folder_.path("served")).value();
    const int waiting = server_->waiting();
    server_->hang_after(1);
    Ticket ticket = read_in_order(context, store, memory, stream, deadline).value();
    EXPECT_TRUE(eventually([&] { return server_->waiting() == waiting + 1; }));
    return ticket;
  }

  std::shared_ptr<Server> server_ = std::make_shared<Server>();
};

TEST_F(InStreamOrderOfAServer, that_does_not_answer_no_other_stream_waits) {
  PENSTOCK_NEEDS_FAKE();
  fake_->set_connections(0);  // streams in one queue of the hardware would wait for each other
  Context context = make_context();
  const Store local = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Buffer other = context.allocate(Domain::cuda(0), 4 * mib).value();
  Ticket hanging = read_from_silent_server(context, memory.region(), make_stream());
  cuda::CuStream stream = make_stream();
  Ticket ticket = read_in_order(context, local, other.region(), stream, 30).value();
  ASSERT_TRUE(ticket.wait_for(60s));
  EXPECT_EQ(ticket.outcome(), Outcome::done);
  EXPECT_TRUE(holds_content(bytes_of(other.region()), 1, 0));
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_FALSE(hanging.ended());
  server_->answer();
  EXPECT_EQ(hanging.wait(), Outcome::done) << "and what waited goes on when the answer has come";
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 2, 0));
}

TEST_F(InStreamOrderOfAServer, that_does_not_answer_requests_end_in_time_and_streams_go_on) {
  options_.deadlines.stall_seconds = 1;
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  for (const double deadline : {0.5, 0.0}) {
    cuda::CuStream stream = make_stream();
    Ticket ticket = read_from_silent_server(context, memory.region(), stream, deadline);
    ASSERT_TRUE(ticket.wait_for(30s));
    EXPECT_EQ(ticket.outcome(), Outcome::failed);
    EXPECT_EQ(ticket.report().error->code, Code::timed_out);
    EXPECT_NE(ticket.report().error->message.find("the server of"), std::string::npos);
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
  }
}

TEST_F(InStreamOrderOfAServer, that_answers_with_an_error_requests_end_with_it_and_streams_go_on) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  cuda::CuStream stream = make_stream();
  Ticket ticket = read_from_silent_server(context, memory.region(), stream);
  make_unknowable(folder_.path("served"));
  server_->answer();
  ASSERT_TRUE(ticket.wait_for(30s));
  expect_unknowable(ticket.report(), "ask about");
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(InStreamOrderOfAServer, that_does_not_answer_the_context_closes_and_streams_go_on) {
  cuda::CuStream stream = make_stream();
  Ticket ticket;
  {
    Context context = make_context();
    const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
    ticket = read_from_silent_server(context, memory.region(), stream);
  }
  EXPECT_EQ(ticket.outcome(), Outcome::cancelled);
  EXPECT_EQ(ticket.report().error->code, Code::closed);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(InStreamOrderOfAServer, that_does_not_let_go_of_a_file_no_other_stream_waits) {
  PENSTOCK_NEEDS_FAKE();
  fake_->set_connections(0);
  if (!server_->hang_in_closing()) GTEST_SKIP() << "there is no network";
  Context context = make_context();
  const Store local = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream busy = make_stream();
  Blocker earlier(gpu(), busy);
  {
    const Store served = context.open(folder_.path("served")).value();
    read_in_order(context, served, memory.region().part(0, mib / 2), busy, 0.1).value();  // and forget about it
  }
  std::this_thread::sleep_for(200ms);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(read_in_order(context, local, memory.region(), make_stream())->wait(), Outcome::done);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  earlier.let_go();
}

}  // namespace
}  // namespace penstock::test
