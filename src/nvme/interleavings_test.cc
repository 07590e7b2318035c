// The queue pair under a scheduler of its own: every schedule of a few threads with a bounded number of preemptions,
// and memory that reorders what is not ordered.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "nvme/fiber_test_support.h"
#include "nvme/queue_pair.h"

namespace penstock::nvme {
namespace {

// Runs threads one at a time. At each point of a thread a choice is made: who runs next. Choices are explored depth
// first, by running again with the next one. What departs from the plain course is bounded: taking the processor from a
// thread that could have gone on, a write that arrives late, a completion out of order.
class Explorer {
 public:
  struct Limits {
    int departures = 2;
    std::uint32_t schedules = 100'000;
    std::uint64_t random_seed = 0;  // not 0: choices are drawn instead, and departures are not bounded
  };
  struct Outcome {
    std::uint32_t schedules = 0;
    bool complete = false;  // every schedule within the bound was run
    std::string failure;    // the first one
  };
  struct Abandoned {};

  // `begin` makes the threads of a schedule anew; `end` looks at what they have done.
  Outcome explore(const Limits& limits, const std::function<std::vector<std::function<void()>>()>& begin,
                  const std::function<void()>& end) {
    random_.seed(limits.random_seed);
    is_random_ = limits.random_seed != 0;
    Outcome outcome;
    trail_.clear();
    do {
      next_choice_ = 0;
      departures_left_ = limits.departures;
      failure_.clear();
      run(begin());
      ++outcome.schedules;
      if (failure_.empty()) end();
      outcome.failure = failure_;
    } while (outcome.failure.empty() && outcome.schedules < limits.schedules && advance());
    outcome.complete = !is_random_ && trail_.empty();
    return outcome;
  }

  // Of the running thread: others may come first.
  void point() {
    look_for_failure();
    const std::size_t others = threads_that_can_run() - 1;
    if (const std::size_t chosen = choose(others + 1); chosen != 0) switch_to(other(chosen - 1));
  }
  // The running thread can't go on before another has. In turn, so that none is left out for ever.
  void pause() {
    look_for_failure();
    if (threads_that_can_run() > 1) switch_to(other(0));
  }
  // 0 is the plain course.
  std::size_t choose(std::size_t count) {
    if (count < 2) return 0;
    constexpr std::size_t plain_share = 8;  // of random choices, so that threads get on
    if (is_random_) return std::max(random_() % (count + plain_share), plain_share) - plain_share;
    if (departures_left_ == 0) return 0;
    if (next_choice_ == trail_.size()) trail_.push_back({0, count});
    const std::size_t chosen = trail_[next_choice_++].chosen;
    if (chosen != 0) --departures_left_;
    return chosen;
  }
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
    throw Abandoned{};
  }
  // For `end`, which runs on no thread of ours.
  void note(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

 private:
  static constexpr std::uint32_t most_steps = 20'000;
  struct Choice {
    std::size_t chosen, count;
  };
  struct Thread {
    std::unique_ptr<Fiber> fiber;
    bool ended = false;
  };

  void run(std::vector<std::function<void()>> bodies) {
    threads_.clear();
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      threads_.push_back({std::make_unique<Fiber>([this, i, &body = bodies[i]] {
        try {
          if (failure_.empty()) body();
        } catch (const Abandoned&) {
        }
        end_thread(i);
      })});
    }
    steps_ = 0;
    running_ = 0;
    home_.switch_to(*threads_[0].fiber);
  }
  void end_thread(std::size_t self) {
    threads_[self].ended = true;
    if (threads_that_can_run() == 0) threads_[self].fiber->switch_to(home_, true);
    running_ = other(0);
    threads_[self].fiber->switch_to(*threads_[running_].fiber, true);
  }
  void switch_to(std::size_t next) {
    const std::size_t self = running_;
    running_ = next;
    threads_[self].fiber->switch_to(*threads_[next].fiber);
    look_for_failure();
  }
  void look_for_failure() {
    if (!failure_.empty()) throw Abandoned{};
    if (++steps_ > most_steps) fail("no progress");
  }
  std::size_t threads_that_can_run() const {
    return static_cast<std::size_t>(
        std::count_if(threads_.begin(), threads_.end(), [](const Thread& thread) { return !thread.ended; }));
  }
  // The one after the running thread, or so many further.
  std::size_t other(std::size_t number) const {
    std::size_t at = running_;
    for (std::size_t seen = 0; seen <= number;) {
      at = (at + 1) % threads_.size();
      if (!threads_[at].ended && at != running_) ++seen;
    }
    return at;
  }
  bool advance() {
    if (is_random_) return true;
    while (!trail_.empty() && trail_.back().chosen + 1 == trail_.back().count) trail_.pop_back();
    if (trail_.empty()) return false;
    ++trail_.back().chosen;
    return true;
  }

  Fiber home_;
  std::vector<Thread> threads_;
  std::size_t running_ = 0;
  std::uint32_t steps_ = 0;
  std::vector<Choice> trail_;
  std::size_t next_choice_ = 0;
  int departures_left_ = 0;
  bool is_random_ = false;
  std::mt19937_64 random_;
  std::string failure_;
};

// What a Platform may forget, to see that the explorer would notice.
struct Mutation {
  bool no_order_before_ring = false;
  bool no_order_between_doorbells = false;
  bool rung_is_stored_late = false;  // together with `published`, after the doorbell
};

// Lanes that act together, each a thread of the explorer: collective calls meet here.
struct Group {
  std::uint32_t size = 1;
  std::uint32_t arrived = 0;
  std::uint64_t generation = 0;
  std::string call;
  std::array<std::uint64_t, 4> given{};
  std::array<std::uint64_t, 4> taken{};
  // Entries that the group wrote and that no fence has made visible to the controller, by lane.
  struct Write {
    Command* entry;
    Command command;
  };
  std::vector<Write> writes;
};

class SchedulePlatform {
 public:
  SchedulePlatform(Explorer& explorer, Group& group, std::uint32_t rank, Mutation mutation)
      : explorer_(explorer), group_(group), rank_(rank), mutation_(mutation) {}
  ~SchedulePlatform() { deliver(); }
  SchedulePlatform(const SchedulePlatform&) = delete;
  SchedulePlatform& operator=(const SchedulePlatform&) = delete;

  std::uint32_t size() const { return group_.size; }
  std::uint32_t rank() const { return rank_; }
  bool is_leader() const { return rank_ == 0; }
  void sync() { meet("sync", 0); }
  bool all(bool value) { return count("all", value) == group_.size; }
  bool any(bool value) { return count("any", value) != 0; }
  std::uint64_t broadcast(std::uint64_t value) { return meet("broadcast", value)[0]; }
  std::uint32_t leading(bool value) {
    const auto& values = meet("leading", value ? 1 : 0);
    std::uint32_t leading = 0;
    while (leading < group_.size && values[leading] != 0) ++leading;
    return leading;
  }
  bool is_first(std::uint32_t value) {
    const auto& values = meet("is_first", value);
    return std::find(values.begin(), values.begin() + rank_, value) == values.begin() + rank_;
  }
  Largest largest(std::uint32_t value) {
    const auto& values = meet("largest", value);
    Largest largest;
    for (std::uint32_t i = 0; i < group_.size; ++i) {
      if (i == rank_) largest.before = largest.of_all;
      largest.of_all = std::max(largest.of_all, static_cast<std::uint32_t>(values[i]));
    }
    return largest;
  }

  template <typename T>
  T load_acquire(const T& word) {
    explorer_.point();
    return word;
  }
  template <typename T>
  void store_relaxed(T& word, T value) {
    if constexpr (sizeof(T) == sizeof(std::uint64_t)) {
      if (mutation_.rung_is_stored_late) {
        late_ = &word;
        late_value_ = value;
        return;
      }
    }
    word = value;
  }
  template <typename T>
  void store_release(T& word, T value) {
    explorer_.point();
    if (late_ != nullptr) *std::exchange(late_, nullptr) = late_value_;
    word = value;
  }
  template <typename T>
  T fetch_add(T& word, T value) {
    explorer_.point();
    return std::exchange(word, static_cast<T>(word + value));
  }
  template <typename T>
  bool compare_exchange(T& word, T& expected, T value) {
    explorer_.point();
    if (word != expected) {
      expected = word;
      return false;
    }
    word = value;
    return true;
  }
  bool try_lock(std::uint32_t& word) {
    std::uint32_t unlocked = 0;
    return compare_exchange(word, unlocked, 1U);
  }

  static void completed(Token*) {}

  // Seen by the controller only after a fence.
  void write_entry(Command& entry, const Command& command, std::uint16_t cid) {
    group_.writes.push_back({&entry, command});
    group_.writes.back().command.cid = cid;
  }
  // A posted write: it arrives now, or whenever the next order is made.
  void ring(std::uint32_t& doorbell, std::uint32_t value) {
    explorer_.point();
    if (!mutation_.no_order_before_ring) show_writes();
    posted_.emplace_back(&doorbell, value);
    if (explorer_.choose(2) == 0) deliver();
    explorer_.point();
    show_writes();
  }
  void order_doorbells() {
    if (!mutation_.no_order_between_doorbells) deliver();
  }
  std::uint32_t load_phase(const std::uint32_t& status) { return load_acquire(status); }

  static std::uint64_t now() { return 0; }
  void pause() { explorer_.pause(); }

 private:
  void show_writes() {
    for (const auto& write : group_.writes) *write.entry = write.command;
    group_.writes.clear();
  }
  void deliver() {
    for (const auto& [doorbell, value] : posted_) *doorbell = value;
    posted_.clear();
  }
  std::uint32_t count(const char* call, bool value) {
    const auto& values = meet(call, value ? 1 : 0);
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < group_.size; ++i) sum += values[i] != 0 ? 1 : 0;
    return sum;
  }
  const std::array<std::uint64_t, 4>& meet(const char* call, std::uint64_t value) {
    if (group_.arrived == 0) group_.call = call;
    if (group_.call != call) explorer_.fail("lanes of a group meet in different calls");
    group_.given[rank_] = value;
    const std::uint64_t generation = group_.generation;
    if (++group_.arrived == group_.size) {
      group_.taken = group_.given;
      group_.arrived = 0;
      ++group_.generation;
    }
    while (group_.generation == generation) explorer_.pause();
    return group_.taken;
  }

  Explorer& explorer_;
  Group& group_;
  const std::uint32_t rank_;
  const Mutation mutation_;
  std::vector<std::pair<std::uint32_t*, std::uint32_t>> posted_;
  std::uint64_t* late_ = nullptr;
  std::uint64_t late_value_ = 0;
};

using Queue = QueuePair<SchedulePlatform>;

constexpr std::uint32_t stale = 0xdddddddd;

// A queue pair, a controller that is one more thread, and what the controller found.
struct Bench {
  explicit Bench(Explorer& the_explorer, std::uint32_t entries, std::uint32_t completion_entries)
      : explorer(the_explorer), submissions(entries), completions(completion_entries), slots(entries) {
    for (Command& entry : submissions) entry.dw15 = stale;
    state.memory = {.id = 1,
                    .entries = entries,
                    .completion_entries = completion_entries,
                    .submissions = submissions.data(),
                    .completions = completions.data(),
                    .slots = slots.data(),
                    .tail_doorbell = &tail,
                    .head_doorbell = &head};
    Group group;
    SchedulePlatform platform(explorer, group, 0, {});
    Queue(state, platform).initialize();
  }

  // Serves until `commands` are completed, or until everyone else has left.
  void serve(std::uint32_t commands) {
    while (completed < commands && users > 0) {
      explorer.point();
      if (lies > 0) lie();
      if (!fetch() && !complete()) explorer.pause();
    }
  }
  // Completes a command that it has not fetched, and may not even have been told of: at the price of a departure, the
  // next one, or one of those after it.
  void lie() {
    const auto size = static_cast<std::uint32_t>(completions.size());
    const std::size_t which = explorer.choose(submissions.size());
    if (which == 0 || (posted + 1) % size == head) return;
    --lies;
    ++lied;
    post(static_cast<std::uint16_t>(fetched_count + which - 1), 0, fetched_count);
  }
  void post(std::uint16_t cid, std::uint32_t result, std::uint64_t fetched) {
    const auto size = static_cast<std::uint32_t>(completions.size());
    Completion& entry = completions[posted % size];
    entry.result = result;
    entry.submission = 1U << 16 | static_cast<std::uint32_t>(fetched % submissions.size());
    entry.status = Completion::pack(cid, (posted / size & 1) == 0, status::success);
    ++posted;
  }
  bool fetch() {
    const std::uint32_t size = static_cast<std::uint32_t>(submissions.size());
    if (tail >= size) explorer.fail("a doorbell out of range");
    const std::uint32_t fetched = static_cast<std::uint32_t>(fetched_count) % size;
    if (tail == fetched) return false;
    Command& entry = submissions[fetched];
    if (entry.dw15 == stale) explorer.fail("an entry was fetched before it was written");
    for (const Command& other : outstanding) {
      if (other.cid == entry.cid) explorer.fail("a command identifier was used twice");
    }
    outstanding.push_back(entry);
    if (outstanding.size() >= size) explorer.fail("more commands in flight than the queue holds");
    entry.dw15 = stale;
    ++fetched_count;
    ++fetches;
    return true;
  }
  bool complete() {
    if (outstanding.empty()) return false;
    const std::uint32_t size = static_cast<std::uint32_t>(completions.size());
    if ((posted + 1) % size == head) return false;  // no room: the host has to ring
    const std::size_t which = explorer.choose(outstanding.size());
    const Command command = outstanding[which];
    outstanding.erase(outstanding.begin() + static_cast<std::ptrdiff_t>(which));
    post(command.cid, command.dw10, fetched_count);
    ++completed;
    return true;
  }

  Explorer& explorer;
  std::vector<Command> submissions;
  std::vector<Completion> completions;
  std::vector<Slot> slots;
  QueuePairState state;
  std::uint32_t tail = 0;
  std::uint32_t head = 0;
  std::vector<Command> outstanding;
  std::uint64_t fetched_count = 0;
  std::uint32_t posted = 0;
  std::uint32_t completed = 0;
  std::uint32_t fetches = 0;
  std::uint32_t users = 0;
  std::uint32_t lies = 0;  // that it may still tell
  std::uint32_t lied = 0;
};

constexpr std::uint64_t never = UINT64_MAX;

// What one lane does: submits `batch` commands at once, `rounds` times, and waits for all of each round.
struct Work {
  std::uint32_t lanes = 1;
  std::uint32_t batch = 1;
  std::uint32_t rounds = 1;
  bool tries = false;  // try_submit instead
};

class Lane {
 public:
  Lane(Bench& bench, Group& group, std::uint32_t rank, std::uint32_t tag, const Work& work, Mutation mutation)
      : bench_(bench), group_(group), rank_(rank), tag_(tag), work_(work), mutation_(mutation) {}

  void run() {
    SchedulePlatform platform(bench_.explorer, group_, rank_, mutation_);
    Queue queue(bench_.state, platform);
    for (std::uint32_t round = 0; round < work_.rounds; ++round) {
      std::vector<Token> tokens(work_.batch);
      std::vector<Submission> submissions(work_.batch);
      for (std::uint32_t i = 0; i < work_.batch; ++i) {
        submissions[i].command.dw10 = tag_ + round * 16 + i;
        submissions[i].token = &tokens[i];
      }
      submit(queue, platform, submissions);
      for (std::uint32_t i = 0; i < work_.batch; ++i) {
        if (queue.wait(tokens[i], never) != Waited::done) bench_.explorer.fail("a wait without an end");
        if (!Queue::status_of(tokens[i]).ok() || tokens[i].result != tag_ + round * 16 + i) {
          bench_.explorer.fail("another command's outcome");
        }
      }
    }
    --bench_.users;
  }

 private:
  void submit(Queue& queue, SchedulePlatform& platform, const std::vector<Submission>& submissions) {
    const auto count = static_cast<std::uint32_t>(submissions.size());
    if (!work_.tries) {
      if (queue.submit(submissions.data(), count, never) != count * group_.size) bench_.explorer.fail("not submitted");
      return;
    }
    for (std::uint32_t taken = 0; taken < count;) {
      const std::uint32_t more = queue.try_submit(submissions.data() + taken, count - taken);
      taken += more;
      if (more == 0 && queue.drain() == 0) platform.pause();
    }
  }

  Bench& bench_;
  Group& group_;
  const std::uint32_t rank_;
  const std::uint32_t tag_;
  const Work work_;
  const Mutation mutation_;
};

Explorer::Outcome explore(std::uint32_t entries, std::uint32_t completion_entries, const std::vector<Work>& works,
                          const Explorer::Limits& limits, Mutation mutation = {}, std::uint32_t lies = 0) {
  Explorer explorer;
  std::unique_ptr<Bench> bench;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::uint32_t commands = 0;
  const auto begin = [&] {
    bench = std::make_unique<Bench>(explorer, entries, completion_entries);
    bench->lies = lies;
    groups.clear();
    lanes.clear();
    commands = 0;
    std::vector<std::function<void()>> bodies;
    for (const Work& work : works) {
      groups.push_back(std::make_unique<Group>());
      groups.back()->size = work.lanes;
      for (std::uint32_t rank = 0; rank < work.lanes; ++rank) {
        const auto tag = static_cast<std::uint32_t>(lanes.size() + 1) * 256;
        lanes.push_back(std::make_unique<Lane>(*bench, *groups.back(), rank, tag, work, mutation));
        bodies.emplace_back([lane = lanes.back().get()] { lane->run(); });
        commands += work.batch * work.rounds;
        ++bench->users;
      }
    }
    bodies.emplace_back([&] { bench->serve(commands); });
    return bodies;
  };
  const auto end = [&] {
    if (bench->completed != commands || bench->fetches != commands) explorer.note("a command was lost");
    if (bench->state.strange_completions > bench->lied) explorer.note("a completion was not recognized");
  };
  return explorer.explore(limits, begin, end);
}

// Sanitizers take a hundred times as long to switch between fibers, and have little to find among them.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool is_slow = true;
#else
constexpr bool is_slow = false;
#endif
constexpr int departures = is_slow ? 1 : 2;

TEST(Interleavings, of_two_threads_on_two_slots_lose_and_mix_up_nothing) {
  const auto outcome = explore(2, 2, {{.rounds = 2}, {.rounds = 1}}, {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_batches_on_four_slots_lose_and_mix_up_nothing) {
  const auto outcome = explore(4, 4, {{.batch = 3}, {.batch = 2}}, {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_threads_that_do_not_wait_for_room_lose_and_mix_up_nothing) {
  const auto outcome = explore(4, 4, {{.batch = 3, .tries = true}, {.batch = 2, .tries = true}},
                               {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_a_group_of_lanes_and_a_thread_lose_and_mix_up_nothing) {
  const auto outcome = explore(4, 8, {{.lanes = 2}, {.batch = 1}}, {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_a_group_larger_than_the_queue_lose_and_mix_up_nothing) {
  const auto outcome = explore(2, 2, {{.lanes = 3, .batch = 1}}, {.departures = 1, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, drawn_at_random_lose_and_mix_up_nothing) {
  const std::vector<Work> works{{.batch = 2, .rounds = 3}, {.lanes = 2, .rounds = 2}, {.batch = 1, .rounds = 3}};
  for (const std::uint32_t entries : {2U, 4U}) {
    const auto outcome = explore(entries, 4, works, {.schedules = is_slow ? 10 : 500, .random_seed = entries});
    EXPECT_EQ(outcome.failure, "");
  }
}

TEST(Interleavings, with_a_controller_that_completes_what_it_has_not_fetched_lose_and_mix_up_nothing) {
  const std::vector<std::vector<Work>> all_works = {
      {{.rounds = 2}, {.rounds = 1}}, {{.batch = 3}, {.batch = 1}}, {{.lanes = 2}, {.batch = 1}}};
  for (const std::vector<Work>& works : all_works) {
    const auto outcome = explore(4, 8, works, {.departures = departures, .schedules = 200'000}, {}, 2);
    EXPECT_EQ(outcome.failure, "");
    EXPECT_TRUE(outcome.complete);
  }
  const auto outcome = explore(4, 16, {{.batch = 2, .rounds = 3}, {.lanes = 3, .rounds = 2}},
                               {.schedules = is_slow ? 10 : 500, .random_seed = 1}, {}, 6);
  EXPECT_EQ(outcome.failure, "");
}

// The controller may complete a command before the thread that rang for it does anything else.
TEST(Interleavings, find_that_what_was_rung_is_told_after_the_doorbell) {
  const auto outcome = explore(4, 4, {{}, {}}, {.departures = 1}, {.rung_is_stored_late = true});
  EXPECT_NE(outcome.failure, "");
}

struct Posted {
  std::uint32_t ticket, head;
  bool counts;
};

// Four commands are in flight, of which these completions tell: what a group made of them that it should not have.
std::string judge_with(std::uint32_t lanes, const std::vector<Posted>& posted) {
  Explorer explorer;
  Bench bench(explorer, 8, 16);
  std::array<Token, 4> tokens;
  Group group;
  group.size = lanes;
  const auto submit_and_post = [&] {
    Group alone;
    SchedulePlatform platform(explorer, alone, 0, {});
    std::vector<Submission> submissions;
    for (Token& token : tokens) submissions.push_back({{}, &token});
    Queue(bench.state, platform).submit(submissions.data(), 4, never);
    for (std::uint32_t i = 0; i < posted.size(); ++i) {
      bench.post(static_cast<std::uint16_t>(posted[i].ticket), i + 1, posted[i].head);
    }
  };
  const auto begin = [&] {
    std::vector<std::function<void()>> bodies;
    for (std::uint32_t rank = 0; rank < lanes; ++rank) {
      bodies.emplace_back([&, rank] {
        if (rank == 0) submit_and_post();
        SchedulePlatform platform(explorer, group, rank, {});
        platform.sync();
        while (Queue(bench.state, platform).drain() > 0) continue;
      });
    }
    return bodies;
  };
  const auto end = [&] {
    std::array<std::uint32_t, 4> results{};
    std::uint32_t strange = 0, fetched = 0;
    for (std::uint32_t i = 0; i < posted.size(); ++i) {
      strange += posted[i].counts ? 0 : 1;
      if (!posted[i].counts) continue;
      results[posted[i].ticket] = i + 1;
      fetched = posted[i].head;
    }
    if (bench.state.strange_completions != strange) explorer.note("strange completions were counted otherwise");
    if (bench.state.fetched != fetched) explorer.note("another head is believed");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool done = (tokens[i].state & Token::done_bit) != 0;
      if (done != (results[i] != 0) || tokens[i].result != results[i]) explorer.note("another outcome");
    }
  };
  return explorer.explore({.departures = 0, .schedules = 1}, begin, end).failure;
}

// Lanes take completions at once, and judge them as one thread would that takes one after the other.
TEST(Interleavings, of_a_group_judge_completions_in_the_order_of_the_queue) {
  const std::vector<std::vector<Posted>> queues = {
      {{0, 1, true}, {1, 2, true}, {2, 3, true}, {3, 4, true}},    // as they were fetched
      {{3, 4, true}, {0, 4, true}, {2, 4, true}, {1, 4, true}},    // out of order
      {{0, 1, true}, {2, 1, false}, {1, 3, true}, {2, 3, true}},   // one that was not fetched
      {{0, 3, true}, {1, 2, false}, {2, 3, true}, {1, 4, true}},   // a head that went back
      {{0, 5, false}, {0, 1, true}, {1, 1, false}, {1, 2, true}},  // a head past what was rung
      {{0, 1, true}, {0, 4, false}, {1, 2, true}, {2, 3, true}},   // one that comes twice, with a head ahead of time
      {{0, 0, false}, {0, 1, true}, {0, 4, false}, {1, 2, true}},  // and one that comes thrice
      {{7, 4, false}, {0, 1, true}, {3, 2, false}, {1, 2, true}},  // of no command, with a head ahead of time
      {{0, 2, true}, {1, 1, false}, {1, 1, false}, {1, 2, true}},  // twice back, then as it should be
      {{0, 2, true}, {3, 3, false}, {1, 2, true}, {3, 4, true}}};
  for (const std::vector<Posted>& queue : queues) {
    for (const std::uint32_t lanes : {1U, 2U, 3U, 4U}) EXPECT_EQ(judge_with(lanes, queue), "") << lanes << " lanes";
  }
}

TEST(Interleavings, find_a_missing_order_before_the_doorbell) {
  const auto outcome = explore(2, 2, {{}, {}}, {.departures = 2}, {.no_order_before_ring = true});
  EXPECT_EQ(outcome.failure, "an entry was fetched before it was written");
}

TEST(Interleavings, find_a_missing_order_between_doorbells) {
  if (is_slow) GTEST_SKIP() << "it takes two departures to find, which is too many under a sanitizer";
  const auto outcome = explore(4, 4, {{}, {}}, {.departures = 2}, {.no_order_between_doorbells = true});
  EXPECT_NE(outcome.failure, "");
}

// One thread poisons the queue while others use it: all leave, none rings after it has seen that, and what the
// controller was never told of is the callers' again.
TEST(Interleavings, with_poison_let_everyone_leave) {
  Explorer explorer;
  std::unique_ptr<Bench> bench;
  std::array<Token, 2> tokens;
  std::array<Group, 3> groups;
  std::array<std::uint32_t, 2> published{};
  const auto begin = [&] {
    bench = std::make_unique<Bench>(explorer, 2, 2);
    groups = {};
    published = {};
    bench->users = 2;
    std::vector<std::function<void()>> bodies;
    for (std::uint32_t i = 0; i < 2; ++i) {
      bodies.emplace_back([&, i] {
        SchedulePlatform platform(explorer, groups[i], 0, {});
        Queue queue(bench->state, platform);
        Submission submission{};
        submission.token = &tokens[i];
        published[i] = queue.submit(&submission, 1, never);
        if (published[i] == 1 && queue.wait(tokens[i], never) == Waited::timed_out) explorer.fail("no deadline passed");
        --bench->users;
      });
    }
    bodies.emplace_back([&] {
      SchedulePlatform platform(explorer, groups[2], 0, {});
      Queue(bench->state, platform).poison(Poison::timed_out);
    });
    bodies.emplace_back([&] { bench->serve(2); });
    return bodies;
  };
  const auto end = [&] {
    if (bench->fetches > published[0] + published[1]) explorer.note("a command was rung that its caller has back");
    Group group;
    SchedulePlatform platform(explorer, group, 0, {});
    const std::uint32_t ended = Queue(bench->state, platform).end_in_flight(status::queue_deleted);
    for (const Token& token : tokens) {
      if ((token.state & Token::done_bit) == 0) explorer.note("a token that never ends");
    }
    if (bench->completed + ended < published[0] + published[1]) explorer.note("a command was lost");
  };
  const auto outcome = explorer.explore({.departures = departures, .schedules = 200'000}, begin, end);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

}  // namespace
}  // namespace penstock::nvme
