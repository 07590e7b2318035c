// Copier: copies files, adds their checksums up on the way, and compares what arrived by reading it past the page
// cache. Large files go by requests, small ones side by side (side_by_side.h): opening one as a store would take longer
// than copying it. Holes stay holes; modes, owners, extended attributes and times are kept.
//
// Thread safety: one thread. Lifetime: the Context must outlive it, and have Cache::bypass.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/held_folder.h"
#include "penstock/context.h"
#include "services/tiers/direct_reads.h"
#include "services/tiers/pace.h"
#include "services/tiers/tree.h"

namespace penstock::tiers {

struct FileCopy {
  PathBeneath from;
  PathBeneath to;  // exists, and is empty or has `done_bytes` from an earlier attempt
  const Entry* entry = nullptr;
  int source = -1;               // `from`, where it is open already
  std::uint64_t done_bytes = 0;  // that are safe
  std::string checksum = {};     // of the source: filled in by `copy`
  Status status = {};            // what failed of it alone
};

class Copier {
 public:
  // How many bytes of a file are safe, now and then.
  using Checkpoint = std::function<Status(std::uint64_t done_bytes)>;
  using Progress = std::function<void(std::uint64_t bytes)>;  // by so many more

  Copier(const Context& context, Pace& pace) : context_(context), pace_(pace) {}

  // All of them; only a single file has checkpoints. A small file that fails says so in its `status`, and the others
  // go on; whatever else fails, or is stopped, ends the call.
  Status copy(std::span<FileCopy* const> files, const Progress& progress, const Checkpoint& checkpoint = {});
  // The `status` of a file has Code::io_error if what lies at the targets is not what was copied.
  Status verify(std::span<FileCopy* const> files, const Progress& progress);
  // Checksums of files, by reading them past the page cache.
  Status add_up(std::span<FileCopy* const> files, const Progress& progress);

 private:
  enum class End : std::uint8_t { source, target };
  // How many of the first files are small, and fit into a buffer.
  std::size_t small_group(std::span<FileCopy* const> files) const;
  Status copy_large(FileCopy& file, const Progress& progress, const Checkpoint& checkpoint);
  Result<std::string> sum_large(const FileCopy& file, End end, const Progress& progress);
  // Calls `found` for each file with the checksum of one end of it.
  using Found = std::function<void(FileCopy& file, std::string checksum)>;
  Status sum(std::span<FileCopy* const> files, End end, const Progress& progress, const Found& found);
  Status make_buffers();

  const Context context_;
  Pace& pace_;
  std::vector<Buffer> buffers_;  // of one size, by the memory there is
  std::optional<DirectReads> reads_;
};

// Gives the copy of a folder the mode, owner, extended attributes and times of the original. The last thing that is
// done to it.
Status take_attributes(const PathBeneath& from, const PathBeneath& to, const Entry& entry);

}  // namespace penstock::tiers
