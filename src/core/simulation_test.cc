// Core over a disk that misbehaves, without threads and in a time of its own: every request ends exactly once, bytes
// are right, nothing else is touched, and what was abandoned stays quarantined.
//
// PENSTOCK_SEED=N runs one seed, to reproduce a failure; PENSTOCK_SEEDS=N runs the first N;
// PENSTOCK_OPERATIONS=N sets the storage operations of each.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "core/test_simulation.h"

namespace penstock::core {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kib = 1 << 10;
constexpr std::size_t area_bytes = 128 * kib;
constexpr std::size_t areas = 16;
constexpr std::byte canary{0xc5};
bool is_canary(std::byte byte) {
  return byte == canary;
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// What became of a run: the same for the same seed.
struct Digest {
  std::uint64_t operations = 0;
  Duration time{};
  std::map<Outcome, std::uint64_t> outcomes;

  friend bool operator==(const Digest&, const Digest&) = default;
};

// One live request on one area of the disk, in memory of its own.
struct Live {
  std::size_t area = 0;
  engine::OpKind kind = engine::OpKind::read;
  std::vector<std::byte> memory = {};
  std::size_t used_bytes = 0;  // with the ranges, and canaries around them
  std::vector<Range> ranges;
  std::shared_ptr<Request> request;
};

class SimulatedRun {
 public:
  SimulatedRun(std::uint64_t seed, const Weather& weather)
      : random_(seed),
        disk_(seed, area_bytes * areas, weather),
        simulation_(disk_, options()),
        store_(simulation_.open()) {
    for (std::byte& byte : noise_) byte = static_cast<std::byte>(random_());
    for (std::size_t at = 0; at < disk_.bytes().size(); at += area_bytes) {
      std::copy_n(noise_.begin() + static_cast<std::ptrdiff_t>(below(4096)), area_bytes,
                  disk_.bytes().begin() + static_cast<std::ptrdiff_t>(at));
    }
    model_ = disk_.bytes();
  }

  // After a failure some are left, and their memory must not go before them.
  ~SimulatedRun() {
    for (const Live& live : live_) live.request->stop(Code::cancelled);
    simulation_.run_until([this] {
      disk_.release_stuck();
      return std::all_of(live_.begin(), live_.end(), [](const Live& live) { return live.request->ended(); }) &&
             simulation_.is_idle();
    });
  }

  Digest go(std::uint64_t operations) {
    const TimePoint begun = Clock::now();
    while (disk_.operations() < operations && !testing::Test::HasFailure()) {
      while (live_.size() < 6) start();
      if (below(40) == 0) live_[below(live_.size())].request->stop(Code::cancelled);
      if (below(200) == 0) disk_.release_stuck();
      finish(below(live_.size()));
    }
    while (!live_.empty() && !testing::Test::HasFailure()) finish(0);
    disk_.release_stuck();
    EXPECT_TRUE(simulation_.run_until([&] { return quarantined() == 0; })) << "what was released comes home";
    EXPECT_EQ(disk_.bytes() == model_, true) << "the disk holds what was written";
    return {disk_.operations(), Clock::now() - begun, outcomes_};
  }

 private:
  static Options options() {
    Options options;
    options.lanes = 3;
    options.operations_in_flight = 16;
    options.storage_chunk_bytes = 16 * kib;
    options.staging_slot_bytes = 256 * kib;
    options.staging_slots_per_lane = 2;
    options.pinned_budget_bytes = 8 << 20;
    return options;
  }
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::uint64_t quarantined() const { return simulation_.environment()->quarantined_bytes.load(); }

  void start() {
    Live live;
    do live.area = below(areas);
    while (busy_[live.area]);
    busy_[live.area] = true;
    live.kind = below(2) == 0 ? engine::OpKind::read : engine::OpKind::write;
    live.memory.assign(2 * area_bytes, canary);
    std::size_t place = 1 + below(512);
    for (std::size_t at = below(5000); at < area_bytes && live.ranges.size() < 30;) {
      const std::size_t length = std::min<std::size_t>(area_bytes - at, 1 + below(below(4) == 0 ? 60000 : 5000));
      if (place + length + 64 > live.memory.size()) break;
      live.ranges.push_back({&store_, live.area * area_bytes + at, Region::host(live.memory.data() + place, length)});
      place += length + 1 + below(64);
      at += length + below(3000);
    }
    if (live.kind == engine::OpKind::write) {
      for (const Range& range : live.ranges) {
        std::copy_n(noise_.begin() + static_cast<std::ptrdiff_t>(below(4096)), range.memory.size_bytes,
                    range.memory.data);
      }
    }
    live.used_bytes = place;
    live.request = simulation_.submit(live.kind, live.ranges);
    live_.push_back(std::move(live));
  }

  void finish(std::size_t index) {
    const Live& live = live_[index];
    // An operation that never comes back is found by whoever gives up.
    const TimePoint patience = Clock::now() + 5s;
    const bool ended = simulation_.run_until([&] { return live.request->ended() || Clock::now() >= patience; });
    ASSERT_TRUE(ended) << "nothing is due, and the request has not ended";
    if (!live.request->ended()) {
      live.request->stop(Code::cancelled);
      ASSERT_TRUE(simulation_.run_until([&] { return live.request->ended(); }));
    }
    const Outcome outcome = live.request->outcome();
    ++outcomes_[outcome];
    if (outcome == Outcome::abandoned) {
      // Until then the disk may touch the memory, and the area.
      disk_.release_stuck();
      ASSERT_TRUE(simulation_.run_until([&] { return quarantined() == 0; }));
    }
    check(live, outcome);
    busy_[live.area] = false;
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void check(const Live& live, Outcome outcome) {
    if (live.kind == engine::OpKind::write) {
      for (const Range& range : live.ranges) {
        // Where it was not done, nobody knows what is there, but for what lies beside it.
        const auto& from = outcome == Outcome::done ? range.memory.data : disk_.bytes().data() + range.offset;
        std::copy_n(from, range.memory.size_bytes, model_.begin() + static_cast<std::ptrdiff_t>(range.offset));
      }
      const auto area = static_cast<std::ptrdiff_t>(live.area * area_bytes);
      EXPECT_TRUE(std::equal(model_.begin() + area, model_.begin() + area + area_bytes, disk_.bytes().begin() + area))
          << "a write, " << outcome_name(outcome);
    } else if (outcome == Outcome::done) {
      for (const Range& range : live.ranges) {
        EXPECT_TRUE(std::equal(range.memory.data, range.memory.data + range.memory.size_bytes,
                               model_.begin() + static_cast<std::ptrdiff_t>(range.offset)));
      }
    }
    const std::byte* at = live.memory.data();
    bool untouched = true;
    for (const Range& range : live.ranges) {
      untouched = untouched && std::all_of(at, static_cast<const std::byte*>(range.memory.data), is_canary);
      at = range.memory.data + range.memory.size_bytes;
    }
    EXPECT_TRUE(untouched && std::all_of(at, live.memory.data() + live.used_bytes, is_canary))
        << "memory beside the ranges was touched";
  }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
  Simulation simulation_;
  penstock::Store store_;
  std::vector<std::byte> noise_ = std::vector<std::byte>(area_bytes + 4096);
  std::vector<std::byte> model_;
  std::vector<Live> live_;
  std::array<bool, areas> busy_{};
  std::map<Outcome, std::uint64_t> outcomes_;
};

constexpr Weather storm{.short_transfer = 60, .io_error = 3, .again = 40, .interrupted = 20, .never = 2};

TEST(Simulation, keeps_its_promises_in_any_weather) {
  const std::uint64_t one = from_environment("PENSTOCK_SEED", 0);
  const std::uint64_t seeds = from_environment("PENSTOCK_SEEDS", 3);
  const std::uint64_t operations = from_environment("PENSTOCK_OPERATIONS", 10'000);
  for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
    if (one != 0) seed = one;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Digest digest = SimulatedRun(seed, storm).go(operations);
    EXPECT_GE(digest.operations, operations);
    if (one != 0) break;
  }
}

TEST(Simulation, does_the_same_for_the_same_seed) {
  EXPECT_EQ(SimulatedRun(7, storm).go(5'000), SimulatedRun(7, storm).go(5'000));
}

TEST(Simulation, ends_everything_well_in_good_weather) {
  const Digest digest = SimulatedRun(3, {}).go(5'000);
  for (const auto& [outcome, count] : digest.outcomes) {
    EXPECT_TRUE(outcome == Outcome::done || outcome == Outcome::cancelled) << outcome_name(outcome) << " " << count;
  }
}

}  // namespace
}  // namespace penstock::core
