#include "engines/fault/engine.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "engines/fault/queue.h"

namespace penstock::fault {
namespace {

// One operation on a queue of its own, to its end; `Done` with Code::internal if there is no such queue.
engine::Done perform(engine::Engine& engine, const engine::Op& op) {
  engine::Done done{.cookie = op.cookie, .code = Code::internal};
  auto queue = engine.make_queue({.depth = 1, .threads = 1, .run_inline = engine.description().inline_queue});
  if (!queue || (*queue)->submit({&op, 1}) != 1) return done;
  constexpr auto limit = std::chrono::seconds(10);
  (*queue)->poll({&done, 1}, Clock::now() + limit);
  // Neither lasts longer than this queue.
  if (engine::Loan* const loan = std::exchange(done.loan, nullptr)) {
    if (done.code == Code::ok) std::memcpy(op.memory, loan->data(), done.bytes);
    loan->give_back();
  }
  done.cause = nullptr;
  return done;
}

}  // namespace

void FaultControl::make_room(std::size_t operations) {
  const std::lock_guard lock(mutex_);
  stuck_.reserve(room_ + operations);
  room_ += operations;
}

void FaultControl::add(Queue& queue, const engine::Op& op) {
  const std::lock_guard lock(mutex_);
  stuck_.push_back({&queue, op});
  ++stuck_count_;
}

void FaultControl::release_stuck() {
  std::vector<Stuck> released;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Stuck> none;
    none.reserve(room_);
    released = std::exchange(stuck_, std::move(none));
  }
  for (const Stuck& stuck : released) {
    const engine::Done done = perform(*inner_, stuck.op);
    // Under the lock to the end: once the completion is taken, the queue may be destroyed.
    const std::lock_guard lock(mutex_);
    stuck.queue->late_.push_back(done);
    --stuck_count_;
    stuck.queue->wake();
  }
}

class Engine : public engine::Engine {
 public:
  Engine(std::unique_ptr<engine::Engine> inner, const FaultPlan& plan, std::shared_ptr<FaultControl> control)
      : inner_(std::move(inner)),
        plan_(plan),
        control_(control ? std::move(control) : std::make_shared<FaultControl>()),
        description_(inner_->description()) {
    control_->inner_ = inner_.get();
    description_.name = "fault";
    description_.summary = "another engine, with faults injected from a seed";
    description_.inline_queue = false;
  }

  ~Engine() override {
    const std::lock_guard lock(control_->mutex_);
    control_->inner_ = nullptr;
    control_->stuck_.clear();
  }

  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return inner_->probe(); }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    return inner_->open(name, options);
  }
  engine::Memory* memory() override { return inner_->memory(); }

  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    auto inner = inner_->make_queue(options);
    if (!inner) return inner;
    const std::uint64_t seed = plan_.seed + queues_made_++;
    return std::unique_ptr<engine::Queue>(
        std::make_unique<Queue>(std::move(*inner), plan_, seed, options.depth, *control_));
  }

 private:
  const std::unique_ptr<engine::Engine> inner_;
  const FaultPlan plan_;
  const std::shared_ptr<FaultControl> control_;
  engine::Description description_;
  std::atomic<std::uint64_t> queues_made_{0};
};

std::unique_ptr<engine::Engine> make_engine(std::unique_ptr<engine::Engine> inner, const FaultPlan& plan,
                                            std::shared_ptr<FaultControl> control) {
  return std::make_unique<Engine>(std::move(inner), plan, std::move(control));
}

}  // namespace penstock::fault
