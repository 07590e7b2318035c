#include "child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common.h"
#include "interrupt.h"

namespace penstock::cli {

namespace {

constexpr std::size_t output_limit_bytes = 16 << 20;
constexpr double polite_seconds = 5;    // from the wish to end until it is killed
constexpr double stubborn_seconds = 5;  // from there until it is left behind: it may hang in the kernel

// A file in memory; gone when closed.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("penstock-child", MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<pid_t> start_group(std::vector<std::string> arguments, ChildStreams streams) {
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) return system_error(errno, "start " + arguments.front());
  if (child == 0) {
    setpgid(0, 0);
    allow_interrupts();
    dup2(streams.output, STDOUT_FILENO);
    dup2(streams.error, STDERR_FILENO);
    execvp(words.front(), words.data());
    _exit(127);
  }
  setpgid(child, child);
  return child;
}

GroupEnd await_group(pid_t group, std::optional<double> seconds, const std::function<void()>& on_progress) {
  GroupEnd end;
  const Stopwatch stopwatch;
  std::optional<double> ended_at;
  int status = 0;
  pid_t waited = 0;
  while ((waited = waitpid(group, &status, WNOHANG)) == 0) {
    const double now = stopwatch.seconds();
    if (seconds && now > *seconds && !ended_at) end.late = true;
    if (end.late || interrupted()) {
      if (!ended_at) ended_at = now;
      const double since = now - *ended_at;
      if (seconds && since > polite_seconds + stubborn_seconds) return end;
      kill(-group, since < polite_seconds ? SIGTERM : SIGKILL);
    }
    on_progress();
    usleep(20'000);
  }
  constexpr int unknown_end = 127 << 8;  // as of a program that could not be started
  end.status = waited == group ? status : unknown_end;
  return end;
}

std::string read_front(int fd, std::size_t most_bytes) {
  const auto size = static_cast<std::size_t>(std::max<off_t>(lseek(fd, 0, SEEK_END), 0));
  std::string text(std::min(size, most_bytes), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

Result<ChildRun> run_child(std::vector<std::string> arguments, double seconds,
                           const std::function<void()>& on_progress) {
  const MemoryFile output, error;
  if (output.fd() < 0 || error.fd() < 0) return system_error(errno, "make room for what a step says");
  const Stopwatch stopwatch;
  const Result<pid_t> child = start_group(std::move(arguments), {output.fd(), error.fd()});
  if (!child.ok()) return child.error();
  ChildRun run;
  run.end = await_group(*child, seconds, on_progress);
  run.seconds = stopwatch.seconds();
  run.output = read_front(output.fd(), output_limit_bytes);
  run.error = read_front(error.fd(), output_limit_bytes);
  return run;
}

}  // namespace penstock::cli
