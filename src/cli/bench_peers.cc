#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "bench.h"
#include "interrupt.h"

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t table_limit_bytes = 16 << 20;

fs::path tool_folder() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

// Installed with the tool, or in the sources that it was built from.
Result<fs::path> find_script() {
  for (const char* folder : {"../share/penstock/peers", "../bench/peers"}) {
    std::error_code ignored;
    const fs::path script = fs::weakly_canonical(tool_folder() / folder / "run.py", ignored);
    if (fs::is_regular_file(script, ignored)) return script;
  }
  return Error{.code = Code::not_found,
               .message = "the comparison of loaders, share/penstock/peers/run.py, is not beside this tool",
               .hint = "install Penstock as a whole, or build it from its sources"};
}

// A tool that was just built brings its Python package along.
void add_own_package() {
  const fs::path package = tool_folder() / "python";
  std::error_code ignored;
  const auto is_core = [](const fs::path& file) {
    return file.filename().string().starts_with("_core.") && file.extension() == ".so";
  };
  const fs::directory_iterator files(package / "penstock", ignored);
  if (std::none_of(begin(files), end(files), is_core)) return;
  const char* old = getenv("PYTHONPATH");
  setenv("PYTHONPATH", (package.string() + (old != nullptr ? ":" + std::string(old) : "")).c_str(), 1);
}

// A process in a group of its own, so that all that it starts can be ended with it.
Result<pid_t> start(std::vector<std::string> arguments) {
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  add_own_package();
  const pid_t child = fork();
  if (child < 0) return system_error(errno, "start " + arguments.front());
  if (child == 0) {
    setpgid(0, 0);
    allow_interrupts();
    dup2(STDERR_FILENO, STDOUT_FILENO);  // our own output is not its place
    execvp(words.front(), words.data());
    _exit(127);
  }
  setpgid(child, child);
  return child;
}

// Ends all of the group if it is told to.
int await_group(pid_t group, const std::function<void()>& on_progress) {
  int status = 0;
  int waits_after_end = 0;
  while (waitpid(group, &status, WNOHANG) == 0) {
    if (interrupted()) kill(-group, waits_after_end++ < 50 ? SIGTERM : SIGKILL);
    on_progress();
    usleep(100'000);
  }
  return status;
}

Result<Json> read_table(int fd) {
  const off_t size = lseek(fd, 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::clamp<off_t>(size, 0, table_limit_bytes)), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  Json table = got > 0 ? Json::parse(text, nullptr, false) : Json();
  if (table.is_object() && table.contains("loaders")) return table;
  return Error{.code = Code::internal, .message = "the comparison of loaders left no table", .hint = "see above why"};
}

}  // namespace

Result<Json> compare_peers(const PeersJob& job) {
  const Result<fs::path> script = find_script();
  if (!script.ok()) return script.error();
  const int table = memfd_create("penstock-peers", 0);  // inherited by the process that fills it
  if (table < 0) return system_error(errno, "make room for the table of loaders");
  const std::string device = job.to.host_accessible() ? "cpu" : job.to.name();
  const Result<pid_t> child =
      start({job.python, "-B", script->string(), "--model", job.path, "--device", device, "--seconds", "600",
             "--defaults-only", "--starts", "1", "--table", "/proc/self/fd/" + std::to_string(table)});
  if (!child.ok()) return close(table), child.error();
  Progress progress(std::nullopt, job.output);
  const Stopwatch stopwatch;
  const int status = await_group(*child, [&] {
    progress.say(format_seconds(stopwatch.seconds()) + ": other loaders, each in a process of its own");
  });
  Result<Json> result = read_table(table);
  close(table);
  if (interrupted()) return interrupted_error();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    return Error{
        .code = Code::not_found, .message = "there is no Python at " + job.python, .hint = "name one with --python"};
  }
  if (result.ok()) (*result)["python"] = job.python;
  return result;
}

}  // namespace penstock::cli
