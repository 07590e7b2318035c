// The fake must behave as its users rely on: what it lets pass in these tests, tests above it will not notice.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "control.h"
#include "cuda/api.h"

namespace fake_cuda_test {

using namespace penstock::cuda;
using namespace std::chrono_literals;

inline constexpr CuResult cu_invalid_handle = 400;
inline constexpr std::size_t page = 4096;
inline constexpr std::size_t slot_bytes = 1 << 20;

#define FIND(member, symbol, arguments) api.member = reinterpret_cast<CuResult(*) arguments>(::dlsym(library, #symbol));
inline Api find_api() {
  Api api;
  void* const library = ::dlopen(library_name, RTLD_NOW | RTLD_NOLOAD);
  PENSTOCK_CUDA_REQUIRED(FIND)
  PENSTOCK_CUDA_OPTIONAL(FIND)
  return api;
}
inline CaptureApi find_capture_api() {
  CaptureApi api;
  void* const library = ::dlopen(library_name, RTLD_NOW | RTLD_NOLOAD);
  PENSTOCK_CUDA_CAPTURES(FIND)
  return api;
}
#undef FIND

// A new driver for each test, with the first device's context current.
class FakeCudaDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(FakeCuda::load().has_value()) << ::dlerror(); }

  void SetUp() override {
    fake = FakeCuda::loaded().value();
    cu = find_api();
    captures = find_capture_api();
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
  CaptureApi captures;
  CuContext context = nullptr;
  std::vector<void*> mapped;
};

}  // namespace fake_cuda_test
