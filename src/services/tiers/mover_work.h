// Work: one unit on its way, and what the parts of the Mover share.
#pragma once

#include <string>
#include <vector>

#include "services/tiers/folder.h"
#include "services/tiers/mover.h"

namespace penstock::tiers {

// What moves alone.
bool is_large(UnitKind kind, std::uint64_t size_bytes);
// That a report names.
inline constexpr std::size_t most_failures = 64;

// The folders that the paths lie in, each once.
Status sync_parents(const std::vector<PathBeneath>& paths);

struct Mover::Work {
  UnitRow unit;
  const TierRow* from = nullptr;  // null: it comes from elsewhere
  const TierRow* to = nullptr;
  PathBeneath source;
  PathBeneath staged;
  PathBeneath target;
  Tree tree;
  Leases leases;
  std::vector<FileCopy> files;
  MoveRow row;
  std::string checksum;
  std::uint64_t done_bytes = 0;  // of this attempt
  bool locked = false;
  bool resumed = false;
  bool named = false;    // from here on it is not undone
  bool is_kept = false;  // for a later attempt
  bool over = false;     // it has failed, or there is nothing to do

  // The files of the tree, to be copied.
  void list_files();

  MoveProgress progress(MoveStep step) const {
    return {.name = unit.name,
            .from = from != nullptr ? std::string_view(from->name) : std::string_view(),
            .to = to->name,
            .step = step,
            .bytes = std::min(done_bytes, tree.size_bytes),
            .total_bytes = tree.size_bytes};
  }
};

}  // namespace penstock::tiers
