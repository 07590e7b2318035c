// Publisher: shows a text to other processes under a name, as a file in shared memory that is written again four times
// a second. Nothing that moves bytes knows of it.
//
// The file begins with the XXH3 of the text, so that who reads while it is written can tell. It is locked (flock) while
// its publisher lives, whatever happens to that: an unlocked file is a dead one's.
//
// Thread safety: a thread of its own calls `text`. Lifetime: the file is gone when this is.
#pragma once

#include <condition_variable>
#include <functional>
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
  Publisher(UniqueFd file, std::string path, std::function<std::string()> text);
  void run(const std::stop_token& stop);
  void write() const;

  const UniqueFd file_;
  const std::string path_;
  const std::function<std::string()> text_;
  std::mutex mutex_;
  std::condition_variable_any ends_;
  std::jthread thread_;
};

}  // namespace penstock::core
