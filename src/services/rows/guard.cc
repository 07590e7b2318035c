#include "services/rows/guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include <atomic>
#include <functional>

namespace penstock::rows {
namespace {

struct Guard {
  std::span<const Mapped> mappings;
  sigjmp_buf way_out;
};

// Of the static model, so that a handler on a thread that never was in here allocates nothing to find that out.
[[gnu::tls_model("initial-exec")]] constinit thread_local Guard* current_guard = nullptr;

struct sigaction action_before;

bool covers(const Guard& guard, const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const Mapped& mapping : guard.mappings) {
    const std::less<const std::byte*> before;
    if (!before(byte, mapping.data()) && before(byte, mapping.data() + mapping.size())) return true;
  }
  return false;
}

// As if ours were not there.
void hand_on(int signal, siginfo_t* info, void* context) {
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
  hand_on(signal, info, context);
}

}  // namespace

bool install_guard() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    // Not blocked inside: nobody unblocks it after the jump.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    ::sigemptyset(&action.sa_mask);
    // What was there is known before ours can be called.
    return ::sigaction(SIGBUS, nullptr, &action_before) == 0 && ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  return installed;
}

bool run_guarded(std::span<const Mapped> mappings, void (*work)(void*), void* argument) {
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
