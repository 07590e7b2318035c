// GraphCapture: what a program does when it captures a CUDA graph, with the driver's functions as they are: the graph
// copies a page to the GPU whenever it is launched. Whatever happens meanwhile, the capture must end well.
//
// Thread safety: made, asked and destroyed on one thread. Others may work meanwhile.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda/api.h"
#include "fakes/cuda/control.h"

namespace penstock::test {

struct PlainCuda {
  cuda::Api api;
  cuda::CaptureApi captures;

  // REQUIRES: the driver is loaded.
  PlainCuda() {
    void* const library = ::dlopen(cuda::library_name, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) std::abort();
#define FIND(member, symbol, arguments) api.member = reinterpret_cast<decltype(api.member)>(::dlsym(library, #symbol));
    PENSTOCK_CUDA_REQUIRED(FIND)
    PENSTOCK_CUDA_OPTIONAL(FIND)
#undef FIND
#define FIND(member, symbol, arguments) \
  captures.member = reinterpret_cast<decltype(captures.member)>(::dlsym(library, #symbol));
    PENSTOCK_CUDA_CAPTURES(FIND)
#undef FIND
  }

  // Of this thread. Returns the one that it had.
  int set_mode(int mode) const {
    EXPECT_EQ(captures.exchange_mode(&mode), cuda::cu_success);
    return mode;
  }
  int mode() const {
    const int found = set_mode(cuda::cu_capture_mode_relaxed);
    set_mode(found);
    return found;
  }
};

class GraphCapture {
 public:
  explicit GraphCapture(unsigned stream_flags = cuda::cu_stream_non_blocking, int mode = cuda::cu_capture_mode_global) {
    const cuda::Api& api = cuda_.api;
    host_ = static_cast<std::byte*>(std::aligned_alloc(page, page));
    std::memset(host_, 1, page);
    expect(api.init(0));
    expect(api.device_get(&device_, 0));
    expect(api.primary_context_retain(&context_, device_));
    expect(api.context_push(context_));
    expect(api.stream_create(&stream_, stream_flags, 0));
    expect(api.memory_allocate(&memory_, page));
    expect(api.host_register(host_, page, cuda::cu_host_register_portable));
    expect(cuda_.captures.begin(stream_, mode));
    is_capturing_ = true;
    expect(api.copy_to_device(memory_, host_, page, stream_));
  }
  ~GraphCapture() {
    const cuda::Api& api = cuda_.api;
    if (is_capturing_) end();
    if (executable_ != nullptr) expect(cuda_.captures.destroy_executable(executable_));
    if (graph_ != nullptr) expect(cuda_.captures.destroy(graph_));
    expect(api.host_unregister(host_));
    expect(api.memory_free(memory_));
    expect(api.stream_destroy(stream_));
    cuda::CuContext popped = nullptr;
    expect(api.context_pop(&popped));
    expect(api.primary_context_release(device_));
    std::free(host_);
  }
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  cuda::CuStream stream() const { return stream_; }

  // Ends the capture and launches the graph.
  testing::AssertionResult works() {
    if (const cuda::CuResult result = end(); result != cuda::cu_success) {
      return testing::AssertionFailure() << "the capture failed with " << result << ": " << last_breach();
    }
    expect(cuda_.captures.instantiate(&executable_, graph_, 0));
    for (const int value : {2, 3}) {
      std::memset(host_, value, page);
      expect(cuda_.captures.launch(executable_, stream_));
      expect(cuda_.api.stream_synchronize(stream_));
      std::memset(host_, 0, page);
      expect(cuda_.api.copy_from_device(host_, memory_, page, stream_));
      expect(cuda_.api.stream_synchronize(stream_));
      const auto last = static_cast<int>(host_[page - 1]);
      if (last != value) return testing::AssertionFailure() << "the graph copied " << last << ", not " << value;
    }
    return testing::AssertionSuccess();
  }

 private:
  static constexpr std::size_t page = 4096;

  static void expect(cuda::CuResult result) { EXPECT_EQ(result, cuda::cu_success); }
  cuda::CuResult end() {
    is_capturing_ = false;
    return cuda_.captures.end(stream_, &graph_);
  }
  // The fake names the call that is to blame.
  static std::string last_breach() {
    std::array<char, 200> text{};
    const auto fake = FakeCuda::loaded();
    if (fake) fake->last_breach(text.data(), text.size());
    return text.data();
  }

  const PlainCuda cuda_;
  std::byte* host_ = nullptr;
  cuda::CuDevice device_ = 0;
  cuda::CuContext context_ = nullptr;
  cuda::CuStream stream_ = nullptr;
  cuda::CuDevicePtr memory_ = 0;
  bool is_capturing_ = false;
  cuda::CuGraph graph_ = nullptr;
  cuda::CuGraphExecutable executable_ = nullptr;
};

}  // namespace penstock::test
