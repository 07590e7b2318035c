#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "driver.h"

namespace fake_cuda {

namespace {

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// The same pages twice: at the address that the program gets, without any right, and where the fake reaches them.
bool map_twice(std::size_t bytes, void*& address, void*& data) {
  const int file = ::memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0) return false;
  const bool is_sized = ::ftruncate(file, static_cast<off_t>(bytes)) == 0;
  address = is_sized ? ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0) : MAP_FAILED;
  data = is_sized ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  ::close(file);
  if (address != MAP_FAILED && data != MAP_FAILED) return true;
  if (address != MAP_FAILED) ::munmap(address, bytes);
  if (data != MAP_FAILED) ::munmap(data, bytes);
  return false;
}

}  // namespace

bool is_mapped(void* address, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(address) / page * page;
  const std::size_t length = reinterpret_cast<std::uintptr_t>(address) + bytes - start;
  return ::msync(reinterpret_cast<void*>(start), length, MS_ASYNC) ==
         0;  // changes nothing; ENOMEM where none is mapped
}

CuResult Driver::allocate(Device& device, std::size_t bytes, CuDevicePtr& address) {
  if (bytes == 0) return cu_invalid_value;
  if (device.used_bytes > device_bytes || bytes > device_bytes - device.used_bytes) return cu_out_of_memory;
  void* start = nullptr;
  void* data = nullptr;
  if (!map_twice(whole_pages(bytes), start, data)) return cu_out_of_memory;
  address = reinterpret_cast<CuDevicePtr>(start);
  device.used_bytes += bytes;
  memory[address] = std::make_shared<Memory>(Memory{.device = &device,
                                                    .start = address,
                                                    .bytes = bytes,
                                                    .data = static_cast<std::byte*>(data),
                                                    .on_device = true,
                                                    .is_portable = true,
                                                    .buffer_id = ++last_buffer_id,
                                                    .piece_bytes = piece_bytes});
  return cu_success;
}

CuResult Driver::free(Lock& lock, CuDevicePtr address) {
  if (address == 0) return cu_success;
  const auto range = memory_at(address);
  if (range == nullptr || !range->on_device || range->start != address) return cu_invalid_value;
  remove(lock, range);
  return cu_success;
}

CuResult Driver::register_host(Device& device, void* address, std::size_t bytes, unsigned flags) {
  const auto start = reinterpret_cast<CuDevicePtr>(address);
  constexpr unsigned known_flags = 0xf;
  if (address == nullptr || bytes == 0 || (flags & ~known_flags) != 0) return cu_invalid_value;
  if (overlaps(start, bytes)) return cu_host_memory_already_registered;
  if (!is_mapped(address, bytes)) return cu_invalid_value;
  memory[start] = std::make_shared<Memory>(Memory{.device = &device,
                                                  .start = start,
                                                  .bytes = bytes,
                                                  .data = static_cast<std::byte*>(address),
                                                  .on_device = false,
                                                  .is_portable = (flags & cu_host_register_portable) != 0,
                                                  .buffer_id = ++last_buffer_id});
  return cu_success;
}

CuResult Driver::unregister_host(Lock& lock, void* address) {
  const auto range = memory_at(reinterpret_cast<CuDevicePtr>(address));
  if (range == nullptr || range->on_device || range->data != address) return cu_host_memory_not_registered;
  remove(lock, range);
  return cu_success;
}

std::shared_ptr<Memory> Driver::memory_at(CuDevicePtr address) {
  const auto after = memory.upper_bound(address);
  if (after == memory.begin()) return nullptr;
  const auto& range = std::prev(after)->second;
  return address - range->start < range->bytes ? range : nullptr;
}

bool Driver::overlaps(CuDevicePtr address, std::size_t bytes) {
  const auto next = memory.lower_bound(address);
  return memory_at(address) != nullptr || (next != memory.end() && next->first - address < bytes);
}

std::byte* Driver::device_bytes_at(CuDevicePtr address, std::size_t bytes) {
  const auto range = memory_at(address);
  if (range == nullptr || !range->on_device || !range->holds(address, bytes)) return nullptr;
  return range->data + (address - range->start);
}

void Driver::remove(Lock& lock, const std::shared_ptr<Memory>& range) {
  memory.erase(range->start);
  changed.wait(lock, [&] { return range->in_use == 0; });
  if (!range->on_device) return;
  range->device->used_bytes -= range->bytes;
  ::munmap(range->data, whole_pages(range->bytes));
  ::munmap(reinterpret_cast<void*>(range->start), whole_pages(range->bytes));
}

bool hold(Side& side, CuDevicePtr address, std::size_t bytes, const Device& device, const Device* only) {
  auto range = driver().memory_at(address);
  if (range == nullptr || !range->holds(address, bytes)) return false;
  const bool is_reachable =
      range->on_device ? only == nullptr || range->device == only : range->is_portable || range->device == &device;
  if (!is_reachable) return false;
  side.data = range->data + (address - range->start);
  ++range->in_use;
  side.range = std::move(range);
  return true;
}

void let_go(const Side& side) {
  if (side.range != nullptr) --side.range->in_use;
  driver().changed.notify_all();
}

namespace {

struct Move {
  Side to{};
  Side from{};
  std::size_t bytes = 0;
};

void let_go(std::vector<Move>& moves) {
  for (const Move& move : moves) {
    let_go(move.to);
    let_go(move.from);
  }
}

void count(const std::vector<Move>& moves) {
  FakeCudaCounters& counters = driver().counters;
  for (const Move& move : moves) {
    const bool from_device = move.from.range != nullptr && move.from.range->on_device;
    const bool to_device = move.to.range != nullptr && move.to.range->on_device;
    ++counters.copies;
    if (from_device && to_device) counters.bytes_within_devices += move.bytes;
    if (!from_device && to_device) counters.bytes_to_device += move.bytes;
    if (from_device && !to_device) counters.bytes_from_device += move.bytes;
  }
}

bool hold_all(std::vector<Move>& moves, const Device& device, const std::vector<Copy>& copies, const Device* only) {
  for (const Copy& copy : copies) {
    Move& move = moves.emplace_back(Move{.bytes = copy.bytes});
    if (copy.staged_from != nullptr) {
      move.from.data = copy.staged_from->data();
    } else if (!hold(move.from, copy.from, copy.bytes, device, only)) {
      return false;
    }
    if (copy.pageable_to != nullptr) {
      move.to.data = copy.pageable_to;
    } else if (!hold(move.to, copy.to, copy.bytes, device, only)) {
      return false;
    }
  }
  return true;
}

}  // namespace

CuResult run_copies(Lock& lock, Device& device, const std::vector<Copy>& copies, const Device* only) {
  if (device.copies_until_failure > 0 && device.copies_until_failure <= copies.size()) {
    device.copies_until_failure = 0;
    return device.copy_failure;
  }
  device.copies_until_failure -= std::min<unsigned>(device.copies_until_failure, static_cast<unsigned>(copies.size()));

  std::vector<Move> moves;
  moves.reserve(copies.size());
  if (!hold_all(moves, device, copies, only)) {
    let_go(moves);
    return cu_illegal_address;
  }
  lock.unlock();
  start_watching();
  // Last to first: nobody may rely on an order within a batch or a kernel.
  for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
    std::memcpy(move->to.data, move->from.data, move->bytes);
  }
  stop_watching();
  lock.lock();
  count(moves);
  let_go(moves);
  return cu_success;
}

}  // namespace fake_cuda
