// A driver over a controller in software, for tests: blocks in RAM, memory for data, and operations that are waited
// for.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "nvme/io_queue.h"
#include "nvme/ram_backend.h"
#include "nvme/soft_controller.h"

namespace penstock::nvme {

// Short, so that what never answers is noticed soon; long enough for a busy machine.
inline ControllerOptions quick_options() {
  ControllerOptions options;
  options.command_time = std::chrono::milliseconds(100);
  options.admin_time = std::chrono::milliseconds(500);
  options.ready_time = std::chrono::milliseconds(300);
  return options;
}

class Bench {
 public:
  static constexpr std::uint64_t disk_bytes = 6 << 20;
  static constexpr std::size_t data_bytes = 3 << 20;

  explicit Bench(const SoftShape& shape = {}, const SoftFaults& faults = {},
                 const ControllerOptions& options = quick_options()) {
    auto ram = std::make_unique<RamBackend>(disk_bytes);
    ram_ = ram.get();
    soft_ = std::make_unique<SoftController>(std::move(ram), shape, faults);
    auto controller = Controller::open(*soft_, options);
    if (!controller) {
      error_ = controller.error();
      return;
    }
    controller_ = std::move(*controller);
    data_ = DmaMemory::create(*soft_, data_bytes).value();
    if (const auto found = controller_->find_namespace(1)) {
      space_ = {.info = *found, .writable_blocks = found->size_blocks};
    }
  }
  ~Bench() {
    data_ = {};
    controller_.reset();
    EXPECT_EQ(soft_->breaches(), std::vector<std::string>{});
  }

  const Error& error() const { return error_; }
  Controller& controller() { return *controller_; }
  std::unique_ptr<Controller> release_controller() { return std::move(controller_); }
  SoftController& soft() { return *soft_; }
  // While nothing is in flight.
  std::vector<std::byte>& disk() { return ram_->bytes(); }
  std::byte* data() { return data_.data(); }
  Namespace& space() { return space_; }

  Io io(IoKind kind, std::uint64_t offset, std::uint64_t length, std::uint64_t data_offset = 0) const {
    return {kind, &space_, offset, length, data_.address() + data_offset, next_cookie_++};
  }
  // One operation, to its end.
  IoDone run(IoQueue& queue, const Io& io) const {
    EXPECT_EQ(queue.submit({&io, 1}), 1U);
    return wait(queue);
  }
  static IoDone wait(IoQueue& queue) {
    IoDone done{.code = Code::timed_out};
    const TimePoint deadline = Clock::now() + std::chrono::seconds(30);
    while (queue.poll({&done, 1}) == 0 && Clock::now() < deadline) {
      queue.after_sleep();
      std::this_thread::yield();
    }
    return done;
  }

 private:
  RamBackend* ram_ = nullptr;
  std::unique_ptr<SoftController> soft_;
  std::unique_ptr<Controller> controller_;
  DmaMemory data_;
  Namespace space_;
  Error error_;
  mutable std::uint64_t next_cookie_ = 1;
};

}  // namespace penstock::nvme
