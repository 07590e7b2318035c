// The kernels that find rows in GPU memory and place others, as cuda/row_cache.h has them. A kernel runs as a whole:
// nobody else uses the cache meanwhile, so what a set's lock and a tag's changes are for does not happen here.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "cuda/row_cache.h"
#include "driver.h"

namespace fake_cuda {

namespace {

using Layout = RowCacheLayout;

// Memory as a kernel reaches it. What lies in a cache may be used by streams that nothing orders, which the thread
// sanitizer is not to see; all else is watched.
class Reach {
 public:
  explicit Reach(const Device& device) : device_(device) {}

  std::byte* at(CuDevicePtr address, std::size_t bytes) {
    const auto range = driver().memory_at(address);
    const bool is_there = range != nullptr && range->holds(address, bytes) &&
                          (range->device == &device_ || (!range->on_device && range->is_portable));
    if (!is_there) {
      is_lost_ = true;
      return nullptr;
    }
    return range->data + (address - range->start);
  }
  void read(void* to, CuDevicePtr from, std::size_t bytes) {
    const std::byte* const data = at(from, bytes);
    if (data == nullptr) return;
    start_watching();
    std::memcpy(to, data, bytes);
    stop_watching();
  }
  void write(CuDevicePtr to, const void* from, std::size_t bytes) {
    std::byte* const data = at(to, bytes);
    if (data == nullptr) return;
    start_watching();
    std::memcpy(data, from, bytes);
    stop_watching();
  }
  template <typename Value>
  Value value(CuDevicePtr address) {
    Value read_value{};
    expect_aligned(address, sizeof(Value));
    read(&read_value, address, sizeof read_value);
    return read_value;
  }
  template <typename Value>
  void put(CuDevicePtr address, Value value) {
    expect_aligned(address, sizeof(Value));
    write(address, &value, sizeof value);
  }
  void expect_aligned(CuDevicePtr address, std::size_t bytes) { is_lost_ |= address % bytes != 0; }
  // Whether something was not there, or not aligned.
  bool is_lost() const { return is_lost_; }

 private:
  const Device& device_;
  bool is_lost_ = false;
};

std::uint64_t number_at(Reach& reach, const RowsEntry& entry, std::uint32_t place) {
  const std::size_t bytes = std::size_t{1} << (entry.type / 2);
  const bool is_signed = entry.type % 2 == 0;
  std::uint64_t number = 0;
  reach.expect_aligned(entry.numbers, bytes);
  reach.read(&number, entry.numbers + std::uint64_t{place} * bytes, bytes);
  const std::size_t unused = 64 - 8 * bytes;
  return is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(number << unused) >> unused) : number;
}

// The set that a row can be in.
struct Set {
  std::uint64_t* tags;
  RowCacheSet* state;
  CuDevicePtr slots;

  unsigned find(std::uint64_t number) const {
    unsigned way = 0;
    while (way < Layout::ways && (tags[way] & Layout::number_mask) != number + 1) ++way;
    return way;
  }
};

// Without tags where the entry is no good.
Set set_of(Reach& reach, const RowsEntry& entry, std::uint64_t number) {
  if (entry.set_count == 0) return {};
  const std::uint64_t set = number % entry.set_count;
  const CuDevicePtr tags = entry.tags + set * Layout::ways * sizeof(std::uint64_t);
  const CuDevicePtr state = entry.sets + set * sizeof(RowCacheSet);
  return {reinterpret_cast<std::uint64_t*>(reach.at(tags, Layout::ways * sizeof(std::uint64_t))),
          reinterpret_cast<RowCacheSet*>(reach.at(state, sizeof(RowCacheSet))),
          entry.slots + set * Layout::ways * entry.slot_bytes};
}

bool take_from_cache(Reach& reach, const RowsEntry& entry, std::uint32_t place, std::uint64_t number) {
  if (number >= entry.table_rows) return false;
  const Set set = set_of(reach, entry, number);
  if (reach.is_lost() || set.tags == nullptr) return false;
  const unsigned way = set.find(number);
  if (way == Layout::ways) return false;
  const std::byte* const slot = reach.at(set.slots + way * entry.slot_bytes, entry.row_bytes);
  if (slot == nullptr) return false;
  const std::vector<std::byte> row(slot, slot + entry.row_bytes);
  reach.write(entry.memory + place * entry.row_bytes, row.data(), row.size());
  set.state->used |= 1U << way;
  return true;
}

unsigned slot_to_give_up(const Set& set) {
  for (unsigned way = 0; way < Layout::ways; ++way) {
    if ((set.tags[way] & Layout::number_mask) == 0) return way;
  }
  unsigned way = set.state->next >> 1;
  for (unsigned i = 0; i < Layout::ways && (set.state->used >> way & 1) != 0; ++i) {
    set.state->used &= ~(1U << way);
    way = (way + 1) % Layout::ways;
  }
  return way;
}

void keep(Reach& reach, const RowsEntry& entry, std::uint64_t number, const std::vector<std::byte>& row) {
  if (number >= entry.table_rows || number >= Layout::number_mask) return;
  const Set set = set_of(reach, entry, number);
  if (reach.is_lost() || set.tags == nullptr || set.find(number) != Layout::ways) return;
  const unsigned way = slot_to_give_up(set);
  std::byte* const slot = reach.at(set.slots + way * entry.slot_bytes, row.size());
  if (slot == nullptr) return;
  std::memcpy(slot, row.data(), row.size());
  const std::uint64_t changes = (set.tags[way] >> Layout::number_bits) + 1;
  set.tags[way] = changes << Layout::number_bits | (number + 1);
  set.state->next = (way + 1) % Layout::ways << 1;
}

// What the last block does.
void ask_or_go_on(Reach& reach, CuDevicePtr at, std::uint64_t missing) {
  RowsEntry entry{};
  reach.read(&entry, at, sizeof entry);
  if (entry.round == 0 || reach.is_lost()) return;
  auto* const round = reinterpret_cast<RowsRound*>(reach.at(entry.round, sizeof(RowsRound)));
  auto* const passed = reinterpret_cast<std::uint64_t*>(reach.at(entry.passed, sizeof(std::uint64_t)));
  if (reach.is_lost()) return;
  const auto now = static_cast<std::uint64_t>(Clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
  const bool is_trusted = round->asked_at != 0 && round->failed == 0 && round->layout == entry.layout &&
                          now - round->asked_at < entry.trusted_ns;
  CuDevicePtr word = entry.ask_word;
  if (missing == 0 && is_trusted) {
    __atomic_store_n(passed, ++round->passed, __ATOMIC_RELAXED);
    word = entry.answer_word;
  } else {
    round->asked_at = now;
    round->failed = 0;
    round->layout = entry.layout;
  }
  auto* const written = reinterpret_cast<std::uint32_t*>(reach.at(word, sizeof(std::uint32_t)));
  if (written == nullptr) return;
  start_watching();
  __atomic_store_n(written, 1, __ATOMIC_RELEASE);
  stop_watching();
}

std::uint32_t find_rows(Reach& reach, CuDevicePtr at) {
  RowsEntry entry{};
  reach.read(&entry, at, sizeof entry);
  std::uint32_t missing = 0;
  for (std::uint32_t i = 0; i < std::min(entry.count, RowsEntry::most_rows) && !reach.is_lost(); ++i) {
    const std::uint32_t place = entry.first + i;
    const std::uint64_t number = number_at(reach, entry, place);
    if (take_from_cache(reach, entry, place, number)) continue;
    const std::uint64_t to = entry.first + missing++;
    for (const CuDevicePtr numbers : {entry.asked_numbers, entry.missing_numbers}) {
      reach.put(numbers + to * sizeof number, number);
    }
    for (const CuDevicePtr places : {entry.asked_places, entry.missing_places}) {
      reach.put(places + to * sizeof place, place);
    }
  }
  reach.put(at + offsetof(RowsEntry, missing), missing);
  return missing;
}

void place_rows(Reach& reach, CuDevicePtr at) {
  RowsEntry entry{};
  reach.read(&entry, at, sizeof entry);
  if (reach.is_lost()) return;
  if (entry.first == 0 && entry.status != 0) reach.put(entry.status, entry.code);
  if (entry.code != 0) {
    if (entry.round != 0) {
      auto* const round = reinterpret_cast<RowsRound*>(reach.at(entry.round, sizeof(RowsRound)));
      if (round != nullptr) round->failed = 1;
    }
    const std::vector<std::byte> zeros(entry.count * entry.row_bytes);
    reach.write(entry.memory + entry.first * entry.row_bytes, zeros.data(), zeros.size());
    return;
  }
  std::vector<std::byte> row(entry.row_bytes);
  for (std::uint32_t i = 0; i < entry.missing && !reach.is_lost(); ++i) {
    const std::uint64_t from = entry.first + i;
    const auto number = reach.value<std::uint64_t>(entry.missing_numbers + from * sizeof(std::uint64_t));
    const auto place = reach.value<std::uint32_t>(entry.missing_places + from * sizeof(std::uint32_t));
    reach.read(row.data(), entry.answer + (entry.answer_begin + i) * entry.row_bytes, row.size());
    reach.write(entry.memory + place * entry.row_bytes, row.data(), row.size());
    keep(reach, entry, number, row);
  }
}

}  // namespace

CuResult run_row_kernel(RowKernel kernel, const Device& device, CuDevicePtr entries, unsigned count) {
  Reach reach(device);
  std::uint64_t missing = 0;
  // Last to first: nobody may rely on an order of blocks.
  for (unsigned i = count; i > 0 && !reach.is_lost(); --i) {
    const CuDevicePtr at = entries + (i - 1) * sizeof(RowsEntry);
    if (kernel == RowKernel::find) {
      missing += find_rows(reach, at);
    } else {
      place_rows(reach, at);
    }
  }
  if (kernel == RowKernel::find && count != 0) ask_or_go_on(reach, entries, missing);
  return reach.is_lost() ? cu_illegal_address : cu_success;
}

}  // namespace fake_cuda
