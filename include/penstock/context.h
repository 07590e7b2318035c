// Context: everything Penstock owns for its user: engines, lanes, memory, statistics. Make one, open stores, move
// bytes.
//
//   auto context = penstock::Context::create().value();
//   auto file = context.open("weights.bin").value();
//   auto memory = context.allocate(penstock::Domain::host(), file.info().size_bytes).value();
//   auto report = context.read(file, 0, memory.region());   // report.ok(), report.routes, report.reason
//
// Thread safety: every call from any thread. Lifetime: closing (the destructor) cancels what runs, waits a bounded
// time, and leaks with a logged reason what a device still holds. After fork, the child gets Code::closed. Moved from,
// a Context fails with Code::invalid_argument, and has nothing to tell.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/buffer.h"
#include "penstock/engine_info.h"
#include "penstock/machine.h"
#include "penstock/options.h"
#include "penstock/plan.h"
#include "penstock/recipe.h"
#include "penstock/request.h"
#include "penstock/standing.h"
#include "penstock/statistics.h"
#include "penstock/store.h"
#include "penstock/trace.h"

namespace penstock {

// Part of a store: so many bytes from an offset, or all that there are from there.
struct Extent {
  static constexpr std::uint64_t to_the_end = UINT64_MAX;

  std::uint64_t offset = 0;
  std::uint64_t length = to_the_end;
};

// What was read into memory of its own, and how.
struct Loaded {
  Buffer buffer;
  Report report;
};

// Opens what a name means: a store of several tiers, something that is made from others.
using Resolver = std::function<Result<Store>(std::string_view name, const OpenOptions& options)>;

class PENSTOCK_EXPORT Context {
 public:
  // Reads the environment (PENSTOCK_ENGINE, PENSTOCK_LOG). Starts no thread; engines are probed when they are needed.
  static Result<Context> create(const Options& options = {});

  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  // `name` is a path, or a URI with the scheme of an engine, or one that was added. "./x" and "file:x" are always
  // paths.
  Result<Store> open(std::string_view name, const OpenOptions& options = {});
  // What a function makes.
  Result<Store> open(Recipe recipe);

  // From now on the function opens names of this scheme, without the scheme and percent-encoding. It may open other
  // stores of the Context, and must not throw. Code::invalid_argument if the scheme is served already, or can't be one.
  Status add_scheme(std::string scheme, Resolver resolve);

  // Page-aligned memory. Pinned memory counts against the budget and is attached to every engine; once a GPU is
  // in use it is registered with CUDA too. GPU memory counts against a budget of its own.
  Result<Buffer> allocate(Domain domain, std::size_t size_bytes);
  // Makes all that requests to and from a GPU need: context, kernels, streams, pinned slots. The first request would do
  // it, and take the longer. A GPU that was not in use can't be taken into use while streams wait for requests:
  // Code::would_deadlock.
  Status prepare(Domain domain);
  // Makes memory of the caller's known to the engines, for faster transfers. Detach it before freeing it, and when no
  // request uses it any more; memory of a Buffer stays until then. Code::invalid_argument for memory that is empty, not
  // mapped or attached already.
  Status attach(Region memory);
  // The same memory as a whole, or Code::invalid_argument.
  Status detach(Region memory);

  // Synchronous transfers. A small one on a local store runs on the caller's thread.
  Report read(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options = {});
  Report write(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options = {});
  // Opens a store, allocates memory, and reads into it. An error where any of that fails; what was read by then is
  // lost.
  Result<Loaded> read(std::string_view name, Extent extent, Domain domain, const RequestOptions& options = {});
  // Makes a range read as zeros, with as little moved as the store can do it with. As a write of zeros otherwise: also
  // where no whole block is filled, and beyond the end of a file. No bytes take a route, so Report::routes has none.
  Report zero(const Store& store, std::uint64_t offset, std::uint64_t length, const RequestOptions& options = {});
  // Tells the store that the whole blocks within a range are not needed any more; Report::bytes says how many bytes
  // that were. Until they are written again, a file reads as zeros there, and a disk as zeros or as before, maybe as
  // one now and as the other later. All other bytes, those in the range included, stay. Code::unsupported where a store
  // can't do that.
  Report deallocate(const Store& store, std::uint64_t offset, std::uint64_t length, const RequestOptions& options = {});
  // Any number of ranges, of any stores.
  Report transfer(Direction direction, std::span<const Range> ranges, const RequestOptions& options = {});

  // Asynchronous: returns at once with a Ticket. The ranges are copied; the memory is borrowed until the end, and held
  // until then where it is a Buffer's. Code::out_of_range for memory that reaches past the end of its Buffer.
  Result<Ticket> submit(Direction direction, std::span<const Range> ranges, const RequestOptions& options = {});

  // In stream order, with ranges that are asked for when the stream has come to the request: what it wrote before may
  // say which. All memory must be of `gpu`.
  Result<Ticket> submit(Direction direction, Domain gpu, RangeSource ranges, const RequestOptions& options);

  // A request that stands by to be begun inside CUDA graphs. Its ranges are asked for in each round, by the thread that
  // looks at the words; all memory must be of `gpu`. A deadline counts from the beginning of a round.
  Result<Standing> stand_by(Direction direction, Domain gpu, RangeSource ranges, const RequestOptions& options = {});

  // Starts bringing ranges into the page cache, at most `prefetch_window_bytes`; says how many bytes were started.
  // Of a Range's memory, only the size is looked at.
  Result<std::uint64_t> prefetch(std::span<const Range> ranges);

  std::vector<EngineInfo> engines() const;
  // How bytes of an open store would travel to or from memory of a domain, and why. Code::no_device for a GPU that is
  // not there.
  Result<Plan> plan(const Store& store, Direction direction = Direction::read, Domain domain = Domain::host()) const;
  // The same in words, or why there is none.
  std::string explain(const Store& store, Direction direction = Direction::read, Domain domain = Domain::host()) const;
  const Options& options() const;  // with every default filled in
  const Machine& machine() const;

  Statistics statistics() const;
  // What the lanes did, as far as Options::trace_events has it kept; only what ended after `since_seconds`.
  Trace trace(double since_seconds = 0) const;
  void reset_statistics();
  // Adds to the statistics what was mapped instead of read: such bytes come without a request.
  void count_mapped(std::uint64_t bytes, double seconds);

 private:
  class Impl;
  friend class ContextBuilder;
  explicit Context(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

PENSTOCK_EXPORT std::string_view version();

}  // namespace penstock
