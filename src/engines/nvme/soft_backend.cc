#include "engines/nvme/soft_backend.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace penstock::nvme {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using engine::Path;

constexpr std::uint64_t unit_bytes = 4096;  // what core reads and writes at least
// Queues of commands are shorter, and no data.
constexpr std::size_t least_attached_bytes = 1 << 20;

OpKind kind_of(BlockKind kind) {
  switch (kind) {
    case BlockKind::read:
      return OpKind::read;
    case BlockKind::write:
      return OpKind::write;
    case BlockKind::flush:
      return OpKind::flush;
    case BlockKind::zero:
      return OpKind::zero;
    case BlockKind::deallocate:
      break;
  }
  return OpKind::deallocate;
}

bool is_transient(const Done& done) {
  return done.system_error == EAGAIN || done.system_error == EINTR;
}

}  // namespace

Result<std::unique_ptr<StoreBackend>> StoreBackend::create(std::shared_ptr<engine::Engine> engine,
                                                           std::unique_ptr<engine::Store> store) {
  auto queue = engine->make_queue({.depth = depth, .threads = 8});
  if (!queue) return std::move(queue).error();
  return std::unique_ptr<StoreBackend>(new StoreBackend(std::move(engine), std::move(store), std::move(*queue)));
}

StoreBackend::StoreBackend(std::shared_ptr<engine::Engine> engine, std::unique_ptr<engine::Store> store,
                           std::unique_ptr<engine::Queue> queue)
    : engine_(std::move(engine)), store_(std::move(store)), queue_(std::move(queue)), pending_(depth), done_(depth) {
  for (std::uint32_t i = depth; i > 0; --i) free_.push_back(i - 1);
}

void StoreBackend::add_memory(std::byte* data, std::size_t size_bytes) {
  if (size_bytes < least_attached_bytes || engine_->memory() == nullptr) return;
  auto attached = engine_->memory()->attach(Region::host(data, size_bytes));
  if (!attached || *attached == nullptr) return;
  const std::lock_guard lock(memory_mutex_);
  memory_[data] = {size_bytes, std::move(*attached)};
}

void StoreBackend::remove_memory(std::byte* data, std::size_t size_bytes) {
  const std::lock_guard lock(memory_mutex_);
  const auto found = memory_.find(data);
  // Memory that begins in the same page may not have been attached.
  if (found == memory_.end() || found->second.size_bytes != size_bytes) return;
  memory_.erase(found);
}

const engine::Attached* StoreBackend::find_attached(const std::byte* memory, std::uint64_t length) {
  const std::lock_guard lock(memory_mutex_);
  const auto after = memory_.upper_bound(memory);
  if (after == memory_.begin()) return nullptr;
  const auto& [data, known] = *std::prev(after);
  const auto offset = static_cast<std::uint64_t>(memory - data);
  return offset < known.size_bytes && length <= known.size_bytes - offset ? known.attached.get() : nullptr;
}

std::uint64_t StoreBackend::size_bytes() const {
  // An empty store has a block all the same: a namespace without blocks can't be used.
  return std::max((store_->info().size_bytes + unit_bytes - 1) / unit_bytes, std::uint64_t{1}) * unit_bytes;
}

Path StoreBackend::path_of(const Op& op) const {
  const StoreInfo& info = store_->info();
  if (info.locality == Locality::memory) return Path::cached;
  const std::uint64_t offset = std::max<std::uint64_t>(info.alignments.offset, 512);
  const std::uint64_t memory = std::max<std::uint64_t>(info.alignments.memory, 512);
  const bool aligned =
      (op.offset | op.length) % offset == 0 && reinterpret_cast<std::uintptr_t>(op.memory) % memory == 0;
  return info.direct && aligned ? Path::direct : Path::buffered;
}

bool StoreBackend::submit(const BlockOp& op) {
  if (free_.empty()) return false;
  const std::uint64_t size = store_->info().size_bytes;
  const std::uint64_t inside = op.offset < size ? std::min(op.length, size - op.offset) : 0;
  if (op.kind == BlockKind::read) std::memset(op.memory + inside, 0, op.length - inside);
  if (inside == 0 && op.kind != BlockKind::flush) {
    ended_.push_back({op.cookie, true});
    return true;
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Pending& pending = pending_[index];
  pending.op = op;
  pending.rest = {.kind = kind_of(op.kind),
                  .store = store_.get(),
                  .offset = op.offset,
                  .length = inside,
                  .memory = op.memory,
                  .attached = op.memory != nullptr ? find_attached(op.memory, inside) : nullptr,
                  .cookie = index};
  pending.rest.path = path_of(pending.rest);
  if (queue_->submit({&pending.rest, 1}) == 0) to_submit_.push_back(index);
  return true;
}

std::size_t StoreBackend::poll(std::span<BlockDone> done, TimePoint deadline) {
  std::size_t count = std::min(done.size(), ended_.size());
  std::copy_n(ended_.begin(), count, done.begin());
  ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
  std::erase_if(to_submit_, [this](std::uint32_t index) { return queue_->submit({&pending_[index].rest, 1}) == 1; });
  if (count == done.size()) return count;
  const auto wanted = std::span(done_).first(std::min(done_.size(), done.size() - count));
  const std::size_t got = queue_->poll(wanted, count > 0 ? TimePoint::min() : deadline);
  for (std::size_t i = 0; i < got; ++i) {
    const auto index = static_cast<std::uint32_t>(done_[i].cookie);
    if (note(pending_[index], done_[i], done[count])) {
      free_.push_back(index);
      ++count;
    } else if (queue_->submit({&pending_[index].rest, 1}) == 0) {
      to_submit_.push_back(index);
    }
  }
  return count;
}

bool StoreBackend::note(Pending& pending, const Done& done, BlockDone& ended) {
  ended = {pending.op.cookie, false};
  Op& rest = pending.rest;
  if (done.code != Code::ok) {
    if (is_transient(done)) return false;
    const bool refused = rest.path == Path::direct && (done.system_error == EINVAL || done.system_error == EOPNOTSUPP);
    if (refused) rest.path = Path::buffered;
    return !refused;
  }
  ended.ok = true;
  if (pending.op.kind == BlockKind::flush || done.bytes >= rest.length) return true;
  if (done.bytes == 0) {
    ended.ok = false;  // the file has become shorter: its blocks can't be read any more
    return true;
  }
  rest.offset += done.bytes;
  rest.length -= done.bytes;
  if (rest.memory != nullptr) rest.memory += done.bytes;
  rest.path = path_of(rest);
  return false;
}

}  // namespace penstock::nvme
