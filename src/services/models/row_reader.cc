#include "services/models/row_reader.h"

#include <algorithm>
#include <deque>

#include "services/models/range_list.h"

namespace penstock::models {
namespace {

constexpr std::uint64_t page_bytes = 4096;

std::uint64_t align_up(std::uint64_t value) {
  return (value + page_bytes - 1) / page_bytes * page_bytes;
}

// In the tensor.
std::uint64_t segment_begin(const RowJob& job, std::uint64_t row) {
  return row * job.layout.row_bytes + job.layout.bounds().begin;
}

std::uint64_t segment_bytes(const RowJob& job, std::uint64_t rows) {
  return (rows - 1) * job.layout.row_bytes + job.layout.bounds().length;
}

// Only copies to a GPU gain from pinned memory; where the budget has none left, any will do.
Result<WindowRing> make_ring(const Context& context, std::uint64_t size_bytes, bool to_gpu) {
  if (to_gpu) {
    Result<WindowRing> pinned = WindowRing::create(context, {.size_bytes = size_bytes, .domain = Domain::pinned()});
    if (pinned) return pinned;
  }
  return WindowRing::create(context, {.size_bytes = size_bytes});
}

}  // namespace

std::vector<Segment> fill_window(std::span<const RowJob> jobs, const WindowRoom& room, RowCursor& cursor) {
  std::vector<Segment> segments;
  std::uint64_t used = 0;
  std::size_t files = 0;
  while (cursor.job < jobs.size()) {
    const RowJob& job = jobs[cursor.job];
    const bool is_next_file = segments.empty() || jobs[segments.back().job].tensor.file != job.tensor.file;
    if (is_next_file && files++ == room.files) break;
    const std::uint64_t place = align_up(used) + (job.tensor.offset + segment_begin(job, cursor.row)) % page_bytes;
    const std::uint64_t bounds = job.layout.bounds().length;
    if (place + bounds > room.bytes) break;
    const std::uint64_t fit = 1 + (room.bytes - place - bounds) / job.layout.row_bytes;
    const std::uint64_t rows = std::min(fit, job.layout.rows - cursor.row);
    segments.push_back({cursor.job, cursor.row, rows, place});
    used = place + segment_bytes(job, rows);
    cursor.row += rows;
    if (cursor.row == job.layout.rows) cursor = {cursor.job + 1, 0};
  }
  return segments;
}

Result<std::unique_ptr<RowReader>> RowReader::create(const Context& context, std::shared_ptr<FileStores> stores,
                                                     std::vector<RowJob> jobs) {
  std::uint64_t all = 0, least = 0;
  bool to_gpu = false;
  for (const RowJob& job : jobs) {
    all += segment_bytes(job, job.layout.rows) + 2 * page_bytes;
    least = std::max(least, job.layout.bounds().length + 2 * page_bytes);
    to_gpu = to_gpu || !job.memory.domain.host_accessible();
  }
  const std::uint64_t most = std::max(least, std::min(all, window_bytes_most));
  Result<WindowRing> ring = make_ring(context, most, to_gpu);
  if (!ring) return std::move(ring).error();
  return std::unique_ptr<RowReader>(new RowReader(std::move(stores), std::move(jobs), std::move(*ring)));
}

Status RowReader::run(Background& background) {
  const auto begin_one = [&](const Window& window) { return begin(background, window); };
  const auto await = [&](Ticket& ticket, const Window&) { return background.await(ticket); };
  for (;;) {
    const Result<std::optional<Window>> window = ring_.next(begin_one, await);
    if (!window) return window.error();
    if (!*window) return {};
    const Result<std::uint64_t> copied = copy_out(**window);
    if (!copied) return copied.error();
    background.count(*copied);
  }
}

Result<Ticket> RowReader::begin(Background& background, const Window& window) {
  std::vector<Segment>& segments = segments_[window.number];
  segments = fill_window(jobs_, {.bytes = window.memory.size_bytes, .files = stores_->for_one_request()}, cursor_);
  if (segments.empty()) return Ticket();
  std::deque<Store> stores;  // their addresses stay; the request keeps them open
  RangeList list(background.context());
  const RowJob* last = nullptr;
  for (const Segment& segment : segments) {
    const RowJob& job = jobs_[segment.job];
    if (last == nullptr || last->tensor.file != job.tensor.file) {
      Result<Store> store = stores_->open(job.tensor.file);
      if (!store) return std::move(store).error();
      stores.push_back(std::move(*store));
    }
    last = &job;
    list.add(stores.back(), piece_of(job.tensor, segment_begin(job, segment.first_row),
                                     window.memory.part(segment.place, segment_bytes(job, segment.rows))));
  }
  return background.submit(list.ranges());
}

// How many wanted bytes that were.
Result<std::uint64_t> RowReader::copy_out(const Window& window) const {
  std::vector<RowsCopy> copies;
  std::uint64_t wanted_bytes = 0;
  for (const Segment& segment : segments_[window.number]) {
    add_copies(window, segment, copies);
    wanted_bytes += segment.rows * jobs_[segment.job].layout.wanted_row_bytes();
  }
  if (Status status = copy_rows(copies); !status) return std::move(status).error();
  return wanted_bytes;
}

void RowReader::add_copies(const Window& window, const Segment& segment, std::vector<RowsCopy>& copies) const {
  const RowJob& job = jobs_[segment.job];
  const std::uint64_t wanted = job.layout.wanted_row_bytes();
  std::uint64_t to = segment.first_row * wanted;
  for (const Layout::Piece& piece : job.layout.pieces) {
    const std::uint64_t from = segment.place + piece.begin - job.layout.bounds().begin;
    const auto extent = [&](std::uint64_t pitch) { return (segment.rows - 1) * pitch + piece.length; };
    copies.push_back(
        {.to = {job.memory.part(to, extent(wanted)), piece.length, wanted},
         .from = {window.memory.part(from, extent(job.layout.row_bytes)), piece.length, job.layout.row_bytes}});
    to += piece.length;
  }
}

}  // namespace penstock::models
