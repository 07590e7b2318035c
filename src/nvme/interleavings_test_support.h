// A queue pair under an Explorer, for tests: a Platform whose memory reorders what is not ordered, a controller that is
// one more thread, and lanes that submit commands and wait for them.
//
// Thread safety: one thread, the Explorer's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nvme/explorer_test_support.h"
#include "penstock/queue_pair.h"

namespace penstock::nvme::interleavings {

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
  std::uint32_t count(bool value) { return count("count", value); }
  std::uint32_t rank_among(bool value) {
    const auto& values = meet("rank_among", value ? 1 : 0);
    return static_cast<std::uint32_t>(std::count(values.begin(), values.begin() + rank_, 1U));
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
  T load_relaxed(const T& word) {
    return load_acquire(word);
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
  static void count(std::uint64_t&) {}
  static std::uint32_t looks() { return 1; }

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
  template <typename T>
  void store_ordered(T& word, T value) {
    store_release(word, value);
  }
  Completion load_completion(const Completion& completion, bool) {
    explorer_.point();
    return completion;
  }

  static std::uint64_t now() { return 0; }
  static void begin_wait() {}
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

inline constexpr std::uint32_t stale = 0xdddddddd;

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
    for (const Outstanding& other : outstanding) {
      if (other.command.cid == entry.cid) explorer.fail("a command identifier was used twice");
    }
    ++fetched_count;
    outstanding.push_back({entry, fetched_count});
    if (outstanding.size() >= size) explorer.fail("more commands in flight than the queue holds");
    entry.dw15 = stale;
    ++fetches;
    return true;
  }
  bool complete() {
    if (outstanding.empty()) return false;
    const std::uint32_t size = static_cast<std::uint32_t>(completions.size());
    if ((posted + 1) % size == head) return false;  // no room: the host has to ring
    const std::size_t which = explorer.choose(outstanding.size());
    const Outstanding ended = outstanding[which];
    outstanding.erase(outstanding.begin() + static_cast<std::ptrdiff_t>(which));
    post(ended.command.cid, ended.command.dw10, old_heads ? ended.head : fetched_count);
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
  struct Outstanding {
    Command command;
    std::uint64_t head;  // when it was fetched
  };
  std::vector<Outstanding> outstanding;
  std::uint64_t fetched_count = 0;
  std::uint32_t posted = 0;
  std::uint32_t completed = 0;
  std::uint32_t fetches = 0;
  std::uint32_t users = 0;
  std::uint32_t lies = 0;  // that it may still tell
  std::uint32_t lied = 0;
  bool old_heads = false;  // completions tell the head of when their command was fetched
};

inline constexpr std::uint64_t never = UINT64_MAX;

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

// Of the controller.
struct Manners {
  std::uint32_t lies = 0;
  bool old_heads = false;
};

inline Explorer::Outcome explore(std::uint32_t entries, std::uint32_t completion_entries,
                                 const std::vector<Work>& works, const Explorer::Limits& limits, Mutation mutation = {},
                                 const Manners& manners = {}) {
  Explorer explorer;
  std::unique_ptr<Bench> bench;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::uint32_t commands = 0;
  const auto begin = [&] {
    bench = std::make_unique<Bench>(explorer, entries, completion_entries);
    bench->lies = manners.lies;
    bench->old_heads = manners.old_heads;
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

}  // namespace penstock::nvme::interleavings
