// RowReader: reads rows as a whole through windows of memory of its own, and copies the wanted pieces of each out of
// them. While one window is copied out of, the next is read.
//
// Thread safety: one thread's. Lifetime: a step of a Background.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "penstock/context.h"
#include "penstock/gpu.h"
#include "penstock/window_ring.h"
#include "services/models/background.h"
#include "services/models/file_stores.h"
#include "services/models/parts.h"

namespace penstock::models {

// Two of them: 64 MiB at most.
inline constexpr std::uint64_t window_bytes_most = 32 << 20;
// Longer rows leave no room to read several at once.
inline constexpr std::uint64_t row_bounds_most = 8 << 20;

struct RowJob {
  TensorPlace tensor;
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
struct WindowRoom {
  std::uint64_t bytes = 0;
  std::size_t files = SIZE_MAX;
};
// As many rows as fit, from the cursor on, which moves past them. None are left: an empty list.
// REQUIRES: a window holds the longest bounds and a page.
std::vector<Segment> fill_window(std::span<const RowJob> jobs, const WindowRoom& room, RowCursor& cursor);

class RowReader : public Background::Step {
 public:
  // Takes the memory that it needs, and does nothing yet. `jobs`: in the order of files and offsets. `stores` is shared
  // with other steps.
  static Result<std::unique_ptr<RowReader>> create(const Context& context, std::shared_ptr<FileStores> stores,
                                                   std::vector<RowJob> jobs);

  Status run(Background& background) override;

 private:
  RowReader(std::shared_ptr<FileStores> stores, std::vector<RowJob> jobs, WindowRing ring)
      : stores_(std::move(stores)), jobs_(std::move(jobs)), held_(hold_memory_of(jobs_)), ring_(std::move(ring)) {}
  Result<Ticket> begin(Background& background, const Window& window);
  Result<std::uint64_t> copy_out(const Window& window) const;
  void add_copies(const Window& window, const Segment& segment, std::vector<RowsCopy>& copies) const;

  const std::shared_ptr<FileStores> stores_;
  const std::vector<RowJob> jobs_;
  const HeldMemory held_;
  WindowRing ring_;
  std::vector<Segment> segments_[2];  // by window
  RowCursor cursor_;
};

}  // namespace penstock::models
