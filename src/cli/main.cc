// penstock: the tool. Parses the command line, runs one command, and makes sure that what it printed was written.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>

#include "common.h"
#include "interrupt.h"
#include "output.h"

namespace penstock::cli {

namespace {

constexpr const char* description = "Moves bytes between storage and memory by the fastest route this machine offers.";

// Leaves out which options exclude each other, which the error says, and the parser's notes on flags.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { label("SUBCOMMAND", "COMMAND"); }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    if (const std::size_t note = name.find("{false}"); note != std::string::npos) name.resize(note);
    return name;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string text = CLI::Formatter::make_option_opts(option);
    return text.substr(0, std::min(text.find(" Needs:"), text.find(" Excludes:")));
  }
};

// Were one of the standard streams closed, a store could be opened in its place and be written to by our messages.
// What takes their place here refuses to be used.
void occupy_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0) static_cast<void>(open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

// The usual limit is for programs that can't tell high descriptors from others; a model may have thousands of files.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) return true;
  }
  return false;
}

// The parser's own words for a misspelt command or option, and for an option in a command's place, don't name it.
std::string usage_message(const CLI::App& tool, const CLI::ParseError& error, int argc, char** argv) {
  if (argc < 2) return "no command given";
  const std::string first = "\"" + std::string(argv[1]) + "\"";
  if (argv[1][0] == '-') return first + " comes where a command is expected; put options after the command";
  if (tool.get_subcommands().empty()) return "unknown command " + first;
  const CLI::App* command = &tool;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  // Something is missing: what nobody knows is meant for it.
  const std::vector<std::string> unknown = command->remaining();
  if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr || unknown.empty()) return error.what();
  const std::string word = "\"" + unknown.front() + "\"";
  if (unknown.front().starts_with('-')) return "unknown option " + word + "; " + error.what();
  return command->get_require_subcommand_min() > 0 ? "unknown command " + word : error.what();
}

Exit fail_usage(const CLI::App& tool, const CLI::ParseError& error, int argc, char** argv) {
  std::string command = "penstock";
  for (auto chosen = tool.get_subcommands(); !chosen.empty(); chosen = chosen.front()->get_subcommands()) {
    command += " " + chosen.front()->get_name();
  }
  return Output({.json = wants_json(argc, argv)})
      .fail({.code = Code::invalid_argument,
             .message = usage_message(tool, error, argc, argv),
             .hint = "see " + command + " --help"});
}

std::string exit_codes() {
  std::string text = "\nExit codes:\n";
  for (const ExitMeaning& exit : exit_meanings) {
    text += "  " + std::to_string(static_cast<int>(exit.code)) + "  " + exit.meaning + "\n";
  }
  return text;
}

Exit run(int argc, char** argv) {
  CLI::App tool(description, "penstock");
  tool.set_version_flag("--version", "penstock " + std::string(version()));
  tool.formatter(std::make_shared<HelpFormatter>());
  tool.require_subcommand(1);
  tool.footer(std::string("Examples:\n") +
              "  penstock load models/llama/ --to cuda:0 --verify\n"
              "  penstock inspect models/llama/\n"
              "  penstock write weights.bin /mnt/fast/weights.bin\n"
              "  penstock doctor weights.bin\n" +
              exit_codes());
  const std::array commands = {add_load(tool),   add_write(tool),   add_clean(tool),      add_inspect(tool),
                               add_verify(tool), add_engines(tool), add_doctor(tool),     add_tune(tool),
                               add_bench(tool),  add_top(tool),     add_nvme(tool),       add_sample(tool),
                               add_report(tool), add_rows(tool),    add_kind(tool),       add_pack(tool),
                               add_unpack(tool), add_tier(tool),    add_completion(tool), add_manual(tool)};
  try {
    tool.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help and --version
    const bool has_command = argc > 1 && argv[1][0] != '-';
    if (has_command && tool.get_subcommands().empty()) return fail_usage(tool, asked, argc, argv);
    return static_cast<Exit>(tool.exit(asked));
  } catch (const CLI::ParseError& error) {
    return fail_usage(tool, error, argc, argv);
  }
  for (const Command& command : commands) {
    if (command.parser->parsed()) return command.run();
  }
  return Exit::usage;
}

// Set before anything can fail: then there may be no memory to find out.
bool fails_in_json = false;

// Where there is no memory left; so it takes none. Other threads may be at work: nothing of theirs is touched.
Exit fail_for_memory() {
  constexpr const char* message = "out of memory";
  constexpr const char* hint =
      "free some memory, ask for less at once, or raise the limits of the process (ulimit -v) or its container";
  if (fails_in_json) {
    std::printf("{\"error\":{\"code\":\"out_of_memory\",\"message\":\"%s\",\"hint\":\"%s\"}}\n", message, hint);
  } else {
    std::fprintf(stderr, "penstock: %s\nhint: %s\n", message, hint);
  }
  return Exit::no_room;
}

// An exception on a thread that nobody can tell of it, or none at all.
[[noreturn]] void give_up() {
  try {
    if (const std::exception_ptr failed = std::current_exception()) std::rethrow_exception(failed);
  } catch (const std::bad_alloc&) {
    const Exit exit = fail_for_memory();
    std::fflush(stdout);
    _exit(static_cast<int>(exit));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "penstock: %s\n", error.what());
  } catch (...) {
  }
  std::abort();
}

// A report that could not be written is a failure: to whoever reads it, it never came.
Exit flush(Exit exit) {
  errno = 0;
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit;
  // Why an earlier write failed, nobody kept: the next one fails for the same reason.
  const bool known = errno != 0 || write(STDOUT_FILENO, "\n", 1) < 0;
  std::fprintf(stderr, "penstock: can't write to standard output%s%s\n", known ? ": " : "",
               known ? std::strerror(errno) : "");
  return exit == Exit::ok ? Exit::failed : exit;
}

}  // namespace

}  // namespace penstock::cli

int main(int argc, char** argv) {
  using penstock::cli::Exit;
  penstock::cli::fails_in_json = penstock::cli::wants_json(argc, argv);
  std::set_terminate(penstock::cli::give_up);
  std::setlocale(LC_CTYPE, "");
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // who started us may have had it ignored, which a child's status is lost by
  std::signal(SIGXFSZ, SIG_IGN);  // a file that is too long for the limits of the process is an error as any other
  penstock::cli::occupy_standard_descriptors();
  penstock::cli::allow_many_files();
  penstock::cli::catch_interrupts();
  Exit exit = Exit::failed;
  try {
    exit = penstock::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    exit = penstock::cli::fail_for_memory();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "penstock: %s\n", error.what());
  }
  return static_cast<int>(penstock::cli::flush(exit));
}
