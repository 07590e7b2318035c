#include "penstock/topology.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "topology/sysfs.h"

namespace penstock::topology {

namespace {

namespace fs = std::filesystem;

// A made-up /sys, and a file whose disk it describes.
class Topology : public testing::Test {
 protected:
  Topology() {
    std::string name = (fs::temp_directory_path() / "penstock-sysfs-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    root_ = name;
    file_ = root_ / "file";
    std::ofstream(file_) << "content";
  }
  ~Topology() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void link(const std::string& path, const std::string& target) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_directories(root_ / target);
    fs::create_directory_symlink(root_ / target, root_ / path);
  }
  // The disk below the file: its folder in /sys/devices.
  void put_file_on(const std::string& folder) {
    struct stat status {};
    ASSERT_EQ(stat(file_.c_str(), &status), 0);
    const std::string number = std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
    link("dev/block/" + number, folder);
  }
  // A PCI device at a folder below devices/, found by its address too.
  void add_pci(const std::string& folder) {
    link("bus/pci/devices/" + fs::path(folder).filename().string(), "devices/" + folder);
  }

  Disk disk() {
    const Result<StoragePlace> place = describe_path(file_, root_);
    EXPECT_TRUE(place.ok() && place->disks.size() == 1);
    return place.ok() && !place->disks.empty() ? place->disks.front() : Disk{};
  }
  Relation relation_to(const std::string& address) {
    const Result<PciDevice> gpu = describe_pci(address, root_);
    EXPECT_TRUE(gpu.ok());
    return gpu.ok() ? relate(disk(), *gpu) : Relation::unknown;
  }

  fs::path root_, file_;
};

constexpr const char* gpu_resource =
    "0x00000000a8000000 0x00000000a8ffffff 0x0000000000040200\n"
    "0x0000386000000000 0x0000387fffffffff 0x000000000014220c\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x0000389000000000 0x0000389001ffffff 0x000000000014220c\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x0000000000000000 0x0000ffffffffffff 0x000000000014220c";

TEST_F(Topology, describes_a_gpu_and_the_bridges_above_it) {
  const std::string gpu = "pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:60:00.0";
  add_pci(gpu);
  link("devices/" + gpu + "/driver", "bus/pci/drivers/nvidia");
  write("devices/" + gpu + "/numa_node", "1");
  write("devices/" + gpu + "/current_link_speed", "2.5 GT/s PCIe");
  write("devices/" + gpu + "/current_link_width", "8");
  write("devices/" + gpu + "/max_link_speed", "32.0 GT/s PCIe");
  write("devices/" + gpu + "/max_link_width", "16");
  write("devices/" + gpu + "/resource", gpu_resource);

  const Result<PciDevice> device = describe_pci("0000:60:00.0", root_);
  ASSERT_TRUE(device.ok()) << device.error().message;
  EXPECT_EQ(device->root, "pci0000:5d");
  EXPECT_EQ(device->bridges, (std::vector<std::string>{"0000:5d:01.0", "0000:5e:00.0"}));
  EXPECT_EQ(device->driver, "nvidia");
  EXPECT_EQ(device->numa_node, 1);
  EXPECT_EQ(device->link, (PciLink{2.5, 8}));
  EXPECT_EQ(device->link_max, (PciLink{32, 16}));
  EXPECT_EQ(device->bar_bytes, 128ull << 30);
}

TEST_F(Topology, knows_nothing_rather_than_something_wrong) {
  add_pci("pci0000:00/0000:00:01.0");
  write("devices/pci0000:00/0000:00:01.0/current_link_speed", "Unknown");
  write("devices/pci0000:00/0000:00:01.0/current_link_width", "255");
  write("devices/pci0000:00/0000:00:01.0/resource", "no numbers");
  write("devices/pci0000:00/0000:00:01.0/numa_node", "many");
  write("devices/system/node/node0/x", "");
  write("devices/system/node/node1/x", "");
  const Result<PciDevice> device = describe_pci("0000:00:01.0", root_);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ(device->link, PciLink{});
  EXPECT_EQ(device->link.bytes_per_second(), 0);
  EXPECT_EQ(device->link_max, PciLink{});
  EXPECT_EQ(device->bar_bytes, 0u);
  EXPECT_EQ(device->numa_node, -1);
  EXPECT_EQ(device->driver, "");
}

TEST_F(Topology, takes_the_only_node_where_the_firmware_names_none) {
  add_pci("pci0000:00/0000:00:01.0");
  write("devices/pci0000:00/0000:00:01.0/numa_node", "-1");
  write("devices/system/node/node0/x", "");
  EXPECT_EQ(describe_pci("0000:00:01.0", root_)->numa_node, 0);
}

TEST_F(Topology, refuses_addresses_that_are_none_or_not_there) {
  EXPECT_EQ(describe_pci("0000:00:01.0", root_).error().code, Code::not_found);
  for (const char* address : {"", "../../etc", "0000:00:01", "00:01.0", "0000:00:01.0/x", "0000:0g:01.0"}) {
    EXPECT_EQ(describe_pci(address, root_).error().code, Code::invalid_argument) << address;
  }
}

TEST_F(Topology, finds_the_disk_of_a_partition) {
  const std::string controller = "devices/pci0000:00/0000:00:1d.0/0000:01:00.0";
  put_file_on(controller + "/nvme/nvme0/nvme0n1/nvme0n1p2");
  write(controller + "/nvme/nvme0/nvme0n1/nvme0n1p2/partition", "2");
  link(controller + "/driver", "bus/pci/drivers/nvme");
  const Result<StoragePlace> place = describe_path(file_, root_);
  ASSERT_TRUE(place.ok()) << place.error().message;
  EXPECT_EQ(place->device, "nvme0n1p2");
  const Disk found = disk();
  EXPECT_EQ(found.name, "nvme0n1");
  EXPECT_FALSE(found.is_virtual);
  ASSERT_TRUE(found.pci);
  EXPECT_EQ(found.pci->address, "0000:01:00.0");
  EXPECT_EQ(found.pci->bridges, std::vector<std::string>{"0000:00:1d.0"});
  EXPECT_EQ(found.pci->driver, "nvme");
}

TEST_F(Topology, finds_every_disk_below_device_mapper_and_raid_once) {
  const std::string first = "devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1";
  const std::string second = "devices/pci0000:00/0000:02:00.0/nvme/nvme1/nvme1n1";
  put_file_on("devices/virtual/block/dm-0");
  link("devices/virtual/block/dm-0/slaves/md0", "devices/virtual/block/md0");
  link("devices/virtual/block/dm-0/slaves/nvme0n1p2", first + "/nvme0n1p2");
  link("devices/virtual/block/md0/slaves/nvme0n1p1", first + "/nvme0n1p1");
  link("devices/virtual/block/md0/slaves/nvme1n1", second);
  write(first + "/nvme0n1p1/partition", "1");
  write(first + "/nvme0n1p2/partition", "2");
  const Result<StoragePlace> place = describe_path(file_, root_);
  ASSERT_TRUE(place.ok()) << place.error().message;
  EXPECT_EQ(place->device, "dm-0");
  ASSERT_EQ(place->disks.size(), 2u);
  EXPECT_EQ(place->disks[0].name, "nvme0n1");
  EXPECT_EQ(place->disks[1].name, "nvme1n1");
  EXPECT_FALSE(place->disks[0].is_virtual || place->disks[1].is_virtual);
}

TEST_F(Topology, ends_where_devices_rest_upon_each_other) {
  put_file_on("devices/virtual/block/dm-0");
  link("devices/virtual/block/dm-0/slaves/dm-1", "devices/virtual/block/dm-1");
  link("devices/virtual/block/dm-1/slaves/dm-0", "devices/virtual/block/dm-0");
  const Result<StoragePlace> place = describe_path(file_, root_);
  ASSERT_TRUE(place.ok());
  EXPECT_TRUE(place->disks.empty());
}

TEST_F(Topology, finds_the_controller_of_a_disk_with_several_paths) {
  put_file_on("devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1");
  link("devices/virtual/nvme-subsystem/nvme-subsys0/subsystem", "class/nvme-subsystem");
  link("devices/virtual/nvme-subsystem/nvme-subsys0/nvme3", "devices/pci0000:00/0000:01:00.0/nvme/nvme3");
  const Disk found = disk();
  EXPECT_EQ(found.name, "nvme0n1");
  EXPECT_FALSE(found.is_virtual);
  ASSERT_TRUE(found.pci);
  EXPECT_EQ(found.pci->address, "0000:01:00.0");
}

TEST_F(Topology, says_that_a_path_without_a_disk_has_none) {
  const Result<StoragePlace> place = describe_path("/proc/self/stat", root_);
  ASSERT_FALSE(place.ok());
  EXPECT_EQ(place.error().code, Code::unsupported);
  EXPECT_EQ(describe_path(root_ / "missing", root_).error().code, Code::not_found);
}

TEST_F(Topology, relates_what_hangs_below_one_switch) {
  put_file_on("devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:5f:01.0/0000:61:00.0/nvme/nvme0/nvme0n1");
  add_pci("pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:5f:00.0/0000:60:00.0");
  EXPECT_EQ(relation_to("0000:60:00.0"), Relation::same_switch);
}

TEST_F(Topology, relates_what_hangs_below_one_host_bridge) {
  put_file_on("devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1");
  add_pci("pci0000:00/0000:00:02.0/0000:02:00.0");
  EXPECT_EQ(relation_to("0000:02:00.0"), Relation::same_root_complex);
}

TEST_F(Topology, relates_by_nodes_what_has_nothing_else_in_common) {
  const std::string controller = "devices/pci0000:00/0000:00:01.0/0000:01:00.0";
  put_file_on(controller + "/nvme/nvme0/nvme0n1");
  add_pci("pci0000:40/0000:40:01.0/0000:41:00.0");
  add_pci("pci0000:80/0000:80:01.0/0000:81:00.0");
  add_pci("pci0000:c0/0000:c0:01.0/0000:c1:00.0");
  write(controller + "/numa_node", "0");
  write("devices/pci0000:40/0000:40:01.0/0000:41:00.0/numa_node", "0");
  write("devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node", "1");
  write("devices/system/node/node0/x", "");
  write("devices/system/node/node1/x", "");
  EXPECT_EQ(relation_to("0000:41:00.0"), Relation::same_node);
  EXPECT_EQ(relation_to("0000:81:00.0"), Relation::across_nodes);
  EXPECT_EQ(relation_to("0000:c1:00.0"), Relation::unknown);
}

TEST_F(Topology, does_not_place_a_disk_that_a_hypervisor_makes_up) {
  add_pci("pci0000:00/0000:00:05.0");
  put_file_on("devices/pci0000:00/0000:00:02.0/virtio1/block/vda");
  EXPECT_TRUE(disk().is_virtual);
  EXPECT_EQ(disk().pci->address, "0000:00:02.0");
  EXPECT_EQ(relation_to("0000:00:05.0"), Relation::virtual_disk);
}

TEST_F(Topology, does_not_place_a_disk_without_a_bus) {
  add_pci("pci0000:00/0000:00:05.0");
  put_file_on("devices/virtual/block/loop0");
  EXPECT_TRUE(disk().is_virtual);
  EXPECT_FALSE(disk().pci);
  EXPECT_EQ(relation_to("0000:00:05.0"), Relation::virtual_disk);
}

TEST(PciLinkSpeed, is_read_as_kernels_of_all_ages_write_it) {
  EXPECT_EQ(parse_link_speed("32.0 GT/s PCIe"), 32);
  EXPECT_EQ(parse_link_speed("2.5 GT/s"), 2.5);
  EXPECT_EQ(parse_link_speed("8 GT/s"), 8);
  for (const char* text : {"", "Unknown", "Unknown speed", " GT/s", "x GT/s", "-8 GT/s", "1e300 GT/s", "8 GB/s"}) {
    EXPECT_EQ(parse_link_speed(text), 0) << text;
  }
}

TEST(PciLinkSpeed, counts_the_line_code) {
  EXPECT_NEAR((PciLink{5, 4}.bytes_per_second()), 2.0e9, 1e6);
  EXPECT_NEAR((PciLink{16, 16}.bytes_per_second()), 31.5e9, 1e8);
  EXPECT_NEAR((PciLink{32, 16}.bytes_per_second()), 63.0e9, 1e8);
  EXPECT_NEAR((PciLink{64, 16}.bytes_per_second()), 118e9, 1e9);
}

TEST(PrefetchableBar, is_the_largest_of_the_six) {
  EXPECT_EQ(largest_prefetchable_bar(gpu_resource), 128ull << 30);
  EXPECT_EQ(largest_prefetchable_bar(""), 0u);
  EXPECT_EQ(largest_prefetchable_bar("0x10 0x5 0x2200"), 0u);
  EXPECT_EQ(largest_prefetchable_bar("0x0 0xffffffffffffffffff 0x2200"), 0u);
}

TEST(Relation, has_a_name_for_each) {
  EXPECT_EQ(relation_name(Relation::same_switch), "same-switch");
  EXPECT_EQ(relation_name(Relation::virtual_disk), "virtual-disk");
  EXPECT_EQ(relation_name(Relation::unknown), "unknown");
}

}  // namespace

}  // namespace penstock::topology
