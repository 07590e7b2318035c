#include "services/gpu_queues/set.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "penstock/gpu.h"
#include "services/rows/round_up.h"

namespace penstock::gpu_queues {
namespace {

using device::QueueSet;
using device::StoreWindow;
using nvme::QueuePairState;

constexpr std::uint64_t line_bytes = 128;  // of a GPU's cache
constexpr std::uint64_t page_size_bytes = 4096;

// Room, handed out from the front.
class Room {
 public:
  std::uint64_t take(std::uint64_t bytes, std::uint64_t alignment = line_bytes) {
    const std::uint64_t at = rows::round_up(used_, alignment);
    used_ = at + bytes;
    return at;
  }
  std::uint64_t used() const { return used_; }

 private:
  std::uint64_t used_ = 0;
};

// Completion queues are twice as long, so that kernels need not tell of every completion that they took.
constexpr std::uint32_t completions_of(std::uint32_t depth) {
  return 2 * depth;
}

// Where things lie in memory of the GPU.
struct OwnLayout {
  explicit OwnLayout(const GpuQueuesOptions& options) {
    Room room;
    set = room.take(sizeof(QueueSet));
    stores = room.take(options.stores.size() * sizeof(StoreWindow));
    queues = room.take((options.queues + 1) * sizeof(QueuePairState));  // one more, for Set::stop
    slots = room.take(std::uint64_t{options.queues} * options.depth * sizeof(nvme::Slot));
    ahead = room.take(options.ahead_places * sizeof(device::AheadPlace));
    bytes = room.take(0);  // of whole lines
  }
  std::uint64_t set, stores, queues, slots, ahead, bytes;
};

// And in pinned memory.
struct SharedLayout {
  explicit SharedLayout(const GpuQueuesOptions& options) {
    Room room;
    notes = room.take(sizeof(device::Notes));
    doorbells = room.take(options.queues * 2 * line_bytes);
    submissions = room.take(std::uint64_t{options.queues} * options.depth * sizeof(nvme::Command));
    completions = room.take(std::uint64_t{options.queues} * completions_of(options.depth) * sizeof(nvme::Completion));
    stops = room.take((options.queues + 1) * sizeof(std::uint32_t));
    places = room.take(0, page_size_bytes);
    const std::uint64_t count = std::uint64_t{options.queues} * options.depth + options.ahead_places;
    // Or what is written to the GPU from here.
    bytes = places + std::max(count * options.place_bytes, OwnLayout(options).bytes);
  }
  // Of one queue, from an address of the beginning on.
  nvme::QueuePairMemory queue(const GpuQueuesOptions& options, std::uint64_t base, std::uint32_t number) const {
    const auto at = [&](std::uint64_t offset) { return reinterpret_cast<std::byte*>(base + offset); };
    const std::uint64_t first = std::uint64_t{number} * options.depth;
    nvme::QueuePairMemory memory;
    memory.id = static_cast<std::uint16_t>(number + 1);
    memory.entries = options.depth;
    memory.completion_entries = completions_of(options.depth);
    memory.submissions = reinterpret_cast<nvme::Command*>(at(submissions)) + first;
    memory.completions = reinterpret_cast<nvme::Completion*>(at(completions)) + 2 * first;
    memory.tail_doorbell = reinterpret_cast<std::uint32_t*>(at(doorbells + 2 * number * line_bytes));
    memory.head_doorbell = reinterpret_cast<std::uint32_t*>(at(doorbells + (2 * number + 1) * line_bytes));
    return memory;
  }

  std::uint64_t notes, doorbells, submissions, completions, stops, places, bytes;
};

std::uint64_t nanoseconds(double seconds) {
  return static_cast<std::uint64_t>(seconds * 1e9);
}

// From pinned memory, in rows, of which there are two at least. Other copies may go to the hardware's queues for
// kernels (docs/gpu.md), behind one that runs for hours.
Status copy_by_engine(const StridedRows& to, const StridedRows& from) {
  const RowsCopy rows{to, from};
  return copy_rows(std::span(&rows, 1));
}

Status check_time(const std::string& name, double seconds) {
  if (seconds == 0) {
    return Error{Code::invalid_argument, 0, "GpuQueuesOptions::" + name + " is 0",
                 "choose a time that reads can keep to"};
  }
  return check_seconds("GpuQueuesOptions::" + name, seconds);
}

template <typename Number>
struct Limits {
  Number least, most;
};
template <typename Number>
Status check_power(const char* name, Number value, Limits<Number> limits) {
  if (std::has_single_bit(value) && value >= limits.least && value <= limits.most) return {};
  return Error{Code::invalid_argument, 0, std::string("GpuQueuesOptions::") + name + " is " + std::to_string(value),
               "choose a power of two from " + std::to_string(limits.least) + " to " + std::to_string(limits.most)};
}

}  // namespace

Status Set::check_options(GpuQueuesOptions& options, std::uint32_t threads) {
  constexpr std::uint32_t most_queues = 4096;
  constexpr std::uint32_t most_ahead = 1 << 20;
  constexpr std::size_t most_stores = 1 << 16;
  if (options.queues == 0) options.queues = std::min(4 * threads, most_queues);
  if (Status status = check_power("depth", options.depth, {64U, 4096U}); !status) return status;
  if (Status status = check_power("place_bytes", options.place_bytes, {512U, 1U << 20}); !status) return status;
  if (Status status = check_time("timeout_seconds", options.timeout_seconds); !status) return status;
  if (Status status = check_time("stall_seconds", options.stall_seconds); !status) return status;
  if (options.gpu == Domain::pinned()) {
    return Error{Code::invalid_argument, 0, "GpuQueuesOptions::gpu is pinned memory",
                 "name a GPU (Domain::cuda), or Domain::host() for a set without one"};
  }
  if (options.queues > most_queues || options.ahead_places > most_ahead) {
    return Error{Code::invalid_argument, 0,
                 std::to_string(options.queues) + " queues and " + std::to_string(options.ahead_places) +
                     " places for reading ahead",
                 "choose at most 4096 queues and 1048576 places"};
  }
  if (options.stores.empty() || options.stores.size() > most_stores) {
    return Error{Code::invalid_argument, 0, "a set of queues for " + std::to_string(options.stores.size()) + " stores",
                 "give 1 to 65536 of them"};
  }
  return {};
}

Set::Set(std::uint32_t threads, std::shared_ptr<SpareMemory> spare)
    : parked(threads), counters_(threads), spare_(std::move(spare)) {
  spare_->begin_use();
}

Set::~Set() {
  spare_->give_back(std::move(shared_));
  spare_->give_back(std::move(own_));
  spare_->end_use();
}

Result<std::shared_ptr<Set>> Set::open(const Context& context, const GpuQueuesOptions& options, std::uint32_t threads,
                                       std::shared_ptr<SpareMemory> spare) {
  auto set = std::make_shared<Set>(threads, std::move(spare));
  set->options_ = options;
  for (GpuStore& store : set->options_.stores) {
    auto source = Source::open(context, store);
    if (!source) return std::move(source).error();
    if (const rows::Mapped mapping = (*source)->mapping(); !mapping.empty()) set->mappings_.push_back(mapping);
    const StoreWindow& window = (*source)->window();
    store.window = {window.begin, window.end - window.begin};
    store.block_bytes = window.block_bytes;
    if (window.block_bytes > options.place_bytes || options.place_bytes / window.block_bytes > 1U << 16) {
      return Error{Code::invalid_argument, 0,
                   "places of " + std::to_string(options.place_bytes) + " bytes for blocks of " +
                       std::to_string(window.block_bytes),
                   "a place takes 1 to 65536 blocks"};
    }
    set->sources_.push_back(std::move(*source));
  }
  if (Status status = set->allocate(context); !status) return std::move(status).error();
  if (Status status = set->reset(); !status) return std::move(status).error();
  return set;
}

Status Set::allocate(const Context& context) {
  const bool on_host = options_.gpu.host_accessible();
  if (!on_host) {
    if (Status status = context.prepare(options_.gpu); !status) return status;
  }
  auto shared = spare_->take(context, on_host ? Domain::host() : Domain::pinned(), SharedLayout(options_).bytes);
  if (!shared) {
    Error error = std::move(shared).error();
    if (error.code == Code::over_budget) {
      error.hint = "ask for fewer queues, less depth, place_bytes or ahead_places, or raise pinned_budget_bytes";
    }
    return error;
  }
  shared_ = std::move(*shared);
  auto own = spare_->take(context, options_.gpu, OwnLayout(options_).bytes);
  if (!own) return std::move(own).error();
  own_ = std::move(*own);
  handle_ = reinterpret_cast<QueueSet*>(own_.data());
  shared_address_ = reinterpret_cast<std::uint64_t>(shared_.data());
  if (on_host) return {};
  auto address = gpu_address(options_.gpu, shared_.data());
  if (!address) return std::move(address).error();
  shared_address_ = *address;
  auto held = HeldFrees::begin();
  if (!held) return std::move(held).error();
  held_frees_ = std::move(*held);
  return {};
}

Status Set::reset() {
  const SharedLayout layout(options_);
  places_ = shared_.data() + layout.places;
  std::memset(shared_.data(), 0, layout.places);
  auto* const stops = reinterpret_cast<std::uint32_t*>(shared_.data() + layout.stops);
  std::fill_n(stops, options_.queues + 1, static_cast<std::uint32_t>(nvme::Poison::deleted));
  queues_.clear();
  for (std::uint32_t i = 0; i < options_.queues; ++i) {
    queues_.emplace_back(layout.queue(options_, reinterpret_cast<std::uint64_t>(shared_.data()), i));
  }
  return write_states();
}

Status Set::write_states() {
  const SharedLayout shared(options_);
  const OwnLayout own(options_);
  // Made here as it shall be there, with addresses as they are there.
  const auto base = reinterpret_cast<std::uint64_t>(own_.data());
  const std::span image(places_, own.bytes);  // no kernel uses the places now
  std::ranges::fill(image, std::byte{0});
  const auto put = [&](std::uint64_t offset, const auto& value) {
    std::memcpy(image.data() + offset, &value, sizeof value);
  };
  QueueSet set;
  set.queue_count = options_.queues;
  set.store_count = static_cast<std::uint32_t>(sources_.size());
  set.ahead_count = options_.ahead_places;
  set.place_bytes = options_.place_bytes;
  set.generation = ++generation_;
  set.timeout_ns = nanoseconds(options_.timeout_seconds);
  set.stall_ns = nanoseconds(options_.stall_seconds);
  set.queues = reinterpret_cast<QueuePairState*>(base + own.queues);
  set.stores = reinterpret_cast<const StoreWindow*>(base + own.stores);
  set.ahead = reinterpret_cast<device::AheadPlace*>(base + own.ahead);
  set.places = reinterpret_cast<unsigned char*>(shared_address_ + shared.places);
  set.notes = reinterpret_cast<device::Notes*>(shared_address_ + shared.notes);
  put(own.set, set);
  for (std::size_t i = 0; i < sources_.size(); ++i) put(own.stores + i * sizeof(StoreWindow), sources_[i]->window());
  for (std::uint32_t i = 0; i < options_.queues; ++i) {
    QueuePairState state;
    state.memory = shared.queue(options_, shared_address_, i);
    const std::uint64_t first_slot = own.slots + std::uint64_t{i} * options_.depth * sizeof(nvme::Slot);
    state.memory.slots = reinterpret_cast<nvme::Slot*>(base + first_slot);
    put(own.queues + i * sizeof state, state);
    for (std::uint64_t ticket = 0; ticket < options_.depth; ++ticket) {
      put(first_slot + ticket * sizeof(nvme::Slot), nvme::Slot{2 * ticket, nullptr, {}, 0});
    }
  }
  for (std::uint32_t i = 0; i < options_.ahead_places; ++i) {
    put(own.ahead + i * sizeof(device::AheadPlace), device::AheadPlace{});
  }
  if (options_.gpu.host_accessible()) {
    std::memcpy(own_.data(), image.data(), image.size());
    return {};
  }
  return copy_by_engine({{own_.data(), own.bytes, options_.gpu}, own.bytes / 2, own.bytes / 2},
                        {{places_, own.bytes, Domain::pinned()}, own.bytes / 2, own.bytes / 2});
}

Status Set::stop() {
  constexpr std::size_t word_bytes = sizeof(std::uint32_t);
  constexpr std::size_t pitch_bytes = sizeof(QueuePairState);
  const std::size_t count = options_.queues + 1;  // two rows at least
  std::byte* const first = own_.data() + OwnLayout(options_).queues + offsetof(QueuePairState, poison);
  std::byte* const stops = shared_.data() + SharedLayout(options_).stops;
  if (!options_.gpu.host_accessible()) {
    return copy_by_engine({{first, (count - 1) * pitch_bytes + word_bytes, options_.gpu}, word_bytes, pitch_bytes},
                          {{stops, count * word_bytes, Domain::pinned()}, word_bytes, word_bytes});
  }
  for (std::size_t i = 0; i < count; ++i) {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(first + i * pitch_bytes),
                     static_cast<std::uint32_t>(nvme::Poison::deleted), __ATOMIC_RELEASE);
  }
  return {};
}

Set::Checked Set::check(const nvme::Command& command) const {
  Checked checked;
  Transfer& transfer = checked.transfer;
  transfer.cid = command.cid;
  const auto refuse = [&](nvme::StatusField field) {
    checked.refusal = field;
    return checked;
  };
  transfer.writes = command.opcode == static_cast<std::uint8_t>(nvme::IoOpcode::write);
  if (!transfer.writes && command.opcode != static_cast<std::uint8_t>(nvme::IoOpcode::read)) {
    return refuse(nvme::status::invalid_opcode);
  }
  if (command.nsid == 0 || command.nsid > sources_.size()) return refuse(nvme::status::invalid_namespace);
  transfer.source = sources_[command.nsid - 1].get();
  const StoreWindow& window = transfer.source->window();
  transfer.bytes = nvme::sgl::bytes_of(command.prp2);
  const std::uint64_t room = places() * options_.place_bytes;
  const std::uint64_t blocks = (std::uint64_t{transfer.bytes} + window.block_bytes - 1) >> window.block_shift;
  if (command.flags != nvme::sgl::in_command || nvme::sgl::kind_of(command.prp2) != nvme::sgl::offset ||
      transfer.bytes == 0 || transfer.bytes > options_.place_bytes || command.prp1 > room ||
      transfer.bytes > room - command.prp1 || blocks != (command.dw12 & 0xffff) + 1) {
    return refuse(nvme::status::invalid_field);
  }
  transfer.place = places_ + command.prp1;
  const std::uint64_t block = command.first_block();
  if (block > window.end >> window.block_shift) return refuse(nvme::status::lba_out_of_range);
  transfer.offset = block << window.block_shift;
  if (transfer.offset < window.begin || transfer.bytes > window.end - std::min(window.end, transfer.offset)) {
    return refuse(nvme::status::lba_out_of_range);
  }
  if (transfer.writes && window.writable == 0) return refuse(nvme::status::write_protected);
  return checked;
}

void Set::note_error(const Error& error) {
  const std::scoped_lock lock(mutex_);
  last_error_ = error;
}

GpuQueuesReport Set::report() const {
  GpuQueuesReport report;
  for (const Counters& each : counters_) {
    report.reads += each.reads.load(std::memory_order_relaxed);
    report.writes += each.writes.load(std::memory_order_relaxed);
    report.read_bytes += each.read_bytes.load(std::memory_order_relaxed);
    report.written_bytes += each.written_bytes.load(std::memory_order_relaxed);
    report.mapped_bytes += each.mapped_bytes.load(std::memory_order_relaxed);
    report.requests += each.requests.load(std::memory_order_relaxed);
    report.failed += each.failed.load(std::memory_order_relaxed);
    report.refused += each.refused.load(std::memory_order_relaxed);
  }
  const auto* const notes = reinterpret_cast<const device::Notes*>(shared_.data() + SharedLayout(options_).notes);
  report.timed_out = __atomic_load_n(&notes->timed_out, __ATOMIC_ACQUIRE) != 0;
  report.stalled = __atomic_load_n(&notes->stalled, __ATOMIC_ACQUIRE) != 0;
  const std::scoped_lock lock(mutex_);
  report.last_error = last_error_;
  return report;
}

}  // namespace penstock::gpu_queues
