#include <algorithm>
#include <cstring>

#include "driver.h"

using namespace fake_cuda;

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

FAKE_CUDA_EXPORT void fake_cuda_reset() {
  Lock lock(driver().mutex);
  driver().reset(lock);
}

FAKE_CUDA_EXPORT void fake_cuda_clear_injections() {
  const Lock lock(driver().mutex);
  driver().clear_injections();
}

FAKE_CUDA_EXPORT void fake_cuda_set_devices(int count, std::uint64_t memory_bytes) {
  const Lock lock(driver().mutex);
  driver().wanted_devices = count;
  driver().wanted_device_bytes = memory_bytes;
}

FAKE_CUDA_EXPORT void fake_cuda_set_connections(unsigned count) {
  const Lock lock(driver().mutex);
  driver().wanted_connections = count;
  driver().connections = count;
  for (const auto& device : driver().devices) {
    device->channels.clear();
    device->next_channel.clear();
    for (const auto& weak : device->streams) {
      const auto stream = weak.lock();
      if (stream == nullptr || !driver().reached({stream, stream->queued})) continue;
      driver().close_own_channels(*stream);
      stream->channels.clear();
    }
  }
}

FAKE_CUDA_EXPORT void fake_cuda_set_attribute(int device, int attribute, int value) {
  const Lock lock(driver().mutex);
  if (Device* const found = driver().device(device)) found->attributes[attribute] = value;
}

FAKE_CUDA_EXPORT void fake_cuda_set_delays(std::uint64_t seed, unsigned max_us) {
  const Lock lock(driver().mutex);
  driver().random.seed(seed);
  driver().max_delay_us = max_us;
}

FAKE_CUDA_EXPORT void fake_cuda_set_pieces(std::size_t bytes) {
  const Lock lock(driver().mutex);
  driver().piece_bytes = bytes;
}

FAKE_CUDA_EXPORT void fake_cuda_set_bandwidth(int device, std::uint64_t bytes_per_s) {
  const Lock lock(driver().mutex);
  if (Device* const found = driver().device(device)) found->bytes_per_s = bytes_per_s;
}

FAKE_CUDA_EXPORT void fake_cuda_set_synchronizing_calls_block(int block, unsigned limit_ms) {
  const Lock lock(driver().mutex);
  driver().synchronizing_calls_block = block;
  driver().synchronizing_limit = std::chrono::milliseconds(limit_ms);
}

FAKE_CUDA_EXPORT void fake_cuda_fail_call(const char* function, unsigned nth, int result, int always) {
  const Lock lock(driver().mutex);
  driver().injections[function] = {.calls_left = nth, .result = result, .always = always != 0};
}

FAKE_CUDA_EXPORT void fake_cuda_delay_call(const char* function, unsigned ms) {
  const Lock lock(driver().mutex);
  driver().call_delays[function] = std::chrono::milliseconds(ms);
}

FAKE_CUDA_EXPORT void fake_cuda_fail_copy(int device, unsigned nth, int result) {
  const Lock lock(driver().mutex);
  Device* const found = driver().device(device);
  if (found == nullptr) return;
  found->copies_until_failure = nth;
  found->copy_failure = result;
}

FAKE_CUDA_EXPORT void fake_cuda_hang(int device, int hung) {
  const Lock lock(driver().mutex);
  if (Device* const found = driver().device(device)) found->is_hung = hung != 0;
  driver().announce();
}

FAKE_CUDA_EXPORT int fake_cuda_is_inside() {
  return calls_deep;
}

FAKE_CUDA_EXPORT std::uint64_t fake_cuda_calls(const char* function) {
  const Lock lock(driver().mutex);
  const auto* const count = Driver::find(driver().calls, function);
  return count == nullptr ? 0 : *count;
}

FAKE_CUDA_EXPORT FakeCudaCounters fake_cuda_counters() {
  Driver& d = driver();
  const Lock lock(d.mutex);
  FakeCudaCounters counters = d.counters;
  counters.contexts =
      std::count_if(d.devices.begin(), d.devices.end(), [](auto& each) { return each->references > 0; });
  counters.streams = d.streams.size();
  counters.events = d.events.size();
  counters.modules = d.modules.size();
  counters.allocations =
      std::count_if(d.memory.begin(), d.memory.end(), [](auto& each) { return each.second->on_device; });
  counters.registrations = d.memory.size() - counters.allocations;
  return counters;
}

FAKE_CUDA_EXPORT std::size_t fake_cuda_last_breach(char* text, std::size_t size) {
  const Lock lock(driver().mutex);
  const std::string& breach = driver().last_breach;
  if (size > 0) text[breach.copy(text, size - 1)] = '\0';
  return breach.size();
}

FAKE_CUDA_EXPORT int fake_cuda_peek(std::uint64_t address, void* to, std::size_t bytes) {
  const Lock lock(driver().mutex);
  const std::byte* const data = driver().device_bytes_at(address, bytes);
  if (data == nullptr) return cu_invalid_value;
  stop_watching();  // a test may look whether bytes have arrived yet
  std::memcpy(to, data, bytes);
  start_watching();
  return cu_success;
}

FAKE_CUDA_EXPORT int fake_cuda_poke(std::uint64_t address, const void* from, std::size_t bytes) {
  const Lock lock(driver().mutex);
  std::byte* const data = driver().device_bytes_at(address, bytes);
  if (data == nullptr) return cu_invalid_value;
  std::memcpy(data, from, bytes);
  return cu_success;
}

#define FAKE_CUDA_SAME(member, result, arguments) \
  static_assert(std::is_same_v<decltype(&fake_cuda_##member), decltype(FakeCuda::member)>);
FAKE_CUDA_CONTROL(FAKE_CUDA_SAME)
