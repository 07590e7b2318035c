// Interruption: SIGINT and SIGTERM end what runs in an orderly way. A second one ends the process at once.
#pragma once

#include <cstdint>
#include <functional>

#include "penstock/error.h"
#include "penstock/request.h"

namespace penstock::cli {

void catch_interrupts();
bool interrupted();
Error interrupted_error();

// Waits for a request to end, tells how far it is ten times a second, and cancels it on interruption.
Report await(Ticket ticket, const std::function<void(std::uint64_t bytes_done)>& on_progress = {});

}  // namespace penstock::cli
