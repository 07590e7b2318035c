// For tests: files on disks of their own, whose operations wait until the test lets them end, and are counted.
//
//   auto disk = std::make_shared<Gate>("model0");   // files with this in their names
//   disk->close();                                  // what is asked of it from now on stays in flight
//
// Thread safety: a Gate any thread; the engine as engine::Engine. Lifetime: a Gate is shared by the test and the
// engine.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/engine.h"

namespace penstock::test {

class Gate {
 public:
  struct Counts {
    std::uint64_t in_flight = 0;
    std::uint64_t in_flight_bytes = 0;
    std::uint64_t ended = 0;
  };

  explicit Gate(std::string files) : files_(std::move(files)) {}

  void close() { set(State::closed); }
  void open() { set(State::open); }
  // As close, but operations don't come back when they are cancelled either.
  void hang() { set(State::hanging); }
  // As open, but operations end with an error.
  void fail() { set(State::failing); }
  // Whether this thread has looked at operations in flight.
  bool was_polled_here() const {
    const std::scoped_lock lock(mutex_);
    return pollers_.contains(std::this_thread::get_id());
  }
  Counts counts() const {
    const std::scoped_lock lock(mutex_);
    return counts_;
  }

 private:
  friend class GatedEngine;
  enum class State : std::uint8_t { open, closed, hanging, failing };

  void set(State state) {
    const std::scoped_lock lock(mutex_);
    state_ = state;
  }
  State poll() {
    const std::scoped_lock lock(mutex_);
    pollers_.insert(std::this_thread::get_id());
    return state_;
  }
  void begin(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    ++counts_.in_flight;
    counts_.in_flight_bytes += bytes;
  }
  void end(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    --counts_.in_flight;
    counts_.in_flight_bytes -= bytes;
    ++counts_.ended;
  }

  const std::string files_;
  mutable std::mutex mutex_;
  State state_ = State::open;
  Counts counts_;
  std::set<std::thread::id> pollers_;
};

class GatedEngine : public engine::Engine {
 public:
  explicit GatedEngine(std::vector<std::shared_ptr<Gate>> gates) : gates_(std::move(gates)) {}

  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions&) override {
    const auto gate =
        std::ranges::find_if(gates_, [&](const auto& each) { return name.find(each->files_) != std::string::npos; });
    UniqueFd file(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat state {};
    if (gate == gates_.end() || !file || ::fstat(file.get(), &state) != 0) {
      return Error{Code::not_found, errno, "open " + name, "name a file of one of the gates"};
    }
    StoreInfo info;
    info.name = name;
    info.device = (*gate)->files_;
    info.file_system = "gated";
    info.size_bytes = static_cast<std::uint64_t>(state.st_size);
    info.identity = Identity::of_file(file.get()).value();
    info.direct = true;
    return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(info), std::move(file), **gate));
  }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(options.depth));
  }

 private:
  class Store : public engine::Store {
   public:
    Store(StoreInfo info, UniqueFd file, Gate& gate)
        : engine::Store(std::move(info)), file_(std::move(file)), gate_(gate) {}
    Result<engine::State> state() const override { return engine::State{info_.identity, info_.size_bytes}; }
    Gate& gate() const { return gate_; }
    int file() const { return file_.get(); }

   private:
    const UniqueFd file_;
    Gate& gate_;
  };

  class Queue : public engine::Queue {
   public:
    explicit Queue(std::size_t depth) : depth_(depth) {}

    std::size_t submit(std::span<const engine::Op> ops) override {
      const std::size_t taken = std::min(ops.size(), depth_ - held_.size());
      for (const engine::Op& op : ops.first(taken)) {
        held_.push_back({op, false});
        if (op.store != nullptr) store_of(op).gate().begin(op.length);
      }
      return taken;
    }
    std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override {
      while (true) {
        const std::size_t count = collect(done);
        const TimePoint now = Clock::now();
        if (count > 0 || now >= deadline) return count;
        std::unique_lock lock(mutex_);
        const TimePoint until = std::min<TimePoint>(deadline, now + std::chrono::milliseconds(1));
        if (woken_changed_.wait_until(lock, until, [this] { return woken_; })) {
          woken_ = false;
          lock.unlock();
          return collect(done);
        }
      }
    }
    void wake() override {
      const std::scoped_lock lock(mutex_);
      woken_ = true;
      woken_changed_.notify_one();
    }
    void cancel(std::uint64_t cookie) override {
      for (Held& each : held_) each.is_cancelled = each.is_cancelled || each.op.cookie == cookie;
    }

   private:
    struct Held {
      engine::Op op;
      bool is_cancelled = false;
    };

    static const Store& store_of(const engine::Op& op) { return *static_cast<const Store*>(op.store); }
    std::size_t collect(std::span<engine::Done> done) {
      std::size_t count = 0;
      std::erase_if(held_, [&](const Held& each) {
        if (count == done.size()) return false;
        const auto ended = run(each);
        if (ended) done[count++] = *ended;
        return ended.has_value();
      });
      return count;
    }
    // Nothing while the gate is closed.
    static std::optional<engine::Done> run(const Held& held) {
      const engine::Op& op = held.op;
      if (op.kind == engine::OpKind::call) {
        op.call->run();
        return engine::Done{.cookie = op.cookie};
      }
      Gate& gate = store_of(op).gate();
      const Gate::State state = gate.poll();
      if (state == Gate::State::hanging) return std::nullopt;
      if (state == Gate::State::closed && !held.is_cancelled) return std::nullopt;
      engine::Done done{.cookie = op.cookie, .route = Route::direct};
      if (held.is_cancelled) {
        done.code = Code::cancelled;
      } else if (state == Gate::State::failing) {
        done.code = Code::io_error;
        done.system_error = EIO;
      } else {
        const ssize_t bytes = ::pread(store_of(op).file(), op.memory, op.length, static_cast<off_t>(op.offset));
        done.bytes = static_cast<std::uint64_t>(std::max<ssize_t>(bytes, 0));
      }
      gate.end(op.length);
      return done;
    }

    const std::size_t depth_;
    std::deque<Held> held_;
    std::mutex mutex_;
    std::condition_variable woken_changed_;
    bool woken_ = false;
  };

  const std::vector<std::shared_ptr<Gate>> gates_;
  engine::Description description_{
      .name = "gated", .summary = "files whose reads wait for a test", .schemes = {"file"}, .sleeps_in_kernel = true};
};

}  // namespace penstock::test
