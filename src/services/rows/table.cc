#include "services/rows/table.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace penstock::rows {
namespace {

constexpr std::size_t idle_scratch_limit = 4;

bool may_map(const Context& context, const RowsOptions& options) {
  const Options& chosen = context.options();
  const auto& routes = chosen.allowed_routes;
  return options.mapping && chosen.cache != penstock::Cache::bypass &&
         (routes.empty() || std::ranges::find(routes, Route::mapped) != routes.end());
}

}  // namespace

Result<std::shared_ptr<const Shard>> Shard::open(const Context& context, Store store, const Place& place,
                                                 std::uint64_t row_bytes, const RowsOptions& options) {
  auto shard = std::make_shared<Shard>(std::move(store), place);
  const StoreInfo& info = shard->store_.info();
  const std::uint64_t bytes = place.rows == 0 ? 0 : (place.rows - 1) * place.stride_bytes + row_bytes;
  // A page of a server's that is gone takes the server's time, for which there is no deadline inside a copy.
  const bool is_mapped = bytes != 0 && info.mappable && !is_remote(info.locality) && may_map(context, options) &&
                         shard->store_.cached_bytes(place.offset, 1).has_value() && install_guard();
  if (!is_mapped) return std::shared_ptr<const Shard>(std::move(shard));
  auto view = shard->store_.view();
  // Without addresses to map it at, all rows are read.
  if (!view && view.error().code == Code::out_of_memory) return std::shared_ptr<const Shard>(std::move(shard));
  if (!view) return std::move(view).error();
  if (view->bytes().size() < place.offset + bytes) {
    return Error{Code::truncated, 0, info.name + " has become shorter while it was opened", "open it again"};
  }
  const Mapped mapping = view->bytes();
  // A page that is gone after all is read alone.
  ::madvise(const_cast<std::byte*>(mapping.data()), mapping.size(), MADV_RANDOM);
  shard->view_ = std::make_shared<const View>(std::move(*view));
  shard->residency_ = std::make_unique<Residency>(
      shard->store_, mapping, Residency::Span{place.offset, bytes},
      Residency::Settings{.look_again_seconds = options.look_again_seconds, .threads = context.options().lanes});
  return std::shared_ptr<const Shard>(std::move(shard));
}

Status Shard::check_unchanged() const {
  const StoreInfo& info = store_.info();
  if (info.kind == StoreKind::made) return {};
  if (!place_.growing) {
    const auto identity = store_.identity();
    if (!identity) return identity.error();
    if (*identity == info.identity) return {};
  }
  const auto size_bytes = store_.size_bytes();
  if (place_.growing && !size_bytes) return size_bytes.error();
  if (size_bytes && *size_bytes < info.size_bytes) {
    return Error{Code::truncated, 0,
                 info.name + " has become shorter since its table was opened: it has " + std::to_string(*size_bytes) +
                     " bytes and had " + std::to_string(info.size_bytes),
                 "open it again"};
  }
  if (place_.growing) return {};
  return Error{Code::changed, 0, info.name + " was modified since its table was opened", "open it again"};
}

std::size_t Layout::part_of(std::uint64_t row) const {
  if (parts.size() == 1) return 0;
  const auto next = std::ranges::upper_bound(parts, row, {}, &Part::first_row);
  return static_cast<std::size_t>(next - parts.begin()) - 1;
}

Table::Table(const Context& context, TableInfo info, std::vector<std::shared_ptr<const Shard>> shards,
             RowsOptions options)
    : context_(context), info_(std::move(info)), options_(options), shards_(std::move(shards)) {
  auto layout = std::make_shared<Layout>();
  layout->row_bytes = info_.row_bytes;
  std::uint64_t first_row = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = *shards_[i];
    const Place& place = shard.place();
    if (place.rows == 0) continue;
    const std::byte* const data = shard.view() ? shard.view()->bytes().data() + place.offset : nullptr;
    layout->parts.push_back({first_row, place.offset, place.stride_bytes, data});
    shard_of_part_.push_back(i);
    if (shard.view()) {
      layout->views.push_back(shard.view());
      layout->mappings.push_back(shard.view()->bytes());
    }
    first_row += place.rows;
  }
  layout->name = shards_.front()->store().info().name;
  if (shards_.size() > 1) layout->name += ", or one of the " + std::to_string(shards_.size() - 1) + " joined to it,";
  layout->rows = info_.rows = first_row;
  info_.stores = shards_.size();
  layout_ = std::move(layout);
}

Status Table::check_unchanged() const {
  for (const auto& shard : shards_) {
    if (Status status = shard->check_unchanged(); !status) return status;
  }
  return {};
}

Result<Buffer> Table::take_scratch(std::uint64_t bytes, Domain domain) const {
  {
    const std::lock_guard lock(scratch_mutex_);
    const auto found = std::ranges::find_if(idle_scratch_, [&](const Buffer& idle) {
      return idle.region().domain == domain && idle.size_bytes() >= bytes;
    });
    if (found != idle_scratch_.end()) {
      Buffer scratch = std::move(*found);
      idle_scratch_.erase(found);
      idle_scratch_bytes_ -= scratch.size_bytes();
      return scratch;
    }
  }
  auto allocated = context_.allocate(domain, bytes);
  if (allocated || allocated.error().code != Code::out_of_memory) return allocated;
  std::vector<Buffer> too_short;
  {
    const std::lock_guard lock(scratch_mutex_);
    too_short.swap(idle_scratch_);
    idle_scratch_bytes_ = 0;
  }
  if (too_short.empty()) return allocated;
  too_short.clear();
  return context_.allocate(domain, bytes);
}

// Pinned where that is a small part of the budget, which lanes need: the bus is many times as fast as a copy through
// the driver's own staging memory.
Result<Buffer> Table::take_numbers(std::uint64_t bytes) const {
  constexpr std::uint64_t budget_share = 32;
  if (bytes <= context_.options().pinned_budget_bytes / budget_share) {
    if (auto pinned = take_scratch(bytes, Domain::pinned())) return pinned;
  }
  return take_scratch(bytes, Domain::host());
}

// What is new is the size that is wanted now: the oldest go.
void Table::give_scratch(Buffer scratch) const {
  std::vector<Buffer> oldest;  // freed without the lock
  try {
    oldest.reserve(idle_scratch_limit + 1);
    const std::lock_guard lock(scratch_mutex_);
    idle_scratch_.reserve(idle_scratch_limit + 1);
    idle_scratch_bytes_ += scratch.size_bytes();
    idle_scratch_.push_back(std::move(scratch));
    while (idle_scratch_bytes_ > options_.scratch_bytes || idle_scratch_.size() > idle_scratch_limit) {
      idle_scratch_bytes_ -= idle_scratch_.front().size_bytes();
      oldest.push_back(std::move(idle_scratch_.front()));
      idle_scratch_.erase(idle_scratch_.begin());
    }
  } catch (const std::bad_alloc&) {  // it is not kept
  }
}

}  // namespace penstock::rows
