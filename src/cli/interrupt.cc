#include "interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <string_view>
#include <system_error>
#include <thread>

#include "common.h"

namespace penstock::cli {

namespace {

constexpr timespec silence = {.tv_sec = 1, .tv_nsec = 0};
// With the silence, enough for closing a Context and a file whose server hangs, which wait for five seconds each unless
// other deadlines were given.
constexpr timespec patience = {.tv_sec = 9, .tv_nsec = 0};
constexpr std::string_view notice =
    "penstock: interrupted, but not at an end yet: storage may hang. Once more ends at once\n";

std::atomic<bool> was_interrupted = false;
std::mutex end_mutex;  // who has it decides whether the process may be ended

sigset_t endings() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

[[noreturn]] void end_by(int number) {
  const sigset_t signals = endings();
  std::signal(number, SIG_DFL);
  raise(number);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  _exit(static_cast<int>(Exit::interrupted));
}

// The command itself may be in a call that no signal ends, so somebody else has to listen.
void guard() {
  const sigset_t signals = endings();
  int number = 0;
  if (sigwait(&signals, &number) != 0) return;
  was_interrupted = true;
  const std::lock_guard lock(end_mutex);
  if (const int second = sigtimedwait(&signals, nullptr, &silence); second > 0) end_by(second);
  [[maybe_unused]] const ssize_t put = write(STDERR_FILENO, notice.data(), notice.size());
  if (const int second = sigtimedwait(&signals, nullptr, &patience); second > 0) end_by(second);
  _exit(static_cast<int>(Exit::interrupted));
}

}  // namespace

void catch_interrupts() {
  const sigset_t signals = endings();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    std::thread(guard).detach();
  } catch (const std::system_error&) {  // no more threads: then at least they end the process
    allow_interrupts();
  }
}

void allow_interrupts() {
  const sigset_t signals = endings();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

bool interrupted() {
  return was_interrupted;
}

std::unique_lock<std::mutex> hold_off_interrupts() {
  std::unique_lock lock(end_mutex, std::try_to_lock);
  if (lock && interrupted()) lock.unlock();
  return lock;
}

Error interrupted_error() {
  return {.code = Code::cancelled, .message = "interrupted"};
}

Report ended(Report report) {
  if (interrupted() && report.outcome == Outcome::abandoned) {
    report.error = {.code = Code::cancelled, .message = "interrupted; what was under way did not come back in time"};
  }
  return report;
}

Report await(Ticket ticket, const std::function<void(std::uint64_t)>& on_progress) {
  while (!ticket.wait_for(std::chrono::milliseconds(100))) {
    if (interrupted()) ticket.cancel();
    if (on_progress) on_progress(ticket.bytes_done());
  }
  ticket.wait();
  return ended(ticket.report());
}

}  // namespace penstock::cli
