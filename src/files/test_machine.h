// For tests: loop devices and mounts of this machine, gone with the test. Devices are gone also when it dies.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "base/unique_fd.h"

namespace penstock::files {

// What protects people's data is to be tested wherever we promise that all tests run.
inline bool in_ci() {
  const char* value = std::getenv("CI");
  return value != nullptr && std::string(value) == "true";
}
#define SKIP_OUTSIDE_CI(reason)                                    \
  do {                                                             \
    if (::penstock::files::in_ci()) FAIL() << "in CI: " << reason; \
    GTEST_SKIP() << reason;                                        \
  } while (false)

// What a command prints, without the last newline; nothing if it fails.
inline std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return {};
  std::array<char, 256> text{};
  while (std::fgets(text.data(), text.size(), pipe) != nullptr) output += text.data();
  if (::pclose(pipe) != 0) return {};
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return output;
}

class AttachedLoop {
 public:
  AttachedLoop() = default;
  // `options` are losetup's.
  explicit AttachedLoop(const std::string& backing, const std::string& options = "") {
    if (::geteuid() != 0) {
      refusal_ = "only root can make a loop device";
      return;
    }
    path_ = output_of("losetup --find --show " + options + " '" + backing + "'");
    if (path_.empty()) {
      refusal_ = "losetup can't make a loop device here";
      return;
    }
    // Detached while it is held, a device stays until the last one who holds it lets go, even by dying.
    held_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    output_of("losetup --detach " + path_);
  }
  ~AttachedLoop() { detach(); }
  AttachedLoop(AttachedLoop&& other) noexcept = default;
  AttachedLoop& operator=(AttachedLoop&& other) noexcept {
    detach();
    refusal_ = std::move(other.refusal_);
    path_ = std::exchange(other.path_, {});
    held_ = std::move(other.held_);
    return *this;
  }

  // Why there is no device; empty if there is one.
  const std::string& refusal() const { return refusal_; }
  const std::string& path() const { return path_; }
  void detach() {
    if (!held_) return;
    held_ = UniqueFd();
    // It stays while anybody else has the device open, be it to look at it.
    const std::string backing = "/sys/block/" + path_.substr(path_.rfind('/') + 1) + "/loop/backing_file";
    for (int i = 0; i < 1000 && std::filesystem::exists(backing); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    path_.clear();
  }

 private:
  std::string refusal_;
  std::string path_;
  UniqueFd held_;
};

class OwnMount {
 public:
  struct What {
    std::string source;
    std::string type = "ext4";
    std::string options = {};
    unsigned long flags = 0;
  };
  OwnMount(const What& what, std::string point) : point_(std::move(point)) {
    std::filesystem::create_directories(point_);
    mounted_ = ::mount(what.source.c_str(), point_.c_str(), what.type.c_str(), what.flags, what.options.c_str()) == 0;
  }
  ~OwnMount() { release(); }
  OwnMount(const OwnMount&) = delete;
  OwnMount& operator=(const OwnMount&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& point() const { return point_; }
  std::string path(const std::string& name) const { return point_ + "/" + name; }
  void release() {
    if (mounted_) ::umount2(point_.c_str(), MNT_DETACH);
    mounted_ = false;
  }

 private:
  const std::string point_;
  bool mounted_ = false;
};

inline bool make_file_system(const std::string& device) {
  return !output_of("mkfs.ext4 -q -F " + device + " >/dev/null 2>&1 && echo made").empty();
}

}  // namespace penstock::files
