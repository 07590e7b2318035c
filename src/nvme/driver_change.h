// DriverChange: a controller goes from the kernel's driver to VFIO, or back.
//
// Made first, so that what it would do can be told; then run. What fails half-way is undone.
//
// Thread safety: one thread uses it, and nobody else changes the driver meanwhile. Lifetime: a value.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/pci.h"
#include "penstock/result.h"

namespace penstock::nvme {

// Writes a text to a file of sysfs, as one write.
using SysfsWriter = std::function<Status(const std::filesystem::path& file, const std::string& text)>;
Status write_sysfs(const std::filesystem::path& file, const std::string& text);

class DriverChange {
 public:
  // REQUIRES: nothing uses the disks of the device, as far as this process can see to it.
  static Result<DriverChange> to_vfio(const NvmeDevice& device, const std::filesystem::path& sysfs = "/sys");
  static Result<DriverChange> to_kernel(const NvmeDevice& device, const std::filesystem::path& sysfs = "/sys");

  // In words, in order; none if there is nothing to do.
  std::vector<std::string> steps() const;
  Status run(const SysfsWriter& write = write_sysfs) const;

 private:
  static Result<DriverChange> to(std::string_view target, const NvmeDevice& device, const std::filesystem::path& sysfs);
  struct Step {
    std::filesystem::path file;
    std::string text;
  };

  DriverChange(const NvmeDevice& device, std::string target, const std::filesystem::path& sysfs);
  Step set_override(const std::string& driver) const;
  Step unbind(const std::string& driver) const;
  Step probe() const;
  std::string driver() const;
  std::string undo(const SysfsWriter& write) const;

  std::string address_;
  std::string before_;  // its driver; empty: none
  std::string target_;
  std::string override_before_;
  std::filesystem::path bus_;
  std::filesystem::path device_;
  std::vector<Step> steps_;
};

}  // namespace penstock::nvme
