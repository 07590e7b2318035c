#include "interrupt.h"

#include <csignal>

namespace penstock::cli {

namespace {

volatile std::sig_atomic_t was_interrupted = 0;

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { was_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return was_interrupted != 0;
}

Error interrupted_error() {
  return {.code = Code::cancelled, .message = "interrupted"};
}

Report await(Ticket ticket, const std::function<void(std::uint64_t)>& on_progress) {
  while (!ticket.wait_for(std::chrono::milliseconds(100))) {
    if (interrupted()) ticket.cancel();
    if (on_progress) on_progress(ticket.bytes_done());
  }
  ticket.wait();
  return ticket.report();
}

}  // namespace penstock::cli
