#include "nvme/pci.h"

#include <gtest/gtest.h>

#include "nvme/sysfs_test_support.h"

namespace penstock::nvme {
namespace {

class Pci : public FakeSysfs {};

TEST_F(Pci, lists_controllers_with_their_drivers_groups_and_disks) {
  add("0000:01:00.0", "nvme", "7");
  add_folder("0000:01:00.0", "nvme/nvme0/nvme0n1");
  add_folder("0000:01:00.0", "nvme/nvme0/ng0n1");
  add("0000:02:00.0", "", "");
  add("0000:03:00.0", "snd", "8", "0x040300");
  const auto devices = find_pci_controllers(root()).value();
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].driver, "nvme");
  EXPECT_EQ(devices[0].iommu_group, "7");
  EXPECT_EQ(devices[0].disks, std::vector<std::string>{"nvme0n1"});
  EXPECT_EQ(devices[1].driver, "");
}

TEST_F(Pci, names_the_disk_that_a_path_leads_to) {
  add("0000:01:00.0", "nvme", "7");
  add_folder("0000:01:00.0", "nvme/nvme3/nvme1c3n12");
  EXPECT_EQ(find_pci_controllers(root()).value()[0].disks, std::vector<std::string>{"nvme1n12"});
}

TEST_F(Pci, finds_what_vfio_can_hand_out) {
  add("0000:01:00.0", "vfio-pci", "7");
  const auto place = find_for_vfio("0000:01:00.0", root());
  ASSERT_TRUE(place.ok()) << place.error().message;
  EXPECT_EQ(place->group, "7");
  EXPECT_TRUE(place->neighbours.empty());
}

TEST_F(Pci, names_those_who_keep_a_group_from_being_taken) {
  add("0000:01:00.0", "vfio-pci", "7");
  add("0000:01:00.1", "snd", "7", "0x040300");
  add("0000:01:00.2", "", "7", "0x040300");
  const auto place = find_for_vfio("0000:01:00.0", root()).value();
  ASSERT_EQ(place.neighbours.size(), 1U);
  EXPECT_EQ(place.neighbours[0].address, "0000:01:00.1");
  EXPECT_EQ(place.neighbours[0].driver, "snd");
}

TEST_F(Pci, tells_each_thing_that_keeps_a_controller_from_vfio) {
  add("0000:01:00.0", "nvme", "7");
  add("0000:02:00.0", "", "8");
  add("0000:03:00.0", "vfio-pci", "");
  add("0000:04:00.0", "vfio-pci", "9", "0x030000");
  const auto expect = [&](const std::string& address, Code code, const std::string& part) {
    const auto place = find_for_vfio(address, root());
    ASSERT_FALSE(place.ok()) << address;
    EXPECT_EQ(place.error().code, code) << place.error().message;
    const std::string text = place.error().message + " | " + place.error().hint;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect("0000:01:00.0", Code::in_use, "penstock nvme bind 0000:01:00.0");
  expect("0000:02:00.0", Code::unsupported, "no driver is bound");
  expect("0000:03:00.0", Code::unsupported, "intel_iommu=on");
  expect("0000:04:00.0", Code::unsupported, "its class is 0x030000");
  expect("0000:05:00.0", Code::not_found, "penstock nvme list");
  for (const char* wrong : {"", "01:00.0", "../../x", "0000:01:00.0 ", "0000:0g:00.0", "0000:01:00/0"}) {
    expect(wrong, Code::invalid_argument, "0000:01:00.0");
  }
}

TEST(NamespaceNames, have_an_address_and_maybe_a_number) {
  EXPECT_EQ(parse_namespace_name("0000:01:00.0").value().id, 1U);
  EXPECT_EQ(parse_namespace_name("0000:01:00.0/7").value().id, 7U);
  EXPECT_EQ(parse_namespace_name("0000:01:00.0/7").value().address, "0000:01:00.0");
  for (const char* wrong : {"0000:01:00.0/", "0000:01:00.0/0", "0000:01:00.0/x", "0000:01:00.0/1/2", "a/4294967296"}) {
    EXPECT_EQ(parse_namespace_name(wrong).error().code, Code::invalid_argument) << wrong;
  }
}

}  // namespace
}  // namespace penstock::nvme
