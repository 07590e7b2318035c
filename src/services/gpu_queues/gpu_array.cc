#include "penstock/gpu_array.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/out_of_memory.h"
#include "penstock/gpu.h"

namespace penstock {
namespace gpu_queues {
namespace {

constexpr std::uint32_t count_stripes = device::PageCacheState::count_stripes;
constexpr std::uint64_t memory_alignment = 4096;

// Where things lie in the array's memory.
struct ArrayLayout {
  ArrayLayout(std::uint64_t pages, std::uint64_t frames) {
    const auto up_to = [](std::uint64_t bytes) { return (bytes + memory_alignment - 1) & ~(memory_alignment - 1); };
    counts = up_to(sizeof(device::PagedArray));
    words = counts + up_to(count_stripes * sizeof(device::PageCounts));
    frames_begin = words + up_to(pages * sizeof(std::uint64_t));
    memory = frames_begin + up_to(frames * sizeof(device::Frame));
  }
  std::uint64_t counts, words, frames_begin, memory;
};

Error wrong_option(const std::string& what, const std::string& hint) {
  return {Code::invalid_argument, 0, what, hint};
}

// What the kernels of a set were told of a store.
Result<device::StoreWindow> window_of(const GpuQueues& queues, std::uint32_t store) {
  const Domain gpu = queues.options().gpu;
  device::QueueSet set;
  const Region to = Region::host(reinterpret_cast<std::byte*>(&set), sizeof set);
  Status copied = copy(to, {reinterpret_cast<std::byte*>(queues.handle()), sizeof set, gpu});
  if (!copied) return std::move(copied).error();
  if (store >= set.store_count) {
    return wrong_option("GpuArrayOptions::store is " + std::to_string(store),
                        "the set of queues has " + std::to_string(set.store_count) + " stores, numbered from 0");
  }
  device::StoreWindow window;
  auto* const from = reinterpret_cast<std::byte*>(const_cast<device::StoreWindow*>(set.stores + store));
  copied = copy(Region::host(reinterpret_cast<std::byte*>(&window), sizeof window), {from, sizeof window, gpu});
  if (!copied) return std::move(copied).error();
  return window;
}

Status check_page_bytes(GpuArrayOptions& options, std::uint32_t place_bytes, std::uint32_t block_bytes) {
  const std::uint32_t least = std::max(512U, block_bytes);
  if (options.page_bytes == 0) options.page_bytes = place_bytes;
  if (std::has_single_bit(options.page_bytes) && options.page_bytes >= least && options.page_bytes <= place_bytes) {
    return {};
  }
  return wrong_option("GpuArrayOptions::page_bytes is " + std::to_string(options.page_bytes),
                      "choose a power of two from " + std::to_string(least) + " to " + std::to_string(place_bytes) +
                          ", the place_bytes of the set");
}

Status check_extent(GpuArrayOptions& options, const device::StoreWindow& window) {
  Extent& extent = options.extent;
  const bool begins_inside = extent.offset >= window.begin && extent.offset < window.end;
  if (begins_inside && extent.length == Extent::to_the_end) extent.length = window.end - extent.offset;
  if (begins_inside && extent.length != 0 && extent.length <= window.end - extent.offset) return {};
  return Error{Code::out_of_range, 0,
               "an array of bytes " + std::to_string(extent.offset) + " and following of a store whose window is " +
                   std::to_string(window.begin) + " to " + std::to_string(window.end),
               "give an extent within the window"};
}

}  // namespace

class OpenArray {
 public:
  static Result<std::unique_ptr<OpenArray>> open(const Context& context, const GpuQueues& queues,
                                                 GpuArrayOptions options);

  device::PagedArray* handle() const { return reinterpret_cast<device::PagedArray*>(memory_.data()); }
  const GpuArrayOptions& options() const { return options_; }
  std::uint32_t page_count() const { return page_count_; }
  std::uint32_t frame_count() const { return frame_count_; }
  Result<GpuArrayStatistics> statistics() const;
  Status clear();

 private:
  Status choose_sizes();
  Region at(std::uint64_t offset, std::uint64_t bytes) const { return {memory_.data() + offset, bytes, gpu_}; }
  // As often as it fits.
  Status fill(std::uint64_t offset, std::uint64_t bytes, std::span<const std::byte> pattern) const;

  GpuArrayOptions options_;
  Domain gpu_ = Domain::host();
  device::QueueSet* queues_ = nullptr;
  std::uint32_t page_count_ = 0;
  std::uint32_t frame_count_ = 0;
  Buffer memory_;
};

Result<std::unique_ptr<OpenArray>> OpenArray::open(const Context& context, const GpuQueues& queues,
                                                   GpuArrayOptions options) {
  if (!queues) return wrong_option("the GpuQueues of an array are closed", "open a set of queues first");
  auto array = std::make_unique<OpenArray>();
  array->gpu_ = queues.options().gpu;
  array->queues_ = queues.handle();
  auto window = window_of(queues, options.store);
  if (!window) return std::move(window).error();
  if (Status status = check_page_bytes(options, queues.options().place_bytes, window->block_bytes); !status) {
    return std::move(status).error();
  }
  if (Status status = check_extent(options, *window); !status) return std::move(status).error();
  array->options_ = options;
  if (Status status = array->choose_sizes(); !status) return std::move(status).error();
  const ArrayLayout layout(array->page_count_, array->frame_count_);
  const std::uint64_t bytes = layout.memory + std::uint64_t{array->frame_count_} * options.page_bytes;
  auto memory = context.allocate(array->gpu_, bytes);
  if (!memory) return std::move(memory).error();
  array->memory_ = std::move(*memory);
  if (Status status = array->clear(); !status) return std::move(status).error();
  return array;
}

Status OpenArray::choose_sizes() {
  const std::uint64_t page_bytes = options_.page_bytes;
  const Extent& extent = options_.extent;
  const std::uint64_t pages = (extent.offset + extent.length - 1) / page_bytes - extent.offset / page_bytes + 1;
  if (pages >= device::Frame::nobody) {
    return wrong_option("an array of " + std::to_string(pages) + " pages", "choose longer pages");
  }
  page_count_ = static_cast<std::uint32_t>(pages);
  // Rounded up, the table of frames takes a page of memory more than its share.
  const std::uint64_t fixed = ArrayLayout(pages, 0).memory + memory_alignment;
  const std::uint64_t each = page_bytes + sizeof(device::Frame);
  const std::uint64_t frames = options_.memory_bytes > fixed ? (options_.memory_bytes - fixed) / each : 0;
  if (frames == 0) {
    return Error{Code::over_budget, 0,
                 "GpuArrayOptions::memory_bytes is " + std::to_string(options_.memory_bytes) + ", and an array of " +
                     std::to_string(pages) + " pages takes " + std::to_string(fixed) + " before the first is resident",
                 "give it more memory, or choose longer pages"};
  }
  const std::uint64_t most = std::uint64_t{1} << device::PageWord::frame_bits;
  frame_count_ = static_cast<std::uint32_t>(std::min({frames, pages, most}));
  return {};
}

Status OpenArray::clear() {
  const ArrayLayout layout(page_count_, frame_count_);
  device::PagedArray array;
  array.store = options_.store;
  array.begin = options_.extent.offset;
  array.size_bytes = options_.extent.length;
  array.first_page = options_.extent.offset / options_.page_bytes;
  array.queues = queues_;
  device::PageCacheState& cache = array.cache;
  cache.page_shift = static_cast<std::uint32_t>(std::countr_zero(options_.page_bytes));
  cache.frame_count = frame_count_;
  cache.counts = reinterpret_cast<device::PageCounts*>(memory_.data() + layout.counts);
  cache.words = reinterpret_cast<std::uint64_t*>(memory_.data() + layout.words);
  cache.frames = reinterpret_cast<device::Frame*>(memory_.data() + layout.frames_begin);
  cache.memory = reinterpret_cast<unsigned char*>(memory_.data() + layout.memory);

  const std::byte zero[sizeof(std::uint64_t)] = {};
  const device::Frame frame;
  Status status = fill(layout.counts, layout.frames_begin - layout.counts, zero);
  if (status)
    status = fill(layout.frames_begin, layout.memory - layout.frames_begin, std::as_bytes(std::span(&frame, 1)));
  if (status) status = fill(0, sizeof array, std::as_bytes(std::span(&array, 1)));
  return status;
}

Status OpenArray::fill(std::uint64_t offset, std::uint64_t bytes, std::span<const std::byte> pattern) const {
  constexpr std::uint64_t most = 4 << 20;
  std::vector<std::byte> piece(std::min(bytes, most / pattern.size() * pattern.size()));
  for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = pattern[i % pattern.size()];
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t length = std::min<std::uint64_t>(piece.size(), bytes - done);
    Status status = copy(at(offset + done, length), Region::host(piece.data(), length));
    if (!status) return status;
    done += length;
  }
  return {};
}

Result<GpuArrayStatistics> OpenArray::statistics() const {
  std::vector<device::PageCounts> counts(count_stripes);
  const auto bytes = std::as_writable_bytes(std::span(counts));
  std::uint64_t failure = 0;
  Status status =
      copy(Region::host(bytes.data(), bytes.size()), at(ArrayLayout(page_count_, frame_count_).counts, bytes.size()));
  if (status) {
    status = copy(Region::host(reinterpret_cast<std::byte*>(&failure), sizeof failure),
                  at(offsetof(device::PagedArray, first_failure), sizeof failure));
  }
  if (!status) return std::move(status).error();
  GpuArrayStatistics sum;
  for (const device::PageCounts& each : counts) {
    sum.hits += each.hits;
    sum.fetched += each.fetched;
    sum.joined += each.joined;
    sum.passed += each.passed;
    sum.failed += each.failed;
  }
  sum.first_failure = device::unpack(failure);
  return sum;
}

}  // namespace gpu_queues

namespace {

Error no_array() {
  return {Code::invalid_argument, 0, "this GpuArray is closed, or was never opened", "use what GpuArray::open gave"};
}

}  // namespace

GpuArray::GpuArray() = default;
GpuArray::GpuArray(std::unique_ptr<gpu_queues::OpenArray> array) : array_(std::move(array)) {}
GpuArray::GpuArray(GpuArray&&) noexcept = default;
GpuArray& GpuArray::operator=(GpuArray&&) noexcept = default;
GpuArray::~GpuArray() = default;

Result<GpuArray> GpuArray::open(const Context& context, const GpuQueues& queues, const GpuArrayOptions& options) {
  return or_out_of_memory([&]() -> Result<GpuArray> {
    auto array = gpu_queues::OpenArray::open(context, queues, options);
    if (!array) return std::move(array).error();
    return GpuArray(std::move(*array));
  });
}

device::PagedArray* GpuArray::handle() const {
  return array_ ? array_->handle() : nullptr;
}

const GpuArrayOptions& GpuArray::options() const {
  static const GpuArrayOptions nothing;
  return array_ ? array_->options() : nothing;
}

std::uint32_t GpuArray::page_count() const {
  return array_ ? array_->page_count() : 0;
}

std::uint32_t GpuArray::frame_count() const {
  return array_ ? array_->frame_count() : 0;
}

Result<GpuArrayStatistics> GpuArray::statistics() const {
  if (!array_) return no_array();
  return or_out_of_memory([&] { return array_->statistics(); });
}

Status GpuArray::clear() {
  if (!array_) return no_array();
  return or_out_of_memory([&] { return array_->clear(); });
}

void GpuArray::close() {
  array_.reset();
}

}  // namespace penstock
