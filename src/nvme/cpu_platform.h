// CpuPlatform: a QueuePair driven by threads of the CPU; see queue_pair.h. A group is one thread.
//
// Thread safety: an object for each thread; they share nothing but the Registers.
#pragma once

#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "nvme/transport.h"
#include "penstock/queue_pair.h"

namespace penstock::nvme {

class CpuPlatform {
 public:
  explicit CpuPlatform(const Registers& registers) : registers_(registers) {}

  static constexpr std::uint32_t size() { return 1; }
  static constexpr std::uint32_t rank() { return 0; }
  static constexpr bool is_leader() { return true; }
  static constexpr void sync() {}
  static constexpr bool all(bool value) { return value; }
  static constexpr bool any(bool value) { return value; }
  static constexpr std::uint64_t broadcast(std::uint64_t value) { return value; }
  static constexpr std::uint32_t leading(bool value) { return value ? 1 : 0; }
  static constexpr std::uint32_t count(bool value) { return value ? 1 : 0; }
  static constexpr std::uint32_t rank_among(bool) { return 0; }
  static constexpr bool is_first(std::uint32_t) { return true; }
  static constexpr Largest largest(std::uint32_t value) { return {0, value}; }

  template <typename T>
  static T load_acquire(const T& word) {
    return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
  }
  template <typename T>
  static T load_relaxed(const T& word) {
    return __atomic_load_n(&word, __ATOMIC_RELAXED);
  }
  template <typename T>
  static void store_relaxed(T& word, T value) {
    __atomic_store_n(&word, value, __ATOMIC_RELAXED);
  }
  template <typename T>
  static void store_release(T& word, T value) {
    __atomic_store_n(&word, value, __ATOMIC_RELEASE);
  }
  template <typename T>
  static T fetch_add(T& word, T value) {
    return __atomic_fetch_add(&word, value, __ATOMIC_RELAXED);
  }
  template <typename T>
  static bool compare_exchange(T& word, T& expected, T value) {
    return __atomic_compare_exchange_n(&word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  static bool try_lock(std::uint32_t& word) {
    std::uint32_t unlocked = 0;
    return load_acquire(word) == 0 && compare_exchange(word, unlocked, 1U);
  }

  // How often who drains looks for a completion before others may.
  static constexpr std::uint32_t looks() { return 1; }
  // For statistics; by one thread at a time.
  static void count(std::uint64_t& counter) { ++counter; }
  // For those who want to hear of each token that ends; it may be the caller's again already.
  static void completed(Token*) {}

  // The command, under that identifier.
  static void write_entry(Command& entry, const Command& command, std::uint16_t cid) {
    entry = command;
    entry.cid = cid;
  }
  void ring(std::uint32_t& doorbell, std::uint32_t value) const { registers_.store(&doorbell, value); }
  // Doorbells are stores of device memory to the same page, which a processor keeps in order; between two processors
  // the turn is passed on by a release, which the outer domain must see too.
  static void order_doorbells() {
#if defined(__aarch64__)
    asm volatile("dmb osh" ::: "memory");
#endif
  }
  // A release, behind order_doorbells.
  template <typename T>
  static void store_ordered(T& word, T value) {
    store_release(word, value);
  }
  // The status, and the rest if its phase is the one that is waited for.
  static Completion load_completion(const Completion& completion, bool phase) {
    const std::uint32_t status = load_acquire(completion.status);
    order_after_device();
    if (Completion::phase(status) != phase) return {0, 0, 0, status};
    return {completion.result, 0, completion.submission, status};
  }

  // In nanoseconds, as the deadlines of a QueuePair.
  static std::uint64_t now() { return to_ns(Clock::now()); }
  static std::uint64_t to_ns(TimePoint time) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
  }
  // A moment first, then the processor for others, then a short sleep: on a busy machine the thread that is waited for
  // may need it. begin_wait begins anew.
  void begin_wait() { pauses_ = 0; }
  void pause() {
    constexpr std::uint32_t spins = 200;
    constexpr std::uint32_t yields = 400;
    if (++pauses_ < spins) {
      relax();
    } else if (pauses_ < yields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  static void relax() {
#if defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

 private:
  const Registers& registers_;
  std::uint32_t pauses_ = 0;
};

}  // namespace penstock::nvme
