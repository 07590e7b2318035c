#include "services/gpu_queues/source.h"

#include <algorithm>
#include <bit>
#include <chrono>

namespace penstock::gpu_queues {
namespace {

constexpr std::uint32_t usual_block_bytes = 512;
constexpr std::uint32_t least_block_bytes = 4;
constexpr std::uint32_t most_block_bytes = 4096;
// Looking takes a lock that all threads of the server share.
constexpr double look_again_seconds = 5;

Result<device::StoreWindow> window_of(const GpuStore& given, std::uint64_t size_bytes, const std::string& name) {
  device::StoreWindow window;
  window.block_bytes = given.block_bytes != 0 ? given.block_bytes : usual_block_bytes;
  if (!std::has_single_bit(window.block_bytes) || window.block_bytes < least_block_bytes ||
      window.block_bytes > most_block_bytes) {
    return Error{Code::invalid_argument, 0, "blocks of " + std::to_string(given.block_bytes) + " bytes for " + name,
                 "choose a power of two from 4 to 4096"};
  }
  const std::uint64_t offset = given.window.offset;
  const std::uint64_t most = offset <= size_bytes ? size_bytes - offset : 0;
  const std::uint64_t length = given.window.length == Extent::to_the_end ? most : given.window.length;
  if (offset > size_bytes || length > most) {
    return Error{Code::out_of_range, 0,
                 "a window of " + std::to_string(length) + " bytes from " + std::to_string(offset) +
                     " on reaches past " + name + ", which has " + std::to_string(size_bytes),
                 "choose a window within it"};
  }
  if (offset % window.block_bytes != 0) {
    return Error{Code::invalid_argument, 0,
                 "a window of " + name + " from " + std::to_string(offset) + " on, with blocks of " +
                     std::to_string(window.block_bytes) + " bytes",
                 "let it begin with a block"};
  }
  window.begin = offset;
  window.end = offset + length;
  window.writable = given.writable ? 1 : 0;
  window.block_shift = static_cast<std::uint32_t>(std::countr_zero(window.block_bytes));
  return window;
}

}  // namespace

Result<std::unique_ptr<Source>> Source::open(const Context& context, const GpuStore& given) {
  auto source = std::make_unique<Source>();
  if (given.store && given.memory.data != nullptr) {
    return Error{Code::invalid_argument, 0, "a GpuStore with a store and host memory", "give one of them"};
  }
  if (!given.store) {
    if (given.memory.data == nullptr || !given.memory.domain.host_accessible()) {
      return Error{Code::invalid_argument, 0, "a GpuStore without a store, and without host memory in its place",
                   "give one of them"};
    }
    auto window = window_of(given, given.memory.size_bytes, "host memory");
    if (!window) return std::move(window).error();
    source->window_ = *window;
    source->data_ = given.memory.data;
    return source;
  }
  const StoreInfo& info = given.store.info();
  if (given.writable && !info.writable) {
    return Error{Code::read_only, 0, info.name + " is open for reading only", "open it with Access::write"};
  }
  auto window = window_of(given, info.size_bytes, info.name);
  if (!window) return std::move(window).error();
  source->window_ = *window;
  source->store_ = given.store;
  const std::uint64_t bytes = window->end - window->begin;
  if (given.writable || bytes == 0) return source;  // what is written past the page cache may not be in a mapping yet
  auto shard = rows::Shard::open(context, given.store, {.offset = window->begin, .stride_bytes = bytes, .rows = 1},
                                 bytes, {.look_again_seconds = look_again_seconds});
  if (!shard) return std::move(shard).error();
  if ((*shard)->residency() != nullptr) {
    source->shard_ = std::move(*shard);
    source->data_ = const_cast<std::byte*>(source->shard_->view()->bytes().data());
  }
  return source;
}

void Source::mark(std::span<Transfer> transfers, std::vector<std::size_t>* due) const {
  rows::Residency& residency = *shard_->residency();
  const auto due_before = residency.due_before(std::chrono::steady_clock::now());
  const auto held = residency.hold();
  for (Transfer& transfer : transfers) {
    if (transfer.source != this) continue;
    transfer.at_hand = residency.has(transfer.offset, transfer.bytes);
    if (due == nullptr) continue;
    const std::size_t last = residency.stretch_of(transfer.offset + transfer.bytes - 1);
    for (std::size_t stretch = residency.stretch_of(transfer.offset); stretch <= last; ++stretch) {
      if (residency.is_due(stretch, due_before)) due->push_back(stretch);
    }
  }
}

void Source::find_at_hand(std::span<Transfer> transfers, std::vector<std::size_t>& due) const {
  if (!shard_) {
    for (Transfer& transfer : transfers) {
      if (transfer.source == this) transfer.at_hand = data_ != nullptr;
    }
    return;
  }
  due.clear();
  mark(transfers, &due);
  if (due.empty()) return;
  std::ranges::sort(due);
  due.erase(std::unique(due.begin(), due.end()), due.end());
  shard_->residency()->look(due);
  mark(transfers, nullptr);
}

}  // namespace penstock::gpu_queues
