#include "cuda/copy_queue.h"

#include <algorithm>

namespace penstock::cuda {

namespace {

// Longer ones are worth a copy engine of their own.
constexpr std::size_t small_bytes = 32 << 10;
// Shorter ones to the device are sent through a queue for computing; measured: 24 KiB are, 28 are not.
constexpr std::size_t copy_engine_bytes = 32 << 10;
// Fewer are cheaper by a call each.
constexpr std::size_t worth_a_batch = 4;

}  // namespace

CopyQueue::CopyQueue(Device& device, const CopyQueueOptions& options)
    : device_(device), options_(options), ring_(options.depth), groups_(groups_most) {
  batch_to_.reserve(options.depth);
  batch_from_.reserve(options.depth);
  batch_bytes_.reserve(options.depth);
}

Result<std::unique_ptr<CopyQueue>> CopyQueue::create(Device& device, const CopyQueueOptions& options) {
  std::unique_ptr<CopyQueue> queue(new CopyQueue(device, options));
  const Current current(device);
  queue->stream_ = device.take_stream();
  for (Group& group : queue->groups_) {
    auto event = device.take_event();
    if (!event) return event.error();
    group.event = *event;
  }
  const bool may_have_kernel = device.kernels()[Kernel::scatter] != nullptr || !device.kernels().is_settled();
  if (may_have_kernel && options.host_to_device) {
    const std::size_t entries = std::min(options.depth, ControlMemory::largest_bytes / sizeof(ScatterEntry));
    auto table = ControlMemory::of_process().take(device, entries * sizeof(ScatterEntry));
    if (!table) return table.error();
    queue->table_ = *table;
  }
  return queue;
}

CopyQueue::~CopyQueue() {
  for (const Group& group : groups_) {
    if (group.event != nullptr) device_.give_back_event(group.event);
  }
  if (table_.host != nullptr) ControlMemory::of_process().give_back(table_);
  if (stream_ != nullptr) device_.give_back_stream(stream_);
}

void CopyQueue::add(const Copy& copy) {
  ring_[place(pending_)] = copy;
  ++pending_;
  added_bytes_ += copy.bytes;
  pending_bytes_ += copy.bytes;
}

void CopyQueue::issue() {
  // Without a free event the copies stay until a group has ended.
  if (added() == 0 || group_count_ == groups_.size()) return;
  const Current current(device_);
  Group& group = groups_[(first_group_ + group_count_) % groups_.size()];
  group.count = added();
  group.result = issue_copies(place(issued_), group.count);
  record(group);
  ++group_count_;
  issued_ = pending_;
  added_bytes_ = 0;
}

void CopyQueue::record(Group& group) {
  const CuResult result = device_.api().event_record(group.event, stream_);
  group.recorded = result == cu_success;
  if (group.result == cu_success) group.result = result;
}

CuResult CopyQueue::issue_copies(std::size_t first, std::size_t count) {
  CuResult result = cu_success;
  for (std::size_t at = first, left = count; left != 0 && result == cu_success;) {
    // Runs of small ones go together. Rings and tables wrap, so a run ends at the ring's end.
    const auto is_small = [](const Copy& copy) { return copy.bytes <= small_bytes && copy.then == nullptr; };
    const std::size_t run_most = std::min(left, ring_.size() - at);
    std::size_t run = 0;
    while (run < run_most && is_small(ring_[at + run])) ++run;
    const bool is_batch = run >= worth_a_batch && device_.stream_waits().load(std::memory_order_relaxed) == 0;
    result = is_batch ? issue_small(at, run) : issue_one(ring_[at]);
    const std::size_t issued = is_batch ? run : 1;
    left -= issued;
    at += issued;
    if (at == ring_.size()) at = 0;
  }
  return result;
}

CuResult CopyQueue::issue_small(std::size_t first, std::size_t count) {
  CuFunction const kernel = device_.kernels()[Kernel::scatter];
  if (kernel != nullptr && (first + count) * sizeof(ScatterEntry) <= table_.size_bytes) {
    return issue_by_kernel(kernel, first, count);
  }
  if (device_.api().copy_batch != nullptr) return issue_by_batch(first, count);
  CuResult result = cu_success;
  for (std::size_t i = 0; i < count && result == cu_success; ++i) result = issue_one(ring_[first + i]);
  return result;
}

CuResult CopyQueue::issue_by_kernel(CuFunction kernel, std::size_t first, std::size_t count) {
  const bool to_device = options_.toward == Toward::device;
  auto* const table = reinterpret_cast<ScatterEntry*>(table_.host);
  for (std::size_t i = first; i < first + count; ++i) {
    const CuDevicePtr host = device_address(ring_[i].host + *options_.host_to_device);
    const CuDevicePtr device = device_address(ring_[i].device);
    table[i] = {to_device ? host : device, to_device ? device : host, ring_[i].bytes};
  }
  CuDevicePtr entries = table_.device + first * sizeof(ScatterEntry);
  auto blocks = static_cast<unsigned>(count);
  void* parameters[] = {&entries, &blocks};
  return device_.api().launch_kernel(kernel, blocks, 1, 1, kernel_threads, 1, 1, 0, stream_, parameters, nullptr);
}

CuResult CopyQueue::issue_by_batch(std::size_t first, std::size_t count) {
  const bool to_device = options_.toward == Toward::device;
  batch_to_.clear();
  batch_from_.clear();
  batch_bytes_.clear();
  for (std::size_t i = first; i < first + count; ++i) {
    const Copy& copy = ring_[i];
    batch_to_.push_back(device_address(to_device ? copy.device : copy.host));
    batch_from_.push_back(device_address(to_device ? copy.host : copy.device));
    batch_bytes_.push_back(copy.bytes);
  }
  CuMemcpyAttributes attributes{};
  attributes.source_access_order = cu_source_access_order_stream;
  std::size_t from_start = 0;
  return device_.api().copy_batch(batch_to_.data(), batch_from_.data(), batch_bytes_.data(), count, &attributes,
                                  &from_start, 1, stream_);
}

CuResult CopyQueue::issue_one(const Copy& copy) {
  const CuResult result = issue_alone(copy);
  return result == cu_success && copy.then != nullptr ? copy.then(stream_, copy.argument) : result;
}

CuResult CopyQueue::issue_alone(const Copy& copy) {
  if (copy.bytes == 0) return cu_success;
  const CuDevicePtr device = device_address(copy.device);
  if (options_.toward == Toward::host) return device_.api().copy_from_device(copy.host, device, copy.bytes, stream_);
  const bool is_for_copy_engine = copy.bytes >= copy_engine_bytes || copy.bytes == 1;
  if (is_for_copy_engine || device_.stream_waits().load(std::memory_order_relaxed) == 0) {
    return device_.api().copy_to_device(device, copy.host, copy.bytes, stream_);
  }
  return issue_by_copy_engine(copy);
}

// To the device, as two rows. Of an odd number of bytes the last but one goes twice; a single byte has no two rows.
CuResult CopyQueue::issue_by_copy_engine(const Copy& copy) {
  const auto copy_rows = [&](std::size_t first, std::size_t row_bytes) {
    const CuMemcpy2d rows{.source_type = cu_memory_type_host,
                          .source_host = copy.host + first,
                          .source_pitch = row_bytes,
                          .destination_type = cu_memory_type_device,
                          .destination_device = device_address(copy.device + first),
                          .destination_pitch = row_bytes,
                          .width_bytes = row_bytes,
                          .rows = 2};
    return device_.api().copy_2d(&rows, stream_);
  };
  const CuResult result = copy_rows(0, copy.bytes / 2);
  return result != cu_success || copy.bytes % 2 == 0 ? result : copy_rows(copy.bytes - 2, 1);
}

std::size_t CopyQueue::collect(std::span<CopyDone> done) {
  std::size_t found = 0;
  while (group_count_ != 0) {
    Group& group = groups_[first_group_];
    // What failed to start has nothing to wait for but what started before it; the event follows all of that.
    const CuResult state = device_.api().event_query(group.event);
    if (state == cu_success && !group.recorded) {
      // Copies may still be on their way to or from the memory, and only an event behind them can tell.
      const Current current(device_);
      record(group);
      break;
    }
    if (state == cu_not_ready) break;
    const CuResult result = group.result != cu_success ? group.result : state;
    while (group.count != 0 && found < done.size()) {
      done[found++] = {ring_[first_].cookie, result};
      pending_bytes_ -= ring_[first_].bytes;
      first_ = place(1);
      --group.count;
      --pending_;
      --issued_;
    }
    if (group.count != 0) break;
    group.result = cu_success;
    first_group_ = (first_group_ + 1) % groups_.size();
    --group_count_;
  }
  return found;
}

}  // namespace penstock::cuda
