// Recipe: a store whose bytes a function makes each time they are read: rows gathered from a table, something decoded.
//
//   const auto gather = [&](std::uint64_t offset, std::span<std::byte> memory) {
//     while (!memory.empty()) {
//       const std::uint64_t in_row = offset % row_bytes;
//       const std::size_t count = std::min<std::uint64_t>(row_bytes - in_row, memory.size());
//       std::memcpy(memory.data(), table + numbers[offset / row_bytes] * row_bytes + in_row, count);
//       memory = memory.subspan(count);
//       offset += count;
//     }
//     return penstock::Status();
//   };
//   auto rows = context.open(penstock::Recipe{"rows", numbers.size() * row_bytes, gather}).value();
//   auto report = context.read(rows, 0, memory.region());  // of the host, or of a GPU
//
// It is read as every store is: in requests with ranges of other stores, in stream order, with deadlines, which are
// looked at between two calls. Bytes for a GPU are made in pinned memory, and copied while the next ones are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "penstock/result.h"

namespace penstock {

struct Recipe {
  std::string name;  // for messages
  std::uint64_t size_bytes = 0;
  // Writes the bytes of the store from `offset` on, as many as `memory` holds: any part of it, which may begin and end
  // in the middle of a row. Called when the request is carried out (in stream order: when the stream has come to it),
  // by several threads at once: Penstock's lanes, which other requests need too, or the thread inside a small
  // synchronous read. So it must not wait for anything, nor take a lock that is held while something is read. What it
  // refers to must be there as long as the Store and requests that read it.
  //
  // An Error fails the bytes that were asked for, and the report tells it; with EAGAIN or EINTR as system_error the
  // call is repeated a few times first. It must not throw: that ends the process with a message.
  std::function<Status(std::uint64_t offset, std::span<std::byte> memory)> make;
};

}  // namespace penstock
