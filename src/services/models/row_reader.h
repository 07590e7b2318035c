// RowReader: reads rows as a whole through windows of memory of its own, and copies the wanted pieces of each out of
// them. While one window is copied out of, the next is read.
//
// Thread safety: calls from any thread. Lifetime: a thread of its own until it has ended; the destructor stops it. The
// Context and the stores must outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "penstock/context.h"
#include "penstock/gpu.h"
#include "services/models/parts.h"

namespace penstock::models {

// Two of them: 64 MiB at most.
inline constexpr std::uint64_t window_bytes_most = 32 << 20;
// Longer rows leave no room to read several at once.
inline constexpr std::uint64_t row_bounds_most = 8 << 20;

struct RowJob {
  const Store* store = nullptr;
  std::uint64_t offset = 0;  // of the tensor
  Layout layout;
  Region memory;
};

// Rows that are read into a window together. Pure.
struct Segment {
  std::size_t job = 0;
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
  std::uint64_t place = 0;  // in the window; as far into a page as it is in the file, which suits direct reads
};
struct RowCursor {
  std::size_t job = 0;
  std::uint64_t row = 0;
};
// As many rows as fit, from the cursor on, which moves past them. None are left: an empty list.
// REQUIRES: a window holds the longest bounds and a page.
std::vector<Segment> fill_window(std::span<const RowJob> jobs, std::uint64_t window_bytes, RowCursor& cursor);

class RowReader {
 public:
  // Takes the memory that it needs, and does nothing yet. `jobs`: in the order of files and offsets.
  static Result<std::unique_ptr<RowReader>> create(Context& context, std::vector<RowJob> jobs, RequestOptions options);
  // `beside` is what else is being read, if anything: its failure ends this too, and this has ended only when it has.
  Status start(const Ticket& beside);
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  bool wait_for(std::chrono::nanoseconds time) const;
  void wait() const;
  std::uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }  // of the wanted ones
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  // What has been read; with what `beside` has, once both have ended.
  Report report() const;

 private:
  struct Window {
    Buffer memory;
    std::vector<Segment> segments;
    Ticket ticket;
  };
  using Clock = std::chrono::steady_clock;

  struct Work {
    std::vector<RowJob> jobs;
    Ticket beside;
    RequestOptions options;
  };
  RowReader(Context& context, Work work) : context_(context), work_(std::move(work)) {}
  Status allocate();
  void run();
  Status read_all();
  Status begin(Window& window);
  Status await(Window& window);
  Status copy_out(const Window& window);
  void add_copies(const Window& window, const Segment& segment, std::vector<RowsCopy>& copies) const;
  void add(const Report& report);
  void finish(const Status& status);

  Context& context_;
  Work work_;
  std::vector<std::shared_ptr<const void>> held_;  // what is copied to, until it has ended
  Window windows_[2];
  RowCursor cursor_;
  const Clock::time_point begun_ = Clock::now();
  std::atomic<std::uint64_t> bytes_done_{0};
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable has_ended_;
  std::atomic<bool> ended_{false};
  Report report_;  // guarded until it has ended, then only read
  std::thread thread_;
};

}  // namespace penstock::models
