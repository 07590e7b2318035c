// The file of a dictionary: read, replaced at once, and locked by whoever is going to replace it.
//
// Thread safety: functions; a lock is one thread's. Lifetime: a lock ends with its object, or its process.
#pragma once

#include <sys/stat.h>
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
Result<Dictionary> read_dictionary(const Context& context, const std::string& path);
// A file that takes the dictionary's name at its commit: readers find the old one or the new one.
Result<Store> write_dictionary(const Context& context, const std::string& path, const Dictionary& dictionary);

// Excludes other writers, by a lock (flock) on an empty file beside the dictionary, NAME.lock, which stays. Only those
// who may write to the dictionary may open it: whoever can open a file can lock it, and who only reads must not hold
// writers up. The dictionary itself is another file after each writer.
class WriterLock {
 public:
  // Code::in_use: another writer had it until the deadline. Code::cancelled: the caller does not want to wait for it.
  static Result<WriterLock> of_dictionary(const std::string& path, TimePoint deadline, rows::Watch* watch = nullptr);
  // For those who make a dictionary that is not there yet: then they `share` the lock, or `withdraw` it.
  static Result<WriterLock> of_new_dictionary(const std::string& path, TimePoint deadline);

  WriterLock(WriterLock&&) = default;
  WriterLock& operator=(WriterLock&&) = delete;
  ~WriterLock() { release(); }
  // Of a file that was made here: lets those open it who may write to the dictionary, which is there now.
  void share() const;
  // Of a file that was made here: removes it.
  void withdraw() const;
  // Before the object ends. A child that was forked meanwhile has the lock too, so that closing does not do.
  void release();

 private:
  struct Place {
    std::string dictionary;  // its path, without links at the end
    UniqueFd folder;
    std::string name;  // of the dictionary in the folder
  };
  explicit WriterLock(Place place) : place_(std::move(place)) {}
  static Result<WriterLock> lock(const std::string& path, bool is_new, TimePoint deadline, rows::Watch* watch);
  static Result<Place> place_of(const std::string& path);
  std::string name() const { return place_.name + ".lock"; }
  std::string path() const { return place_.dictionary + ".lock"; }
  Status open(bool is_new);
  bool has_name() const;
  void share_with_writers_of(const struct stat& dictionary) const;

  Place place_;
  UniqueFd fd_;
  bool is_made_ = false;  // here, so it is no other file that was given the name
  pid_t process_ = ::getpid();
};

}  // namespace penstock::kinds
