// GpuQueues: sets of queues by which kernels read and write stores themselves (penstock/device.cuh), and the GpuServer
// whose threads serve them.
//
//   auto server = penstock::GpuServer::start(context, {.threads = 8}).value();
//   auto file = context.open("graph.bin").value();
//   auto queues = server.open({.gpu = penstock::Domain::cuda(0), .stores = {{.store = file}}}).value();
//   walk<<<132, 256>>>(queues.handle(), …);         // the kernel's parameter is a penstock::device::Queues
//   cudaDeviceSynchronize();
//   queues.close();
//
// To end a kernel that still runs: stop(), which ends its calls with IoStatus::closed, synchronize, close(). Memory of
// a set that was closed may be another's at once, so a kernel that still uses it would read and write what is not its
// own.
//
// This needs no driver and no right beyond CUDA's: queues are pinned memory that warps fill and threads of the CPU look
// at. What is in the page cache is copied from a mapping; all else is read by requests of the Context, many commands in
// one. GpuQueuesReport says how much came which way. Kernels take the bytes from pinned memory by themselves, so a
// kernel that fills the whole GPU for hours holds nothing up.
//
// Without open sets the threads sleep. With them, they look again and again: all the time after a command, then less
// and less often, up to once a millisecond, unless the server is `hot`.
//
// While a set is open, Penstock frees no GPU or pinned memory (HeldFrees), since that would wait for its kernels.
//
// Thread safety: any thread. Lifetime: the server keeps its Context open; it must outlive its
// sets: closing it closes them. Memory that the server may still write to is kept until it is not. In a forked child,
// `open`, `stop` and `reset` fail with Code::closed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/context.h"
#include "penstock/queue_set.h"

namespace penstock {

namespace gpu_queues {
class OpenSet;
class Server;
}  // namespace gpu_queues

struct GpuServerOptions {
  std::uint32_t threads = 0;  // at most 256; 0: half of the processors, 8 at most
  bool hot = false;           // threads never rest while a set is open
};

// What kernels may reach: a store, or host memory in place of one, not both.
struct GpuStore {
  Store store = {};
  Region memory = {};  // must stay until the set is closed, and the server has ended (GpuQueues::close)
  // The window within it. Kernels give offsets of the store, not of the window.
  Extent window = {};
  bool writable = false;          // the store must be open for that
  std::uint32_t block_bytes = 0;  // extents of kernels begin and end with these; a power of two, 4 to 4096; 0: 512
};

struct GpuQueuesOptions {
  // Domain::host(): for programs that are tested without a GPU. Handles and reports work, and no kernel can use the
  // set.
  Domain gpu = Domain::cuda(0);
  std::vector<GpuStore> stores;       // 1 to 65536
  std::uint32_t queues = 0;           // at most 4096; 0: 4 for each thread of the server
  std::uint32_t depth = 128;          // commands in flight in a queue; a power of two, 64 to 4096
  std::uint32_t place_bytes = 4096;   // the longest command, as each slot has so much; a power of two, 512 to 1 MiB
  std::uint32_t ahead_places = 1024;  // reads that may be begun and not finished, in all; at most 1048576
  double timeout_seconds = 10;        // of a call, unless the kernel gives another; more than 0
  double stall_seconds = 30;  // a queue that makes no room for so long is given up until it is reset; more than 0
};

// Sums since a set was opened, and how it is.
struct GpuQueuesReport {
  std::string_view route = "gpu-soft";  // threads of the CPU serve the queues
  std::uint64_t reads = 0;              // commands
  std::uint64_t writes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t mapped_bytes = 0;   // of those read: copied from a mapping, or from host memory
  std::uint64_t requests = 0;       // of the Context, for all others and for what was written
  std::uint64_t failed = 0;         // commands that ended with an error
  std::uint64_t refused = 0;        // of these: commands that no kernel built with device.cuh would send
  std::optional<Error> last_error;  // of the store, for the last command that failed
  bool timed_out = false;           // a kernel has stopped waiting for a command
  bool stalled = false;             // a queue was given up
  bool server_dead = false;         // a thread of the server has not looked for more than a second
};

// Made by default, or moved from, it is closed.
class PENSTOCK_EXPORT GpuQueues {
 public:
  GpuQueues();
  GpuQueues(GpuQueues&&) noexcept;
  GpuQueues& operator=(GpuQueues&&) noexcept;
  ~GpuQueues();

  explicit operator bool() const;  // whether it is open: false also once its server was closed
  // The parameter of kernels, an address of the GPU's; null where no set is open.
  device::QueueSet* handle() const;
  const GpuQueuesOptions& options() const;  // with every default filled in

  // Ends what kernels wait for, now and later, with IoStatus::closed: `Queues::is_closed` tells them. The set stays
  // theirs to look at. It can be used again after `reset`.
  Status stop();
  // For the next launch, whatever became of the last one: a queue that was given up, commands that nobody waits for any
  // more. Waits for what the server still does, at most the set's timeout; Code::timed_out if a store does not answer
  // even then. REQUIRES: no kernel uses the set.
  Status reset();
  // Stops, and gives the memory back once the server does not use it any more. REQUIRES: no kernel uses the set.
  void close();

  GpuQueuesReport report() const;

 private:
  friend class GpuServer;
  explicit GpuQueues(std::unique_ptr<gpu_queues::OpenSet> set);
  std::unique_ptr<gpu_queues::OpenSet> set_;
};

// Made by default, or moved from, there is none: calls fail with Code::invalid_argument.
class PENSTOCK_EXPORT GpuServer {
 public:
  // Code::out_of_memory where no thread can be started.
  static Result<GpuServer> start(const Context& context, const GpuServerOptions& options = {});
  GpuServer();
  GpuServer(GpuServer&&) noexcept;
  GpuServer& operator=(GpuServer&&) noexcept;
  ~GpuServer();

  // Code::invalid_argument for options that can't be, Code::out_of_range for a window that is not within its store,
  // Code::read_only for one that is to be written and is not open for that, Code::no_device without such a GPU,
  // Code::over_budget if there is no pinned (ContextOptions::pinned_budget_bytes) or GPU memory for the set,
  // Code::closed if the server is closed meanwhile or belongs to the parent of this process, and errors of the stores.
  // The GPU is brought into use if it is not (Context::prepare), for which nothing may run on it.
  Result<GpuQueues> open(const GpuQueuesOptions& options);
  std::uint32_t threads() const;
  // Closes all sets, and ends the threads.
  void close();

 private:
  explicit GpuServer(std::shared_ptr<gpu_queues::Server> server);
  std::shared_ptr<gpu_queues::Server> server_;  // shared with its sets
};

}  // namespace penstock
