// Fibers, for tests that decide themselves which of several threads of control runs: a stack each, one system thread.
//
// The sanitizers must be told when the stack changes under them.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace penstock::nvme {

class Fiber {
 public:
  // What the calling thread runs on already.
  Fiber() { adopt(); }
  // REQUIRES: the body ends by switching to another fiber, for good.
  explicit Fiber(std::function<void()> body)
      : body_(std::move(body)), stack_(std::make_unique_for_overwrite<std::byte[]>(stack_bytes)) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = stack_bytes;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
#if defined(__SANITIZE_THREAD__)
    sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    if (stack_) __tsan_destroy_fiber(sanitizer_fiber_);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // REQUIRES: this fiber runs; if it leaves for good, nobody ever switches to it again.
  void switch_to(Fiber& next, bool for_good = false) {
#if defined(__SANITIZE_ADDRESS__)
    next.from_ = this;
    // What the sanitizer keeps of a stack is freed only by the last switch away from it.
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, next.bottom(),
                                   next.stack_ ? stack_bytes : next.size_);
#else
    static_cast<void>(for_good);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(next.sanitizer_fiber_, 0);
#endif
    swapcontext(&context_, &next.context_);
    arrived();
  }

 private:
  static constexpr std::size_t stack_bytes = 256 << 10;  // untouched pages cost nothing

  static void enter(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
    self->arrived();
    self->body_();
  }
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom() const { return stack_ ? static_cast<const void*>(stack_.get()) : bottom_; }
  void arrived() {
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &size);
    if (!from_->stack_) {
      from_->bottom_ = bottom;
      from_->size_ = size;
    }
  }
  void adopt() {}
  void* fake_stack_ = nullptr;
  Fiber* from_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
#elif defined(__SANITIZE_THREAD__)
  void arrived() {}
  void adopt() { sanitizer_fiber_ = __tsan_get_current_fiber(); }
  void* sanitizer_fiber_ = nullptr;
#else
  void arrived() {}
  void adopt() {}
#endif

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t context_{};
};

}  // namespace penstock::nvme
