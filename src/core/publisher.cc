#include "core/publisher.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <span>

#include "penstock/checksum.h"
#include "penstock/published.h"

namespace penstock::core {

namespace {

constexpr auto interval = std::chrono::milliseconds(250);
constexpr int most_of_a_process = 64;

std::string with_checksum(const std::string& text) {
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return checksum.hex() + "\n" + text + "\n";
}

}  // namespace

Result<std::unique_ptr<Publisher>> Publisher::create(const std::string& name, std::function<std::string()> text) {
  // Under a name that nobody looks for until it is locked: unlocked ones are taken for dead.
  std::string unborn = std::string(published_folder) + "/.penstock-XXXXXX";
  UniqueFd file(::mkostemp(unborn.data(), O_CLOEXEC));
  if (!file) return system_error(errno, "make a file in " + std::string(published_folder));
  int failed = ::fchmod(file.get(), 0644) == 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  const std::string base = std::string(published_folder) + "/" + std::string(published_prefix) + name + "." +
                           std::to_string(::getpid()) + ".";
  std::string path;
  for (int i = 0; failed == 0 && path.empty() && i < most_of_a_process; ++i) {
    const std::string candidate = base + std::to_string(i);
    if (::link(unborn.c_str(), candidate.c_str()) == 0) {
      path = candidate;
    } else if (errno != EEXIST) {
      failed = errno;
    }
  }
  ::unlink(unborn.c_str());
  if (path.empty()) return system_error(failed != 0 ? failed : EEXIST, "publish statistics as " + name);
  return std::unique_ptr<Publisher>(new Publisher(std::move(file), std::move(path), std::move(text)));
}

Publisher::Publisher(UniqueFd file, std::string path, std::function<std::string()> text)
    : file_(std::move(file)), path_(std::move(path)), text_(std::move(text)) {
  write();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Publisher::~Publisher() {
  thread_.request_stop();
  thread_.join();
  ::unlink(path_.c_str());
}

void Publisher::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) write();
}

// A write that fails leaves what a reader refuses; the next one may do better.
void Publisher::write() const {
  const std::string content = with_checksum(text_());
  const ssize_t put = ::pwrite(file_.get(), content.data(), content.size(), 0);
  if (put == static_cast<ssize_t>(content.size())) {
    static_cast<void>(::ftruncate(file_.get(), static_cast<off_t>(content.size())) == 0);
  }
}

}  // namespace penstock::core
