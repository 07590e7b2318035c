#include "nvme/driver_change.h"

#include <fcntl.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/unique_fd.h"

namespace penstock::nvme {
namespace {

namespace fs = std::filesystem;

// The kernel's word for no driver in particular.
constexpr std::string_view no_override = "(null)";

Status check_loaded(const fs::path& sysfs, std::string_view driver) {
  std::error_code error;
  if (fs::exists(sysfs / "bus/pci/drivers" / driver, error)) return {};
  const std::string name(driver);
  return Error{Code::unsupported, 0, "the kernel's driver " + name + " is not loaded", "load it: modprobe " + name};
}

}  // namespace

Status write_sysfs(const fs::path& file, const std::string& text) {
  const std::string what = "write \"" + (text == "\n" ? "" : text) + "\" to " + file.string();
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  const int error = errno;
  return system_error(error, what,
                      error == EACCES || error == EPERM ? "only root may change the driver of a device" : "");
}

Result<DriverChange> DriverChange::to_vfio(const NvmeDevice& device, const fs::path& sysfs) {
  if (device.iommu_group.empty()) {
    return Error{Code::unsupported, 0, device.address + " is not behind an IOMMU, or the IOMMU is off",
                 "switch it on in the firmware, and on Intel machines for the kernel with intel_iommu=on"};
  }
  return to(vfio_driver, device, sysfs);
}

Result<DriverChange> DriverChange::to_kernel(const NvmeDevice& device, const fs::path& sysfs) {
  auto change = to(kernel_driver, device, sysfs);
  if (change && !change->steps_.empty()) change->steps_.push_back(change->set_override(""));
  return change;
}

Result<DriverChange> DriverChange::to(std::string_view target, const NvmeDevice& device, const fs::path& sysfs) {
  if (!device.driver.empty() && device.driver != kernel_driver && device.driver != vfio_driver) {
    return Error{Code::in_use, 0, device.address + " belongs to the driver " + device.driver, "unbind it there first"};
  }
  if (auto status = check_loaded(sysfs, target); !status) return std::move(status).error();
  DriverChange change(device, std::string(target), sysfs);
  if (device.driver == target) return change;
  // Named even if it is the kernel's: vfio-pci may have been told to take every device of this kind.
  change.steps_.push_back(change.set_override(change.target_));
  if (!device.driver.empty()) change.steps_.push_back(change.unbind(device.driver));
  change.steps_.push_back(change.probe());
  return change;
}

DriverChange::DriverChange(const NvmeDevice& device, std::string target, const fs::path& sysfs)
    : address_(device.address),
      before_(device.driver),
      target_(std::move(target)),
      bus_(sysfs / "bus/pci"),
      device_(bus_ / "devices" / device.address) {
  std::ifstream(device_ / "driver_override") >> override_before_;
  if (override_before_ == no_override) override_before_.clear();
}

DriverChange::Step DriverChange::set_override(const std::string& driver) const {
  return {device_ / "driver_override", driver.empty() ? "\n" : driver};
}

DriverChange::Step DriverChange::unbind(const std::string& driver) const {
  return {bus_ / "drivers" / driver / "unbind", address_};
}

DriverChange::Step DriverChange::probe() const {
  return {bus_ / "drivers_probe", address_};
}

std::string DriverChange::driver() const {
  std::error_code error;
  const fs::path target = fs::read_symlink(device_ / "driver", error);
  return error ? "" : target.filename().string();
}

std::vector<std::string> DriverChange::steps() const {
  std::vector<std::string> words;
  for (const Step& step : steps_) {
    words.push_back("write \"" + (step.text == "\n" ? "" : step.text) + "\" to " + step.file.string());
  }
  return words;
}

Status DriverChange::run(const SysfsWriter& write) const {
  for (const Step& step : steps_) {
    if (auto status = write(step.file, step.text); !status) {
      // It is where it should be, and may be in use there already.
      if (driver() == target_) return {};
      Error error = std::move(status).error();
      error.message += undo(write);
      return error;
    }
  }
  if (driver() == target_) return {};
  const std::string now = driver();
  return Error{Code::unsupported, 0,
               target_ + " did not take " + address_ + (now.empty() ? "" : ", " + now + " did") + undo(write),
               "the kernel log says why: dmesg"};
}

// Says how that went.
std::string DriverChange::undo(const SysfsWriter& write) const {
  const auto attempt = [&write](const Step& step) { (void)write(step.file, step.text); };
  const std::string now = driver();
  if (!now.empty() && now != before_) attempt(unbind(now));
  if (before_.empty() || driver() == before_) {
    attempt(set_override(override_before_));
  } else {
    attempt(set_override(before_));
    attempt(probe());
    attempt(set_override(override_before_));
  }
  if (driver() == before_)
    return before_.empty() ? "; it has no driver, as before" : "; " + before_ + " has it, as before";
  return "; and it could not be given back to " + (before_.empty() ? "no driver" : before_) + ": it now has " +
         (driver().empty() ? "none" : driver());
}

}  // namespace penstock::nvme
