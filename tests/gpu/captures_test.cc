// Graphs that the program captures while we work: no call of ours may break a capture, and none may fail because of it.
#include <string>
#include <thread>

#include "gpu/stream_order_test.h"
#include "support/graph_capture.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t file_bytes = 8 * mib;
constexpr std::size_t few_bytes = 64 << 10;

class BesideCaptures : public InStreamOrder {
 protected:
  void SetUp() override {
    InStreamOrder::SetUp();
    if (!IsSkipped()) write_file(folder_.path("file"), content(1, 0, file_bytes));
  }

  // After each public call: the caller's own mode must be what it was.
  void called(const char* what) { EXPECT_EQ(cuda_.mode(), mode_) << "after " << what; }

  void read_all(const Context& context, const Store& store, Region memory) {
    const Report whole = context.read(store, 0, memory);
    called("a read");
    EXPECT_TRUE(whole.ok()) << whole.error->message;
    // On this thread, where the engine can.
    EXPECT_TRUE(context.read(store, 5, memory.part(0, few_bytes)).ok());
    called("a small read");
    EXPECT_TRUE(holds_content(bytes_of(memory.part(0, few_bytes)), 1, 5));
    called("copy");
    const Range range{&store, 0, memory.part(0, few_bytes)};
    Ticket small = context.submit(Direction::read, {&range, 1}).value();
    called("a small submit");
    EXPECT_EQ(small.wait(), Outcome::done);
    called("the wait for it");
    // Short ones, which are copied many at a time.
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < 64; ++i) ranges.push_back({&store, i * 8192, memory.part(i * 8192, 8192)});
    Ticket many = context.submit(Direction::read, ranges).value();
    called("a submit");
    EXPECT_TRUE(many.wait_for(30s));
    called("wait_for");
    EXPECT_EQ(many.outcome(), Outcome::done);
    EXPECT_TRUE(holds_content(bytes_of(memory), 1, 0));
  }

  void read_cached() {
    read_from([this] { warm(folder_.path("file")); });
  }
  void read_from_disk() {
    read_from([this] { evict(folder_.path("file")); });
  }
  void read_from(const std::function<void()>& prepare) {
    Context context = make_context();
    called("create");
    const Store store = context.open(folder_.path("file")).value();
    called("open");
    const Buffer memory = context.allocate(Domain::cuda(0), file_bytes).value();
    called("allocate");
    prepare();
    read_all(context, store, memory.region());
  }

  void write() {
    Context context = make_context();
    const Buffer memory = context.allocate(Domain::cuda(0), file_bytes).value();
    fill(memory.region(), content(2, 0, file_bytes));
    for (const bool durable : {false, true}) {
      const std::string path = folder_.path(durable ? "durable" : "written");
      Store store = context.open(path, {.access = Access::create, .size_bytes = file_bytes}).value();
      RequestOptions options;
      options.durable = durable;
      const Report report = context.write(store, 0, memory.region(), options);
      called("a write");
      EXPECT_TRUE(report.ok()) << report.error->message;
      EXPECT_TRUE(context.write(store, 0, memory.region().part(0, few_bytes)).ok());
      called("a small write");
      EXPECT_TRUE(holds_content(read_file(path), 2, 0));
    }
  }

  void read_in_stream_order() {
    Context context = make_context();
    const Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), file_bytes).value();
    // The legacy stream too: a capture of a non-blocking stream does not concern it.
    const std::array own{make_stream(), make_stream(cuda::cu_stream_non_blocking)};
    for (cuda::CuStream stream : {own[0], own[1], cuda::CuStream{}}) {
      auto ticket = read_in_order(context, store, memory.region(), stream);
      called("a submit in stream order");
      ASSERT_TRUE(ticket.ok()) << ticket.error().message;
      ASSERT_TRUE(ticket->wait_for(30s));
      called("the wait for it");
      EXPECT_EQ(ticket->outcome(), Outcome::done) << ticket->report().error->message;
      EXPECT_EQ(wait_for(stream), cuda::cu_success);
      EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
    }
    for (cuda::CuStream stream : own) EXPECT_EQ(driver_->api().stream_destroy(stream), cuda::cu_success);
  }

  void use_memory() {
    Context context = make_context();
    const Store store = context.open(folder_.path("file")).value();
    {
      const Buffer first = context.allocate(Domain::cuda(0), 40 * mib).value();
      called("allocate");
      const Buffer pinned = context.allocate(Domain::pinned(), 3 * mib).value();
      called("allocate of pinned memory");
      EXPECT_TRUE(copy(pinned.region(), first.region().part(mib, 3 * mib)).ok());
      called("copy");
    }
    called("freeing");  // more than a pool keeps
    const cuda::CuDevicePtr address = memory_of_somebody_else();
    const Region memory = find_cuda_region(reinterpret_cast<void*>(address), file_bytes).value();
    called("find_cuda_region");
    EXPECT_TRUE(find_cuda_allocation(memory.data, 1).ok());
    called("find_cuda_allocation");
    EXPECT_TRUE(context.attach(memory).ok());
    called("attach");
    EXPECT_TRUE(context.read(store, 0, memory).ok());
    EXPECT_TRUE(holds_content(bytes_of(memory), 1, 0));
    std::vector<std::byte> host(3 * 1000);
    const RowsCopy rows{.to = {memory.part(0, 2 * 4096 + 1000), 1000, 4096},
                        .from = {Region::host(host.data(), host.size()), 1000, 1000}};
    EXPECT_TRUE(copy_rows({&rows, 1}).ok());
    called("copy_rows");
    EXPECT_TRUE(context.detach(memory).ok());
    called("detach");
    const cuda::Current current(gpu());
    EXPECT_EQ(driver_->api().memory_free(address), cuda::cu_success);
  }
  cuda::CuDevicePtr memory_of_somebody_else() {
    const cuda::Current current(gpu());
    cuda::CuDevicePtr address = 0;
    EXPECT_EQ(driver_->api().memory_allocate(&address, file_bytes), cuda::cu_success);
    return address;
  }

  void use_contexts() {
    for (int i = 0; i < 2; ++i) {
      {
        Context context = make_context();
        called("create");
        const Domain last = Domain::cuda(static_cast<std::uint16_t>(driver_->devices().size() - 1));
        EXPECT_TRUE(context.prepare(last).ok());
        called("prepare");
        EXPECT_TRUE(list_gpus().ok());
        called("list_gpus");
      }
      called("closing");
    }
  }

  const PlainCuda cuda_;
  int mode_ = cuda::cu_capture_mode_global;
};

class WorkBesideCaptures : public BesideCaptures {
 public:
  struct Work {
    const char* name;
    void (WorkBesideCaptures::*run)();
  };
  static std::vector<Work> every_kind() {
    return {{"reading_what_is_cached", &WorkBesideCaptures::read_cached},
            {"reading_from_disk", &WorkBesideCaptures::read_from_disk},
            {"writing", &WorkBesideCaptures::write},
            {"reading_in_stream_order", &WorkBesideCaptures::read_in_stream_order},
            {"using_memory", &WorkBesideCaptures::use_memory},
            {"using_contexts", &WorkBesideCaptures::use_contexts}};
  }
};

class EveryKindOfWork : public WorkBesideCaptures, public testing::WithParamInterface<WorkBesideCaptures::Work> {
 protected:
  void work() { (this->*GetParam().run)(); }
};

INSTANTIATE_TEST_SUITE_P(Beside, EveryKindOfWork, testing::ValuesIn(WorkBesideCaptures::every_kind()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryKindOfWork, leaves_alone_what_another_thread_captures) {
  GraphCapture capture;
  std::thread([this] { work(); }).join();
  EXPECT_TRUE(capture.works());
}

TEST_P(EveryKindOfWork, leaves_alone_what_its_own_thread_captures) {
  GraphCapture capture;
  work();
  EXPECT_TRUE(capture.works());
}

TEST_P(EveryKindOfWork, puts_the_capture_mode_of_its_thread_back) {
  for (const int mode :
       {cuda::cu_capture_mode_global, cuda::cu_capture_mode_thread_local, cuda::cu_capture_mode_relaxed}) {
    mode_ = mode;
    const int before = cuda_.set_mode(mode);
    work();
    EXPECT_EQ(cuda_.set_mode(before), mode);
  }
}

// What is under way when a capture begins, and when it ends.
TEST_F(BesideCaptures, requests_go_on_while_captures_come_and_go) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), file_bytes).value();
  const Range range{&store, 0, memory.region()};
  std::optional<Ticket> ticket = context.submit(Direction::read, {&range, 1}).value();
  for (int i = 0; i < 20; ++i) {
    GraphCapture capture;
    ASSERT_TRUE(ticket->wait_for(30s));
    EXPECT_EQ(ticket->outcome(), Outcome::done) << ticket->report().error->message;
    ticket = context.submit(Direction::read, {&range, 1}).value();
    EXPECT_TRUE(capture.works());
  }
  EXPECT_EQ(ticket->wait(), Outcome::done);
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
}

TEST_F(BesideCaptures, a_stream_that_is_captured_takes_no_requests_and_its_capture_stays_valid) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), file_bytes).value();
  const auto expect_refusal = [&](cuda::CuStream stream) {
    const auto refused = read_in_order(context, store, memory.region(), stream);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::unsupported);
    EXPECT_NE(refused.error().message.find("captured into a graph"), std::string::npos) << refused.error().message;
    EXPECT_NE(refused.error().hint.find("before or after"), std::string::npos) << refused.error().hint;
  };
  for (const unsigned flags : {0U, cuda::cu_stream_non_blocking}) {
    GraphCapture capture(flags);
    expect_refusal(capture.stream());
    std::thread([&] { expect_refusal(capture.stream()); }).join();
    // Work of the legacy stream would wait for blocking ones.
    if (flags == 0) expect_refusal(nullptr);
    EXPECT_TRUE(capture.works());
    EXPECT_EQ(read_in_order(context, store, memory.region(), capture.stream()).value().wait(), Outcome::done);
    EXPECT_EQ(wait_for(capture.stream()), cuda::cu_success);
  }
}

TEST_F(BesideCaptures, a_program_can_say_that_its_own_calls_are_no_part_of_a_capture) {
  cuda::CuDevicePtr address = 0;
  {
    GraphCapture capture;
    const RelaxedCaptureMode outer;
    EXPECT_EQ(cuda_.mode(), cuda::cu_capture_mode_relaxed);
    {
      const RelaxedCaptureMode inner;
      EXPECT_EQ(cuda_.api.memory_allocate(&address, mib), cuda::cu_success);
    }
    EXPECT_EQ(cuda_.mode(), cuda::cu_capture_mode_relaxed);
    EXPECT_EQ(cuda_.api.memory_free(address), cuda::cu_success);
    EXPECT_TRUE(capture.works());
  }
  EXPECT_EQ(cuda_.mode(), cuda::cu_capture_mode_global);
}

}  // namespace
}  // namespace penstock::test
