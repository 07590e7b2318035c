#include "services/rows/cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "penstock/gpu.h"
#include "services/rows/round_up.h"

namespace penstock::rows {
namespace {

using Sets = cuda::RowCacheLayout;

// Tags, then the words of sets, then slots, which begin at a line.
constexpr std::uint64_t gpu_line_bytes = 256;
constexpr std::uint64_t set_head_bytes = Sets::ways * sizeof(std::uint64_t) + sizeof(cuda::RowCacheSet);
constexpr std::size_t piece_bytes = 4 << 20;

// Where slots begin.
std::uint64_t heads_bytes(std::uint64_t sets) {
  return round_up(sets * set_head_bytes, gpu_line_bytes);
}

Status clear(Region memory) {
  const std::vector<std::byte> zeros(std::min(memory.size_bytes, piece_bytes));
  for (std::size_t done = 0; done < memory.size_bytes; done += zeros.size()) {
    const std::size_t bytes = std::min(zeros.size(), memory.size_bytes - done);
    const Region from = Region::host(const_cast<std::byte*>(zeros.data()), bytes);
    if (Status status = copy(memory.part(done, bytes), from); !status) return status;
  }
  return {};
}

}  // namespace

std::uint64_t Cache::Shape::bytes() const {
  return sets == 0 ? 0 : heads_bytes(sets) + rows() * slot_bytes;
}

Cache::Shape Cache::shape_for(const TableInfo& table, std::uint64_t most_bytes) {
  Shape shape;
  const std::uint64_t most_row_bytes = most_bytes / Sets::ways;
  if (table.row_bytes > most_row_bytes || most_bytes < gpu_line_bytes) return shape;
  shape.slot_bytes = round_up(table.row_bytes, Sets::slot_alignment);
  const std::uint64_t set_bytes = set_head_bytes + Sets::ways * shape.slot_bytes;
  const std::uint64_t whole = std::max<std::uint64_t>(1, round_up(table.rows, Sets::ways) / Sets::ways);
  shape.sets = (most_bytes - gpu_line_bytes) / set_bytes;
  if (shape.sets >= whole) {
    shape.sets = whole;
  } else if (shape.sets > 1 && shape.sets % 2 == 0) {
    --shape.sets;  // so that rows at even distances don't meet in a few sets
  }
  return shape;
}

Result<Cache> Cache::make(const Context& context, Domain gpu, const Shape& shape) {
  auto memory = context.allocate(gpu, shape.bytes());
  if (!memory) return std::move(memory).error();
  if (Status status = clear(memory->region().part(0, heads_bytes(shape.sets))); !status) {
    return std::move(status).error();
  }
  return Cache(shape, std::move(*memory));
}

void Cache::describe(cuda::RowsEntry& entry) const {
  entry.tags = reinterpret_cast<std::uintptr_t>(memory_.data());
  entry.sets = entry.tags + shape_.rows() * sizeof(std::uint64_t);
  entry.slots = entry.tags + heads_bytes(shape_.sets);
  entry.set_count = shape_.sets;
  entry.slot_bytes = shape_.slot_bytes;
}

Result<std::vector<Cache>> make_caches(Domain gpu, std::span<const std::shared_ptr<const Table>> tables,
                                       std::uint64_t most_bytes) {
  std::vector<std::size_t> by_size(tables.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::vector<std::uint64_t> whole;
  for (const auto& table : tables) whole.push_back(Cache::shape_for(table->info(), UINT64_MAX / 2).bytes());
  std::ranges::sort(by_size, {}, [&](std::size_t i) { return whole[i]; });
  std::vector<Cache::Shape> shapes(tables.size());
  std::uint64_t left = most_bytes;
  for (std::size_t i = 0; i < by_size.size(); ++i) {
    const TableInfo& table = tables[by_size[i]]->info();
    Cache::Shape& shape = shapes[by_size[i]];
    shape = Cache::shape_for(table, left / (by_size.size() - i));
    if (shape.sets == 0) {
      return Error{Code::invalid_argument, 0,
                   "a cache of " + std::to_string(most_bytes) + " bytes is too small for " +
                       std::to_string(tables.size()) + " tables, one of which has rows of " +
                       std::to_string(table.row_bytes),
                   "give room for at least " + std::to_string(Sets::ways) + " rows of each, or none"};
    }
    left -= shape.bytes();
  }
  std::vector<Cache> caches;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    auto cache = Cache::make(tables[i]->context(), gpu, shapes[i]);
    if (!cache) return std::move(cache).error();
    caches.push_back(std::move(*cache));
  }
  return caches;
}

}  // namespace penstock::rows
