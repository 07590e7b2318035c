#include "services/rows/guard.h"

#include <setjmp.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/fork_safe_mutex.h"

namespace penstock::rows {
namespace {

struct Guard {
  std::span<const Mapped> mappings;
  sigjmp_buf way_out;
};

// Of the static model, so that a handler on a thread that never was in here allocates nothing to find that out.
[[gnu::tls_model("initial-exec")]] constinit thread_local Guard* current_guard = nullptr;

// A handler that ours stands in front of.
struct Other {
  struct sigaction action;
  const Other* before;  // that was known when it came
};
// Nothing in it changes once handlers may read it. A program has a few; what comes when it is full gets no signals.
std::array<Other, 32> others;
std::size_t others_count = 0;
std::atomic<const Other*> foremost_other = nullptr;
ForkSafeMutex others_mutex;

// A signal that this thread is handing on.
struct HandingOn {
  const siginfo_t* info;
  std::uintptr_t frame;
  const Other* to;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local HandingOn handing_on = {};

bool covers(const Guard& guard, const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const Mapped& mapping : guard.mappings) {
    const std::less<const std::byte*> before;
    if (!before(byte, mapping.data()) && before(byte, mapping.data() + mapping.size())) return true;
  }
  return false;
}

// As if ours were not there.
void hand_on(const struct sigaction& action_before, int signal, siginfo_t* info, void* context) {
  const bool has_function = (action_before.sa_flags & SA_SIGINFO) != 0 ||
                            (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN);
  if (!has_function) {
    const bool was_sent = info->si_code <= 0;
    if (was_sent && action_before.sa_handler == SIG_IGN) return;
    // A load that faulted is tried again on return, and then ends the process, as it does where the signal is ignored.
    ::signal(signal, SIG_DFL);
    if (was_sent) ::raise(signal);
    return;
  }
  sigset_t mask = action_before.sa_mask;
  if ((action_before.sa_flags & SA_NODEFER) == 0) ::sigaddset(&mask, signal);
  sigset_t mask_before;
  ::pthread_sigmask(SIG_BLOCK, &mask, &mask_before);
  if ((action_before.sa_flags & SA_SIGINFO) != 0) {
    action_before.sa_sigaction(signal, info, context);
  } else {
    action_before.sa_handler(signal);
  }
  ::pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  Guard* const guard = current_guard;
  // Above 0: of the kernel's own, so that there is an address.
  if (guard != nullptr && info->si_code > 0 && covers(*guard, info->si_addr)) ::siglongjmp(guard->way_out, 1);
  const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  const HandingOn outer = handing_on;
  // Whom we gave it to may pass it on to us. One that jumped away instead has left the note behind; but the next signal
  // does not find us deeper in the stack.
  const bool is_passed_on = outer.to != nullptr && outer.info == info && frame < outer.frame;
  const Other* const other = is_passed_on ? outer.to->before : foremost_other.load(std::memory_order_acquire);
  if (other == nullptr) return hand_on({}, signal, info, context);
  handing_on = {info, frame, other};
  hand_on(other->action, signal, info, context);
  handing_on = outer;
}

bool is_same(const struct sigaction& one, const struct sigaction& two) {
  return one.sa_sigaction == two.sa_sigaction && one.sa_flags == two.sa_flags;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

// REQUIRES: others_mutex.
void hand_on_to(const struct sigaction& action) {
  const Other* const before = foremost_other.load(std::memory_order_relaxed);
  if (before != nullptr && is_same(before->action, action)) return;
  // One that came back: what it passes on goes where it went.
  for (std::size_t i = 0; i < others_count; ++i) {
    if (is_same(others[i].action, action)) return foremost_other.store(&others[i], std::memory_order_release);
  }
  if (others_count == others.size()) return;
  Other& added = others[others_count++];
  added = {action, before};
  foremost_other.store(&added, std::memory_order_release);
}

bool put_in_front() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  // Not blocked inside: nobody unblocks it after the jump.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  ::sigemptyset(&action.sa_mask);
  struct sigaction theirs = {};
  const std::lock_guard lock(others_mutex);
  if (::sigaction(SIGBUS, nullptr, &theirs) != 0) return false;
  if (is_ours(theirs)) return true;
  // What was there is known before ours can be called, and once more if it was replaced meanwhile.
  hand_on_to(theirs);
  if (::sigaction(SIGBUS, &action, &theirs) != 0) return false;
  if (!is_ours(theirs)) hand_on_to(theirs);
  return true;
}

}  // namespace

bool install_guard() {
  struct sigaction now = {};
  if (::sigaction(SIGBUS, nullptr, &now) != 0) return false;
  return is_ours(now) || put_in_front();
}

bool run_guarded(std::span<const Mapped> mappings, void (*work)(void*), void* argument) {
  install_guard();
  Guard guard;
  guard.mappings = mappings;
  // Where a thread has the signal blocked, a fault ends the process whatever the handler.
  sigset_t bus;
  sigset_t mask_before;
  ::sigemptyset(&bus);
  ::sigaddset(&bus, SIGBUS);
  ::pthread_sigmask(SIG_UNBLOCK, &bus, &mask_before);
  Guard* const outer = current_guard;
  volatile bool whole = false;
  if (sigsetjmp(guard.way_out, 0) == 0) {
    current_guard = &guard;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    work(argument);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    whole = true;
  }
  current_guard = outer;
  if (::sigismember(&mask_before, SIGBUS) == 1) ::pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
  return whole;
}

}  // namespace penstock::rows
