// For tests: loop devices and mounts of this machine, gone with the test.
#pragma once

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
  explicit AttachedLoop(const std::string& backing, const std::string& options = "")
      : path_(output_of("losetup --find --show " + options + " '" + backing + "'")) {}
  ~AttachedLoop() { detach(); }
  AttachedLoop(AttachedLoop&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  AttachedLoop& operator=(AttachedLoop&& other) noexcept {
    detach();
    path_ = std::exchange(other.path_, {});
    return *this;
  }

  const std::string& path() const { return path_; }  // empty: there is none
  void detach() {
    if (path_.empty()) return;
    output_of("losetup --detach " + path_);
    // It stays while anybody has the device open, be it to look at it.
    const std::string backing = "/sys/block/" + path_.substr(path_.rfind('/') + 1) + "/loop/backing_file";
    for (int i = 0; i < 1000 && std::filesystem::exists(backing); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    path_.clear();
  }

 private:
  std::string path_;
};

class MountedDevice {
 public:
  MountedDevice(const std::string& device, std::string point, unsigned long flags = 0) : point_(std::move(point)) {
    std::filesystem::create_directories(point_);
    mounted_ = ::mount(device.c_str(), point_.c_str(), "ext4", flags, nullptr) == 0;
  }
  ~MountedDevice() {
    if (mounted_) ::umount2(point_.c_str(), MNT_DETACH);
  }
  MountedDevice(const MountedDevice&) = delete;
  MountedDevice& operator=(const MountedDevice&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& point() const { return point_; }

 private:
  std::string point_;
  bool mounted_ = false;
};

inline bool make_file_system(const std::string& device) {
  return !output_of("mkfs.ext4 -q -F " + device + " >&2 && echo made").empty();
}

}  // namespace penstock::files
