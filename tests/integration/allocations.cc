#include "integration/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> allocations{0};

struct Failing {
  bool on = false;
  bool all = false;
  bool happened = false;
  std::uint64_t left = 0;  // that don't fail
};
thread_local Failing failing;

// Of all threads but one.
struct FailingElsewhere {
  std::atomic<bool> on{false};
  std::atomic<bool> all{false};
  std::atomic<bool> happened{false};
  std::atomic<std::int64_t> left{0};
  std::atomic<int (*)()> is_spared{nullptr};
};
constinit FailingElsewhere elsewhere;
thread_local bool fails_elsewhere = false;  // the thread that is spared

bool is_refused_elsewhere() {
  if (!elsewhere.on.load(std::memory_order_acquire) || fails_elsewhere) return false;
  int (*const is_spared)() = elsewhere.is_spared.load(std::memory_order_relaxed);
  if (is_spared != nullptr && is_spared() != 0) return false;
  const std::int64_t left = elsewhere.left.fetch_sub(1, std::memory_order_relaxed);
  if (left > 0 || (left < 0 && !elsewhere.all.load(std::memory_order_relaxed))) return false;
  elsewhere.happened.store(true, std::memory_order_relaxed);
  return true;
}

void* allocate(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (is_refused_elsewhere()) return nullptr;
  if (failing.on && failing.left == 0 && (failing.all || !failing.happened)) {
    failing.happened = true;
    return nullptr;
  }
  if (failing.on && failing.left != 0) --failing.left;
  const std::size_t whole = size == 0 ? 1 : size;
  return alignment == 0 ? std::malloc(whole)
                        : std::aligned_alloc(alignment, (whole + alignment - 1) / alignment * alignment);
}

// Not inlined: the compiler would see free() given what came from operator new, and warn.
[[gnu::noinline]] void give_back(void* memory) {
  std::free(memory);
}
}  // namespace

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size) {
  if (void* memory = allocate(size, 0)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  if (void* memory = allocate(size, static_cast<std::size_t>(alignment))) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) {
  return operator new(size);
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0);
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  give_back(memory);
}

namespace penstock::test {

std::uint64_t allocation_count() {
  return allocations.load(std::memory_order_relaxed);
}

FailingAllocation::FailingAllocation(std::uint64_t after, Which which, Threads threads) : threads_(threads) {
  if (threads == Threads::this_one) {
    failing = {.on = true, .all = which == Which::all, .happened = false, .left = after};
    return;
  }
  fails_elsewhere = true;
  elsewhere.all.store(which == Which::all);
  elsewhere.happened.store(false);
  elsewhere.left.store(static_cast<std::int64_t>(after));
  elsewhere.on.store(true, std::memory_order_release);
}

FailingAllocation::~FailingAllocation() {
  if (threads_ == Threads::this_one) {
    failing = {};
    return;
  }
  elsewhere.on.store(false);
  fails_elsewhere = false;
}

bool FailingAllocation::happened() const {
  return threads_ == Threads::this_one ? failing.happened : elsewhere.happened.load();
}

void FailingAllocation::spare(int (*is_inside)()) {
  elsewhere.is_spared.store(is_inside);
}

}  // namespace penstock::test
