// Comparison: what memory holds against what an independent, plain read of the files gives.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "output.h"
#include "penstock/store.h"

namespace penstock::cli {

struct Loaded {
  std::string what;  // for messages
  std::string path;
  std::optional<Identity> identity;  // of the file when it was opened; nothing for a device
  std::uint64_t offset = 0;
  Region memory;
};

// Ends at the first difference. Pieces of one file are best told one after the other.
Verified compare_with_files(std::span<const Loaded> pieces);

}  // namespace penstock::cli
