// For tests: a sysfs tree of our own, with PCI devices in it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace penstock::nvme {

class FakeSysfs : public testing::Test {
 protected:
  FakeSysfs() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock-sysfs-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
    std::filesystem::create_directories(bus() / "devices");
    for (const char* driver : {"nvme", "vfio-pci"}) add_driver(driver);
    write(bus() / "drivers_probe", "");
  }
  ~FakeSysfs() override {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path bus() const { return root_ / "bus/pci"; }
  std::filesystem::path device(const std::string& address) const { return bus() / "devices" / address; }

  void add_driver(const std::string& driver) const {
    std::filesystem::create_directories(bus() / "drivers" / driver);
    write(bus() / "drivers" / driver / "unbind", "");
  }
  void add(const std::string& address, const std::string& driver, const std::string& group,
           const std::string& device_class = "0x010802") const {
    std::filesystem::create_directories(device(address));
    write(device(address) / "class", device_class + "\n");
    write(device(address) / "driver_override", "(null)\n");
    set_driver(address, driver);
    if (group.empty()) return;
    const std::filesystem::path folder = root_ / "kernel/iommu_groups" / group;
    std::filesystem::create_directories(folder / "devices");
    std::filesystem::create_directory_symlink(device(address), folder / "devices" / address);
    std::filesystem::create_directory_symlink(folder, device(address) / "iommu_group");
  }
  void add_folder(const std::string& address, const std::string& name) const {
    std::filesystem::create_directories(device(address) / name);
  }
  void set_driver(const std::string& address, const std::string& driver) const {
    std::filesystem::remove(device(address) / "driver");
    if (driver.empty()) return;
    add_driver(driver);
    std::filesystem::create_directory_symlink(bus() / "drivers" / driver, device(address) / "driver");
  }
  static void write(const std::filesystem::path& file, const std::string& text) { std::ofstream(file) << text; }
  static std::string read(const std::filesystem::path& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::filesystem::path root_;
};

}  // namespace penstock::nvme
