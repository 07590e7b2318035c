// Recipe: a store whose bytes a function makes each time they are read: rows gathered from a table, something decoded.
//
//   penstock::Recipe rows{.name = "rows", .size_bytes = indices.size() * row_bytes, .make = gather};
//   auto store = context.open(rows).value();
//   auto report = context.read(store, 0, memory.region());  // memory of the host, or of a GPU
//
// It is read as every store is: in requests with ranges of other stores, in stream order, with deadlines. Bytes for a
// GPU are made in pinned memory, and copied while the next ones are made.
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
  // Writes the bytes of the store from `offset` on, as many as `memory` holds; which, nobody can know before. Called
  // when the request is carried out (in stream order: when the stream has come to it), by several threads at once. They
  // are Penstock's lanes, which other requests need too: it must not wait for anything. An error fails the bytes that
  // were asked for, and the report tells it; Code::ok is not an error. It must not throw.
  std::function<Status(std::uint64_t offset, std::span<std::byte> memory)> make;
};

}  // namespace penstock
