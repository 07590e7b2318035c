// For tests: an engine that says and does what a Script tells it to.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/engine.h"

namespace penstock::core {

// What an engine of these tests says, does, and was asked.
struct Script {
  std::string name;
  std::string scheme = "file";
  bool available = true;
  bool sleeps_in_kernel = false;
  StoreInfo info;
  std::uint64_t size_now = 0;
  // Of a range; nothing: the kernel does not tell.
  std::function<std::optional<std::uint64_t>(std::uint64_t offset, std::uint64_t length)> resident_bytes;
  std::function<std::optional<bool>(std::uint64_t offset)> is_resident;  // of a page; none: the same
  double sample_seconds = 1e-6;
  int opened = 0;
  std::string opened_name;
  int opened_descriptor = -1;
  int descriptor = -1;
  bool reaches_device = false;
  engine::Writer::Edges edges = engine::Writer::Edges::buffered;
  std::function<std::unique_ptr<engine::Queue>(const engine::QueueOptions&)> make_queue;  // none: it can't be made
};

// For an engine that is given nothing but calls: a thread for each.
class CallQueue : public engine::Queue {
 public:
  ~CallQueue() override {
    if (thread_.joinable()) thread_.join();
  }
  std::size_t submit(std::span<const engine::Op> ops) override {
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([this, op = ops[0]] {
      op.call->run();
      const std::lock_guard lock(mutex_);
      ended_ = op;
      changed_.notify_all();
    });
    return 1;
  }
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [this] { return ended_.has_value(); })) return 0;
    done[0] = {.cookie = ended_->cookie};
    ended_.reset();
    return 1;
  }
  void wake() override {}
  void cancel(std::uint64_t) override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<engine::Op> ended_;
  std::thread thread_;
};

class ScriptedStore : public engine::Store, private engine::PageCache, private engine::Writer {
 public:
  explicit ScriptedStore(Script& script) : Store(script.info), script_(script) {}
  Result<engine::State> state() const override { return engine::State{info_.identity, script_.size_now}; }
  int descriptor() const override { return script_.descriptor; }
  std::optional<Route> device_route() const override { return Route::gds; }
  engine::PageCache* page_cache() override { return info_.page_cache ? this : nullptr; }
  engine::Writer* writer() override { return info_.writable ? this : nullptr; }

 private:
  std::optional<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) const override {
    return script_.resident_bytes ? script_.resident_bytes(offset, length) : std::nullopt;
  }
  std::optional<bool> is_resident(std::uint64_t offset) const override {
    EXPECT_LT(offset, script_.info.size_bytes) << "a page past the end";
    return script_.is_resident ? script_.is_resident(offset) : std::nullopt;
  }
  std::optional<double> timed_read_seconds(std::uint64_t offset, std::uint64_t length) const override {
    EXPECT_LE(offset + length, script_.info.size_bytes) << "a sample past the end";
    return script_.sample_seconds;
  }
  Status prefetch(std::uint64_t, std::uint64_t) override { return {}; }
  void drop(std::uint64_t, std::uint64_t) override {}
  Edges edges() const override { return script_.edges; }
  Status reserve(engine::Room) override { return {}; }
  Status commit(bool) override { return {}; }
  Status abort() override { return {}; }

  Script& script_;
};

class ScriptedEngine : public engine::Engine {
 public:
  explicit ScriptedEngine(Script& script)
      : script_(script),
        description_{.name = script.name,
                     .schemes = {script.scheme},
                     .sleeps_in_kernel = script.sleeps_in_kernel,
                     .host = script.reaches_device ? engine::HostReach::none : engine::HostReach::any,
                     .reaches_device = script.reaches_device} {}
  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override {
    return {script_.available, script_.available ? "" : "it is broken", "", Route::gds};
  }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    ++script_.opened;
    script_.opened_name = name;
    script_.opened_descriptor = options.descriptor;
    if (name == "missing") return Error{Code::not_found, 0, name, ""};
    return std::unique_ptr<engine::Store>(std::make_unique<ScriptedStore>(script_));
  }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    if (!script_.make_queue) return Error{Code::unsupported, 0, "not here", ""};
    return script_.make_queue(options);
  }

 private:
  Script& script_;
  const engine::Description description_;
};

}  // namespace penstock::core
