// Set: the memory of one set of queues, and what its server does with a command that it finds there.
//
// Pinned memory has what both sides touch: doorbells, entries and places. Memory of the GPU has what only kernels
// touch: the states of the queues, their slots and tokens. It is written here when the set is opened and reset, and one
// word of each queue to stop its kernels.
//
// Thread safety: stop, report and the counters from any thread; a queue belongs to one thread of the server; reset
// while all of them are parked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "penstock/cuda.h"
#include "services/gpu_queues/served_queue.h"
#include "services/gpu_queues/source.h"
#include "services/gpu_queues/spare_memory.h"

namespace penstock::gpu_queues {

// Of the threads of a server for a set; each adds to one of its own.
struct alignas(64) Counters {
  std::atomic<std::uint64_t> reads{0};
  std::atomic<std::uint64_t> writes{0};
  std::atomic<std::uint64_t> read_bytes{0};
  std::atomic<std::uint64_t> written_bytes{0};
  std::atomic<std::uint64_t> mapped_bytes{0};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> refused{0};

  // By the one thread that writes.
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
};

class Set {
 public:
  // Every default is filled in. REQUIRES: checked options (check_options).
  static Result<std::shared_ptr<Set>> open(const Context& context, const GpuQueuesOptions& options,
                                           std::uint32_t threads, std::shared_ptr<SpareMemory> spare);
  // Code::invalid_argument where a number is out of range; the rest is filled in.
  static Status check_options(GpuQueuesOptions& options, std::uint32_t threads);

  const GpuQueuesOptions& options() const { return options_; }
  device::QueueSet* handle() const { return handle_; }

  // Ends what kernels wait for.
  Status stop();
  // Everything as if the set were new. REQUIRES: no kernel uses it, and all threads are parked.
  Status reset();
  GpuQueuesReport report() const;

  // For the threads of the server: queue i is that of thread i modulo their number.
  struct Queue {
    explicit Queue(const nvme::QueuePairMemory& memory) : served(memory) {}
    ServedQueue<> served;
  };
  std::vector<Queue>& queues() { return queues_; }
  Counters& counters(std::uint32_t thread) { return counters_[thread]; }
  // What a command asks for, or the status with which it is refused.
  struct Checked {
    Transfer transfer;
    nvme::StatusField refusal;
  };
  Checked check(const nvme::Command& command) const;
  // All that may be truncated under a copy.
  std::span<const rows::Mapped> mappings() const { return mappings_; }
  void note_error(const Error& error);

  // A thread that finds this takes no more commands, and parks when it has none in hand.
  std::atomic<bool> pausing{false};
  std::atomic<bool> closed{false};
  std::vector<std::atomic<bool>> parked;

  Set(std::uint32_t threads, std::shared_ptr<SpareMemory> spare);
  ~Set();
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;

 private:
  Status allocate(const Context& context);
  Status write_states();
  std::uint64_t places() const { return std::uint64_t{options_.queues} * options_.depth + options_.ahead_places; }

  GpuQueuesOptions options_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<rows::Mapped> mappings_;
  std::vector<Counters> counters_;
  std::vector<Queue> queues_;

  std::shared_ptr<SpareMemory> spare_;  // shared with the server
  // Frees are held back as long as kernels may run.
  std::optional<HeldFrees> held_frees_;
  Buffer shared_;                     // pinned
  std::uint64_t shared_address_ = 0;  // as the GPU sees it
  std::byte* places_ = nullptr;
  Buffer own_;  // the GPU's
  device::QueueSet* handle_ = nullptr;
  std::uint32_t generation_ = 0;  // how often the states were written

  mutable std::mutex mutex_;  // guards what follows
  std::optional<Error> last_error_;
};

}  // namespace penstock::gpu_queues
