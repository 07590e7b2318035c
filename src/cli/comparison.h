// Comparison: what memory holds against what an independent, plain read of the files gives; where there is no file,
// against another read of the store.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "output.h"
#include "penstock/context.h"

namespace penstock::cli {

// There may be millions: what it names is the Cargo's.
struct Loaded {
  std::string_view tensor;             // its name; none: bytes
  std::string_view path;               // or a URI
  bool is_file = true;                 // that can be read plainly, without Penstock
  const Identity* identity = nullptr;  // of the file when it was opened; null for a device
  std::uint64_t offset = 0;
  Region memory;
  const Model* packed_in = nullptr;  // a packed tensor: the file has other bytes, which the CPU unpacks once more
  std::uint32_t index = 0;           // of that tensor
};

// Ends at the first difference. Pieces of one file are best told one after the other.
Verified compare_with_files(const Context& context, std::span<const Loaded> pieces);

}  // namespace penstock::cli
