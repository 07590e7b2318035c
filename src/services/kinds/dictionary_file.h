// The file of a dictionary: read, replaced at once, and locked by whoever is going to replace it.
//
// Thread safety: functions; a lock is one thread's. Lifetime: a lock ends with its object, or its process.
#pragma once

#include <unistd.h>

#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "services/kinds/dictionary.h"
#include "services/rows/watch.h"

namespace penstock::kinds {

// A path that is not absolute could look like a URI.
Result<std::string> absolute_path(const std::string& path);

// Messages name the file. Code::not_found: there is none.
Result<Dictionary> read_dictionary(Context& context, const std::string& path);
// A file that takes the dictionary's name at its commit: readers find the old one or the new one.
Result<Store> write_dictionary(Context& context, const std::string& path, const Dictionary& dictionary);

// Excludes other writers. The dictionary itself is locked: once its writer has replaced it, there is nothing left to
// protect in the old one, and those who waited for that look for the new one.
class WriterLock {
 public:
  // Code::in_use: another writer had it until the deadline. Code::cancelled: the caller does not want to wait for it.
  static Result<WriterLock> of_dictionary(const std::string& path, TimePoint deadline, rows::Watch* watch = nullptr);
  // Of the folder, for those who make a dictionary that is not there yet.
  static Result<WriterLock> of_folder_of(const std::string& path, TimePoint deadline);

  WriterLock(WriterLock&&) = default;
  WriterLock& operator=(WriterLock&&) = delete;
  ~WriterLock() { release(); }
  // Before the object ends. A child that was forked meanwhile has the lock too, so that closing does not do.
  void release();

 private:
  explicit WriterLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
  pid_t process_ = ::getpid();
};

}  // namespace penstock::kinds
