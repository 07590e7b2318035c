// Children: processes that a command starts and waits for, each in a group of its own, so that all that one starts can
// be ended with it.
//
// Thread safety: functions. Lifetime: a group must be awaited.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/result.h"

namespace penstock::cli {

// Where a child's standard output and error go: descriptors of ours.
struct ChildStreams {
  int output;
  int error;
};
// What can't be executed ends with status 127.
Result<pid_t> start_group(std::vector<std::string> arguments, ChildStreams streams);

struct GroupEnd {
  std::optional<int> status;  // of waitpid; nothing: it could not even be killed, and is left behind
  bool late = false;          // it was ended because its time was over
};
// Ends all of the group on interruption, and when the time is over. Calls `on_progress` ten times a second.
GroupEnd await_group(pid_t group, std::optional<double> seconds, const std::function<void()>& on_progress);

// A whole run, with what it wrote. Nothing is read from standard input.
struct ChildRun {
  GroupEnd end;
  double seconds = 0;
  std::string output, error;  // the first megabytes of each
};
Result<ChildRun> run_child(std::vector<std::string> arguments, double seconds,
                           const std::function<void()>& on_progress);

// The first bytes of a file that somebody has written.
std::string read_front(int fd, std::size_t most_bytes);

}  // namespace penstock::cli
