// For tests of the cufile engine over the fakes of CUDA and cuFile.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "cuda/driver.h"
#include "engines/cufile/engine.h"
#include "fakes/cuda/control.h"
#include "fakes/cufile/control.h"
#include "files/block_device.h"
#include "files/open.h"
#include "files/test_scratch.h"
#include "support/built.h"

namespace penstock::cufile {

// A made-up /proc, /sys and /run.
class MachineTree {
 public:
  // An open driver and a data-centre GPU, without nvidia-fs; not yet fit for P2PDMA.
  MachineTree() {
    tree_.write("proc/sys/kernel/osrelease", "6.8.0-generic\n");
    tree_.write("proc/sys/kernel/arch", "x86_64\n");
    tree_.write("proc/driver/nvidia/params", "RegistryDwords: \"\"\n");
    tree_.write("proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n");
    tree_.write("proc/driver/nvidia/gpus/0000:01:00.0/information",
                "Model: \t\t NVIDIA H200\nBus Location: \t 0000:01:00.0\n");
    tree_.write("sys/bus/pci/devices/0000:01:00.0/resource", "0x1000 0x1fff 0x0\n0x2000000000 0x3fffffffff 0x0\n");
  }
  const MachineTree& with_nvidia_fs() const {
    tree_.write("proc/driver/nvidia-fs/version", "version: 2.26.6\n");
    tree_.write("sys/module/nvidia_fs/version", "2.26.6\n");
    return *this;
  }
  const MachineTree& with_p2pdma() const {
    with_mount({259, 1}, "ext4");
    tree_.write("sys/devices/nvme0n1/device/transport", "pcie\n");
    std::filesystem::create_directories(tree_.path("sys/dev/block"));
    std::filesystem::create_symlink("../../devices/nvme0n1", tree_.path("sys/dev/block/259:1"));
    tree_.write("boot/config-6.8.0-generic", "CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n");
    tree_.write("sys/module/nvme_core/parameters/multipath", "N\n");
    tree_.write("proc/driver/nvidia/params", "RegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"\n");
    return *this;
  }
  const MachineTree& with_mount(files::DeviceNumber device, const std::string& type) const {
    tree_.write("proc/self/mountinfo",
                "36 35 " + device.name() + " / /data rw - " + type + " /dev/nvme0n1 rw,data=ordered\n");
    return *this;
  }
  const files::ScratchFolder& folder() const { return tree_; }
  std::string root() const { return tree_.path(); }

 private:
  files::ScratchFolder tree_;
};

// GPU memory of the fake, and what the CPU sees of it.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : device_(*cuda::Driver::get().value()->device(0).value()) {
    const cuda::Current current(device_);
    EXPECT_EQ(device_.api().memory_allocate(&address_, bytes), cuda::cu_success);
    region_ = {reinterpret_cast<std::byte*>(address_), bytes, Domain::cuda(0)};
  }
  ~DeviceMemory() {
    const cuda::Current current(device_);
    device_.api().memory_free(address_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Region region() const { return region_; }
  std::byte* data() const { return region_.data; }
  void fill(const std::vector<std::byte>& bytes) const {
    EXPECT_EQ(FakeCuda::loaded()->poke(address_, bytes.data(), bytes.size()), cuda::cu_success);
  }
  std::vector<std::byte> content() const {
    std::vector<std::byte> bytes(region_.size_bytes);
    EXPECT_EQ(FakeCuda::loaded()->peek(address_, bytes.data(), bytes.size()), cuda::cu_success);
    return bytes;
  }

 private:
  cuda::Device& device_;
  cuda::CuDevicePtr address_ = 0;
  Region region_;
};

// The fakes, fresh for each test.
class WithFakes : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(FakeCuda::load().has_value()) << ::dlerror();
    const auto loaded = FakeCufile::load(test::built(FAKE_CUFILE_LIBRARY));
    ASSERT_TRUE(loaded.has_value()) << ::dlerror();
    cufile_ = *loaded;
    cufile_.reset();
    const std::string name = folder_.write_pattern("probe", 4096);
    if (!files::open_file(name, {}).value().info.direct) GTEST_SKIP() << "no O_DIRECT in " << folder_.path();
  }
  void TearDown() override {
    if (cufile_.reset != nullptr) cufile_.reset();
  }

  FakeCufile cufile_;
  files::ScratchFolder folder_;
  MachineTree machine_;
};

// Polls until `count` completions came, each once; by cookie. Fewer if they don't come in ten seconds.
inline std::map<std::uint64_t, engine::Done> collect(engine::Queue& queue, std::size_t count) {
  std::map<std::uint64_t, engine::Done> all;
  std::vector<engine::Done> done(16);
  const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
  while (all.size() < count && Clock::now() < deadline) {
    const std::size_t got = queue.poll(done, deadline);
    for (std::size_t i = 0; i < got; ++i) EXPECT_TRUE(all.emplace(done[i].cookie, done[i]).second) << done[i].cookie;
  }
  EXPECT_EQ(all.size(), count);
  return all;
}

}  // namespace penstock::cufile
