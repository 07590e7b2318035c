#include "driver.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <utility>

namespace fake_cuda {

namespace {

constexpr std::uint64_t default_device_bytes = std::uint64_t{1} << 30;
constexpr int default_devices = 2;
constexpr unsigned unlimited_connections = 0;
constexpr std::chrono::seconds default_synchronizing_limit{10};

std::optional<std::uint64_t> number_from(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

// The boards that CUDA_VISIBLE_DEVICES lets through, in its order; like the driver, it ends at the first wrong entry.
std::vector<int> visible_boards(int count) {
  std::vector<int> boards;
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int board = 0; board < count; ++board) boards.push_back(board);
    return boards;
  }
  const char* next = text;
  for (;;) {
    char* end = nullptr;
    const long board = std::strtol(next, &end, 10);
    if (end == next || board < 0 || board >= count) return boards;
    boards.push_back(static_cast<int>(board));
    if (*end != ',') return boards;
    next = end + 1;
  }
}

std::map<int, int> attributes_of(int board) {
  return {{cu_attribute_pci_domain_id, 0},
          {cu_attribute_pci_bus_id, 0x17 + board},
          {cu_attribute_pci_device_id, 0},
          {cu_attribute_async_engine_count, 3},
          {cu_attribute_unified_addressing, 1},
          {cu_attribute_compute_capability_major, 9},
          {cu_attribute_compute_capability_minor, 0},
          {cu_attribute_can_use_host_pointer_for_registered_memory, 1},
          {cu_attribute_host_register_supported, 1},
          {cu_attribute_gpu_direct_rdma_supported, 0},
          {cu_attribute_dma_buf_supported, 0},
          {cu_attribute_host_numa_id, 0}};
}

}  // namespace

Driver& driver() {
  static auto* const only = new Driver;
  return *only;
}

CuResult Driver::initialize() {
  if (owner != 0) return cu_success;
  takes_kernels = number_from("FAKE_CUDA_KERNELS").value_or(1) != 0;
  version = static_cast<int>(number_from("FAKE_CUDA_VERSION").value_or(13000));
  device_bytes = wanted_device_bytes.value_or(number_from("FAKE_CUDA_MEMORY").value_or(default_device_bytes));
  connections = wanted_connections.value_or(
      static_cast<unsigned>(number_from("CUDA_DEVICE_MAX_CONNECTIONS").value_or(unlimited_connections)));
  const int count =
      wanted_devices.value_or(static_cast<int>(number_from("FAKE_CUDA_DEVICES").value_or(default_devices)));
  for (const int board : visible_boards(count)) {
    auto device = std::make_unique<Device>();
    device->ordinal = static_cast<int>(devices.size());
    device->board = board;
    device->attributes = attributes_of(board);
    devices.push_back(std::move(device));
  }
  if (devices.empty()) return cu_no_device;
  owner = ::getpid();
  return cu_success;
}

void Driver::clear_injections() {
  max_delay_us = 0;
  piece_bytes = 0;
  synchronizing_calls_block = 1;
  synchronizing_limit = default_synchronizing_limit;
  injections.clear();
  call_delays.clear();
  calls.clear();
  counters = {};
  last_breach.clear();
  for (const auto& device : devices) {
    device->attributes = attributes_of(device->board);
    if (device->error != cu_success) ++device->healings;
    device->error = cu_success;
    device->is_hung = false;
    device->bytes_per_s = 0;
    device->copies_until_failure = 0;
  }
  forget_captures();
  announce();
}

void Driver::reset(Lock& lock) {
  is_stopping = true;
  announce();
  changed.wait(lock, [this] { return working.empty() && waiters == 0; });
  for (const auto& device : devices) end_context(lock, *device);
  devices.clear();
  owner = 0;
  is_stopping = false;
  wanted_devices.reset();
  wanted_device_bytes.reset();
  wanted_connections.reset();
  clear_injections();
}

Device* Driver::device(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(devices.size()) ? devices[ordinal].get() : nullptr;
}

Device* Driver::device_of(CuContext context) {
  for (const auto& device : devices) {
    if (context != nullptr && device->context == context) return device.get();
  }
  return nullptr;
}

void Driver::end_context(Lock& lock, Device& device) {
  std::vector<CuStream> handles;
  for (const auto& [handle, stream] : streams) {
    if (stream->device == &device) handles.push_back(handle);
  }
  std::vector<std::shared_ptr<Memory>> ranges;
  for (const auto& [start, range] : memory) {
    if (range->device == &device) ranges.push_back(range);
  }
  const auto is_of_device = [&](const auto& entry) { return entry.second.device == &device; };
  counters.left_behind += handles.size() + ranges.size();
  counters.left_behind += std::erase_if(events, is_of_device) + std::erase_if(modules, is_of_device);
  std::erase_if(functions, is_of_device);
  std::erase_if(graphs, is_of_device);
  std::erase_if(executables, is_of_device);
  for (const CuStream handle : handles) destroy_stream(handle);
  for (const auto& range : ranges) remove(lock, range);

  for (const auto& [thread, stream] : device.per_thread) close_own_channels(*stream);
  if (device.legacy != nullptr) close_own_channels(*device.legacy);
  for (const auto& [unit, channels] : device.channels) {
    for (const auto& channel : channels) close(*channel);
  }
  device.per_thread.clear();
  device.legacy.reset();
  device.channels.clear();
  device.next_channel.clear();
  device.context = nullptr;
  device.references = 0;
}

void Driver::breach(std::string text) {
  ++counters.breaches;
  last_breach = std::move(text);
}

}  // namespace fake_cuda
