#include "services/rows/fill.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "services/rows/numbers.h"

namespace penstock::rows {
namespace {

constexpr std::size_t line_size_bytes = 64;
// Beyond this the processor sees by itself where it goes.
constexpr std::size_t ahead_bytes_a_row = 1024;
// Rows on their way at once: enough to hide the memory, and no more than the first cache holds.
constexpr std::size_t rows_ahead_limit = 16;
constexpr std::size_t bytes_ahead = 16 << 10;

void copy_row(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (from != nullptr) {
    std::memcpy(to, from, bytes);
  } else {
    std::memset(to, 0, bytes);
  }
}

struct Rectangle {
  std::size_t first_row;  // a position
  std::size_t rows;
  std::size_t row_bytes;
};

template <typename SourceOf>
void copy_rows_from(const SourceOf& source_of, const Rectangle& rows, std::byte* to) {
  const std::size_t row_bytes = rows.row_bytes;
  const std::size_t touched = std::min(row_bytes, ahead_bytes_a_row);
  const std::size_t ahead = std::clamp<std::size_t>(bytes_ahead / row_bytes, 2, rows_ahead_limit);
  // Inlined early: GCC takes a function that only prefetches for one without effect, and drops its calls.
  const auto prefetch = [&](std::size_t i) __attribute__((always_inline)) {
    const std::byte* const from = source_of(rows.first_row + i);
    if (from == nullptr) return;
    for (std::size_t at = 0; at < touched; at += line_size_bytes) __builtin_prefetch(from + at);
  };
  for (std::size_t i = 0; i < std::min(ahead, rows.rows); ++i) prefetch(i);
  for (std::size_t i = 0; i < rows.rows; ++i) {
    if (i + ahead < rows.rows) prefetch(i + ahead);
    copy_row(to + i * row_bytes, source_of(rows.first_row + i), row_bytes);
  }
}

}  // namespace

Error numbers_changed() {
  return {Code::invalid_argument, 0, "numbers of rows were changed while the rows were gathered",
          "leave them alone until the gather has returned, or give a copy"};
}

// A stretch of the whole, which may begin and end within a row.
struct Fill::Batch {
  const Fill* fill = nullptr;
  std::uint64_t offset = 0;
  std::span<std::byte> memory;
  mutable bool has_no_row = false;

  const std::byte* note_no_row() const {
    has_no_row = true;
    return nullptr;
  }
  template <typename SourceOf>
  void copy(const SourceOf& source_of) const {
    const std::uint64_t row_bytes = fill->layout_->row_bytes;
    std::size_t row = offset / row_bytes;
    const std::uint64_t in_row = offset % row_bytes;
    std::byte* to = memory.data();
    std::size_t left = memory.size();
    const auto copy_part = [&](std::uint64_t begin) {
      const std::size_t bytes = std::min<std::uint64_t>(row_bytes - begin, left);
      const std::byte* const from = source_of(row++);
      copy_row(to, from == nullptr ? nullptr : from + begin, bytes);
      to += bytes;
      left -= bytes;
    };
    if (in_row != 0 && left != 0) copy_part(in_row);
    const std::size_t whole = left / row_bytes;
    copy_rows_from(source_of, {row, whole, row_bytes}, to);
    to += whole * row_bytes;
    left -= whole * row_bytes;
    row += whole;
    if (left != 0) copy_part(0);
  }
};

Fill::Fill(std::shared_ptr<const Layout> layout, RowNumbers numbers) : layout_(std::move(layout)), numbers_(numbers) {}

Fill::Fill(std::shared_ptr<const Layout> layout, std::vector<const std::byte*> sources)
    : layout_(std::move(layout)), numbers_(std::span<const std::uint64_t>()), sources_(std::move(sources)) {}

void Fill::copy(const Batch& batch) const {
  if (!sources_.empty()) return batch.copy([this](std::size_t position) { return sources_[position]; });
  // They were right when they were checked, and are the caller's: another thread may have written to them since.
  const std::uint64_t rows = layout_->rows;
  with_numbers(numbers_, [&](auto numbers) {
    const auto row_at = [&](std::size_t at) { return row_of(__atomic_load_n(&numbers[at], __ATOMIC_RELAXED)); };
    if (layout_->parts.size() == 1) {
      const Layout::Part& part = layout_->parts.front();
      batch.copy([&](std::size_t at) -> const std::byte* {
        const std::uint64_t row = row_at(at);
        return row < rows ? part.data + row * part.stride_bytes : batch.note_no_row();
      });
    } else {
      batch.copy([&](std::size_t at) -> const std::byte* {
        const std::uint64_t row = row_at(at);
        if (row >= rows) return batch.note_no_row();
        const Layout::Part& part = layout_->parts[layout_->part_of(row)];
        if (part.data == nullptr) return batch.note_no_row();
        return part.data + (row - part.first_row) * part.stride_bytes;
      });
    }
  });
}

Status Fill::make(std::uint64_t offset, std::span<std::byte> memory) const {
  Batch batch{this, offset, memory};
  if (layout_->mappings.empty()) {
    copy(batch);
    return batch.has_no_row ? numbers_changed() : Status();
  }
  const auto work = [](void* argument) {
    const auto& given = *static_cast<const Batch*>(argument);
    given.fill->copy(given);
  };
  if (run_guarded(layout_->mappings, work, &batch)) return batch.has_no_row ? numbers_changed() : Status();
  return Error{Code::truncated, 0, layout_->name + " was truncated, or can't be read, while rows were copied from it",
               "open it again"};
}

}  // namespace penstock::rows
