// What tests of GPU memory share. They run over the fake driver on any machine, and over the real one where there is a
// GPU; what only the fake can be made to do is skipped there.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "api/context_builder.h"
#include "cuda/driver.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"
#include "fakes/cuda/control.h"
#include "support/support.h"

namespace penstock::test {

inline constexpr std::uint64_t mib = 1 << 20;

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto driver = cuda::Driver::get();
    if (!driver) GTEST_SKIP() << driver.error().message;
    if ((*driver)->devices().empty()) GTEST_SKIP() << "no GPU";
    driver_ = *driver;
    fake_ = FakeCuda::loaded();
    if (!fake_) return;
    fake_->clear_injections();
    fake_->set_connections(0);  // whatever the test before had
  }
  void TearDown() override {
    if (!fake_) return;
    EXPECT_EQ(fake_->counters().breaches, 0U) << last_breach();
    fake_->clear_injections();
  }
  std::string last_breach() {
    std::string text(200, '\0');
    text.resize(std::min(fake_->last_breach(text.data(), text.size()), text.size()));
    return text;
  }

  Context make_context() { return Context::create(options_).value(); }

  // Bytes of the GPU, brought back.
  static std::vector<std::byte> bytes_of(Region memory) {
    std::vector<std::byte> bytes(memory.size_bytes);
    const Status status = copy(Region::host(bytes.data(), bytes.size()), memory);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    return bytes;
  }
  static void fill(Region memory, std::span<const std::byte> bytes) {
    const Status status = copy(memory, Region::host(const_cast<std::byte*>(bytes.data()), bytes.size()));
    ASSERT_TRUE(status.ok()) << status.error().message;
  }

  cuda::Device& gpu() { return *driver_->device(0).value(); }

  // A stream like those that the CUDA runtime makes.
  cuda::CuStream make_stream(unsigned flags = 0) {
    const cuda::Current current(gpu());
    cuda::CuStream stream = nullptr;
    EXPECT_EQ(driver_->api().stream_create(&stream, flags, 0), cuda::cu_success);
    return stream;
  }

  cuda::Driver* driver_ = nullptr;
  std::optional<FakeCuda> fake_;
  Options options_{.deadlines = patient};
  TemporaryFolder folder_;
};

#define PENSTOCK_NEEDS_FAKE() \
  if (!fake_) GTEST_SKIP() << "a real GPU can't be made to do this"

}  // namespace penstock::test
