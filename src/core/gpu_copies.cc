#include "core/gpu_copies.h"

#include <algorithm>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "base/out_of_memory.h"

namespace penstock::core {

using cuda::CopyQueue;
using cuda::Toward;

namespace {

// Small copies are given to the GPU many together; from this size on, each by itself, so that the bus has work early
// and the slot is free as soon as it has been copied.
constexpr std::size_t worth_issuing_copies = 32;
constexpr std::size_t worth_issuing_bytes = 128 << 10;

// Where a GPU has no room, it is not asked again for every piece.
constexpr Duration between_scratches = std::chrono::seconds(1);

constexpr Duration shortest_look = std::chrono::microseconds(20);
constexpr Duration longest_look = std::chrono::microseconds(100);

}  // namespace

GpuCopies::GpuCopies(LaneStaging& staging, StreamGate& streams, DeviceMemory& memory, std::uint32_t depth,
                     double stream_seconds)
    : staging_(staging),
      streams_(streams),
      memory_(memory),
      depth_(depth),
      stream_seconds_(stream_seconds),
      done_(depth) {}

void GpuCopies::ask_to_prepare(cuda::Device& gpu, Left left) {
  left->fetch_add(1, std::memory_order_relaxed);
  const std::scoped_lock lock(mutex_);
  to_prepare_.push_back({&gpu, std::move(left)});
}

void GpuCopies::prepare_asked() {
  std::vector<ToPrepare> all;
  {
    const std::scoped_lock lock(mutex_);
    all.swap(to_prepare_);
  }
  for (const ToPrepare& one : all) {
    prepare(*one.gpu, Toward::device);
    prepare(*one.gpu, Toward::host);
    if (one.left->fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(*one.left);
  }
}

// Where the budget has no room, others do its work until there is some; LaneStaging has warned.
void GpuCopies::prepare(cuda::Device& gpu, Toward toward) {
  const Status status = or_out_of_memory([&] { return get_ready(gpu, toward); });
  if (!status && status.error().code != Code::over_budget) log(LogLevel::error, status.error().message);
}

Status GpuCopies::make_ready(cuda::Device& gpu, Toward toward) {
  const TimePoint begun = Clock::now();
  const double cpu_begun = thread_cpu_seconds();
  auto made = make(gpu, toward);
  spent_.time += Clock::now() - begun;
  spent_.cpu_seconds += thread_cpu_seconds() - cpu_begun;
  if (!made) return std::move(made).error();
  of(gpu).toward(toward) = std::move(*made);
  return {};
}

Result<std::unique_ptr<CopyQueue>> GpuCopies::make(cuda::Device& gpu, Toward toward) {
  auto arena = staging_.get();
  if (!arena) return std::move(arena).error();
  if (auto status = (*arena)->register_with(gpu); !status) {
    log(LogLevel::warning, status.error().message + "; copies to and from the GPU are slower");
  }
  return CopyQueue::create(gpu, {.toward = toward, .depth = depth_, .host_to_device = (*arena)->host_to_device()});
}

Status GpuCopies::make_ready(cuda::Device& gpu, StagingArena& arena) {
  const StagingArena& ours = **staging_.get();
  if (!arena.host_to_device()) {
    if (auto status = arena.register_with(gpu); !status) return status;
  }
  // Kernels that copy, if there are any, know one of them.
  if (!ours.host_to_device() || arena.host_to_device() == ours.host_to_device()) return {};
  return Error{Code::unsupported, 0, "memory of an engine's own lies elsewhere for " + gpu.info().name + " than ours",
               "read to host memory"};
}

Result<std::byte*> GpuCopies::scratch(cuda::Device& gpu, std::uint64_t bytes) {
  OfGpu& of_gpu = of(gpu);
  if (of_gpu.scratch) return of_gpu.scratch->region().data;
  const TimePoint now = Clock::now();
  if (now < of_gpu.scratch_again) return Error{Code::over_budget, 0, "no scratch", ""};
  of_gpu.scratch_again = now + between_scratches;
  auto made = or_out_of_memory([&] { return memory_.scratch(gpu.info().domain, bytes); });
  if (!made) return std::move(made).error();
  of_gpu.scratch = std::move(*made);
  return of_gpu.scratch->region().data;
}

void GpuCopies::add(cuda::Device& gpu, Toward toward, const cuda::Copy& copy) {
  CopyQueue& queue = *of(gpu).toward(toward);
  if (pending_++ == 0) {
    moved_ = Clock::now();
    short_bytes_ = 0;
  }
  // Without bytes it is a kernel that reads them itself, and takes longer.
  short_bytes_ += copy.bytes != 0 ? copy.bytes : short_bytes_most + 1;
  queue.add(copy);
  if (copy.bytes >= worth_issuing_bytes || copy.bytes == 0) queue.issue();
}

void GpuCopies::issue(bool all) {
  if (pending_ == 0) return;
  for (OfGpu& of : gpus_) {
    for (CopyQueue* queue : {of.to_device.get(), of.to_host.get()}) {
      if (queue == nullptr) continue;
      const bool worth_it = queue->added() >= worth_issuing_copies || queue->added_bytes() >= worth_issuing_bytes;
      if (worth_it || all) queue->issue();
    }
  }
}

std::size_t GpuCopies::added() const {
  std::size_t count = 0;
  for (const OfGpu& of : gpus_) {
    for (const CopyQueue* queue : {of.to_device.get(), of.to_host.get()}) {
      if (queue != nullptr) count += queue->added();
    }
  }
  return count;
}

std::uint64_t GpuCopies::pending_bytes() const {
  std::uint64_t bytes = 0;
  for (const OfGpu& of : gpus_) {
    for (const CopyQueue* queue : {of.to_device.get(), of.to_host.get()}) {
      if (queue != nullptr) bytes += queue->pending_bytes();
    }
  }
  return bytes;
}

void GpuCopies::note_moved(std::size_t count) {
  const TimePoint now = Clock::now();
  // Copies of other lanes go over the same bus: the more there are, the longer each takes.
  between_looks_ = std::clamp<Duration>((now - moved_) / 8, shortest_look, longest_look);
  moved_ = now;
  pending_ -= static_cast<std::uint32_t>(count);
}

void GpuCopies::watch_streams(TimePoint now) {
  const Duration patience = duration_from_seconds(stream_seconds_);
  if (stream_seconds_ <= 0 || pending_ == 0 || now - moved_ < patience) return;
  const bool streams_wait =
      std::any_of(gpus_.begin(), gpus_.end(), [](const OfGpu& of) { return of.gpu->stream_waits() != 0; });
  if (!streams_wait || !streams_.break_all(now, patience)) return;
  log(LogLevel::warning, "copies make no progress while streams wait for them; what they wait for is given up");
  moved_ = now;
}

}  // namespace penstock::core
