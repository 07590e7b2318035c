// Replacement: an unfinished file beside the one whose name it will take. It vanishes unless it is committed.
//
// While it is unfinished it is locked (files/leftovers.h), so that nobody takes it for what a dead writer left. A
// forked child shares the lock: the file counts as being written until the child has ended too.
//
// Thread safety: none of its own.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/result.h"

namespace penstock::files {

class Replacement {
 public:
  // Makes the temporary file, and removes what dead writers left of `target`. If that is a symbolic link, the file that
  // it points to will be replaced. A file that is there already lends its permissions, its ACL and its other extended
  // attributes; only a regular one can be replaced. With a `folder`, an open one, the last part of `target` is a name
  // in it, and no link is followed.
  static Result<std::unique_ptr<Replacement>> create(const std::string& target, int folder = -1);
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  // Opens the temporary file again, with flags of open(2).
  int open(int flags) const;
  // Makes the content that was written through `fd` durable, gives it the name, and makes the name durable. Without
  // `durable` only the name is given: what is there after a crash is the old file, the new one, or a part of it.
  // Code::not_durable: the name is given, and all that failed is making that durable. Code::closed in a forked child.
  Status commit(int fd, bool durable = true);
  // Holds the file that commit replaces, unless the disk is so full that its space may be needed at once. The kernel
  // removes a file when nothing holds it any more, and the rename would wait for that. REQUIRES: a local file system;
  // others keep such a file under another name.
  void hold_replaced();
  UniqueFd take_replaced() { return std::move(replaced_); }
  Status abort();

 private:
  enum class State { unfinished, committed, aborted };
  Replacement() = default;
  Status make_temporary(mode_t mode, bool numbered);
  bool has_name() const;
  Status refuse_in_child(const char* what) const;
  void unlock();

  UniqueFd folder_;
  UniqueFd locked_;        // the temporary file, for as long as it is one
  UniqueFd replaced_;      // by commit; only to hold it
  std::string target_;     // the name in the folder
  std::string temporary_;  // the same, until committed
  std::string path_;       // of the target, for messages
  std::atomic<State> state_ = State::unfinished;
  const int process_ = ::getpid();  // that made it
};

}  // namespace penstock::files
