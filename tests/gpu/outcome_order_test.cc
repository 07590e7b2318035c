// When a stream that waits for a request goes on, the outcome is there. What lets the stream go on is a store to a
// word; the test stops it, and looks what the thread that makes it has done by then.
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "core/environment.h"
#include "core/lane_set.h"
#include "core/request.h"
#include "cuda/control_memory.h"
#include "gpu/stream_order_test.h"
#include "support/over_posix.h"

namespace penstock::test {
namespace {

// While it is armed, the next store to a page of memory first calls `look`, in a signal handler of the thread that
// makes it. REQUIRES: no other lives.
class StoreTrap {
 public:
  explicit StoreTrap(std::function<void()> look) : look_(std::move(look)) {
    only_ = this;
    struct sigaction action {};
    action.sa_sigaction = &stopped;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(::sigaction(SIGSEGV, &action, &before_), 0);
  }
  ~StoreTrap() {
    if (page_ != nullptr) ::mprotect(page_, page_bytes, PROT_READ | PROT_WRITE);
    ::sigaction(SIGSEGV, &before_, nullptr);
    only_ = nullptr;
  }
  StoreTrap(const StoreTrap&) = delete;
  StoreTrap& operator=(const StoreTrap&) = delete;

  void arm(std::byte* address) {
    page_ = address - reinterpret_cast<std::uintptr_t>(address) % page_bytes;
    EXPECT_EQ(::mprotect(page_, page_bytes, PROT_READ), 0);
  }
  int stores() const { return stores_; }

  static constexpr std::size_t page_bytes = 4096;

 private:
  static void stopped(int, siginfo_t* info, void*) {
    StoreTrap* const self = only_;
    auto* const address = static_cast<std::byte*>(info->si_addr);
    if (self == nullptr || address < self->page_ || address >= self->page_ + page_bytes) {
      ::signal(SIGSEGV, SIG_DFL);  // it comes again, and ends the process
      return;
    }
    ++self->stores_;
    self->look_();
    ::mprotect(self->page_, page_bytes, PROT_READ | PROT_WRITE);
  }

  static inline std::atomic<StoreTrap*> only_{nullptr};
  const std::function<void()> look_;
  std::byte* page_ = nullptr;
  std::atomic<int> stores_{0};
  struct sigaction before_ {};
};

// The posix engine, which says when a flush is about to begin.
class FlushingEngine : public OverPosix {
 public:
  explicit FlushingEngine(std::function<void()> on_flush) : on_flush_(std::move(on_flush)) {}
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    auto inner = OverPosix::make_queue(options);
    if (!inner) return inner;
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(std::move(*inner), on_flush_));
  }

 private:
  class Queue : public engine::Queue {
   public:
    Queue(std::unique_ptr<engine::Queue> inner, const std::function<void()>& on_flush)
        : inner_(std::move(inner)), on_flush_(on_flush) {}
    std::size_t submit(std::span<const engine::Op> ops) override {
      for (const engine::Op& op : ops) {
        if (op.kind == engine::OpKind::flush) on_flush_();
      }
      return inner_->submit(ops);
    }
    std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override { return inner_->poll(done, deadline); }
    int event() override { return inner_->event(); }
    void wake() override { inner_->wake(); }
    void cancel(std::uint64_t cookie) override { inner_->cancel(cookie); }

   private:
    const std::unique_ptr<engine::Queue> inner_;
    const std::function<void()>& on_flush_;
  };

  const std::function<void()> on_flush_;
};

TEST_F(InStreamOrder, the_outcome_is_there_before_the_stream_goes_on) {
  auto table = std::make_shared<engine::Table>();
  table->push_back(posix::make_engine());
  const auto environment = std::make_shared<core::Environment>(table, options_, Machine::detect());
  const auto lanes = std::make_shared<core::LaneSet>(environment);
  const penstock::Store store =
      client::Access::store(core::StoreEntry::open(*environment, folder_.path("file"), {}).value());
  std::vector<std::byte> memory(2 * mib);
  const Range range{&store, 0, Region::host(memory.data(), memory.size())};
  const auto request = core::Request::create(environment, {&range, 1}, {.lanes = 2}).value();
  void* const word = ::mmap(nullptr, StoreTrap::page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(word, MAP_FAILED);
  request->order = cuda::StreamOrder::answer(gpu(), {.host = static_cast<std::byte*>(word)});
  std::atomic<Outcome> seen{Outcome::pending};
  {
    StoreTrap trap([&] { seen = request->outcome(); });
    trap.arm(static_cast<std::byte*>(word));
    lanes->submit(request);
    EXPECT_TRUE(request->wait_until(Clock::now() + std::chrono::seconds(20)));
    EXPECT_EQ(trap.stores(), 1);
  }
  EXPECT_EQ(seen, Outcome::done);
  request->order.reset();
  ::munmap(word, StoreTrap::page_bytes);
}

TEST_F(InStreamOrder, the_outcome_of_a_write_whose_copies_stand_on_the_stream_is_there_before_that_goes_on) {
  PENSTOCK_NEEDS_FAKE();
  using cuda::ControlMemory;
  Ticket ticket;
  std::atomic<Outcome> seen{Outcome::pending};
  StoreTrap trap([&] { seen = ticket.outcome(); });
  ControlMemory::Cell allowed;
  engine::Table table;
  table.push_back(std::make_unique<FlushingEngine>([&] { trap.arm(allowed.host); }));
  Context context = ContextBuilder::build(std::move(table), options_).value();
  const Store store = context.open(folder_.path("file"), {.access = Access::write}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  cuda::CuStream stream = make_stream();
  Blocker earlier(gpu(), stream);
  // The next word that is taken is the one that was released last.
  allowed = ControlMemory::of_process().take(gpu(), sizeof(std::uint32_t)).value();
  ControlMemory::of_process().give_back(allowed);
  const Range range{&store, 0, memory.region()};
  ticket = context.submit(Direction::write, {&range, 1}, {.durable = true, .stream = CudaStream{stream}}).value();
  earlier.let_go();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_EQ(trap.stores(), 1);
  EXPECT_EQ(seen, Outcome::done);
}

}  // namespace
}  // namespace penstock::test
