// Leases: as long as they are held, the kernel tells of everyone who opens one of the files for writing, and lets him
// wait (fcntl(2), F_SETLEASE). They can't be had while somebody has a file open for writing.
//
// Where there are none (network file systems, files of other users) writers are only noticed by the times of the files.
//
// Thread safety: one thread. A forked child shares them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "services/tiers/tree.h"

namespace penstock::tiers {

class Leases {
 public:
  // Each takes a descriptor. Of directories with more files than this, or than a quarter of the descriptors that are
  // free, none is taken.
  static constexpr std::size_t most_files = 256;

  // Code::in_use while one of the files is open for writing.
  static Result<Leases> take(const PathBeneath& path, const Tree& tree);
  // Code::in_use if somebody waits to write.
  Status check() const;
  // Of the first file, open for reading; -1: none has a lease.
  int descriptor() const { return leased_.empty() ? -1 : leased_.front().file.get(); }
  // The files, still open. REQUIRES: they were deleted, so nobody is told any more.
  std::vector<UniqueFd> take_files();

 private:
  struct Leased {
    UniqueFd file;
    std::string path;
  };
  std::vector<Leased> leased_;
};

}  // namespace penstock::tiers
