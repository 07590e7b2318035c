// A driver over a controller in software, for tests: blocks in RAM, memory for data, and operations that are waited
// for; a backend that hangs; a transport that has its own mind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
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
  // Of a machine that is busy with other things.
  options.admin_time = std::chrono::milliseconds(1500);
  options.ready_time = std::chrono::milliseconds(1500);
  return options;
}

// Keeps a HeldBackend from answering. Shared with it, because it may outlive the test that hung it.
class Hold {
 public:
  void release() {
    change([this] { held_ = false; });
  }
  bool is_held() {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  std::uint32_t begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  // Until so many operations were begun, or the backend is gone; false if that takes too long.
  bool wait_for(std::uint32_t begun) {
    return wait([=, this] { return begun_ >= begun; });
  }
  bool wait_until_gone() {
    return wait([this] { return gone_; });
  }

 private:
  friend class HeldBackend;
  void change(const std::function<void()>& how) {
    const std::lock_guard lock(mutex_);
    how();
    changed_.notify_all();
  }
  bool wait(const std::function<bool()>& holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), holds);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = true;
  bool woken_ = false;
  bool gone_ = false;
  std::uint32_t begun_ = 0;
};

// Blocks in RAM, and none of them read or written while it is held.
class HeldBackend : public BlockBackend {
 public:
  HeldBackend(std::uint64_t size_bytes, std::shared_ptr<Hold> hold, std::size_t room = 64)
      : ram_(size_bytes), hold_(std::move(hold)), room_(room) {}
  ~HeldBackend() override {
    hold_->change([this] { hold_->gone_ = true; });
  }

  std::uint64_t size_bytes() const override { return ram_.size_bytes(); }
  bool submit(const BlockOp& op) override {
    if (kept_.size() == room_) return false;
    kept_.push_back(op);
    hold_->change([this] { ++hold_->begun_; });
    return true;
  }
  std::size_t poll(std::span<BlockDone> done, TimePoint deadline) override {
    {
      std::unique_lock lock(hold_->mutex_);
      const auto ready = [this] { return hold_->woken_ || (!hold_->held_ && !kept_.empty()); };
      hold_->changed_.wait_until(lock, deadline, ready);
      hold_->woken_ = false;
      if (hold_->held_) return 0;
    }
    while (!kept_.empty() && ram_.submit(kept_.front())) kept_.pop_front();
    return ram_.poll(done, TimePoint::min());
  }
  void wake() override {
    hold_->change([this] { hold_->woken_ = true; });
  }

 private:
  RamBackend ram_;
  const std::shared_ptr<Hold> hold_;
  const std::size_t room_;
  std::deque<BlockOp> kept_;
};

// A controller in software behind a way that can fail.
struct WayFaults {
  bool can_isolate = true;
  std::size_t register_bytes = SIZE_MAX;   // that are mapped, at most
  std::size_t longest_mapping = SIZE_MAX;  // longer ones are refused
  std::uint32_t interrupts = UINT32_MAX;   // that can be had, at most
};
class Way : public Transport {
 public:
  Way(SoftController& soft, const WayFaults& faults) : soft_(soft), faults_(faults) {}

  const std::string& name() const override { return soft_.name(); }
  Registers registers() override {
    const Registers all = soft_.registers();
    return all.first(std::min(all.size_bytes(), faults_.register_bytes));
  }
  Result<std::uint64_t> map(std::byte* data, std::size_t size_bytes) override {
    if (size_bytes > faults_.longest_mapping) return Error{Code::out_of_memory, 0, "no room for a mapping", ""};
    ++mapped_;
    return soft_.map(data, size_bytes);
  }
  void unmap(std::uint64_t address, std::size_t size_bytes) override {
    --mapped_;
    soft_.unmap(address, size_bytes);
  }
  std::uint32_t interrupts() const override { return std::min(soft_.interrupts(), faults_.interrupts); }
  Result<int> interrupt(std::uint32_t vector) override { return soft_.interrupt(vector); }
  Status isolate() override {
    if (faults_.can_isolate) return soft_.isolate();
    return Error{Code::io_error, 0, "it can't be isolated", ""};
  }

  int mapped() const { return mapped_; }

 private:
  SoftController& soft_;
  const WayFaults faults_;
  std::atomic<int> mapped_{0};
};

class Bench {
 public:
  static constexpr std::uint64_t disk_bytes = 6 << 20;
  static constexpr std::size_t data_bytes = 3 << 20;

  explicit Bench(const SoftShape& shape = {}, const SoftFaults& faults = {},
                 const ControllerOptions& options = quick_options(), const WayFaults& way = {},
                 const std::shared_ptr<Hold>& hold = nullptr) {
    std::unique_ptr<BlockBackend> backend;
    if (hold) {
      backend = std::make_unique<HeldBackend>(disk_bytes, hold);
    } else {
      auto ram = std::make_unique<RamBackend>(disk_bytes);
      ram_ = ram.get();
      backend = std::move(ram);
    }
    soft_ = std::make_unique<SoftController>(std::move(backend), shape, faults);
    way_ = std::make_unique<Way>(*soft_, way);
    auto controller = Controller::open(*way_, options);
    if (!controller) {
      error_ = controller.error();
      return;
    }
    controller_ = std::move(*controller);
    data_ = DmaMemory::create(*way_, data_bytes).value();
    if (const auto found = controller_->find_namespace(1)) {
      space_ = {.info = *found, .writable_blocks = found->size_blocks};
    }
  }
  ~Bench() {
    if (controller_ && controller_->is_unstoppable()) data_.leave_behind();
    data_ = {};
    controller_.reset();
    EXPECT_EQ(soft_->breaches(), std::vector<std::string>{});
  }

  const Error& error() const { return error_; }
  Controller& controller() { return *controller_; }
  std::unique_ptr<Controller> release_controller() { return std::move(controller_); }
  SoftController& soft() { return *soft_; }
  Way& way() { return *way_; }
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
  // Code::timed_out if it never ends.
  static IoDone wait(IoQueue& queue) {
    IoDone done{.code = Code::timed_out};
    const TimePoint deadline = Clock::now() + std::chrono::seconds(30);
    while (queue.poll({&done, 1}) == 0 && !queue.is_stuck() && Clock::now() < deadline) {
      queue.after_sleep();
      std::this_thread::yield();
    }
    return done;
  }

 private:
  RamBackend* ram_ = nullptr;
  std::unique_ptr<SoftController> soft_;
  std::unique_ptr<Way> way_;
  std::unique_ptr<Controller> controller_;
  DmaMemory data_;
  Namespace space_;
  Error error_;
  mutable std::uint64_t next_cookie_ = 1;
};

}  // namespace penstock::nvme
