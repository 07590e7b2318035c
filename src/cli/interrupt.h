// Interruption: SIGINT and SIGTERM end what runs in an orderly way. A second one ends the process at once; so does a
// command that has not ended ten seconds after the first: a call into the kernel may not come back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
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
// The report of a request that was cancelled on interruption, whether or not its operations came back.
Report ended(Report report);

}  // namespace penstock::cli
