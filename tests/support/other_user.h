// Another, unprivileged user of this machine, for tests that run as root.
#pragma once

#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace penstock::test {

inline constexpr uid_t another_user = 65534;

// In a child that was forked for it.
inline bool become_another_user() {
  return ::setgroups(0, nullptr) == 0 && ::setresgid(another_user, another_user, another_user) == 0 &&
         ::setresuid(another_user, another_user, another_user) == 0;
}

// Whether `work` has succeeded, in a process of that user.
inline bool as_another_user(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(become_another_user() && work() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace penstock::test
