#include "nvme/driver_change.h"

#include <gtest/gtest.h>

#include <vector>

#include "nvme/sysfs_test_support.h"

namespace penstock::nvme {
namespace {

const std::string address = "0000:01:00.0";

// The tree, with a kernel behind it that does as it is told, unless it is to fail.
class DriverChangeTest : public FakeSysfs {
 protected:
  Status write(const std::filesystem::path& file, const std::string& text) {
    writes_.push_back(text + " > " + std::filesystem::relative(file, bus()).string());
    if (writes_.size() == failing_write_) return Error{Code::io_error, EIO, "it failed", ""};
    if (file.filename() == "driver_override") {
      FakeSysfs::write(file, text == "\n" ? "(null)\n" : text + "\n");
    } else if (file.filename() == "unbind") {
      set_driver(address, "");
    } else if (!std::filesystem::exists(device(address) / "driver")) {
      std::string driver = read(device(address) / "driver_override");
      driver.pop_back();
      if (driver == "(null)") driver = "nvme";
      if (driver != refusing_driver_) set_driver(address, driver);
    }
    return {};
  }
  SysfsWriter writer() {
    return [this](const auto& file, const auto& text) { return write(file, text); };
  }
  NvmeDevice found() const { return find_pci_controller(address, root()).value(); }
  std::string override_text() const { return read(device(address) / "driver_override"); }

  std::vector<std::string> writes_;
  std::size_t failing_write_ = 0;  // counted from 1
  std::string refusing_driver_;
};

TEST_F(DriverChangeTest, takes_a_controller_from_the_kernel) {
  add(address, "nvme", "7");
  const auto change = DriverChange::to_vfio(found(), root()).value();
  EXPECT_EQ(change.steps().size(), 3U);
  EXPECT_EQ(found().driver, "nvme") << "nothing is done before it is run";
  ASSERT_TRUE(change.run(writer()).ok());
  EXPECT_EQ(found().driver, "vfio-pci");
  EXPECT_EQ(writes_, (std::vector<std::string>{"vfio-pci > devices/0000:01:00.0/driver_override",
                                               "0000:01:00.0 > drivers/nvme/unbind", "0000:01:00.0 > drivers_probe"}));
}

TEST_F(DriverChangeTest, gives_it_back) {
  add(address, "vfio-pci", "7");
  FakeSysfs::write(device(address) / "driver_override", "vfio-pci\n");
  ASSERT_TRUE(DriverChange::to_kernel(found(), root()).value().run(writer()).ok());
  EXPECT_EQ(found().driver, "nvme");
  EXPECT_EQ(override_text(), "(null)\n");
}

TEST_F(DriverChangeTest, takes_one_that_nobody_has) {
  add(address, "", "7");
  ASSERT_TRUE(DriverChange::to_vfio(found(), root()).value().run(writer()).ok());
  EXPECT_EQ(found().driver, "vfio-pci");
}

TEST_F(DriverChangeTest, does_nothing_where_nothing_is_to_do) {
  add(address, "vfio-pci", "7");
  const auto change = DriverChange::to_vfio(found(), root()).value();
  EXPECT_TRUE(change.steps().empty());
  EXPECT_TRUE(change.run(writer()).ok());
  EXPECT_TRUE(writes_.empty());
}

TEST_F(DriverChangeTest, undoes_itself_at_whatever_step_it_fails) {
  add(address, "nvme", "7");
  for (failing_write_ = 1; failing_write_ <= 3; ++failing_write_) {
    writes_.clear();
    const Status status = DriverChange::to_vfio(found(), root()).value().run(writer());
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("nvme has it, as before"), std::string::npos) << status.error().message;
    EXPECT_EQ(found().driver, "nvme");
    EXPECT_EQ(override_text(), "(null)\n");
  }
  set_driver(address, "vfio-pci");
  FakeSysfs::write(device(address) / "driver_override", "vfio-pci\n");
  for (failing_write_ = 1; failing_write_ <= 3; ++failing_write_) {
    writes_.clear();
    ASSERT_FALSE(DriverChange::to_kernel(found(), root()).value().run(writer()).ok());
    EXPECT_EQ(found().driver, "vfio-pci");
    EXPECT_EQ(override_text(), "vfio-pci\n");
  }
}

TEST_F(DriverChangeTest, does_not_take_back_what_the_kernel_may_use_already) {
  add(address, "vfio-pci", "7");
  failing_write_ = 4;  // that the device may have any driver again
  EXPECT_TRUE(DriverChange::to_kernel(found(), root()).value().run(writer()).ok());
  EXPECT_EQ(found().driver, "nvme");
}

TEST_F(DriverChangeTest, undoes_itself_when_the_new_driver_does_not_want_the_device) {
  add(address, "nvme", "7");
  refusing_driver_ = "vfio-pci";
  const Status status = DriverChange::to_vfio(found(), root()).value().run(writer());
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("vfio-pci did not take 0000:01:00.0"), std::string::npos);
  EXPECT_EQ(found().driver, "nvme");
  EXPECT_EQ(override_text(), "(null)\n");
}

TEST_F(DriverChangeTest, says_so_when_even_undoing_fails) {
  add(address, "nvme", "7");
  const Status status = DriverChange::to_vfio(found(), root()).value().run([this](const auto& file, const auto& text) {
    return file.filename() == "drivers_probe" ? Status(Error{Code::io_error, EIO, "no probing", ""})
                                              : write(file, text);
  });
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("could not be given back to nvme"), std::string::npos);
}

TEST_F(DriverChangeTest, is_refused_where_it_makes_no_sense) {
  add(address, "nvme", "");
  EXPECT_EQ(DriverChange::to_vfio(found(), root()).error().code, Code::unsupported);
  add("0000:02:00.0", "uio_pci_generic", "8");
  const auto other = find_pci_controller("0000:02:00.0", root()).value();
  EXPECT_EQ(DriverChange::to_vfio(other, root()).error().code, Code::in_use);
  EXPECT_EQ(DriverChange::to_kernel(other, root()).error().code, Code::in_use);
  add("0000:03:00.0", "nvme", "9");
  std::filesystem::remove_all(bus() / "drivers/vfio-pci");
  const auto unloaded = DriverChange::to_vfio(find_pci_controller("0000:03:00.0", root()).value(), root());
  EXPECT_EQ(unloaded.error().hint, "load it: modprobe vfio-pci");
}

}  // namespace
}  // namespace penstock::nvme
