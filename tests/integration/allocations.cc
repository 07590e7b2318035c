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

void* allocate(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
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

FailingAllocation::FailingAllocation(std::uint64_t after, Which which) {
  failing = {.on = true, .all = which == Which::all, .happened = false, .left = after};
}

FailingAllocation::~FailingAllocation() {
  failing = {};
}

bool FailingAllocation::happened() const {
  return failing.happened;
}

}  // namespace penstock::test
