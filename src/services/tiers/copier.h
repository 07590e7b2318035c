// Copier: copies files by requests, adds their checksums up on the way, and compares what arrived by reading it past
// the page cache. Holes stay holes; modes, owners, extended attributes and times are kept.
//
// Thread safety: one thread. Lifetime: the Context must outlive it, and have Cache::bypass.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/context.h"
#include "services/tiers/pace.h"
#include "services/tiers/tree.h"

namespace penstock::tiers {

struct FileCopy {
  std::string from;
  std::string to;  // exists, and is empty or has `done_bytes` from an earlier attempt
  const Entry* entry = nullptr;
  std::uint64_t done_bytes = 0;  // that are safe
  std::string checksum = {};     // of the source: filled in by `copy`
};

class Copier {
 public:
  // How many bytes of a file are safe, now and then.
  using Checkpoint = std::function<Status(std::uint64_t done_bytes)>;
  using Progress = std::function<void(std::uint64_t bytes)>;  // by so many more

  Copier(Context& context, Pace& pace) : context_(context), pace_(pace) {}

  // All of them; only a single file has checkpoints.
  Status copy(std::span<FileCopy> files, const Progress& progress, const Checkpoint& checkpoint = {});
  // Code::io_error if what lies at the targets is not what was copied.
  Status verify(std::span<const FileCopy> files, const Progress& progress);
  // Checksums of files, by reading them past the page cache.
  Status add_up(std::span<FileCopy> files, const Progress& progress);

 private:
  struct Small;
  Status copy_large(FileCopy& file, const Progress& progress, const Checkpoint& checkpoint);
  Status copy_small(std::span<FileCopy> files, const Progress& progress);
  Result<std::string> sum_large(const std::string& path, const Progress& progress);
  Result<std::vector<std::string>> sum_small(std::span<const std::string> paths, std::span<const std::uint64_t> sizes,
                                             const Progress& progress);
  Result<std::vector<std::string>> sums(std::span<const FileCopy> files, bool of_targets, const Progress& progress);
  Status make_buffers();

  Context& context_;
  Pace& pace_;
  std::vector<Buffer> buffers_;  // of window_bytes each
};

// Gives a copy the mode, owner, extended attributes and times of the original. The last thing that is done to it.
Status take_attributes(const std::string& from, const std::string& to, const struct stat& status);

}  // namespace penstock::tiers
