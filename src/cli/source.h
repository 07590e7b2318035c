// Source: where bytes come from a window at a time: a store, a stream, or a pattern. `penstock write` copies any of
// them; `penstock load` takes streams.
//
// Thread safety: one thread. Lifetime: a store's Source borrows its Context.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deadline.h"
#include "holes.h"
#include "penstock/context.h"

namespace penstock::cli {

class Source {
 public:
  virtual ~Source() = default;
  // Nothing where only the end will tell.
  virtual std::optional<std::uint64_t> size_bytes() const = 0;
  // Fills the memory from its front and says how much; less than all of it only at the end, then 0.
  // REQUIRES: memory that the CPU can reach.
  virtual Result<std::uint64_t> fill(Region memory) = 0;
  // The same, but passes over holes: says which runs of data the memory holds, one behind the other. None at the end.
  virtual Result<std::vector<Extent>> fill_data(Region memory);
  // Of what comes next; a fill that failed has come as far as this.
  std::uint64_t position() const { return position_; }

 protected:
  std::uint64_t position_ = 0;
};

struct StoreSlice {
  Store store;
  Extent extent = {};
  Holes holes = {};
};
std::unique_ptr<Source> store_source(const Context& context, StoreSlice slice, Deadline deadline = Deadline());

// What can only be read from its front to its end: standard input ("-"), pipes, character devices, and files whose
// content is made as it is read, such as those of /proc. Up to the end, or exactly `size_bytes`. Nothing: it is none of
// those.
Result<std::unique_ptr<Source>> open_stream(const std::string& name, std::optional<std::uint64_t> size_bytes,
                                            Deadline deadline = Deadline());
// Whether it is one, judged without opening it: a server that hangs would hold up the open.
bool names_stream(const std::string& name, std::optional<std::uint64_t> size_bytes);

// That standard input or output was closed when the tool was started.
Error closed_stream(const std::string& name);

// Bytes that depend on nothing but their position and the seed.
struct Pattern {
  std::uint64_t size_bytes = 0;
  std::uint64_t seed = 0;
};
std::unique_ptr<Source> pattern_source(Pattern pattern);

}  // namespace penstock::cli
