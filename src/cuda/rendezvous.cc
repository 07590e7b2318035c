#include "penstock/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/control_memory.h"
#include "cuda/driver.h"
#include "cuda/quiet.h"
#include "cuda/responder.h"

namespace penstock::cuda {
namespace {

using Word = std::atomic<std::uint32_t>;

constexpr std::size_t answer_offset = 64;  // the two words lie in lines of their own
static_assert(answer_offset + sizeof(Word) <= ControlMemory::other_word_bytes);
static_assert(Rendezvous::copies_limit * sizeof(GpuCopy) <= ControlMemory::largest_bytes);
static_assert(sizeof(GpuCopy) == sizeof(ScatterEntry));

// What a stream does before it asks, or behind the answer.
struct Step {
  CuFunction kernel = nullptr;  // null: copies one by one
  CuDevicePtr entries = 0;
  std::uint32_t count = 0;
  std::span<const GpuCopy> copies;
  bool asks = false;
};

Error overlap() {
  return {Code::invalid_argument, 0, "a round of a Rendezvous can't begin: a graph has it, or the last one is not over",
          "take another Rendezvous for each capture, and for rounds at the same time"};
}

}  // namespace

class RendezvousState : public Asked {
 public:
  RendezvousState(Device& gpu, Rendezvous::Answer answer) : gpu_(gpu), answer_(std::move(answer)) {}
  RendezvousState(const RendezvousState&) = delete;
  RendezvousState& operator=(const RendezvousState&) = delete;
  ~RendezvousState() override {
    if (mark_ != nullptr) gpu_.give_back_event(mark_);
    for (const ControlMemory::Cell& cell : {words_, before_, after_}) {
      if (cell.host != nullptr) ControlMemory::of_process().give_back(cell);
    }
  }

  static Result<std::shared_ptr<RendezvousState>> create(Device& gpu, Rendezvous::Answer answer);
  // Nobody will put it on a stream any more.
  void abandon();

  Status enqueue(CuStream stream, std::span<const GpuCopy> before, std::span<const GpuCopy> after);
  Status enqueue_kernels(CuStream stream, const GpuKernel& before, const GpuKernel& after);
  bool is_idle() const;
  std::uint64_t rounds() const { return answered_.load(std::memory_order_acquire); }
  RendezvousWords words() const { return {ask_address(), answer_address()}; }

  bool answer_if_asked(const Crew& crew) override;
  bool is_asked() const override { return ask_word().load(std::memory_order_relaxed) == 1; }
  bool may_be_asked() const override {
    return has_graph_.load(std::memory_order_acquire) || expected_.load() > answered_.load();
  }
  bool is_over() const override { return is_abandoned_.load(std::memory_order_acquire) && is_idle(); }

 private:
  Word& ask_word() const { return *reinterpret_cast<Word*>(words_.host); }
  Word& answer_word() const { return *reinterpret_cast<Word*>(words_.host + answer_offset); }
  CuDevicePtr ask_address() const { return words_.device; }
  CuDevicePtr answer_address() const { return words_.device + answer_offset; }

  Result<Step> step_of(std::span<const GpuCopy> copies, ControlMemory::Cell& cell);
  Result<Step> step_of(const GpuKernel& kernel) const;
  // The graph that is captured keeps this from now on.
  CuResult join_capture(CuStream stream);
  // REQUIRES: mutex_, for these two.
  Status put_round(CuStream stream, const Step& before, const Step& after);
  CuResult put(CuStream stream, const Step& before, const Step& after, bool is_captured);
  CuResult put_step(CuStream stream, const Step& step) const;

  Device& gpu_;
  const Rendezvous::Answer answer_;
  ControlMemory::Cell words_;
  std::atomic<std::uint64_t> expected_{0};  // answers, when all rounds on streams that are not captured have been
  std::atomic<std::uint64_t> answered_{0};
  std::atomic<bool> is_abandoned_{false};
  std::atomic<bool> has_graph_{false};
  mutable std::mutex mutex_;  // guards what follows
  ControlMemory::Cell before_;
  ControlMemory::Cell after_;
  CuEvent mark_ = nullptr;  // behind the last round on a stream
  bool is_marked_ = false;
  bool is_spoilt_ = false;  // the driver refused a part of a round: what the stream still does is not known
};

Result<std::shared_ptr<RendezvousState>> RendezvousState::create(Device& gpu, Rendezvous::Answer answer) {
  if (gpu.api().stream_wait_value == nullptr || gpu.api().stream_write_value == nullptr) {
    return Error{Code::unsupported, 0,
                 "a Rendezvous with " + gpu.info().domain.name() + ": the driver has no cuStreamWaitValue32",
                 "update NVIDIA's driver to one for CUDA 12"};
  }
  auto state = std::make_shared<RendezvousState>(gpu, std::move(answer));
  auto words = ControlMemory::of_process().take(gpu, ControlMemory::other_word_bytes);
  if (!words) return std::move(words).error();
  state->words_ = *words;
  state->ask_word().store(0, std::memory_order_relaxed);
  state->answer_word().store(0, std::memory_order_relaxed);
  const Current current(gpu);
  auto mark = gpu.take_event();
  if (!mark) return std::move(mark).error();
  state->mark_ = *mark;
  if (!Quiet::of_process().begin_wait()) {
    return Error{Code::would_deadlock, 0, "a Rendezvous: memory is being freed, which takes too long",
                 "the device may be busy with work that waits for this thread: submit that first"};
  }
  gpu.stream_waits().fetch_add(1);
  if (Status status = Responder::of_process().add(state); !status) {
    state->abandon();
    return std::move(status).error();
  }
  return state;
}

void RendezvousState::abandon() {
  if (is_abandoned_.exchange(true)) return;
  gpu_.stream_waits().fetch_sub(1);
  Quiet::of_process().end_wait();
  Responder::of_process().wake();
}

bool RendezvousState::is_idle() const {
  if (has_graph_.load(std::memory_order_acquire)) return false;
  const std::scoped_lock lock(mutex_);
  return !is_spoilt_ && (!is_marked_ || gpu_.api().event_query(mark_) != cu_not_ready);
}

bool RendezvousState::answer_if_asked(const Crew& crew) {
  std::uint32_t asked = 1;
  if (ask_word().load(std::memory_order_relaxed) != 1 ||
      !ask_word().compare_exchange_strong(asked, 0, std::memory_order_acquire)) {
    return false;
  }
  answer_(crew);
  answered_.fetch_add(1);
  answer_word().store(1, std::memory_order_release);
  return true;
}

Result<Step> RendezvousState::step_of(std::span<const GpuCopy> copies, ControlMemory::Cell& cell) {
  const std::size_t bytes = copies.size_bytes();
  if (cell.size_bytes < bytes) {
    if (cell.host != nullptr) ControlMemory::of_process().give_back(std::exchange(cell, {}));
    auto taken = ControlMemory::of_process().take(gpu_, bytes);
    if (!taken) return std::move(taken).error();
    cell = *taken;
  }
  if (bytes != 0) std::memcpy(cell.host, copies.data(), bytes);
  return Step{gpu_.kernels()[Kernel::scatter], cell.device, static_cast<std::uint32_t>(copies.size()), copies, false};
}

Result<Step> RendezvousState::step_of(const GpuKernel& kernel) const {
  const CuFunction function = gpu_.kernels().find(kernel.name);
  if (function != nullptr) return Step{function, kernel.entries, kernel.count, {}, kernel.asks};
  return Error{Code::unsupported, 0, gpu_.info().domain.name() + " has no kernel " + std::string(kernel.name),
               "penstock/cuda.h lists the kernels"};
}

CuResult RendezvousState::join_capture(CuStream stream) {
  const RelaxedApi& api = gpu_.api();
  if (api.stream_get_capture_info == nullptr) return cu_not_supported;
  int status = cu_capture_status_none;
  std::uint64_t id = 0;
  CuGraph graph = nullptr;
  const CuGraphNode* dependencies = nullptr;
  const CuGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  const CuResult result = api.stream_get_capture_info(stream, &status, &id, &graph, &dependencies, &edges, &count);
  if (result != cu_success) return result;
  has_graph_.store(true, std::memory_order_release);
  if (api.user_object_create == nullptr || api.graph_retain_user_object == nullptr) return cu_success;
  CuUserObject object = nullptr;
  const auto on_graph_gone = [](void* state) {
    static_cast<RendezvousState*>(state)->has_graph_.store(false, std::memory_order_release);
    Responder::of_process().wake();
  };
  // Where the driver refuses, we stay as long as the process.
  if (api.user_object_create(&object, this, on_graph_gone, 1, cu_user_object_no_destructor_sync) != cu_success) {
    return cu_success;
  }
  // Nor do we let go of an object that no graph has: that would say that the graph is gone.
  api.graph_retain_user_object(graph, object, 1, cu_graph_user_object_move);
  return cu_success;
}

CuResult RendezvousState::put_step(CuStream stream, const Step& step) const {
  if (step.count == 0) return cu_success;
  const RelaxedApi& api = gpu_.api();
  if (step.kernel != nullptr) {
    CuDevicePtr entries = step.entries;
    unsigned count = step.count;
    void* parameters[] = {&entries, &count};
    return api.launch_kernel(step.kernel, count, 1, 1, kernel_threads, 1, 1, 0, stream, parameters, nullptr);
  }
  const std::span<const GpuCopy> copies = step.copies;
  // Without kernels as few copies as there can be.
  CuResult result = cu_success;
  for (std::size_t i = 0; i < copies.size() && result == cu_success;) {
    GpuCopy whole = copies[i];
    for (++i; i < copies.size() && copies[i].from == whole.from + whole.bytes && copies[i].to == whole.to + whole.bytes;
         ++i) {
      whole.bytes += copies[i].bytes;
    }
    result = api.copy_between_devices(whole.to, whole.from, whole.bytes, stream);
  }
  return result;
}

CuResult RendezvousState::put(CuStream stream, const Step& before, const Step& after, bool is_captured) {
  const RelaxedApi& api = gpu_.api();
  CuResult result = is_captured ? join_capture(stream) : cu_success;
  if (result != cu_success) return result;
  // What is left of a capture that fails is never run.
  is_spoilt_ = !is_captured;
  const std::uint64_t expected = answered_.load() + 1;
  result = put_step(stream, before);
  if (result == cu_success && !before.asks) {
    result = api.stream_write_value(stream, ask_address(), 1, cu_write_value_default);
  }
  if (result != cu_success) return result;
  if (!is_captured) expected_.store(expected);
  Responder::of_process().wake();
  result = api.stream_wait_value(stream, answer_address(), 1, cu_wait_value_geq);
  if (result == cu_success) result = api.stream_write_value(stream, answer_address(), 0, cu_write_value_default);
  if (result == cu_success) result = put_step(stream, after);
  if (result == cu_success && !is_captured) {
    result = api.event_record(mark_, stream);
    is_marked_ = result == cu_success;
  }
  if (result == cu_success) is_spoilt_ = false;
  return result;
}

Status RendezvousState::enqueue(CuStream stream, std::span<const GpuCopy> before, std::span<const GpuCopy> after) {
  if (std::max(before.size(), after.size()) > Rendezvous::copies_limit) {
    return Error{Code::invalid_argument, 0, "more copies than a Rendezvous takes",
                 "give at most " + std::to_string(Rendezvous::copies_limit) + ", of any length"};
  }
  if (!is_idle()) return overlap();
  const std::scoped_lock lock(mutex_);
  const auto first = step_of(before, before_);
  if (!first) return first.error();
  const auto last = step_of(after, after_);
  if (!last) return last.error();
  return put_round(stream, *first, *last);
}

Status RendezvousState::enqueue_kernels(CuStream stream, const GpuKernel& before, const GpuKernel& after) {
  const auto first = step_of(before);
  if (!first) return first.error();
  const auto last = step_of(after);
  if (!last) return last.error();
  if (!is_idle()) return overlap();
  const std::scoped_lock lock(mutex_);
  return put_round(stream, *first, *last);
}

Status RendezvousState::put_round(CuStream stream, const Step& before, const Step& after) {
  const Current current(gpu_);
  int capture = cu_capture_status_none;
  CuResult result = gpu_.api().stream_is_capturing(stream, &capture);
  if (result == cu_success) result = put(stream, before, after, capture != cu_capture_status_none);
  if (result == cu_success) return {};
  if (result == cu_not_supported) {
    return Error{Code::unsupported, 0, "a graph can't ask the CPU: the driver has no cuStreamGetCaptureInfo_v3",
                 "update NVIDIA's driver to one for CUDA 12.3"};
  }
  return gpu_.driver().error(result, "put a round of a Rendezvous on a stream",
                             "give a stream of " + gpu_.info().domain.name() + " that has not been destroyed");
}

}  // namespace penstock::cuda

namespace penstock {
namespace {

Error none() {
  return {Code::invalid_argument, 0, "this Rendezvous is none", "use one that make() gave"};
}

}  // namespace

Rendezvous::Rendezvous() = default;
Rendezvous::Rendezvous(std::shared_ptr<cuda::RendezvousState> state) : state_(std::move(state)) {}
Rendezvous::Rendezvous(Rendezvous&&) noexcept = default;
Rendezvous& Rendezvous::operator=(Rendezvous&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Rendezvous::~Rendezvous() {
  if (state_) state_->abandon();
}

Result<Rendezvous> Rendezvous::make(Domain gpu, Answer answer) {
  if (gpu.host_accessible() || !answer) {
    return Error{Code::invalid_argument, 0,
                 "a Rendezvous with " + gpu.name() + (answer ? "" : ", and nobody to answer"),
                 "give a GPU and a function"};
  }
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const auto device = (*driver)->device(gpu.device());
  if (!device) return device.error();
  auto state = cuda::RendezvousState::create(**device, std::move(answer));
  if (!state) return std::move(state).error();
  return Rendezvous(std::move(*state));
}

Status Rendezvous::enqueue(CudaStream stream, std::span<const GpuCopy> before, std::span<const GpuCopy> after) {
  if (!state_) return none();
  return state_->enqueue(static_cast<cuda::CuStream>(stream.handle), before, after);
}

Status Rendezvous::enqueue_kernels(CudaStream stream, const GpuKernel& before, const GpuKernel& after) {
  if (!state_) return none();
  return state_->enqueue_kernels(static_cast<cuda::CuStream>(stream.handle), before, after);
}

RendezvousWords Rendezvous::words() const {
  return state_ ? state_->words() : RendezvousWords();
}

bool Rendezvous::is_idle() const {
  return !state_ || state_->is_idle();
}

std::uint64_t Rendezvous::rounds() const {
  return state_ ? state_->rounds() : 0;
}

}  // namespace penstock
