// For tests and benchmarks: an engine whose stores answer after a fixed time, however much they are asked for at once.
// `far:SIZE` has SIZE bytes, which repeat with a period that is no power of two.
//
// Thread safety and lifetime: as engine::Engine.
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/engine.h"

namespace penstock::test {

class FarEngine : public engine::Engine {
 public:
  explicit FarEngine(Duration latency, bool lends = false) : latency_(latency) { description_.lends = lends; }

  static constexpr std::size_t period_bytes = (1 << 20) + 7;
  // What a store has at an offset, up to a place where it begins anew.
  static std::span<const std::byte> content_at(std::uint64_t offset) {
    static const std::vector<std::byte> content = [] {
      std::vector<std::byte> bytes(period_bytes);
      std::uint32_t word = 1;
      for (std::byte& byte : bytes) byte = static_cast<std::byte>((word = word * 1664525 + 1013904223) >> 24);
      return bytes;
    }();
    return std::span(content).subspan(offset % period_bytes);
  }
  static bool holds_content(std::span<const std::byte> bytes, std::uint64_t offset) {
    while (!bytes.empty()) {
      const auto expected = content_at(offset).first(std::min(bytes.size(), content_at(offset).size()));
      if (std::memcmp(expected.data(), bytes.data(), expected.size()) != 0) return false;
      bytes = bytes.subspan(expected.size());
      offset += expected.size();
    }
    return true;
  }

  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions&) override {
    StoreInfo info;
    info.name = name;
    info.device = "far away";
    info.file_system = "far";
    info.size_bytes = std::stoull(name);
    info.direct = true;
    return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(info)));
  }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(latency_, options.depth, description_.lends));
  }

 private:
  class Store : public engine::Store {
   public:
    using engine::Store::Store;
    Result<engine::State> state() const override { return engine::State{info_.identity, info_.size_bytes}; }
  };

  class Queue : public engine::Queue {
   public:
    Queue(Duration latency, std::size_t depth, bool lends)
        : latency_(latency),
          depth_(depth),
          lends_(lends),
          timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {}

    std::size_t submit(std::span<const engine::Op> ops) override {
      const std::size_t taken = std::min(ops.size(), depth_ - on_their_way_.size());
      const TimePoint due = Clock::now() + latency_;
      for (const engine::Op& op : ops.first(taken)) on_their_way_.push_back({op, due});
      return taken;
    }
    std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override {
      std::size_t count = collect(done);
      if (count > 0 || Clock::now() >= deadline) return count;
      std::unique_lock lock(mutex_);
      const TimePoint until = on_their_way_.empty() ? deadline : std::min(deadline, on_their_way_.front().due);
      woken_changed_.wait_until(lock, until, [this] { return woken_; });
      woken_ = false;
      lock.unlock();
      return collect(done);
    }
    int event() override {
      if (on_their_way_.empty()) return -1;
      const auto ns = std::chrono::nanoseconds(on_their_way_.front().due.time_since_epoch()).count();
      itimerspec when{};
      when.it_value = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
      return ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) == 0 ? timer_.get() : -1;
    }
    void wake() override {
      const std::lock_guard lock(mutex_);
      woken_ = true;
      woken_changed_.notify_one();
    }
    void cancel(std::uint64_t) override {}

   private:
    class Loan : public engine::Loan {
     public:
      explicit Loan(std::size_t size) : bytes_(size) {}
      std::byte* bytes() { return bytes_.data(); }
      const std::byte* data() const override { return bytes_.data(); }
      void give_back() override { delete this; }

     private:
      std::vector<std::byte> bytes_;
    };
    struct OnItsWay {
      engine::Op op;
      TimePoint due;
    };
    std::size_t collect(std::span<engine::Done> done) {
      std::size_t count = 0;
      const TimePoint now = Clock::now();
      for (; count < done.size() && !on_their_way_.empty() && on_their_way_.front().due <= now; ++count) {
        const engine::Op op = on_their_way_.front().op;
        if (op.kind == engine::OpKind::call) {
          op.call->run();
          done[count] = {.cookie = op.cookie};
          on_their_way_.pop_front();
          continue;
        }
        Loan* const loan = lends_ ? new Loan(op.length) : nullptr;
        std::byte* const memory = lends_ ? loan->bytes() : op.memory;
        for (std::uint64_t moved = 0; moved < op.length;) {
          const auto from = content_at(op.offset + moved);
          const std::size_t bytes = std::min<std::size_t>(from.size(), op.length - moved);
          std::memcpy(memory + moved, from.data(), bytes);
          moved += bytes;
        }
        done[count] = {.cookie = op.cookie, .bytes = op.length, .route = Route::direct, .loan = loan};
        on_their_way_.pop_front();
      }
      return count;
    }

    const Duration latency_;
    const std::size_t depth_;
    const bool lends_;
    const UniqueFd timer_;
    std::deque<OnItsWay> on_their_way_;  // all take as long, so they end in order
    std::mutex mutex_;
    std::condition_variable woken_changed_;
    bool woken_ = false;
  };

  const Duration latency_;
  engine::Description description_{
      .name = "far", .summary = "bytes that take their time", .schemes = {"far"}, .sleeps_in_kernel = true};
};

}  // namespace penstock::test
