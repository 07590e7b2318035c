#include "engines/cufile/diagnosis.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "files/test_scratch.h"

namespace penstock::cufile {
namespace {

using State = Condition::State;

// A made-up machine: an H200 with everything that P2PDMA needs, without nvidia-fs.
class CuFileDiagnosis : public testing::Test {
 protected:
  CuFileDiagnosis() {
    tree_.write("proc/sys/kernel/osrelease", "6.8.0-generic\n");
    tree_.write("proc/sys/kernel/arch", "x86_64\n");
    tree_.write("boot/config-6.8.0-generic", "CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n");
    write_driver("NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build");
    write_gpu("NVIDIA H200");
    tree_.write("sys/bus/pci/devices/0000:01:00.0/resource",
                "0x00000000c8000000 0x00000000c8ffffff 0x40200\n0x0000002000000000 0x0000003fffffffff 0x14220c\n");
    tree_.write("sys/module/nvme_core/parameters/multipath", "N\n");
    tree_.write("proc/driver/nvidia/params",
                "ResmanDebugLevel: 4294967295\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"\n");
    write_mount("259:1", "ext4", "rw,data=ordered");
    write_disk("259:1", "nvme0n1", "pcie");
    tree_.write("run/udev/data/b259:1", "I:1\nE:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n");
  }

  void write_driver(const std::string& text) const {
    tree_.write("proc/driver/nvidia/version", "NVRM version: " + text + "\nGCC version: gcc 13\n");
  }
  void write_gpu(const std::string& model) const {
    tree_.write("proc/driver/nvidia/gpus/0000:01:00.0/information",
                "Model: \t\t " + model + "\nIRQ: 1\nBus Location: \t 0000:01:00.0\n");
  }
  void write_mount(const std::string& device, const std::string& type, const std::string& options) const {
    tree_.write("proc/self/mountinfo", "1 0 0:22 / /proc rw - proc proc rw\n36 35 " + device +
                                           " / /data rw shared:1 - " + type + " /dev/nvme0n1 " + options + "\n");
  }
  void write_disk(const std::string& device, const std::string& name, const std::string& transport) const {
    tree_.write("sys/devices/" + name + "/device/transport", transport + "\n");
    std::filesystem::create_directories(tree_.path("sys/dev/block"));
    std::filesystem::remove(tree_.path("sys/dev/block/" + device));
    std::filesystem::create_symlink("../../devices/" + name, tree_.path("sys/dev/block/" + device));
  }
  void remove(const std::string& name) const { std::filesystem::remove_all(tree_.path(name)); }

  Diagnosis diagnosis() const { return diagnose(gather_facts(tree_.path())); }
  Condition condition(const std::string& name) const {
    for (const Condition& one : diagnosis().conditions) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << "no condition " << name;
    return {};
  }
  // That the condition is missing, says what was found, knows a cure, and that cuFile is left with host memory.
  void expect_missing(const std::string& name, const std::string& detail) const {
    const Condition one = condition(name);
    EXPECT_EQ(one.state, State::missing) << name;
    EXPECT_NE(one.detail.find(detail), std::string::npos) << one.detail;
    EXPECT_FALSE(one.remedy.empty()) << name;
    EXPECT_EQ(diagnosis().route, Route::cufile_compat);
    EXPECT_NE(diagnosis().reason.find(detail), std::string::npos) << diagnosis().reason;
    EXPECT_FALSE(diagnosis().remedy.empty());
  }
  Volume volume() const { return gather_facts(tree_.path()).volumes.at(0); }

  files::ScratchFolder tree_;
};

TEST_F(CuFileDiagnosis, finds_p2pdma_where_all_is_met) {
  EXPECT_EQ(diagnosis().route, Route::p2pdma);
  EXPECT_TRUE(diagnosis().reason.empty()) << diagnosis().reason;
  for (const Condition& one : diagnosis().conditions) {
    if (one.name == "nvidia-fs kernel module") continue;
    EXPECT_EQ(one.state, State::met) << one.name << ": " << one.detail;
    EXPECT_TRUE(one.remedy.empty()) << one.name;
  }
}

TEST_F(CuFileDiagnosis, prefers_nvidia_fs) {
  tree_.write("sys/module/nvidia_fs/version", "2.26.6\n");
  remove("boot");
  EXPECT_EQ(diagnosis().route, Route::gds);
  EXPECT_EQ(condition("nvidia-fs kernel module").detail, "loaded, 2.26.6");
}

TEST_F(CuFileDiagnosis, wants_a_kernel_that_knows_p2pdma) {
  tree_.write("boot/config-6.8.0-generic", "CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n");
  expect_missing("P2PDMA: kernel", "without CONFIG_PCI_P2PDMA");
  tree_.write("proc/sys/kernel/osrelease", "5.15.0-generic\n");
  expect_missing("P2PDMA: kernel", "5.15.0");
}

TEST_F(CuFileDiagnosis, asks_the_kernels_symbols_where_its_configuration_is_not_visible) {
  remove("boot");
  EXPECT_EQ(condition("P2PDMA: kernel").state, State::unknown);
  EXPECT_EQ(diagnosis().route, Route::cufile_compat);
  EXPECT_NE(diagnosis().reason.find("not known"), std::string::npos) << diagnosis().reason;
  tree_.write("proc/kallsyms", "0000 T start\n0000 d p2pdma_pgmap_ops\n");
  EXPECT_EQ(condition("P2PDMA: kernel").state, State::met);
  EXPECT_EQ(diagnosis().route, Route::p2pdma);
  tree_.write("proc/kallsyms", "0000 T start\n");
  expect_missing("P2PDMA: kernel", "without CONFIG_PCI_P2PDMA");
}

TEST_F(CuFileDiagnosis, wants_an_open_driver_that_is_new_enough) {
  write_driver("NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build");
  expect_missing("P2PDMA: NVIDIA driver", "580.65.06, proprietary");
  write_driver("NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build");
  expect_missing("P2PDMA: NVIDIA driver", "550.90.07, open");
  remove("proc/driver/nvidia/version");
  expect_missing("P2PDMA: NVIDIA driver", "no NVIDIA driver");
}

TEST_F(CuFileDiagnosis, wants_a_gpu_that_is_no_geforce) {
  write_gpu("NVIDIA GeForce RTX 4090");
  tree_.write("sys/module/nvidia_fs/version", "2.26.6\n");  // which does not help here
  expect_missing("GPU", "GeForce RTX 4090");
  tree_.write("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: NVIDIA H200\nBus Location: 0000:02:00.0\n");
  EXPECT_EQ(diagnosis().route, Route::gds) << "for the other GPU";
  EXPECT_EQ(condition("GPU").state, State::met);
  EXPECT_NE(condition("GPU").detail.find("GeForce RTX 4090 at 0000:01:00.0"), std::string::npos);
  remove("proc/driver/nvidia/gpus");
  expect_missing("GPU", "none");
}

TEST_F(CuFileDiagnosis, tells_a_small_bar1) {
  tree_.write("sys/bus/pci/devices/0000:01:00.0/resource", "0x0 0x1 0x0\n0xe0000000 0xefffffff 0x0\n");
  EXPECT_EQ(condition("BAR1").state, State::missing);
  EXPECT_NE(condition("BAR1").detail.find("256 MiB"), std::string::npos);
  EXPECT_NE(condition("BAR1").remedy.find("Resizable BAR"), std::string::npos);
  tree_.write("sys/bus/pci/devices/0000:01:00.0/resource",  // with a BAR0 of 64 bits, it is the third line
              "0x44000000 0x447fffff 0x14220c\n0x0 0x0 0x0\n0x8000000000 0xbfffffffff 0x14220c\n");
  EXPECT_EQ(condition("BAR1").detail, "262144 MiB");
  remove("sys/bus");
  EXPECT_EQ(condition("BAR1").state, State::unknown);
}

TEST_F(CuFileDiagnosis, wants_no_multipath_and_two_settings_of_the_driver_on_x86) {
  tree_.write("sys/module/nvme_core/parameters/multipath", "Y\n");
  expect_missing("P2PDMA: NVMe without multipath", "multipath is on");
  tree_.write("sys/module/nvme_core/parameters/multipath", "N\n");
  tree_.write("proc/driver/nvidia/params", "RegistryDwords: \"RMForceStaticBar1=1\"\n");
  expect_missing("P2PDMA: driver registry", "without RmForceDisableIomapWC=1");
  tree_.write("proc/sys/kernel/arch", "aarch64\n");
  EXPECT_EQ(diagnosis().route, Route::p2pdma);
}

TEST_F(CuFileDiagnosis, wants_an_nvme_disk_of_this_machine) {
  write_disk("259:1", "nvme0n1", "tcp");
  expect_missing("P2PDMA: NVMe disk of this machine", "no file system is mounted");
  write_disk("259:1", "md0", "");
  expect_missing("P2PDMA: NVMe disk of this machine", "no file system is mounted");
  EXPECT_EQ(diagnose_volume(volume())[1].detail, "kernel RAID (md)");
}

TEST_F(CuFileDiagnosis, knows_the_cure_of_a_missing_udev_database) {
  remove("run");
  const Condition one = condition("udev database");
  EXPECT_EQ(one.state, State::missing);
  EXPECT_NE(one.detail.find("259:1 (/data)"), std::string::npos) << one.detail;
  EXPECT_NE(one.remedy.find("printf 'I:1\\nE:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE=ext4\\n' > /run/udev/data/b259:1"),
            std::string::npos)
      << one.remedy;
}

TEST_F(CuFileDiagnosis, looks_at_the_mount_of_a_file) {
  EXPECT_TRUE(find_volume(gather_facts(tree_.path()), {259, 1}));
  EXPECT_FALSE(find_volume(gather_facts(tree_.path()), {259, 2}));
  const auto lacks_none = [](const std::vector<Condition>& all) {
    return std::ranges::none_of(all, [](const Condition& one) { return one.state == State::missing; });
  };
  EXPECT_TRUE(lacks_none(diagnose_volume(volume())));
  write_mount("259:1", "xfs", "rw");
  EXPECT_TRUE(lacks_none(diagnose_volume(volume())));
  for (const std::string mode : {"data=journal", "data=writeback"}) {
    write_mount("259:1", "ext4", "rw," + mode);
    EXPECT_NE(diagnose_volume(volume())[0].detail.find(mode), std::string::npos);
    EXPECT_NE(diagnose_volume(volume())[0].remedy.find("data=ordered"), std::string::npos);
    EXPECT_EQ(condition("file system").state, State::missing) << "there is no other";
  }
  write_mount("259:1", "btrfs", "rw");
  EXPECT_EQ(diagnose_volume(volume())[0].state, State::missing);
}

TEST_F(CuFileDiagnosis, does_not_want_udev_to_know_what_cufile_can_t_use_anyway) {
  tree_.write("proc/self/mountinfo",
              "35 1 254:16 / /usr/local/nvidia ro - squashfs /dev/vdb ro\n"
              "36 35 259:1 / /data rw - ext4 /dev/nvme0n1 rw,data=ordered\n");
  EXPECT_EQ(condition("udev database").state, State::met);
  EXPECT_EQ(condition("udev database").detail, "knows /data");
}

TEST_F(CuFileDiagnosis, names_file_systems_that_fit_and_those_that_do_not) {
  tree_.write("proc/self/mountinfo",
              "36 35 259:1 / /data rw - ext4 /dev/nvme0n1 rw,data=ordered\n"
              "37 35 259:2 / /fast rw - ext4 /dev/nvme1n1 rw,data=writeback\n");
  EXPECT_EQ(condition("file system").state, State::met);
  EXPECT_EQ(condition("file system").detail, "ext4 on /data; not: ext4 on /fast with data=writeback");
}

TEST_F(CuFileDiagnosis, of_a_machine_that_shows_nothing_guesses_nothing) {
  const files::ScratchFolder empty;
  const Diagnosis nothing = diagnose(gather_facts(empty.path()));
  EXPECT_EQ(nothing.route, Route::cufile_compat);
  EXPECT_FALSE(nothing.reason.empty());
  for (const Condition& one : nothing.conditions) EXPECT_FALSE(one.detail.empty()) << one.name;
}

}  // namespace
}  // namespace penstock::cufile
