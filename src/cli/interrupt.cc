#include "interrupt.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string_view>
#include <system_error>
#include <thread>

#include "common.h"

namespace penstock::cli {

namespace {

constexpr int forever = -1;
// Who ends us may signal the process and then its group, as timeout does: that is one interrupt.
constexpr std::chrono::milliseconds together = std::chrono::milliseconds(100);
constexpr int at_once = 0;
constexpr int silence_ms = 1000;
// With the silence, enough for closing a Context and a file whose server hangs, which wait for five seconds each unless
// other deadlines were given.
constexpr int patience_ms = 9000;
constexpr std::string_view notice = "penstock: interrupted, but storage may hang. Interrupt again to end at once\n";

std::atomic<int> last_signal = 0;
std::mutex signal_mutex;  // a signal is taken and noted under it, so that it is always seen as one or as the other
std::mutex end_mutex;     // who has it decides whether the process may be ended

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

// 0: none came.
int next_signal(int signals, int within_ms) {
  pollfd ready{.fd = signals, .events = POLLIN, .revents = 0};
  int count = 0;
  do count = poll(&ready, 1, within_ms);
  while (count < 0 && errno == EINTR);
  if (count <= 0) return 0;
  const std::lock_guard lock(signal_mutex);
  signalfd_siginfo signal = {};
  if (read(signals, &signal, sizeof signal) != sizeof signal) return 0;
  last_signal = static_cast<int>(signal.ssi_signo);
  return last_signal;
}

// The command itself may be in a call that no signal ends, so somebody else has to listen.
void guard(int signals) {
  if (next_signal(signals, forever) == 0) return;
  const std::lock_guard lock(end_mutex);
  std::this_thread::sleep_for(together);
  while (next_signal(signals, at_once) != 0) continue;
  if (const int second = next_signal(signals, silence_ms); second != 0) end_by(second);
  [[maybe_unused]] const ssize_t put = write(STDERR_FILENO, notice.data(), notice.size());
  if (const int second = next_signal(signals, patience_ms); second != 0) end_by(second);
  _exit(static_cast<int>(Exit::interrupted));
}

}  // namespace

void catch_interrupts() {
  const sigset_t signals = endings();
  const int file = signalfd(-1, &signals, SFD_CLOEXEC);
  if (file < 0) return;  // then at least they end the process
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    std::thread(guard, file).detach();
  } catch (const std::system_error&) {
    close(file);
    allow_interrupts();
  }
}

void allow_interrupts() {
  const sigset_t signals = endings();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// Also by what nobody has taken yet: who interrupts a whole pipe ends its input too, and must not see a short file for
// it.
bool interrupted() {
  if (last_signal != 0) return true;
  const std::lock_guard lock(signal_mutex);
  sigset_t pending;
  sigpending(&pending);
  return last_signal != 0 || sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
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
  // Nobody but the user cancels what a command does.
  if (report.outcome == Outcome::cancelled && report.error) {
    const std::size_t progress = report.error->message.find(';');
    report.error->message =
        "interrupted" + (progress == std::string::npos ? "" : report.error->message.substr(progress));
  }
  if (interrupted() && report.outcome == Outcome::abandoned) {
    report.error = {.code = Code::cancelled, .message = "interrupted; operations under way did not come back in time"};
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
