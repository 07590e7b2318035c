#include <sys/uio.h>
#include <unistd.h>

#include "fake_cuda_test.h"

namespace fake_cuda_test {
namespace {

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

}  // namespace
}  // namespace fake_cuda_test
