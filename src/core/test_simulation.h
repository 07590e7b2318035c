// For tests: core without threads, in a time that is turned and not waited for. A Simulation has lanes, which it steps
// by turns, and one engine whose store is memory: what befalls an operation, and when it comes back, is drawn from a
// seed. The same seed always does the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/environment.h"
#include "core/lane.h"
#include "core/request.h"

namespace penstock::core {

// Probabilities are in thousandths, of every operation.
struct Weather {
  std::uint32_t short_transfer = 0;
  std::uint32_t io_error = 0;
  std::uint32_t again = 0;
  std::uint32_t interrupted = 0;
  std::uint32_t never = 0;  // as Fate
  Duration shortest = std::chrono::microseconds(50);
  Duration longest = std::chrono::milliseconds(2);
};

// What befalls an operation.
struct Fate {
  std::uint64_t bytes_most = UINT64_MAX;  // that it moves
  int system_error = 0;                   // other than 0: it fails
  bool never = false;                     // comes back when Disk::release_stuck is called
};

// What is behind the simulated engine: its bytes, and the operations of all queues that are on their way.
class SimulatedDisk {
 public:
  static constexpr std::uint32_t block_bytes = 512;

  SimulatedDisk(std::uint64_t seed, std::size_t size_bytes, const Weather& weather)
      : random_(seed), weather_(weather), bytes_(size_bytes) {}

  // From now on what befalls an operation is not drawn, but told.
  void let_decide(std::function<Fate(const engine::Op&)> decide) { decide_ = std::move(decide); }

  std::vector<std::byte>& bytes() { return bytes_; }
  std::uint64_t operations() const { return operations_; }
  std::uint64_t begun_and_ended() const { return operations_ + ended_; }
  std::uint64_t stuck() const { return stuck_; }
  void release_stuck() {
    for (OnItsWay& one : on_their_way_) {
      if (one.due != TimePoint::max()) continue;
      one.due = Clock::now();
      --stuck_;
    }
  }
  TimePoint next_due() const {
    TimePoint due = TimePoint::max();
    for (const OnItsWay& one : on_their_way_) due = std::min(due, one.due);
    return due;
  }

  void begin(const void* queue, const engine::Op& op) {
    ++operations_;
    OnItsWay one{queue, op, {.cookie = op.cookie, .route = Route::direct}, Clock::now() + time()};
    one.bytes = op.offset >= bytes_.size() ? 0 : std::min<std::uint64_t>(op.length, bytes_.size() - op.offset);
    const Fate fate = decide_ ? decide_(op) : draw(one.bytes);
    one.bytes = std::min(one.bytes, fate.bytes_most);
    if (fate.system_error != 0) {
      one.done.code = Code::io_error;
      one.done.system_error = fate.system_error;
    }
    if (fate.never) {
      one.due = TimePoint::max();
      ++stuck_;
    }
    on_their_way_.push_back(one);
  }
  // As a device does, bytes move at the end, into whatever the memory is by then.
  std::size_t collect(const void* queue, std::span<engine::Done> done) {
    std::size_t count = 0;
    const TimePoint now = Clock::now();
    for (std::size_t i = 0; i < on_their_way_.size() && count < done.size();) {
      OnItsWay& one = on_their_way_[i];
      if (one.queue != queue || one.due > now) {
        ++i;
        continue;
      }
      if (one.done.code == Code::ok) move(one);
      done[count++] = one.done;
      one = on_their_way_.back();
      on_their_way_.pop_back();
    }
    ended_ += count;
    return count;
  }

 private:
  struct OnItsWay {
    const void* queue = nullptr;
    engine::Op op;
    engine::Done done;
    TimePoint due;
    std::uint64_t bytes = 0;
  };

  Duration time() {
    const auto spread = static_cast<std::uint64_t>((weather_.longest - weather_.shortest).count());
    return weather_.shortest + Duration(static_cast<Duration::rep>(random_() % std::max<std::uint64_t>(1, spread)));
  }
  Fate draw(std::uint64_t bytes) {
    const auto drawn = static_cast<std::uint32_t>(random_() % 1000);
    std::uint32_t below = weather_.short_transfer;
    if (drawn < below) {
      const std::uint64_t blocks = random_() % std::max<std::uint64_t>(1, bytes / block_bytes);
      return {.bytes_most = std::max<std::uint64_t>(1, blocks) * block_bytes};
    }
    if (drawn < (below += weather_.io_error)) return {.system_error = EIO};
    if (drawn < (below += weather_.again)) return {.system_error = EAGAIN};
    if (drawn < (below += weather_.interrupted)) return {.system_error = EINTR};
    return {.never = drawn < below + weather_.never};
  }
  void move(OnItsWay& one) {
    one.done.bytes = one.bytes;
    std::byte* const there = bytes_.data() + one.op.offset;
    if (one.op.kind == engine::OpKind::read) std::memcpy(one.op.memory, there, one.bytes);
    if (one.op.kind == engine::OpKind::write) std::memcpy(there, one.op.memory, one.bytes);
  }

  std::mt19937_64 random_;
  const Weather weather_;
  std::function<Fate(const engine::Op&)> decide_;
  std::vector<std::byte> bytes_;
  std::vector<OnItsWay> on_their_way_;
  std::uint64_t operations_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t stuck_ = 0;
};

class SimulatedEngine : public engine::Engine {
 public:
  explicit SimulatedEngine(SimulatedDisk& disk) : disk_(disk) {}

  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    StoreInfo info;
    info.name = name;
    info.kind = StoreKind::block_device;
    info.size_bytes = disk_.bytes().size();
    info.block_bytes = SimulatedDisk::block_bytes;
    info.alignments = {.offset = SimulatedDisk::block_bytes, .memory = 4};
    info.writable = options.access != Access::read;
    info.direct = true;
    return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(info)));
  }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(disk_, options.depth));
  }

 private:
  class Store : public engine::Store, private engine::Writer {
   public:
    using engine::Store::Store;
    Result<engine::State> state() const override { return engine::State{info_.identity, info_.size_bytes}; }
    engine::Writer* writer() override { return info_.writable ? this : nullptr; }

   private:
    Edges edges() const override { return Edges::blocks; }
    Status reserve(engine::Room) override { return {}; }
    Status commit(bool) override { return {}; }
    Status abort() override { return {}; }
  };

  class Queue : public engine::Queue {
   public:
    Queue(SimulatedDisk& disk, std::size_t depth) : disk_(disk), depth_(depth) {}
    std::size_t submit(std::span<const engine::Op> ops) override {
      const std::size_t taken = std::min(ops.size(), depth_ - in_flight_);
      for (const engine::Op& op : ops.first(taken)) disk_.begin(this, op);
      in_flight_ += taken;
      return taken;
    }
    std::size_t poll(std::span<engine::Done> done, TimePoint) override {
      const std::size_t count = disk_.collect(this, done);
      in_flight_ -= count;
      return count;
    }
    void wake() override {}
    void cancel(std::uint64_t) override {}

   private:
    SimulatedDisk& disk_;
    const std::size_t depth_;
    std::size_t in_flight_ = 0;
  };

  SimulatedDisk& disk_;
  const engine::Description description_{.name = "simulated", .schemes = {"file"}};
};

class Simulation {
 public:
  Simulation(SimulatedDisk& disk, const Options& options) : disk_(disk) {
    auto table = std::make_shared<engine::Table>();
    table->push_back(std::make_unique<SimulatedEngine>(disk));
    environment_ = std::make_shared<Environment>(std::move(table), options, Machine::detect());
    const LaneSettings settings{.runner = Runner::callers,
                                .depth = options.operations_in_flight,
                                .staging_bytes = options.staging_slot_bytes * options.staging_slots_per_lane};
    for (std::uint32_t i = 0; i < options.lanes; ++i) {
      const auto on_stuck = [this] { return ++lanes_stuck_, replaces_lanes; };
      lanes_.push_back(std::make_shared<Lane>(environment_, settings, on_stuck));
    }
  }
  // Everything comes home, or the lanes could not be ended.
  ~Simulation() {
    disk_.release_stuck();
    run_until([this] { return is_idle(); });
  }

  // How often a lane asked for another to take its place. Where that is granted it is told so, and no other is made.
  std::uint32_t lanes_stuck() const { return lanes_stuck_; }
  bool replaces_lanes = false;
  const std::vector<std::shared_ptr<Lane>>& lanes() const { return lanes_; }
  bool is_idle() const {
    return std::none_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->busy(); });
  }

  const std::shared_ptr<Environment>& environment() const { return environment_; }
  penstock::Store open() {
    return client::Access::store(StoreEntry::open(*environment_, "disk", {.access = Access::write}).value());
  }

  std::shared_ptr<Request> submit(engine::OpKind kind, std::span<const Range> ranges,
                                  const RequestOptions& options = {}) {
    const RequestSettings settings{kind, static_cast<std::uint32_t>(lanes_.size())};
    auto request = Request::create(environment_, ranges, settings, options).value();
    for (std::size_t i = 0; i < request->parts.size(); ++i) {
      request->parts[i].lane = lanes_[next_lane_++ % lanes_.size()];
      request->parts[i].hold = request;
    }
    request->lanes_are_set();
    for (Part& part : request->parts) EXPECT_TRUE(part.lane->post(part));
    return request;
  }

  // Steps the lanes, and turns the clock when nothing is due. Says whether it came to be so.
  template <typename Holds>
  bool run_until(Holds holds) {
    while (!holds()) {
      const std::uint64_t before = disk_.begun_and_ended();
      for (const auto& lane : lanes_) lane->try_step(TimePoint::min());
      // What a step brings in is gone on with by the next, and in no time.
      if (disk_.begun_and_ended() != before || holds()) continue;
      TimePoint next = disk_.next_due();
      for (const auto& lane : lanes_) next = std::min(next, lane->next_due());
      if (next == TimePoint::max()) return false;
      if (next > Clock::now()) clock_.turn_to(next);
    }
    return true;
  }

 private:
  TurnedClock clock_;
  SimulatedDisk& disk_;
  std::shared_ptr<Environment> environment_;
  std::vector<std::shared_ptr<Lane>> lanes_;  // shared with requests
  std::size_t next_lane_ = 0;
  std::uint32_t lanes_stuck_ = 0;
};

}  // namespace penstock::core
