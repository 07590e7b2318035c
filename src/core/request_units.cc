// What a request consists of: units, and the lanes that claim them.
#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <vector>

#include "core/cut.h"
#include "core/environment.h"
#include "core/long_slots.h"
#include "core/request.h"

namespace penstock::core {

namespace {

constexpr std::uint64_t unit_bytes_least = 1 << 20;
constexpr std::uint64_t units_most = 1 << 19;  // of one long range
constexpr std::uint32_t unit_ranges_most = 512;
constexpr std::uint64_t claimed_bytes_most = 4 << 20;
// Of requests to a GPU that are over in a moment: short pieces, so that many lanes take part and the bus has work
// early.
constexpr std::uint64_t gpu_unit_bytes_least = 128 << 10;
constexpr std::uint64_t gpu_units_of_short_request = 8;
// Longer ones take long enough for lanes to wake up, each with slots of its own.
constexpr std::uint64_t run_on_caller_bytes_max = 32 << 20;
// Where one lane does all of it. Past the page cache of an H200's host it read 16 MiB at 2.9 GB/s, and several at 3.7;
// to the GPU at 2.9 and 4.1. To a file in tmpfs no two threads write at a time: 64 MiB from the GPU took one lane 7.6
// to 9 ms, and several 11 to 12.
constexpr std::uint64_t one_lane_bytes_max = 4 << 20;
constexpr std::uint64_t one_lane_written_bytes_max = 64 << 20;
// Lanes that write from GPU memory past the page cache, each a piece at a time. More only wait for each other at the
// disk: 4 threads with pieces of 1 MiB wrote 2.65 GB/s to a virtual disk, 8 wrote 2.5, 16 wrote 2.3.
constexpr std::uint32_t staged_writers_most = 8;
// Lanes that read short ranges past the page cache, for each queue of the disk. More only wait for each other in the
// kernel: of a virtual disk with one queue, 16 lanes read 176,000 rows of 4 KiB a second and spent 42 µs of CPU on
// each, 8 read 184,000 with 25 µs, 4 read 180,000 with 11.
constexpr std::uint32_t short_readers_of_a_queue = 4;
// Lanes whose bytes kernels decode: there is scratch memory for 8, and more bring no more. To an H200, in single runs,
// 8 lanes brought 68 and 71 GB/s of decoded weights, 12 brought 69, 16 brought 67.
constexpr std::uint32_t decoding_lanes_most = 8;
// Of tmpfs, whose pages are small: 8 lanes brought 59 GB/s, 14 brought 67.
constexpr std::uint32_t decoding_lanes_of_memory_most = 14;

bool can_share_a_unit(const Span& one, const Span& other) {
  return one.store == other.store && one.gpu == other.gpu && one.is_out_of_reach == other.is_out_of_reach &&
         (one.transform != 0) == (other.transform != 0);
}

// Goes through the spans in order. Calls `on_unit(Unit)` for short ones, grouped, and for those that are transformed;
// `on_long(index of the span)` for the others, which are several units each.
template <typename OnUnit, typename OnLong>
void walk(std::span<const Span> spans, std::uint64_t unit_bytes, OnUnit on_unit, OnLong on_long) {
  for (std::uint32_t i = 0; i < spans.size();) {
    const Span first = spans[i];
    if (first.length <= unit_bytes) {
      Unit group{0, first.length, i, 1};
      for (++i; i < spans.size() && group.count < unit_ranges_most; ++i, ++group.count) {
        const Span& span = spans[i];
        if (span.length > unit_bytes - group.length || !can_share_a_unit(first, span)) break;
        group.length += span.length;
      }
      if (group.length != 0) on_unit(group);
      continue;
    }
    if (first.transform != 0) {
      on_unit(Unit{0, first.length, i, 1});
    } else {
      on_long(i);
    }
    ++i;
  }
}

// Units end at multiples of their length in the store.
void add_units(const Span& span, std::uint32_t index, std::uint64_t unit_bytes, std::vector<Unit>& units) {
  std::uint64_t to_boundary = unit_bytes - span.offset % unit_bytes;
  for (std::uint64_t begin = 0; begin < span.length; to_boundary = unit_bytes) {
    const std::uint64_t length = std::min(span.length - begin, to_boundary);
    units.push_back({begin, length, index, 1});
    begin += length;
  }
}

}  // namespace

void Request::make_units() {
  is_for_one_lane_ = is_for_one_lane_ && fits_one_lane();
  unit_bytes_ = std::max(operation_bytes(), std::bit_ceil(total_bytes / units_most));
  const bool is_one = spans.size() == 1 && total_bytes != 0 && total_bytes <= unit_bytes_;
  if (is_one) {
    units.add({0, total_bytes, 0, 1});
  } else {
    cut_into_units();
  }
  if (parts.size() == 0) make_parts();  // a late request has them
  choose_long_slots();
}

void Request::make_parts() {
  std::uint32_t most = is_for_one_lane_ ? 1 : lanes_;
  if (writes_past_cache()) most = std::min(most, staged_writers_most);
  if (const std::uint32_t readers = most == 1 ? 1 : short_readers();
      readers < std::min<std::size_t>(most, units.size())) {
    most = readers;
    // All such requests keep to the same lanes.
    first_lane = static_cast<std::uint32_t>(std::hash<std::string>()(stores[0].entry->info().device) % lanes_);
  }
  if (const cuda::Device* const gpu = decoding_gpu()) {
    const bool of_memory = std::all_of(stores.begin(), stores.end(), [](const StoreUse& use) {
      return use.entry->info().locality == Locality::memory;
    });
    most = std::min(most, of_memory ? decoding_lanes_of_memory_most : decoding_lanes_most);
    first_lane = static_cast<std::uint32_t>(gpu->info().domain.device()) * decoding_lanes_most;
  }
  parts.resize(std::clamp<std::size_t>(units.size(), 1, most));
  parts_left_.store(static_cast<std::uint32_t>(parts.size()), std::memory_order_relaxed);
}

// All such requests to one GPU keep to one lane.
void Request::choose_long_slots() {
  const LongSlots slots = LongSlots::of(environment_->options);
  if (slots.threads == 0 || parts.size() == 1 || total_bytes < slots.worth_bytes() || !reads_files()) return;
  gpu_of_all_ = find_gpu_of_all();
  if (gpu_of_all_ == nullptr) return;
  may_fill_long_slots_.store(true, std::memory_order_relaxed);
  first_lane = static_cast<std::uint32_t>(gpu_of_all_->info().domain.device());
}

void Request::give_up_long_slots() {
  if (may_fill_long_slots_.load(std::memory_order_relaxed) && may_fill_long_slots_.exchange(false)) wake_lanes();
}

// There are many more ranges than units where ranges are short, so they are gone through once.
void Request::cut_into_units() {
  std::vector<Unit> all;
  all.reserve(total_bytes / unit_bytes_ + 1);
  walk(
      {spans.begin(), spans.end()}, unit_bytes_, [&](const Unit& unit) { all.push_back(unit); },
      [&](std::uint32_t i) { add_units(spans[i], i, unit_bytes_, all); });
  units.reserve(all.size());
  for (const Unit& unit : all) units.add(unit);
}

// Units are as long as one operation, so that lanes together read a disk in order. Those to a GPU are shorter: sixteen
// lanes that take 256 KiB in turn read 3.9 GB/s from a virtual disk, and 3.3 where each takes four such pieces at once.
std::uint64_t Request::operation_bytes() const {
  if (!engine::moves_bytes(kind)) return memoryless_bytes_most;
  if (is_for_one_lane_) {
    const std::uint64_t share = std::bit_floor(total_bytes / gpu_units_of_short_request);
    return std::clamp(share, one_lane_piece_bytes_min, one_lane_piece_bytes_max);
  }
  const std::uint64_t usual = std::max(unit_bytes_least, environment_->options.storage_chunk_bytes);
  if (direction != Direction::read || !has_gpu) return usual;
  if (is_of_long_ranges()) return Flow::least_piece_bytes;
  const std::uint64_t share = total_bytes / gpu_units_of_short_request;
  return std::clamp(std::bit_floor(std::max<std::uint64_t>(1, share)), gpu_unit_bytes_least, usual);
}

// Writes from a GPU to tmpfs, where threads wait for each other in the kernel; and reads past the page cache, which
// take no CPU.
bool Request::fits_one_lane() const {
  const bool is_plain = engine::moves_bytes(kind) && spans.size() == 1 && !transforms && !environment_->given;
  const bool is_written_by_gpu = has_gpu && direction == Direction::write;
  const std::uint64_t bytes_max = is_written_by_gpu ? one_lane_written_bytes_max : one_lane_bytes_max;
  if (!is_plain || total_bytes > bytes_max || deadline != TimePoint::max()) return false;
  StoreEntry& entry = *stores[0].entry;
  const StoreInfo& info = entry.info();
  const engine::Description& engine = (*environment_->engines)[entry.engine()]->description();
  cuda::Device* const gpu = spans[0].gpu;
  if (direction == Direction::write) {
    return gpu != nullptr && info.locality == Locality::memory && engine.inline_queue;
  }
  const bool is_past_cache =
      cache == Cache::bypass || (cache == Cache::automatic && !stores[0].stays_cached && entry.seems_cold());
  return info.locality == Locality::local && entry.direct() && is_past_cache && engine.sleeps_in_kernel &&
         (gpu == nullptr || !reads_straight(*gpu, entry));
}

cuda::Device* Request::gpu_for_caller() const {
  if (total_bytes > run_on_caller_bytes_max || deadline != TimePoint::max()) return nullptr;
  if (LongSlots::of(environment_->options).threads == 0 || !reads_files()) return nullptr;
  const StoreEntry& entry = *stores[spans[0].store].entry;
  if (!(*environment_->engines)[entry.engine()]->description().inline_queue) return nullptr;
  if (entry.info().locality != Locality::memory) {
    const std::uint64_t length = std::min(spans[0].length, Flow::least_piece_bytes);
    const auto resident = entry.store().page_cache()->resident_bytes(spans[0].offset, length);
    if (!resident || *resident < length) return nullptr;
  }
  return find_gpu_of_all();
}

void Request::begin_on_caller(cuda::Device& gpu) {
  gpu_of_all_ = &gpu;
  is_on_caller_ = parts.size() > 1;
  may_fill_long_slots_.store(true, std::memory_order_relaxed);
  expected_.store(engine::Path::cached, std::memory_order_relaxed);
  parts_left_.store(2, std::memory_order_relaxed);
}

bool Request::is_of_long_ranges() const {
  return total_bytes / std::max<std::size_t>(1, spans.size()) >= claimed_bytes_most;
}

bool Request::reads_files() const {
  const bool is_long = spans.size() == 1 ? total_bytes >= Flow::least_piece_bytes : is_of_long_ranges();
  if (direction != Direction::read || !has_gpu || !is_long || transforms || cache == Cache::bypass) return false;
  const auto is_shared = [&](const StoreUse& use) {
    const StoreInfo& info = use.entry->info();
    const bool is_copied = (info.page_cache && info.locality == Locality::local) || info.locality == Locality::memory;
    const engine::Description& engine = (*environment_->engines)[use.entry->engine()]->description();
    return is_copied && engine.shares_reads && engine.host == engine::HostReach::any;
  };
  return std::ranges::all_of(stores, is_shared);
}

// Null: they lie on several, or elsewhere. Empty ones lie nowhere.
cuda::Device* Request::find_gpu_of_all() const {
  cuda::Device* gpu = nullptr;
  for (const Span& span : spans) {
    if (span.length == 0) continue;
    if (span.gpu == nullptr || (gpu != nullptr && span.gpu != gpu)) return nullptr;
    gpu = span.gpu;
  }
  return gpu;
}

// That are worth it where short ranges of one disk are read past the page cache.
std::uint32_t Request::short_readers() const {
  const bool is_short = total_bytes / std::max<std::size_t>(1, spans.size()) < Flow::counted_from_bytes;
  if (direction != Direction::read || cache == Cache::keep || !is_short || stores.size() == 0) return lanes_;
  const auto is_cold = [&](const StoreUse& use) { return !use.stays_cached && use.entry->seems_cold(); };
  if (cache == Cache::automatic && !std::ranges::all_of(stores, is_cold)) return lanes_;
  const StoreInfo& first = stores[0].entry->info();
  const bool is_one_disk = std::ranges::all_of(
      stores, [&](const StoreUse& use) { return use.entry->direct() && use.entry->info().device == first.device; });
  return is_one_disk && first.queues != 0 ? first.queues * short_readers_of_a_queue : lanes_;
}

// From GPU memory to a disk, as far as is known before the units are planned.
bool Request::writes_past_cache() const {
  return direction == Direction::write && has_gpu &&
         std::any_of(stores.begin(), stores.end(), [](const StoreUse& use) { return use.entry->info().direct; });
}

// Whose kernels make all that is made of stored bytes; null: nobody's, or CPUs may have to.
const cuda::Device* Request::decoding_gpu() const {
  if (!transforms || !has_gpu || in_stream_order_) return nullptr;
  const cuda::Device* gpu = nullptr;
  for (const Span& span : spans) {
    const TransformUse* const use = transform_of(span);
    if (use == nullptr || span.length == 0) continue;
    if (!use->is_for_gpu) return nullptr;
    gpu = span.gpu;
  }
  return gpu;
}

Request::Claim Request::claim_units(const Part& part, std::uint64_t room_bytes) {
  const auto count = static_cast<std::uint32_t>(units.size());
  const std::uint32_t next = next_unit_.load(std::memory_order_relaxed);
  if (next >= count || is_left_to_another(part)) return {count, count};
  if (is_on_caller_ && &part == parts.begin() && !fills_long_slots()) return {count, count};
  // Short ranges make no long pieces: one group at a time, or some lanes would be done long before the others.
  const bool is_single = units[next].count != 1 || next + 1 == count;
  const std::uint32_t wanted = is_single ? 1 : claimed_at_once(next, room_bytes);
  if (transforms) return claim_mixed(wanted);
  const std::uint32_t begin = next_unit_.fetch_add(wanted, std::memory_order_relaxed);
  // The others need not wait any more.
  if (begin + wanted >= count && may_fill_long_slots_.load(std::memory_order_relaxed)) wake_lanes();
  return {std::min(begin, count), std::min(begin + wanted, count)};
}

// Units of a long range.
std::uint32_t Request::claimed_at_once(std::uint32_t next, std::uint64_t room_bytes) const {
  if (is_for_one_lane_) return 1;
  const bool is_filling = fills_long_slots();
  // Lanes read in order what the kernel reads ahead.
  const bool is_read_ahead = direction == Direction::read && expected() == engine::Path::buffered &&
                             stores[0].entry->info().locality == Locality::local;
  const Flow& flow = stores[0].entry->flow(direction);
  std::uint64_t bytes = has_gpu ? flow.staged_piece_bytes() : flow.plain_piece_bytes();
  if (is_filling) {
    bytes = std::min({LongSlots::of(environment_->options).slot_bytes, room_bytes, share_of_rest(next, 1)});
  } else if (is_read_ahead) {
    bytes = environment_->options.storage_chunk_bytes;
  } else if (expected() != engine::Path::direct) {
    const std::uint64_t longest = std::max(claimed_bytes_most, environment_->options.staging_slot_bytes);
    bytes = has_gpu ? std::min(longest, share_of_rest(next, parts.size())) : longest;
  }
  const auto wanted = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, bytes / unit_bytes_));
  if (!is_filling) return wanted;
  // Each range takes whole granules of staging memory.
  const std::size_t last = std::min<std::size_t>(next + wanted, units.size()) - 1;
  const std::uint32_t more_ranges = units[last].first - units[next].first;
  return wanted - std::min(wanted - 1, more_ranges);
}

// Short pieces at first, so that something is there early; short ones at the end, so that all lanes end at once. Each
// copy to a GPU costs the bus some microseconds, whatever its length.
std::uint64_t Request::share_of_rest(std::uint32_t next, std::uint64_t lanes) const {
  constexpr std::uint64_t shortest_most = 1 << 20;
  constexpr std::uint64_t pieces_of_short_request = 16;
  const std::uint64_t pieces = lanes == 1 ? 4 : pieces_of_short_request;
  const std::uint64_t shortest =
      std::clamp<std::uint64_t>(total_bytes / pieces, Flow::least_piece_bytes, shortest_most);
  const std::uint64_t claimed = next * unit_bytes_;
  const std::uint64_t rest = (units.size() - next) * unit_bytes_;
  return std::max(shortest, std::min(claimed / lanes, rest / (2 * lanes)));
}

// What is transformed is as long as it is, and claimed one by one; plain units up to the next of those.
Request::Claim Request::claim_mixed(std::uint32_t wanted) {
  const auto count = static_cast<std::uint32_t>(units.size());
  const auto is_made = [&](std::uint32_t unit) { return spans[units[unit].first].transform != 0; };
  std::uint32_t begin = next_unit_.load(std::memory_order_relaxed);
  while (begin < count) {
    std::uint32_t end = begin + 1;
    while (!is_made(begin) && end < count && end - begin < wanted && !is_made(end)) ++end;
    if (next_unit_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) return {begin, end};
  }
  return {count, count};
}

}  // namespace penstock::core
