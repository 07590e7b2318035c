#include "cuda/stream_steps.h"

#include "cuda/quiet.h"

namespace penstock::cuda {

bool StreamSteps::is_supported(const Device& device) {
  return device.api().stream_wait_value != nullptr && device.api().stream_write_value != nullptr;
}

Result<std::unique_ptr<StreamSteps>> StreamSteps::begin(Device& device, void* stream, std::uint32_t steps) {
  std::unique_ptr<StreamSteps> made(new StreamSteps(device, stream, steps));
  for (ControlMemory::Cell* cell : {&made->allowed_, &made->passed_}) {
    auto taken = ControlMemory::of_process().take(device, sizeof(Word));
    if (!taken) return std::move(taken).error();
    *cell = *taken;
  }
  made->allowed_before_ = word(made->allowed_).load(std::memory_order_relaxed);
  made->passed_before_ = word(made->passed_).load(std::memory_order_relaxed);
  if (!Quiet::of_process().begin_wait()) {
    return Error{Code::would_deadlock, 0,
                 "order a request with a stream of " + device.info().domain.name() +
                     ": memory is being freed or registered with cuFile, and that takes too long",
                 "the device may be busy with work that waits for this thread: submit that first"};
  }
  device.stream_waits().fetch_add(1);
  made->has_ended_ = false;
  return made;
}

// Words that the stream may still look at, or write to, are never used again.
StreamSteps::~StreamSteps() {
  allow_all();
  if (is_lost_ || passed() != enqueued_) return;
  for (const ControlMemory::Cell& cell : {allowed_, passed_}) {
    if (cell.host != nullptr) ControlMemory::of_process().give_back(cell);
  }
}

CuResult StreamSteps::wait(std::uint32_t step) {
  is_lost_ = true;
  return device_.api().stream_wait_value(stream_, allowed_.device, allowed_before_ + step, cu_wait_value_geq);
}

CuResult StreamSteps::mark(std::uint32_t step) {
  const CuResult result =
      device_.api().stream_write_value(stream_, passed_.device, passed_before_ + step, cu_write_value_default);
  is_lost_ = result != cu_success;
  if (result == cu_success) enqueued_ = step;
  return result;
}

void StreamSteps::allow(std::uint32_t step) {
  const std::scoped_lock lock(mutex_);
  if (step <= allowed_steps_) return;
  allowed_steps_ = step;
  word(allowed_).store(allowed_before_ + step, std::memory_order_release);
}

void StreamSteps::allow_all() {
  {
    const std::scoped_lock lock(mutex_);
    if (has_ended_) return;
    has_ended_ = true;
  }
  allow(steps_);
  device_.stream_waits().fetch_sub(1);
  Quiet::of_process().end_wait();
}

std::uint32_t StreamSteps::passed() const {
  return passed_.host == nullptr ? 0 : word(passed_).load(std::memory_order_acquire) - passed_before_;
}

}  // namespace penstock::cuda
