// One operation on a FileStore, done now, on the calling thread.
//
// Thread safety: from any thread; operations on one store may overlap.
#pragma once

#include <cstddef>
#include <span>

#include "engine/op.h"
#include "files/file_store.h"

namespace penstock::files {

// The most that one operation moves; core continues what is left.
inline constexpr std::uint64_t max_transfer_bytes = 1 << 30;

inline FileStore& store_of(const engine::Op& op) {
  return *static_cast<FileStore*>(op.store);
}

// The descriptor for the operation's path; -1 if the store has none.
int descriptor_of(const engine::Op& op);

// Whether a file system answers so that it can't zero a range by itself: then zeros are written, as many of them in one
// operation as `zeros_for` gives.
bool needs_written_zeros(const engine::Op& op, int error);
std::span<const std::byte> zeros_for(const engine::Op& op);

// Bytes moved, or a negative error number, as the operation's completion.
engine::Done finish(const engine::Op& op, std::int64_t result);

engine::Done transfer(const engine::Op& op);

}  // namespace penstock::files
