#include "nvme/soft_controller.h"

#include <utility>

#include "base/log.h"
#include "nvme/dma_memory.h"

namespace penstock::nvme {

SoftController::SoftController(std::unique_ptr<BlockBackend> backend, SoftShape shape, SoftFaults faults)
    : device_(std::make_shared<SoftDevice>(std::move(backend), std::move(shape), std::move(faults))),
      thread_([device = device_] { device->run(); }) {}

SoftController::~SoftController() {
  if (stop()) return;
  log(LogLevel::warning, name() + ": its backend does not answer; its thread is left behind");
  thread_.detach();
}

bool SoftController::stop() {
  const std::lock_guard lock(stop_mutex_);
  device_->ask_to_stop();
  if (!device_->has_ended(Clock::now() + device_->shape().stop_time)) return false;
  if (thread_.joinable()) thread_.join();
  return true;
}

Result<std::uint64_t> SoftController::map(std::byte* data, std::size_t size_bytes) {
  const std::size_t page = system_page_bytes();
  if (reinterpret_cast<std::uintptr_t>(data) % page != 0 || size_bytes % page != 0 || size_bytes == 0) {
    return Error{Code::invalid_argument, 0, "memory that is not whole pages can't be mapped", "round it to pages"};
  }
  return device_->map(data, size_bytes);
}

Result<int> SoftController::interrupt(std::uint32_t vector) {
  const auto& events = device_->interrupt_events();
  if (vector >= events.size() || !events[vector]) {
    return Error{Code::unsupported, 0, name() + " has no interrupt " + std::to_string(vector), "poll instead"};
  }
  return events[vector].get();
}

Status SoftController::isolate() {
  const bool stopped = stop();
  device_->close();
  if (stopped) return {};
  return Error{Code::timed_out, 0, name() + ": its backend does not end what it has begun", ""};
}

}  // namespace penstock::nvme
