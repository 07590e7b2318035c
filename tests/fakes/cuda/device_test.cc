#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda_test.h"

namespace fake_cuda_test {
namespace {

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
}  // namespace fake_cuda_test
