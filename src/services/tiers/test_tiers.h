// What tests of tiers share: three folders as tiers, a catalog, and files whose content tells their name and version.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "penstock/tiers.h"

namespace penstock::tiers::test {

namespace fs = std::filesystem;

inline std::string bytes_of(const std::string& name, int version, std::size_t size) {
  std::mt19937_64 random(std::hash<std::string>()(name) * 31 + static_cast<std::uint64_t>(version));
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, size - i));
  }
  return bytes;
}

inline void write_file(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  // At once: byte by byte, the sanitizers would take most of a test's time.
  std::string bytes(file ? static_cast<std::size_t>(file.tellg()) : 0, '\0');
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

class Folders {
 public:
  Folders() {
    std::string name = (fs::temp_directory_path() / "penstock-tiers-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    for (const char* tier : {"nvme", "ssd", "hdd"}) fs::create_directory(root_ / tier);
  }
  ~Folders() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;

  fs::path path(const std::string& name) const { return root_ / name; }
  std::string catalog() const { return (root_ / "tiers.db").string(); }
  TiersOptions options() const {
    TiersOptions options{.catalog = catalog()};
    options.copying.lanes = 2;
    return options;
  }
  std::vector<NewTier> tiers(std::uint64_t capacity_bytes = 1ULL << 30) const {
    std::vector<NewTier> all;
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      all.push_back({.name = tier, .path = path(tier).string(), .capacity_bytes = capacity_bytes});
    }
    return all;
  }
  Tiers create(std::uint64_t capacity_bytes = 1ULL << 30) const {
    auto made = Tiers::create(tiers(capacity_bytes), {.least_stay_seconds = 0}, options());
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? *made : Tiers();
  }
  // On which tiers something of that name lies.
  std::vector<std::string> where(const std::string& name) const {
    std::vector<std::string> found;
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      if (fs::exists(fs::symlink_status(root_ / tier / name))) found.emplace_back(tier);
    }
    return found;
  }
  // What lies aside, unfinished or about to be deleted.
  std::vector<std::string> aside() const {
    std::vector<std::string> found;
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      for (const char* folder : {"coming", "going"}) {
        for (const auto& entry : fs::directory_iterator(root_ / tier / ".penstock" / folder)) {
          found.push_back(entry.path().string());
        }
      }
    }
    return found;
  }

 private:
  fs::path root_;
};

// A file or folder with a flag that keeps even root from changing it (chattr(1)); false where there is none.
class ProtectedPath {
 public:
  ProtectedPath(const fs::path& path, int flag)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), is_set_(set(flag)) {}
  ~ProtectedPath() {
    if (is_set_) set(0);
  }
  ProtectedPath(const ProtectedPath&) = delete;
  ProtectedPath& operator=(const ProtectedPath&) = delete;
  explicit operator bool() const { return is_set_; }

 private:
  bool set(int flag) {
    int flags = 0;
    if (::ioctl(file_.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
    flags = (flags & ~(FS_IMMUTABLE_FL | FS_APPEND_FL)) | flag;
    return ::ioctl(file_.get(), FS_IOC_SETFLAGS, &flags) == 0;
  }

  UniqueFd file_;
  bool is_set_;
};

inline std::string text_of(const Status& status) {
  return status.ok() ? "ok" : status.error().message;
}
template <typename T>
std::string text_of(const Result<T>& result) {
  return result.ok() ? "ok" : result.error().message;
}
inline std::string text_of(const CheckReport& report) {
  std::string text;
  for (const TierFinding& finding : report.findings) text += finding.path + ": " + finding.text + "\n";
  return text;
}

// From now on the calling thread, and those that it starts, get an error from a system call. Nothing can undo that.
inline bool refuse_call(long number, int error = EPERM) {
  std::array program{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                     sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1),
                     sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
                     sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

inline constexpr uid_t other_user = 65534;

// Whether `work` has succeeded, in a process of the other user.
inline bool as_other(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_other = ::setgroups(0, nullptr) == 0 && ::setresgid(other_user, other_user, other_user) == 0 &&
                          ::setresuid(other_user, other_user, other_user) == 0;
    ::_exit(is_other && work() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

inline struct stat facts_of(const fs::path& path) {
  struct stat status = {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status;
}

class TiersTest : public testing::Test {
 protected:
  // A file on a tier, and in the catalog.
  void put(const std::string& tier, const std::string& name, std::size_t size) {
    write_file(folders_.path(tier + "/" + name), bytes_of(name, 1, size));
    const Status imported = tiers_.import(name);
    ASSERT_TRUE(imported.ok()) << text_of(imported);
  }
  std::string content(const std::string& tier, const std::string& name) {
    return read_file(folders_.path(tier + "/" + name));
  }
  void use(const std::string& name, int times) {
    for (int i = 0; i < times; ++i) ASSERT_TRUE(tiers_.path_of(name).ok());
  }

  Folders folders_;
  Tiers tiers_ = folders_.create();
};

}  // namespace penstock::tiers::test
