// Subject: a Context and a store that is loaded with it again and again; and what brings that store into the page cache
// and out of it. For all that measures.
//
// Thread safety: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "penstock/context.h"

namespace penstock::measuring {

inline constexpr std::uint64_t mib = 1 << 20;

using KeepGoing = std::function<bool()>;

// Of a clock that never jumps.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
Error stopped();

struct Subject {
  Context context;
  Store store;
};
// Ready to work on `memory`, whoever owns that.
Result<Subject> make_subject(const std::string& path, const Options& options, Region memory,
                             Access access = Access::read);
// One request for the front of the store. Code::cancelled once `keep_going` says no.
Result<Report> move_front(Subject& subject, Direction direction, Region memory, const KeepGoing& keep_going);

// What to read into the page cache.
struct Front {
  int fd = -1;
  std::uint64_t size_bytes = 0;
  double seconds = 0;                                          // that it may take; the first MiB is read in any case
  std::function<void(std::span<const std::byte>)> on_bytes{};  // all of them, in order
};
// Says how many bytes of the front were read.
Result<std::uint64_t> warm(const Front& front, const KeepGoing& keep_going);
// Asks the kernel to; pages that are just being read or written stay.
void evict(int fd);

}  // namespace penstock::measuring
