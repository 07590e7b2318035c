// What integration tests borrow from the machine: loop devices and mounts. Both vanish with the test, also when it
// dies.
#pragma once

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "engine/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"

namespace penstock::test {

inline constexpr bool under_thread_sanitizer =
#if defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

// The last line that a command prints, or nothing if it fails.
inline std::string output_of(const std::string& command) {
  std::string line;
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return {};
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c != '\n') line += static_cast<char>(c);
  }
  return ::pclose(pipe) == 0 ? line : std::string();
}

class LoopDevice {
 public:
  LoopDevice(const std::string& image, unsigned sector_bytes) {
    if (::geteuid() != 0) {
      refusal_ = "only root can make a loop device";
      return;
    }
    path_ = output_of("losetup --find --show --sector-size " + std::to_string(sector_bytes) + " '" + image + "'");
    if (path_.empty()) {
      refusal_ = "losetup can't make a loop device here";
      return;
    }
    // Detached while it is held, a device stays until the last one who holds it lets go, even by dying.
    held_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    output_of("losetup --detach " + path_);
  }

  // Why there is no device; empty if there is one.
  const std::string& refusal() const { return refusal_; }
  const std::string& path() const { return path_; }

 private:
  std::string refusal_;
  std::string path_;
  UniqueFd held_;
};

class Mount {
 public:
  struct What {
    std::string source;
    std::string type;
    std::string options;
  };
  Mount(const What& what, const std::string& point) : point_(point) {
    std::filesystem::create_directories(point);
    mounted_ = ::mount(what.source.c_str(), point.c_str(), what.type.c_str(), 0, what.options.c_str()) == 0;
  }
  ~Mount() { release(); }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  bool mounted() const { return mounted_; }
  std::string path(const std::string& name) const { return point_ + "/" + name; }
  void release() {
    if (mounted_) ::umount2(point_.c_str(), MNT_DETACH);
    mounted_ = false;
  }

 private:
  const std::string point_;
  bool mounted_ = false;
};

inline engine::Table table_of(const std::string& engine) {
  engine::Table table;
  table.push_back(engine == "posix" ? posix::make_engine() : uring::make_engine());
  return table;
}

}  // namespace penstock::test
