// Publisher: shows a text to other processes under a name, as a file in shared memory that is written again four times
// a second. Nothing that moves bytes knows of it.
//
// Before the text stands its XXH3, so that who reads while it is written can tell; before that, a mutex which the
// thread that writes holds while it lives. The kernel takes it from the dead (robust_futex, set_robust_list(2)),
// whatever they died of; and unlike a lock on the file, children that are forked don't hold it too.
//
// Thread safety: a thread of its own calls `text`. Lifetime: the file is gone when this is.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "penstock/result.h"

namespace penstock::core {

class Publisher {
 public:
  // REQUIRES: `name` has been validated as Options::publish.
  static Result<std::unique_ptr<Publisher>> create(const std::string& name, std::function<std::string()> text);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  const std::string& path() const { return path_; }

 private:
  static Result<std::unique_ptr<Publisher>> create_unborn(UniqueFd file, const std::string& name,
                                                          std::function<std::string()> text);
  Publisher(UniqueFd file, pthread_mutex_t* life, std::function<std::string()> text);
  // One that nobody has taken yet.
  Status take_name(const std::string& name);
  bool seems_alive() const;
  void run(const std::stop_token& stop);
  void write() const;

  const UniqueFd file_;
  pthread_mutex_t* const life_;  // at the begin of the file, mapped
  std::string path_;             // empty: it has no name yet
  const std::function<std::string()> text_;
  std::latch born_{1};
  std::mutex mutex_;
  std::condition_variable_any ends_;
  std::jthread thread_;
};

}  // namespace penstock::core
