// Interruption: SIGINT and SIGTERM end what runs in an orderly way. A second one ends the process at once; so does a
// command that has not ended ten seconds after the first: a call into the kernel may not come back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>

#include "penstock/error.h"
#include "penstock/request.h"

namespace penstock::cli {

// From now on both are blocked, here and in threads that are started later; a thread of its own waits for them.
void catch_interrupts();
// What catch_interrupts blocked, for a child process.
void allow_interrupts();
bool interrupted();
// For what must not be cut off: as long as this is held, the process does not end for a signal, only after it. Not
// held: there was one already.
std::unique_lock<std::mutex> hold_off_interrupts();
Error interrupted_error();

// Waits for a request to end, tells how far it is ten times a second, and cancels it on interruption.
Report await(Ticket ticket, const std::function<void(std::uint64_t bytes_done)>& on_progress = {});
// Calls what offers no way to cancel it, on a thread of its own. If it is interrupted and does not end within a moment,
// `say` tells so, and the process ends, which ends the call too. REQUIRES: a call that may be cut off anywhere, as
// reading may, and writing that counts only once it is complete.
template <typename Call>
auto call_interruptibly(Call call, const std::function<void()>& say);
// Ends the process as interrupted, with what was printed, while other threads are at work.
[[noreturn]] void leave();
// The report of a request that was cancelled on interruption, whether or not its operations came back.
Report ended(Report report);

template <typename Call>
auto call_interruptibly(Call call, const std::function<void()>& say) {
  using namespace std::chrono_literals;
  auto result = std::async(std::launch::async, std::move(call));
  while (result.wait_for(100ms) != std::future_status::ready) {
    if (!interrupted() || result.wait_for(200ms) == std::future_status::ready) continue;
    say();
    leave();
  }
  return result.get();
}

}  // namespace penstock::cli
