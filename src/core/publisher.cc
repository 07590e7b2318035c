#include "core/publisher.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <span>
#include <system_error>

#include "base/out_of_memory.h"
#include "penstock/checksum.h"
#include "penstock/published.h"

namespace penstock::core {

namespace {

constexpr auto interval = std::chrono::milliseconds(250);
constexpr unsigned most_of_a_process = 64;

std::string with_checksum(const std::string& text) {
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return checksum.hex() + "\n" + text + "\n";
}

void* map(int fd) {
  return ::mmap(nullptr, published_head_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

pthread_mutex_t* make_mutex(void* memory) {
  static_assert(sizeof(pthread_mutex_t) <= published_head_bytes);
  auto* mutex = static_cast<pthread_mutex_t*>(memory);
  pthread_mutexattr_t kind;
  ::pthread_mutexattr_init(&kind);
  ::pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(mutex, &kind);
  ::pthread_mutexattr_destroy(&kind);
  return mutex;
}

}  // namespace

Result<std::unique_ptr<Publisher>> Publisher::create(const std::string& name, std::function<std::string()> text) {
  // It gets its name when its thread lives: without that it would be taken for dead.
  UniqueFd file(::open(std::string(published_folder).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) return system_error(errno, "make a file in " + std::string(published_folder));
  auto publisher = create_unborn(std::move(file), name, std::move(text));
  if (publisher) {
    if (Status status = (*publisher)->take_name(name); !status) publisher = std::move(status).error();
  }
  return publisher;
}

Result<std::unique_ptr<Publisher>> Publisher::create_unborn(UniqueFd file, const std::string& name,
                                                            std::function<std::string()> text) {
  // With room for the head: without, touching it where memory is full would end the process.
  int failed = ::fchmod(file.get(), 0644) == 0 ? ::posix_fallocate(file.get(), 0, published_head_bytes) : errno;
  void* life = failed == 0 ? map(file.get()) : MAP_FAILED;
  if (failed == 0 && life == MAP_FAILED) failed = errno;
  if (failed != 0) return system_error(failed, "publish statistics as " + name);
  try {
    return std::unique_ptr<Publisher>(new Publisher(std::move(file), make_mutex(life), std::move(text)));
  } catch (const std::system_error& error) {
    ::munmap(life, published_head_bytes);
    return system_error(error.code().value(), "start a thread to publish statistics as " + name);
  }
}

Publisher::Publisher(UniqueFd file, pthread_mutex_t* life, std::function<std::string()> text)
    : file_(std::move(file)), life_(life), text_(std::move(text)) {
  write();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  born_.wait();
}

Publisher::~Publisher() {
  thread_.request_stop();
  thread_.join();
  if (!path_.empty()) ::unlink(path_.c_str());
  ::pthread_mutex_destroy(life_);
  ::munmap(life_, published_head_bytes);
}

Status Publisher::take_name(const std::string& name) {
  if (!seems_alive()) {
    return Error{.code = Code::unsupported, .message = "the C library keeps its mutexes otherwise", .hint = {}};
  }
  const std::string base = std::string(published_folder) + "/" + std::string(published_prefix) + name + "." +
                           std::to_string(::getpid()) + ".";
  const std::string unborn = "/proc/self/fd/" + std::to_string(file_.get());
  int failed = EEXIST;
  std::random_device random;
  for (unsigned i = 0; failed == EEXIST && i < 2 * most_of_a_process; ++i) {
    // Any user can take the numbers of a process that is yet to come.
    const std::string candidate = base + std::to_string(i < most_of_a_process ? i : random());
    failed = ::linkat(AT_FDCWD, unborn.c_str(), AT_FDCWD, candidate.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
    if (failed == 0) path_ = candidate;
  }
  return failed == 0 ? Status() : system_error(failed, "publish statistics as " + name);
}

bool Publisher::seems_alive() const {
  std::uint32_t owner = 0;
  return ::pread(file_.get(), &owner, sizeof owner, 0) == sizeof owner && (owner & FUTEX_TID_MASK) != 0;
}

void Publisher::run(const std::stop_token& stop) {
  ::pthread_mutex_lock(life_);
  born_.count_down();
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) {
    static_cast<void>(or_out_of_memory([&] { return write(), Status(); }));
  }
  ::pthread_mutex_unlock(life_);
}

// A write that fails leaves what a reader refuses; the next one may do better.
void Publisher::write() const {
  const std::string content = with_checksum(text_());
  const ssize_t put = ::pwrite(file_.get(), content.data(), content.size(), published_head_bytes);
  if (put == static_cast<ssize_t>(content.size())) {
    static_cast<void>(::ftruncate(file_.get(), static_cast<off_t>(published_head_bytes + content.size())) == 0);
  }
}

}  // namespace penstock::core
