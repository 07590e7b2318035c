// HeldMemory: the Buffers that the ranges of a request lie in. Until the request lets go of it, their memory stays,
// whatever becomes of them.
//
// Thread safety: filled by one thread, then read by any until it is let go of. Lifetime: its request's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "memory/freed_later.h"
#include "memory/live_buffers.h"

namespace penstock::core {

class HeldMemory {
 public:
  using Holder = std::shared_ptr<const memory::Allocation>;

  HeldMemory() = default;
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  // Memory of one range. False if it is partly a Buffer's and partly not. Ranges of one Buffer, and those of none, are
  // looked up once as long as they follow each other.
  bool add(const std::byte* data, std::size_t size) {
    if (!here_->contains(data)) here_ = &look_up(data);
    return here_->covers(data, size);
  }
  // Null: it is no Buffer's.
  Holder holder_of(const std::byte* data) const;
  // Memory of the host is free then, unless others hold it. Returns what nobody else holds of the rest: its Buffer is
  // gone, and its memory goes with these.
  memory::FreedLater::List let_go() {
    memory::FreedLater::List last;
    here_ = &outside_;
    outside_ = {};
    const bool is_of_host = !first_.held || first_.held->region().domain == Domain::host();
    if (!is_of_host || others_ != nullptr) last = let_go_of_all();
    first_ = {};
    return last;
  }

 private:
  using Extent = memory::LiveBuffers::Extent;
  using Place = memory::LiveBuffers::Place;
  using Places = std::map<std::uintptr_t, Place>;

  const Extent& look_up(const std::byte* data);
  memory::FreedLater::List let_go_of_all();
  const Place* find_known(const std::byte* data) const;

  Place first_;                     // most requests have no other
  std::unique_ptr<Places> others_;  // by their first byte; null: there are none
  Extent outside_;                  // where the last one lay that is no Buffer's
  const Extent* here_ = &outside_;  // where the last one lay
};

}  // namespace penstock::core
