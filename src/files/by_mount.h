// ByMount: what all files of a mount have in common, looked up once: to look takes longer than to open a file.
//
// A mount whose id is never used again (statx(2), since Linux 6.8) is known for good: as long as it lives its file
// system and the device below stay what they are, and afterwards no file tells its id. Before, ids and device numbers
// are used again. There everything is forgotten when a mount of this process changes (poll(2) of mountinfo), and mounts
// that it does not list, as those of another namespace, are not remembered.
//
// Thread safety: any thread. Nothing is locked while it looks, which may take as long as a server likes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "files/mount.h"

namespace penstock::files {

// Whether a mount was added or removed.
//
// Thread safety: one thread at a time.
class MountChanges {
 public:
  // True the first time, and where the kernel does not tell; otherwise if there was a change since it was last asked.
  bool happened();

 private:
  bool is_own_descriptor() const;

  // Never closed: the program may have closed it, and opened another file that got its number.
  int mounts_ = -1;
  dev_t device_ = 0;  // of mountinfo, by which that is found out
  ino_t inode_ = 0;
  pid_t process_ = 0;  // a forked child would share the kernel's mark of what was told
};

template <typename T>
class ByMount {
 public:
  // What is known of the mount of the open file, or what `look` finds: a std::optional<T>, of which nothing is not
  // remembered.
  template <typename Look>
  std::optional<T> of(int fd, const std::optional<MountMark>& mount, const Look& look) {
    if (!mount) return look();
    std::uint64_t generation = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!mount->is_unique && changes_.happened()) {
        known_.clear();
        ++generation_;
      }
      for (const auto& [mark, value] : known_) {
        if (mark == *mount) return value;
      }
      generation = generation_;
    }
    std::optional<T> found = look();
    if (!found || !(mount->is_unique || mount_of(fd))) return found;
    const std::lock_guard lock(mutex_);
    if (generation != generation_) return found;
    if (known_.size() == most_known) known_.clear();
    known_.emplace_back(*mount, *found);
    return found;
  }

 private:
  static constexpr std::size_t most_known = 256;

  ForkSafeMutex mutex_;
  std::vector<std::pair<MountMark, T>> known_;
  std::uint64_t generation_ = 0;  // of what is known
  MountChanges changes_;
};

}  // namespace penstock::files
