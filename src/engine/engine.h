// Engine: a way to reach a kind of Store. A row of data and a few verbs; docs/adding-an-engine.md walks through one.
//
// Thread safety: every call from any thread. Lifetime: outlives its Stores and Queues.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory.h"
#include "engine/queue.h"
#include "engine/store.h"
#include "penstock/engine_info.h"
#include "penstock/result.h"

namespace penstock::engine {

// What core must know about an engine before it asks anything of it.
struct Description {
  std::string_view name;
  std::string_view summary;
  std::vector<std::string_view> schemes;  // URI schemes; plain paths are the scheme "file"
  bool sleeps_in_kernel = false;          // deep queues without a thread each: the planner's choice for local disks
  bool inline_queue = false;              // can make a Queue that does its work inside submit, on the caller's thread
  HostReach host = HostReach::any;
  bool shares_reads = false;    // a read of cached bytes may be shared by threads of a queue (Op::is_shared)
  bool lends = false;           // reads never touch Op::memory: all that they bring is lent (Done::loan)
  bool reaches_device = false;  // Path::device: between a store and GPU memory, without staging
  // Whether to open the name may wait for another machine or program; null: no name does. It does not wait itself.
  bool (*may_wait)(const std::string& name) = nullptr;
};

// Whether an engine works on this machine.
struct Probe {
  bool available = false;
  std::string reason;                 // why not
  std::string remedy;                 // what would help
  std::optional<Route> device_route;  // the best that device memory can get from this engine here
  std::vector<Condition> conditions;
};

// What a number in Done::system_error means that is the engine's own and not the system's.
struct Meaning {
  std::string text;  // with the vendor's name, "CU_FILE_IO_ERROR (5044)"
  std::string hint;  // what to do about it; may be empty
};

struct QueueOptions {
  std::uint32_t depth = 64;    // operations in flight
  std::uint32_t threads = 32;  // the most threads that a blocking engine may start for this queue
  std::uint32_t sharers = 0;   // and the most that share reads; with run_inline, those that help the queue's own thread
  bool run_inline = false;     // REQUIRES: Description::inline_queue. submit runs each Op to its end
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const Description& description() const = 0;
  virtual Probe probe() const = 0;
  // `name` has lost its scheme and percent-encoding. Where it may wait, it is called by an Op (OpKind::call).
  virtual Result<std::unique_ptr<Store>> open(const std::string& name, const OpenOptions& options) = 0;
  // The same on the caller's thread: nothing if `may_wait` says that it may wait. An engine overrides it to look for
  // the name only once.
  virtual std::optional<Result<std::unique_ptr<Store>>> open_now(const std::string& name, const OpenOptions& options) {
    const auto may_wait = description().may_wait;
    if (may_wait != nullptr && may_wait(name)) return std::nullopt;
    return open(name, options);
  }
  // Null where it makes no difference to an engine whether it knew the memory before.
  virtual Memory* memory() { return nullptr; }
  virtual Result<std::unique_ptr<Queue>> make_queue(const QueueOptions& options) = 0;
  // Runs the Op to its end on the caller's thread. REQUIRES: Description::inline_queue.
  virtual Done run_here(const Op&) { return {.code = Code::unsupported}; }
  // Nothing for the system's own numbers, and for those of others.
  virtual std::optional<Meaning> meaning_of(std::int32_t) const { return std::nullopt; }
};

// In order of preference. Owned by the api, handed to core; tests hand in their own.
using Table = std::vector<std::unique_ptr<Engine>>;

}  // namespace penstock::engine
