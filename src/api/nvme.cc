// What penstock/nvme.h offers, from the driver and the table of engines.
#include "penstock/nvme.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "base/callback.h"
#include "base/unique_fd.h"
#include "engines/nvme/engine.h"
#include "engines/table.h"
#include "files/device_use.h"
#include "nvme/driver_change.h"
#include "nvme/pci.h"
#include "nvme/selftest.h"
#include "nvme/vfio_transport.h"

namespace penstock {
namespace {

constexpr std::string_view soft_scheme = "soft-nvme:";
constexpr std::string_view pci_scheme = "nvme:";

Result<nvme::Device> connect(const std::string& name) {
  if (name.starts_with(pci_scheme)) {
    auto device = nvme::connect_pci(name.substr(pci_scheme.size()), {});
    if (!device) return device;
    auto transport = nvme::VfioTransport::open(device->controller);
    if (!transport) return std::move(transport).error();
    device->transport = std::move(*transport);
    return device;
  }
  if (!name.starts_with(soft_scheme)) {
    return Error{Code::unknown_scheme, 0, "\"" + name + "\" is not a controller that Penstock can drive",
                 "use nvme:ADDRESS (`penstock nvme list` shows them) or soft-nvme:FILE"};
  }
  return nvme::connect_soft(engines::best_for_files(), name.substr(soft_scheme.size()), {});
}

// What uses a disk of the kernel; an error too if that can't be told.
Status check_disk(const std::string& path) {
  struct stat node {};
  if (::stat(path.c_str(), &node) != 0) return system_error(errno, "look at " + path, "is /dev complete?");
  return files::check_unused(files::device_number(node.st_rdev), path);
}

// As long as they are held, nobody can mount the disks of a device, or build others on them.
Result<std::vector<UniqueFd>> claim_disks(const NvmeDevice& device) {
  std::vector<UniqueFd> claims;
  for (const std::string& disk : device.disks) {
    const std::string path = "/dev/" + disk;
    if (auto unused = check_disk(path); !unused) return std::move(unused).error();
    claims.emplace_back(::open(path.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC));
    if (claims.back()) continue;
    if (errno == EBUSY) {
      return Error{Code::in_use, EBUSY,
                   path + " is in use: another program has opened it, or a part of it, exclusively",
                   "`lsof " + path + "` may tell who"};
    }
    return system_error(errno, "open " + path + " exclusively");
  }
  return claims;
}

// The kernel would wait for whoever drives it, without an end. As long as this is held nobody can.
Result<UniqueFd> claim_group(const NvmeDevice& device) {
  const std::string path = "/dev/vfio/" + device.iommu_group;
  UniqueFd group(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (group || errno != EBUSY) return group;
  return Error{Code::in_use, EBUSY, "a process drives " + device.address + ", or a device of its IOMMU group",
               "end it first; `lsof " + path + "` may tell which"};
}

Result<NvmeBinding> change_driver(const NvmeDevice& device, std::string_view driver, Result<nvme::DriverChange> change,
                                  NvmeBindingMode mode) {
  if (!change) return std::move(change).error();
  NvmeBinding binding{device.address, device.driver, std::string(driver), device.iommu_group, change->steps()};
  if (mode == NvmeBindingMode::dry_run) return binding;
  if (auto status = change->run(); !status) return std::move(status).error();
  return binding;
}

}  // namespace

Result<std::vector<NvmeDevice>> list_nvme() {
  auto devices = nvme::find_pci_controllers();
  if (!devices) return devices;
  for (NvmeDevice& device : *devices) {
    for (const std::string& disk : device.disks) {
      const Status unused = check_disk("/dev/" + disk);
      if (!unused && device.used_by.empty()) device.used_by = unused.error().message;
    }
  }
  return devices;
}

Result<NvmeBinding> bind_nvme(const std::string& address, NvmeBindingMode mode) {
  auto device = nvme::find_pci_controller(address);
  if (!device) return std::move(device).error();
  auto claims = claim_disks(*device);
  if (!claims) return std::move(claims).error();
  // The kernel may still have been looking for its disks.
  auto again = nvme::find_pci_controller(address);
  if (!again) return std::move(again).error();
  if (again->disks != device->disks || !nvme::is_settled(*device)) {
    return Error{Code::in_use, 0, "the kernel's driver is still busy with " + address, "try again in a moment"};
  }
  return change_driver(*device, nvme::vfio_driver, nvme::DriverChange::to_vfio(*device), mode);
}

Result<NvmeBinding> unbind_nvme(const std::string& address, NvmeBindingMode mode) {
  auto device = nvme::find_pci_controller(address);
  if (!device) return std::move(device).error();
  auto group = claim_group(*device);
  if (!group) return std::move(group).error();
  return change_driver(*device, nvme::kernel_driver, nvme::DriverChange::to_kernel(*device), mode);
}

Result<NvmeController> inspect_nvme(const std::string& name) {
  auto device = connect(name);
  if (!device) return std::move(device).error();
  auto controller = nvme::Controller::open(*device->transport);
  if (!controller) return std::move(controller).error();
  return nvme::describe(**controller);
}

Result<NvmeRegisters> read_nvme_registers(const std::string& name) {
  auto device = connect(name);
  if (!device) return std::move(device).error();
  return nvme::read_registers(*device->transport);
}

Result<std::vector<NvmeCheck>> test_nvme(const std::string& name, const std::function<bool()>& keep_going) {
  auto device = connect(name);
  if (!device) return std::move(device).error();
  return nvme::run_selftest(*device->transport, {}, keep_going_by("keep_going of test_nvme", keep_going));
}

Result<NvmeTrialReport> try_soft_nvme(const NvmeTrial& trial) {
  NvmeTrial guarded = trial;
  guarded.keep_going = keep_going_by("NvmeTrial::keep_going", trial.keep_going);
  return nvme::run_trial(guarded);
}

}  // namespace penstock
