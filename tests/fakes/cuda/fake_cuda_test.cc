// The fake must behave as its users rely on: what it lets pass here, tests above it will not notice.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "control.h"
#include "cuda/api.h"
#include "tsan.h"

namespace {

using namespace penstock::cuda;
using namespace std::chrono_literals;

constexpr CuResult cu_invalid_handle = 400;
constexpr std::size_t page = 4096;
constexpr std::size_t slot_bytes = 1 << 20;

Api find_api() {
  Api api;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
#define FIND(member, symbol, arguments) api.member = reinterpret_cast<CuResult(*) arguments>(::dlsym(library, #symbol));
  PENSTOCK_CUDA_REQUIRED(FIND)
  PENSTOCK_CUDA_OPTIONAL(FIND)
#undef FIND
  return api;
}

// A new driver for each test, with the first device's context current.
class FakeCudaDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(FakeCuda::load(FAKE_CUDA_LIBRARY).has_value()) << ::dlerror(); }

  void SetUp() override {
    fake = FakeCuda::loaded().value();
    cu = find_api();
    fake.reset();
    start();
  }

  void TearDown() override {
    fake.reset();
    for (void* const each : mapped) ::munmap(each, slot_bytes);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    ::unsetenv("FAKE_CUDA_DEVICES");
  }

  void start() {
    ASSERT_EQ(cu.init(0), cu_success);
    ASSERT_EQ(cu.primary_context_retain(&context, 0), cu_success);
    ASSERT_EQ(cu.context_push(context), cu_success);
  }

  CuStream stream(unsigned flags = cu_stream_non_blocking, int priority = 0) {
    CuStream made = nullptr;
    EXPECT_EQ(cu.stream_create(&made, flags, priority), cu_success);
    return made;
  }

  CuEvent event() {
    CuEvent made = nullptr;
    EXPECT_EQ(cu.event_create(&made, cu_event_disable_timing), cu_success);
    return made;
  }

  CuDevicePtr device_memory(std::size_t bytes = slot_bytes) {
    CuDevicePtr address = 0;
    EXPECT_EQ(cu.memory_allocate(&address, bytes), cu_success);
    return address;
  }

  unsigned char* pageable(unsigned char fill) {
    void* const address = ::mmap(nullptr, slot_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapped.push_back(address);
    std::memset(address, fill, slot_bytes);
    return static_cast<unsigned char*>(address);
  }

  unsigned char* pinned(unsigned char fill) {
    unsigned char* const address = pageable(fill);
    EXPECT_EQ(cu.host_register(address, slot_bytes, cu_host_register_portable), cu_success);
    return address;
  }

  std::uint32_t* word() { return reinterpret_cast<std::uint32_t*>(pinned(0)); }

  static void release(std::uint32_t* word, std::uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

  CuResult wait_for(CuStream on, std::uint32_t* word, std::uint32_t value) {
    return cu.stream_wait_value(on, reinterpret_cast<CuDevicePtr>(word), value, cu_wait_value_geq);
  }

  // What a stream reaches when it has done all it was given until now.
  CuEvent recorded(CuStream on) {
    const CuEvent made = event();
    EXPECT_EQ(cu.event_record(made, on), cu_success);
    return made;
  }

  CuResult query_for(CuEvent of, std::chrono::milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    CuResult result = cu.event_query(of);
    while (result == cu_not_ready && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
      result = cu.event_query(of);
    }
    return result;
  }

  unsigned char peek(CuDevicePtr address) {
    unsigned char byte = 0;
    EXPECT_EQ(fake.peek(address, &byte, 1), cu_success);
    return byte;
  }

  std::string last_breach() {
    std::string text(200, '\0');
    text.resize(std::min(fake.last_breach(text.data(), text.size()), text.size()));
    return text;
  }

  FakeCuda fake;
  Api cu;
  CuContext context = nullptr;
  std::vector<void*> mapped;
};

TEST_F(FakeCudaDriver, answers_nothing_before_it_is_initialized) {
  fake.reset();
  int count = 0;
  EXPECT_EQ(cu.device_get_count(&count), cu_not_initialized);
  EXPECT_EQ(cu.init(0), cu_success);
  EXPECT_EQ(cu.device_get_count(&count), cu_success);
  EXPECT_EQ(count, 2);
}

TEST_F(FakeCudaDriver, describes_its_devices) {
  char name[64] = {};
  std::size_t bytes = 0;
  int major = 0;
  ASSERT_EQ(cu.device_get_name(name, sizeof name, 1), cu_success);
  EXPECT_STREQ(name, "Fake GPU 1");
  ASSERT_EQ(cu.device_total_mem(&bytes, 1), cu_success);
  EXPECT_EQ(bytes, std::size_t{1} << 30);
  ASSERT_EQ(cu.device_get_attribute(&major, cu_attribute_compute_capability_major, 1), cu_success);
  EXPECT_EQ(major, 9);
  EXPECT_EQ(cu.device_get_name(name, sizeof name, 2), cu_invalid_device);
  fake.set_attribute(1, cu_attribute_compute_capability_major, 7);
  ASSERT_EQ(cu.device_get_attribute(&major, cu_attribute_compute_capability_major, 1), cu_success);
  EXPECT_EQ(major, 7);
}

TEST_F(FakeCudaDriver, shows_only_the_visible_devices) {
  fake.reset();
  fake.set_devices(4, 1 << 20);
  ::setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
  ASSERT_EQ(cu.init(0), cu_success);
  int count = 0;
  char name[64] = {};
  EXPECT_EQ(cu.device_get_count(&count), cu_success);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cu.device_get_name(name, sizeof name, 0), cu_success);
  EXPECT_STREQ(name, "Fake GPU 3");

  fake.reset();
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(cu.init(0), cu_no_device);
}

TEST_F(FakeCudaDriver, takes_the_number_of_devices_from_the_environment) {
  fake.reset();
  ::setenv("FAKE_CUDA_DEVICES", "5", 1);
  int count = 0;
  ASSERT_EQ(cu.init(0), cu_success);
  EXPECT_EQ(cu.device_get_count(&count), cu_success);
  EXPECT_EQ(count, 5);
}

TEST_F(FakeCudaDriver, counts_references_to_a_primary_context) {
  CuContext again = nullptr;
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(cu.primary_context_retain(&again, 0), cu_success);
  EXPECT_EQ(again, context);
  EXPECT_EQ(cu.primary_context_release(0), cu_success);
  EXPECT_EQ(cu.primary_context_get_state(0, &flags, &active), cu_success);
  EXPECT_EQ(active, 1);
  device_memory();
  EXPECT_EQ(cu.primary_context_release(0), cu_success);
  EXPECT_EQ(cu.primary_context_get_state(0, &flags, &active), cu_success);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cu.primary_context_release(0), cu_invalid_context);
  EXPECT_EQ(fake.counters().left_behind, 1U);
}

TEST_F(FakeCudaDriver, keeps_a_stack_of_contexts_for_each_thread) {
  CuDevicePtr address = 0;
  std::thread([&] {
    EXPECT_EQ(cu.memory_allocate(&address, page), cu_invalid_context);
    EXPECT_EQ(cu.context_pop(nullptr), cu_invalid_context);
  }).join();
  CuContext other = nullptr;
  ASSERT_EQ(cu.primary_context_retain(&other, 1), cu_success);
  ASSERT_EQ(cu.context_push(other), cu_success);
  address = device_memory(page);
  int ordinal = -1;
  EXPECT_EQ(cu.pointer_get_attribute(&ordinal, cu_pointer_device_ordinal, address), cu_success);
  EXPECT_EQ(ordinal, 1);
  CuContext popped = nullptr;
  EXPECT_EQ(cu.context_pop(&popped), cu_success);
  EXPECT_EQ(popped, other);
}

TEST_F(FakeCudaDriver, gives_device_memory_that_neither_cpu_nor_kernel_can_touch) {
  const CuDevicePtr address = device_memory();
  EXPECT_EQ(address % 512, 0U);
  char byte = 0;
  iovec local{&byte, 1};
  iovec remote{reinterpret_cast<void*>(address), 1};
  EXPECT_EQ(::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(::write(ends[1], reinterpret_cast<void*>(address), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(FakeCudaDriver, has_as_much_memory_as_it_says) {
  fake.reset();
  fake.set_devices(1, 1 << 20);
  start();
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  CuDevicePtr address = 0;
  EXPECT_EQ(cu.memory_allocate(&address, (1 << 20) + 1), cu_out_of_memory);
  EXPECT_EQ(cu.memory_allocate(&address, 0), cu_invalid_value);
  address = device_memory(1 << 19);
  EXPECT_EQ(cu.memory_get_info(&free_bytes, &total), cu_success);
  EXPECT_EQ(free_bytes, std::size_t{1} << 19);
  EXPECT_EQ(cu.memory_free(address + 512), cu_invalid_value);
  EXPECT_EQ(cu.memory_free(address), cu_success);
  EXPECT_EQ(cu.memory_free(address), cu_invalid_value);
  EXPECT_EQ(fake.counters().allocations, 0U);
}

TEST_F(FakeCudaDriver, knows_pointers_inside_its_memory_and_no_others) {
  const CuDevicePtr address = device_memory();
  unsigned type = 0;
  CuDevicePtr start_of_range = 0;
  std::size_t bytes = 0;
  bool is_managed = true;
  EXPECT_EQ(cu.pointer_get_attribute(&type, cu_pointer_memory_type, address + 700), cu_success);
  EXPECT_EQ(type, cu_memory_type_device);
  EXPECT_EQ(cu.pointer_get_attribute(&start_of_range, cu_pointer_range_start, address + 700), cu_success);
  EXPECT_EQ(start_of_range, address);
  EXPECT_EQ(cu.pointer_get_attribute(&bytes, cu_pointer_range_size, address + 700), cu_success);
  EXPECT_EQ(bytes, slot_bytes);
  EXPECT_EQ(cu.pointer_get_attribute(&is_managed, cu_pointer_is_managed, address), cu_success);
  EXPECT_FALSE(is_managed);
  EXPECT_EQ(cu.pointer_get_attribute(&type, cu_pointer_memory_type, reinterpret_cast<CuDevicePtr>(pinned(0) + 9)),
            cu_success);
  EXPECT_EQ(type, cu_memory_type_host);
  EXPECT_EQ(cu.pointer_get_attribute(&type, cu_pointer_memory_type, reinterpret_cast<CuDevicePtr>(pageable(0))),
            cu_invalid_value);
}

TEST_F(FakeCudaDriver, never_gives_a_buffer_id_twice) {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  const CuDevicePtr address = device_memory();
  EXPECT_EQ(cu.pointer_get_attribute(&first, cu_pointer_buffer_id, address), cu_success);
  EXPECT_EQ(cu.memory_free(address), cu_success);
  EXPECT_EQ(cu.pointer_get_attribute(&second, cu_pointer_buffer_id, device_memory()), cu_success);
  EXPECT_NE(first, second);
}

TEST_F(FakeCudaDriver, refuses_overlapping_registrations) {
  unsigned char* const slot = pinned(0);
  EXPECT_EQ(cu.host_register(slot + page, page, 0), cu_host_memory_already_registered);
  EXPECT_EQ(cu.host_unregister(slot + page), 713);
  CuDevicePtr device = 0;
  EXPECT_EQ(cu.host_get_device_pointer(&device, slot, 0), cu_success);
  EXPECT_EQ(device, reinterpret_cast<CuDevicePtr>(slot));
  EXPECT_EQ(cu.host_unregister(slot), cu_success);
  EXPECT_EQ(fake.counters().registrations, 0U);
  EXPECT_EQ(cu.host_register(slot, page, 0), cu_success);
}

TEST_F(FakeCudaDriver, copies_there_and_back) {
  const CuDevicePtr address = device_memory();
  unsigned char* const from = pinned(7);
  unsigned char* const to = pinned(0);
  const CuStream on = stream();
  ASSERT_EQ(cu.copy_to_device(address + 3, from, 1000, on), cu_success);
  ASSERT_EQ(cu.copy_from_device(to, address + 3, 1000, on), cu_success);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_EQ(std::memcmp(from, to, 1000), 0);
  EXPECT_EQ(to[1000], 0);
  EXPECT_EQ(fake.counters().bytes_to_device, 1000U);
  EXPECT_EQ(fake.counters().bytes_from_device, 1000U);
  EXPECT_EQ(fake.calls("cuMemcpyHtoDAsync_v2"), 1U);
}

TEST_F(FakeCudaDriver, copies_between_devices) {
  const CuDevicePtr here = device_memory();
  CuContext other = nullptr;
  ASSERT_EQ(cu.primary_context_retain(&other, 1), cu_success);
  ASSERT_EQ(cu.context_push(other), cu_success);
  const CuDevicePtr there = device_memory();
  ASSERT_EQ(cu.context_pop(nullptr), cu_success);
  ASSERT_EQ(fake.poke(here, "x", 1), cu_success);
  const CuStream on = stream();
  ASSERT_EQ(cu.copy_between_devices(there + 5, here, 1, on), cu_success);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_EQ(peek(there + 5), 'x');
  EXPECT_EQ(fake.counters().bytes_within_devices, 1U);
}

TEST_F(FakeCudaDriver, runs_work_after_the_call_that_queued_it) {
  const CuDevicePtr address = device_memory();
  fake.hang(0, 1);
  const CuStream on = stream();
  ASSERT_EQ(cu.copy_to_device(address, pinned(7), slot_bytes, on), cu_success);
  const CuEvent done = recorded(on);
  EXPECT_EQ(query_for(done, 20ms), cu_not_ready);
  EXPECT_EQ(peek(address), 0);
  fake.hang(0, 0);
  EXPECT_EQ(query_for(done, 10s), cu_success);
  EXPECT_EQ(peek(address), 7);
}

// The write to the slot is ordered by the wait-value here, so that the sanitizer has nothing to object.
TEST_F(FakeCudaDriver, copies_registered_memory_as_it_is_when_the_copy_runs) {
  const CuDevicePtr address = device_memory();
  unsigned char* const slot = pinned(7);
  std::uint32_t* const gate = word();
  const CuStream on = stream();
  ASSERT_EQ(wait_for(on, gate, 1), cu_success);
  ASSERT_EQ(cu.copy_to_device(address, slot, slot_bytes, on), cu_success);
  std::memset(slot, 9, slot_bytes);
  release(gate, 1);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_EQ(peek(address), 9);
}

TEST_F(FakeCudaDriver, takes_the_bytes_of_pageable_memory_in_the_call) {
  const CuDevicePtr address = device_memory();
  unsigned char* const from = pageable(7);
  const CuStream on = stream();
  fake.hang(0, 1);
  ASSERT_EQ(cu.copy_to_device(address, from, slot_bytes, on), cu_success);
  std::memset(from, 9, slot_bytes);
  fake.hang(0, 0);
  unsigned char* const to = pageable(0);
  ASSERT_EQ(cu.copy_from_device(to, address, slot_bytes, on), cu_success);
  EXPECT_EQ(to[slot_bytes - 1], 7) << "the call returned before the bytes had arrived";
}

TEST_F(FakeCudaDriver, copies_batches_of_either_direction) {
  const CuDevicePtr address = device_memory();
  unsigned char* const from = pinned(7);
  unsigned char* const back = pinned(0);
  ASSERT_EQ(fake.poke(address + page, "x", 1), cu_success);
  std::vector<CuDevicePtr> to{address, reinterpret_cast<CuDevicePtr>(back)};
  std::vector<CuDevicePtr> sources{reinterpret_cast<CuDevicePtr>(from), address + page};
  std::vector<std::size_t> bytes{10, 1};
  CuMemcpyAttributes attributes{.source_access_order = cu_source_access_order_stream,
                                .source_hint = {0, 0},
                                .destination_hint = {0, 0},
                                .flags = 0};
  std::size_t first = 0;
  const CuStream on = stream();
  EXPECT_EQ(cu.copy_batch(to.data(), sources.data(), bytes.data(), 2, &attributes, &first, 1, nullptr),
            cu_invalid_value);
  ASSERT_EQ(cu.copy_batch(to.data(), sources.data(), bytes.data(), 2, &attributes, &first, 1, on), cu_success);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_EQ(peek(address), 7);
  EXPECT_EQ(back[0], 'x');
  EXPECT_EQ(fake.counters().copies, 2U);
}

TEST_F(FakeCudaDriver, scatters_by_a_kernel) {
  struct Entry {
    std::uint64_t from, to, bytes;
  };
  const CuDevicePtr address = device_memory();
  unsigned char* const slot = pinned(7);
  auto* const table = reinterpret_cast<Entry*>(pinned(0));
  for (std::uint64_t i = 0; i < 3; ++i) table[i] = {reinterpret_cast<CuDevicePtr>(slot) + i, address + i * page, 100};
  CuModule module = nullptr;
  CuFunction function = nullptr;
  ASSERT_EQ(cu.module_load_data(&module, "image"), cu_success);
  EXPECT_EQ(cu.module_get_function(&function, module, "unknown"), cu_not_found);
  ASSERT_EQ(cu.module_get_function(&function, module, "penstock_scatter"), cu_success);
  unsigned count = 3;
  void* pointer = table;
  void* parameters[] = {&pointer, &count};
  const CuStream on = stream();
  ASSERT_EQ(cu.launch_kernel(function, 3, 1, 1, 256, 1, 1, 0, on, parameters, nullptr), cu_success);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_EQ(peek(address + 2 * page + 99), 7);
  EXPECT_EQ(peek(address + 2 * page + 100), 0);

  table[1].to = reinterpret_cast<CuDevicePtr>(pageable(0));
  ASSERT_EQ(cu.launch_kernel(function, 3, 1, 1, 256, 1, 1, 0, on, parameters, nullptr), cu_success);
  EXPECT_EQ(cu.stream_synchronize(on), cu_illegal_address);
}

TEST_F(FakeCudaDriver, orders_streams_by_recorded_events_only) {
  std::uint32_t* const gate = word();
  const CuStream first = stream();
  const CuStream second = stream();
  const CuEvent never = event();
  EXPECT_EQ(cu.event_query(never), cu_success);
  ASSERT_EQ(cu.stream_wait_event(second, never, 0), cu_success);
  EXPECT_EQ(query_for(recorded(second), 10s), cu_success);

  ASSERT_EQ(wait_for(first, gate, 1), cu_success);
  const CuEvent behind_gate = recorded(first);
  ASSERT_EQ(cu.stream_wait_event(second, behind_gate, 0), cu_success);
  const CuEvent after = recorded(second);
  EXPECT_EQ(query_for(after, 20ms), cu_not_ready);
  release(gate, 1);
  EXPECT_EQ(query_for(after, 10s), cu_success);
}

TEST_F(FakeCudaDriver, waits_for_values_cyclically) {
  std::uint32_t* const gate = word();
  const CuStream on = stream();
  release(gate, 0xfffffff0U);
  ASSERT_EQ(wait_for(on, gate, 5), cu_success);
  const CuEvent done = recorded(on);
  EXPECT_EQ(query_for(done, 20ms), cu_not_ready);
  release(gate, 6);
  EXPECT_EQ(query_for(done, 10s), cu_success);
  EXPECT_EQ(wait_for(on, reinterpret_cast<std::uint32_t*>(pageable(0)), 1), cu_invalid_value);
}

TEST_F(FakeCudaDriver, lets_a_destroyed_stream_finish) {
  const CuDevicePtr address = device_memory();
  const CuStream on = stream();
  fake.hang(0, 1);
  ASSERT_EQ(cu.copy_to_device(address, pinned(7), slot_bytes, on), cu_success);
  const CuEvent done = recorded(on);
  EXPECT_EQ(cu.stream_destroy(on), cu_success);
  EXPECT_EQ(cu.stream_synchronize(on), cu_invalid_handle);
  EXPECT_EQ(fake.counters().streams, 0U);
  fake.hang(0, 0);
  EXPECT_EQ(query_for(done, 10s), cu_success);
  EXPECT_EQ(peek(address), 7);
}

TEST_F(FakeCudaDriver, orders_the_null_stream_with_blocking_streams_both_ways) {
  std::uint32_t* const gate = word();
  const CuStream blocking = stream(0);
  const CuStream free_stream = stream(cu_stream_non_blocking);
  ASSERT_EQ(wait_for(blocking, gate, 1), cu_success);
  const CuEvent null_done = recorded(nullptr);
  const CuEvent free_done = recorded(free_stream);
  EXPECT_EQ(query_for(free_done, 10s), cu_success);
  EXPECT_EQ(query_for(null_done, 20ms), cu_not_ready);
  release(gate, 1);
  EXPECT_EQ(query_for(null_done, 10s), cu_success);

  ASSERT_EQ(wait_for(nullptr, gate, 2), cu_success);
  const CuEvent blocking_done = recorded(blocking);
  const CuEvent per_thread_done = recorded(reinterpret_cast<CuStream>(2));
  EXPECT_EQ(query_for(recorded(free_stream), 10s), cu_success);
  EXPECT_EQ(query_for(blocking_done, 20ms), cu_not_ready);
  EXPECT_EQ(cu.event_query(per_thread_done), cu_not_ready);
  release(gate, 2);
  EXPECT_EQ(query_for(blocking_done, 10s), cu_success);
  EXPECT_EQ(query_for(per_thread_done, 10s), cu_success);
}

TEST_F(FakeCudaDriver, tells_which_context_a_stream_is_of) {
  CuContext found = nullptr;
  EXPECT_EQ(cu.stream_get_context(stream(), &found), cu_success);
  EXPECT_EQ(found, context);
  EXPECT_EQ(cu.stream_get_context(nullptr, &found), cu_success);
  EXPECT_EQ(found, context);
}

TEST_F(FakeCudaDriver, holds_up_streams_that_share_a_connection_with_one_that_waits) {
  fake.reset();
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  start();
  std::uint32_t* const gate = word();
  const CuStream waiting = stream();
  const CuStream behind = stream();
  const CuStream urgent = stream(cu_stream_non_blocking, -5);
  const CuStream copying = stream();
  const CuDevicePtr address = device_memory();
  void* const slot = pinned(7);
  ASSERT_EQ(wait_for(waiting, gate, 1), cu_success);
  const CuEvent held_up = recorded(behind);
  const CuEvent held_up_too = recorded(urgent);
  ASSERT_EQ(cu.copy_to_device(address, slot, slot_bytes, copying), cu_success);
  EXPECT_EQ(query_for(recorded(copying), 10s), cu_success) << "copy engines have other connections";
  EXPECT_EQ(query_for(held_up, 20ms), cu_not_ready);
  EXPECT_EQ(cu.event_query(held_up_too), cu_not_ready) << "priorities don't help";
  release(gate, 1);
  EXPECT_EQ(query_for(held_up, 10s), cu_success);
  EXPECT_EQ(query_for(held_up_too, 10s), cu_success);

  fake.set_connections(2);
  const CuStream own = stream();
  const CuStream other = stream();
  ASSERT_EQ(wait_for(own, gate, 2), cu_success);
  EXPECT_EQ(query_for(recorded(other), 10s), cu_success);
  release(gate, 2);
}

TEST_F(FakeCudaDriver, blocks_synchronizing_calls_while_a_stream_waits_for_a_value) {
  std::uint32_t* const gate = word();
  const CuStream on = stream();
  ASSERT_EQ(wait_for(on, gate, 1), cu_success);
  fake.set_synchronizing_calls_block(1, 20);
  CuDevicePtr address = 0;
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_unknown);
  EXPECT_EQ(fake.counters().breaches, 1U);
  EXPECT_NE(last_breach().find("cuMemAlloc_v2"), std::string::npos) << last_breach();

  fake.set_synchronizing_calls_block(1, 10000);
  std::thread releasing([&] {
    std::this_thread::sleep_for(10ms);
    release(gate, 1);
  });
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_success);
  releasing.join();

  ASSERT_EQ(wait_for(on, gate, 2), cu_success);
  fake.set_synchronizing_calls_block(0, 0);
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_success);
  release(gate, 2);
}

TEST_F(FakeCudaDriver, breaks_for_good_when_a_copy_meets_freed_memory) {
  const CuDevicePtr address = device_memory();
  const CuStream on = stream();
  fake.hang(0, 1);
  ASSERT_EQ(cu.copy_to_device(address, pinned(7), slot_bytes, on), cu_success);
  const CuEvent done = recorded(on);
  ASSERT_EQ(cu.memory_free(address), cu_success);
  fake.hang(0, 0);
  EXPECT_EQ(query_for(done, 10s), cu_illegal_address);
  CuStream another = nullptr;
  EXPECT_EQ(cu.stream_create(&another, 0, 0), cu_illegal_address);
  EXPECT_EQ(cu.stream_synchronize(on), cu_illegal_address);

  CuContext other = nullptr;
  ASSERT_EQ(cu.primary_context_retain(&other, 1), cu_success) << "the other device still works";
  ASSERT_EQ(cu.context_push(other), cu_success);
  device_memory();
}

TEST_F(FakeCudaDriver, breaks_when_a_copy_goes_beyond_an_allocation) {
  const CuDevicePtr address = device_memory(page);
  const CuStream on = stream();
  EXPECT_EQ(cu.copy_to_device(address, pinned(7), page + 1, on), cu_success);
  EXPECT_EQ(cu.stream_synchronize(on), cu_illegal_address);
}

TEST_F(FakeCudaDriver, breaks_when_a_copy_names_no_memory_of_a_device) {
  EXPECT_EQ(cu.copy_to_device(reinterpret_cast<CuDevicePtr>(pageable(0)), pinned(7), page, stream()),
            cu_illegal_address);
  EXPECT_EQ(cu.memory_free(0), cu_illegal_address);
}

TEST_F(FakeCudaDriver, releases_all_who_wait_when_a_device_breaks) {
  std::uint32_t* const gate = word();
  const CuStream waiting = stream();
  const CuStream copying = stream();
  const CuDevicePtr address = device_memory();
  unsigned char* const slot = pinned(7);
  ASSERT_EQ(wait_for(waiting, gate, 1), cu_success);
  fake.fail_copy(0, 2, cu_ecc_uncorrectable);
  EXPECT_EQ(cu.copy_to_device(address, slot, page, copying), cu_success);
  EXPECT_EQ(cu.stream_synchronize(copying), cu_success);
  EXPECT_EQ(cu.copy_to_device(address, slot, page, copying), cu_success);
  EXPECT_EQ(cu.stream_synchronize(waiting), cu_ecc_uncorrectable);
}

TEST_F(FakeCudaDriver, fails_the_calls_it_is_told_to) {
  CuDevicePtr address = 0;
  fake.fail_call("cuMemAlloc_v2", 2, cu_out_of_memory, 0);
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_success);
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_out_of_memory);
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_success);
  fake.fail_call("cuMemAlloc_v2", 1, cu_unknown, 1);
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_unknown);
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_unknown);
  fake.clear_injections();
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_success);
}

TEST_F(FakeCudaDriver, reports_captures_and_refuses_work_on_them) {
  const CuStream on = stream(0);
  int status = -1;
  EXPECT_EQ(cu.stream_is_capturing(on, &status), cu_success);
  EXPECT_EQ(status, cu_capture_status_none);
  ASSERT_EQ(fake.set_capture(on, 1), cu_success);
  EXPECT_EQ(cu.stream_is_capturing(on, &status), cu_success);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(cu.stream_is_capturing(nullptr, &status), cu_stream_capture_implicit);
  EXPECT_EQ(cu.event_record(event(), on), 901);
  EXPECT_EQ(fake.counters().breaches, 1U);
}

TEST_F(FakeCudaDriver, copies_no_faster_than_its_bandwidth) {
  const CuDevicePtr address = device_memory();
  fake.set_bandwidth(0, slot_bytes * 20);
  const CuStream on = stream();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(cu.copy_to_device(address, pinned(7), slot_bytes, on), cu_success);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
}

TEST_F(FakeCudaDriver, keeps_order_under_random_delays_and_many_threads) {
  fake.set_delays(42, 200);
  const CuDevicePtr address = device_memory();
  std::vector<unsigned char*> host_slots;
  for (int i = 0; i < 8; ++i) host_slots.push_back(pinned(0));
  std::vector<std::thread> lanes;
  for (std::size_t lane = 0; lane < 4; ++lane) {
    lanes.emplace_back([&, lane] {
      ASSERT_EQ(cu.context_push(context), cu_success);
      const CuStream on = stream();
      unsigned char* const out = host_slots[lane];
      unsigned char* const in = host_slots[lane + 4];
      for (unsigned char round = 1; round <= 20; ++round) {
        std::memset(out, round, page);
        ASSERT_EQ(cu.copy_to_device(address + lane * page, out, page, on), cu_success);
        ASSERT_EQ(cu.copy_from_device(in, address + lane * page, page, on), cu_success);
        const CuEvent done = recorded(on);
        ASSERT_EQ(query_for(done, 10s), cu_success);
        ASSERT_EQ(in[page - 1], round);
        ASSERT_EQ(cu.event_destroy(done), cu_success);
      }
      ASSERT_EQ(cu.stream_destroy(on), cu_success);
    });
  }
  for (auto& lane : lanes) lane.join();
  EXPECT_EQ(fake.counters().copies, 160U);
  EXPECT_EQ(fake.counters().events, 0U);
}

// Death tests run in a process of their own, whose end the sanitizer marks when it has found a race.
TEST_F(FakeCudaDriver, lets_the_thread_sanitizer_see_a_slot_that_is_reused_too_early) {
#ifndef FAKE_CUDA_TSAN
  GTEST_SKIP() << "this build has no thread sanitizer";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int exit_code_of_sanitizer = 66;
  const auto reuse_early = [&] {
    const CuDevicePtr address = device_memory();
    unsigned char* const slot = pinned(7);
    const CuStream on = stream();
    fake.hang(0, 1);
    cu.copy_to_device(address, slot, slot_bytes, on);
    std::memset(slot, 9, slot_bytes);
    recorded(on);  // the locks of later calls must not hide it
    fake.hang(0, 0);
    cu.stream_synchronize(on);
    std::exit(0);
  };
  EXPECT_EXIT(reuse_early(), testing::ExitedWithCode(exit_code_of_sanitizer), "data race");
#endif
}

TEST_F(FakeCudaDriver, gives_a_forked_child_nothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    ::_exit(cu.init(0) == cu_not_initialized && cu.device_get_count(&count) == cu_not_initialized ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FakeCudaDriver, names_its_errors) {
  const char* text = nullptr;
  EXPECT_EQ(cu.get_error_name(cu_illegal_address, &text), cu_success);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cu.get_error_name(12345, &text), cu_invalid_value);
}

TEST_F(FakeCudaDriver, forgets_everything_when_reset) {
  const CuStream on = stream();
  std::uint32_t* const gate = word();
  ASSERT_EQ(wait_for(on, gate, 1), cu_success);
  fake.reset();
  start();
  EXPECT_EQ(cu.stream_synchronize(on), cu_invalid_handle);
  EXPECT_EQ(fake.counters().registrations, 0U);
}

}  // namespace
