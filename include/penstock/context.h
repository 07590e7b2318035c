// Context: the engines, workers, memory and statistics of one user of the library. Make one, open stores, move bytes.
//
//   auto context = penstock::Context::create().value();
//   auto file = context.open("weights.bin").value();
//   auto memory = context.allocate(penstock::Domain::host(), file.info().size_bytes).value();
//   auto report = context.read(file, 0, memory.region());   // report.ok(), report.routes, report.reason
//
// Thread safety: every call from any thread. Lifetime: a Context is a handle. Copies are cheap and share everything;
// Rows, Layers and the other products hold one, so they may be returned, moved and stored in any order. close(), or the
// end of the last handle, cancels requests, waits a bounded time, and leaks what a device still uses, with a logged
// reason. After close(), and in the child of a fork, calls fail with Code::closed. An empty Context
// (default-constructed or moved from) fails with Code::invalid_argument and returns empty values.
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

namespace client {
class Session;
struct Access;
}  // namespace client

// Part of a store: a number of bytes from an offset, or everything from there.
struct Extent {
  static constexpr std::uint64_t to_the_end = UINT64_MAX;

  std::uint64_t offset = 0;
  std::uint64_t length = to_the_end;
};

// Bytes read into newly allocated memory, and the report.
struct Loaded {
  Buffer buffer;
  Report report;
};

// Opens the store that a name stands for: several tiers, or something made from other stores.
using Resolver = std::function<Result<Store>(std::string_view name, const OpenOptions& options)>;

// The path that a name stands for now, and how to open it.
struct Location {
  std::string path;
  OpenOptions options;
  std::shared_ptr<const void> held = {};  // what has to stay until it is open, such as the descriptor of the options
};
using Locator = std::function<Result<Location>(std::string_view name, const OpenOptions& options)>;

class PENSTOCK_EXPORT Context {
 public:
  // Reads the environment (PENSTOCK_ENGINE, PENSTOCK_LOG). Starts no thread; engines are probed on first use.
  static Result<Context> create(const Options& options = {});

  Context();
  Context(const Context&);
  Context(Context&&) noexcept;
  Context& operator=(const Context&);
  Context& operator=(Context&&) noexcept;
  ~Context();

  // Ends every request with Code::closed, and waits at most Deadlines::close_seconds. Memory of Buffers stays. A second
  // call does nothing.
  void close() const;
  // Whether this handle is not empty; a closed Context is not empty.
  explicit operator bool() const { return session_ != nullptr; }
  // Whether both are handles of the same Context.
  friend bool operator==(const Context&, const Context&) = default;

  // `name` is a path, or a URI with the scheme of an engine or an added scheme. "./x" and "file:x" are always
  // paths.
  Result<Store> open(std::string_view name, const OpenOptions& options = {}) const;
  // A store whose bytes a function makes.
  Result<Store> open(Recipe recipe) const;

  // From now on the function opens names with this scheme; it gets them without the scheme and percent-encoding. It may
  // open other stores of the Context, and must not throw. Code::invalid_argument if the scheme is taken or invalid.
  Status add_scheme(std::string scheme, Resolver resolve) const;
  // From now on names with this scheme stand for paths that the function tells. It gets them without the scheme, as
  // they were written: percent-encoding is its own to undo. It must not throw.
  Status redirect(std::string scheme, Locator locate) const;
  // The path that a name stands for: that of a redirected scheme, else the name itself.
  Result<std::string> path_of(std::string_view name) const;

  // Page-aligned memory. Pinned memory counts against the budget and is attached to every engine; once a GPU is in use,
  // it is also registered with CUDA. GPU memory has its own budget.
  Result<Buffer> allocate(Domain domain, std::size_t size_bytes) const;
  // Makes everything that requests to and from a GPU need: context, kernels, streams, pinned slots. Otherwise the first
  // request does it and takes longer. Code::would_deadlock for a GPU that was not in use, while streams wait for
  // requests.
  Status prepare(Domain domain) const;
  // Registers your memory with the engines, for faster transfers. Detach it when no request uses it, and before you
  // free it; memory of a Buffer stays until then. Code::invalid_argument for memory that is empty, not mapped or
  // already attached.
  Status attach(Region memory) const;
  // Takes the same address and size as attach; else Code::invalid_argument.
  Status detach(Region memory) const;

  // Synchronous transfers. A small one on a local store runs on the caller's thread.
  Report read(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options = {}) const;
  Report write(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options = {}) const;
  // Opens a store, allocates memory, and reads into it. If a step fails, the error is returned and everything read so
  // far is lost.
  Result<Loaded> read(std::string_view name, Extent extent, Domain domain, const RequestOptions& options = {}) const;
  // Makes a range read as zeros, by the cheapest means of the store, else by writing zeros: also for parts of blocks,
  // and beyond the end of a file. No bytes take a route, so Report::routes is empty.
  Report zero(const Store& store, std::uint64_t offset, std::uint64_t length, const RequestOptions& options = {}) const;
  // Tells the store that the whole blocks within a range are no longer needed; Report::bytes says how many bytes those
  // are. Until they are written again, a file reads as zeros there, and a disk as zeros or as before, possibly changing
  // between reads. All other bytes, also those at the ends of the range, stay. Code::unsupported if the store can't do
  // it.
  Report deallocate(const Store& store, std::uint64_t offset, std::uint64_t length,
                    const RequestOptions& options = {}) const;
  // Any number of ranges, of any stores.
  Report transfer(Direction direction, std::span<const Range> ranges, const RequestOptions& options = {}) const;

  // Asynchronous: returns at once with a Ticket. The ranges are copied. The memory is borrowed until the end; memory of
  // a Buffer is held until then. Code::out_of_range for memory that reaches past the end of its Buffer.
  Result<Ticket> submit(Direction direction, std::span<const Range> ranges, const RequestOptions& options = {}) const;

  // In stream order, with ranges that are asked for when the stream reaches the request: earlier work on the stream may
  // decide which. All memory must be on `gpu`.
  Result<Ticket> submit(Direction direction, Domain gpu, RangeSource ranges, const RequestOptions& options) const;

  // A request that CUDA graphs start again and again. Each round asks for its ranges, on the thread that watches the
  // words; all memory must be on `gpu`. A deadline counts from the beginning of a round.
  Result<Standing> stand_by(Direction direction, Domain gpu, RangeSource ranges,
                            const RequestOptions& options = {}) const;

  // Starts to bring ranges into the page cache, at most `prefetch_window_bytes`; returns how many bytes it started. Of
  // a Range's memory, only the size matters.
  Result<std::uint64_t> prefetch(std::span<const Range> ranges) const;

  std::vector<EngineInfo> engines() const;
  // How bytes of an open store would travel to or from memory of a domain, and why. Code::no_device if that GPU does
  // not exist.
  Result<Plan> plan(const Store& store, Direction direction = Direction::read, Domain domain = Domain::host()) const;
  // The same in words, or why it can't be told.
  std::string explain(const Store& store, Direction direction = Direction::read, Domain domain = Domain::host()) const;
  const Options& options() const;  // with every default filled in
  const Machine& machine() const;

  Statistics statistics() const;
  // What the lanes did, as far as Options::trace_events kept it; only events that ended after `since_seconds`.
  Trace trace(double since_seconds = 0) const;
  void reset_statistics() const;
  // Counts bytes that were mapped instead of read: they come without a request.
  void count_mapped(std::uint64_t bytes, double seconds) const;

 private:
  friend struct client::Access;
  explicit Context(std::shared_ptr<client::Session> session);

  std::shared_ptr<client::Session> session_;  // shared by the copies
};

PENSTOCK_EXPORT std::string_view version();

}  // namespace penstock
