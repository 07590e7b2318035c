#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "bench.h"
#include "child.h"
#include "interrupt.h"

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t table_limit_bytes = 16 << 20;

fs::path tool_folder() {
  return fs::path(own_path()).parent_path();
}

// Installed with the tool, or in the sources that it was built from.
Result<fs::path> find_script() {
  for (const char* folder : {"../share/penstock/peers", "../bench/peers"}) {
    std::error_code ignored;
    const fs::path script = fs::weakly_canonical(tool_folder() / folder / "run.py", ignored);
    if (fs::is_regular_file(script, ignored)) return script;
  }
  return Error{.code = Code::not_found,
               .message = "share/penstock/peers/run.py, which compares loaders, is not installed with this tool",
               .hint = "install all of Penstock, or build it from source"};
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
  const char* old = ::secure_getenv("PYTHONPATH");
  setenv("PYTHONPATH", (package.string() + (old != nullptr ? ":" + std::string(old) : "")).c_str(), 1);
}

Result<Json> read_table(int fd) {
  Json table = Json::parse(read_front(fd, table_limit_bytes), nullptr, false);
  if (table.is_object() && table.contains("loaders")) return table;
  return Error{.code = Code::internal,
               .message = "the comparison of loaders produced no table",
               .hint = "the output above says why"};
}

}  // namespace

Result<Json> compare_peers(const PeersJob& job) {
  const Result<fs::path> script = find_script();
  if (!script.ok()) return script.error();
  const int table = memfd_create("penstock-peers", 0);  // inherited by the process that fills it
  if (table < 0) return system_error(errno, "create a file for the table of loaders");
  const std::string device = job.to.host_accessible() ? "cpu" : job.to.name();
  add_own_package();
  // Our own output is not the place for what it prints.
  const Result<pid_t> child =
      start_group({job.python, "-B", script->string(), "--model", job.path, "--device", device, "--seconds", "600",
                   "--defaults-only", "--starts", "1", "--table", "/proc/self/fd/" + std::to_string(table)},
                  {STDERR_FILENO, STDERR_FILENO});
  if (!child.ok()) return close(table), child.error();
  Progress progress(std::nullopt, job.output);
  const Stopwatch stopwatch;
  const GroupEnd end = await_group(*child, std::nullopt, [&] {
    progress.say(format_seconds(stopwatch.seconds()) + ": other loaders, each in its own process");
  });
  const int status = end.status.value_or(0);
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
