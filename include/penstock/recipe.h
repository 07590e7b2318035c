// Recipe: a store whose bytes a function makes on every read: rows gathered from a table, something decoded.
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
// You read it like any store: in requests with ranges of other stores, in stream order, with deadlines, which are
// checked between calls. Bytes for a GPU are made in pinned memory, and copied while the next ones are made.
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
  // Fills `memory` with the bytes of the store from `offset` on: any part of it, which may begin and end in the middle
  // of a row. Called when the request runs (in stream order: when the stream reaches it), by several threads at once:
  // lanes, which other requests need too, or the thread inside a small synchronous read. So it must not wait, nor take
  // a lock that is held during a read. Everything it refers to must live as long as the Store and requests that read
  // it.
  //
  // An Error fails the requested bytes, and appears in the report; with EAGAIN or EINTR as system_error the call is
  // first repeated a few times. It must not throw: that ends the process with a message.
  std::function<Status(std::uint64_t offset, std::span<std::byte> memory)> make;
};

}  // namespace penstock
