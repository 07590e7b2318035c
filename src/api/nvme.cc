// What penstock/nvme.h offers, from the driver and the table of engines.
#include "penstock/nvme.h"

#include <sys/stat.h>

#include <memory>
#include <string_view>
#include <utility>

#include "engines/nvme/engine.h"
#include "engines/table.h"
#include "files/block_device.h"
#include "nvme/pci.h"
#include "nvme/selftest.h"

namespace penstock {
namespace {

constexpr std::string_view soft_scheme = "soft-nvme:";

Result<nvme::Device> connect(const std::string& name) {
  if (!name.starts_with(soft_scheme)) {
    return Error{Code::unknown_scheme, 0, "\"" + name + "\" names no controller that can be driven from here",
                 "use soft-nvme:FILE"};
  }
  return nvme::connect_soft(engines::best_for_files(), name.substr(soft_scheme.size()), {});
}

std::string user_of(const NvmeDevice& device) {
  for (const std::string& disk : device.disks) {
    struct stat node {};
    const std::string path = "/dev/" + disk;
    if (::stat(path.c_str(), &node) != 0) continue;
    if (auto unused = files::check_unused(files::device_number(node.st_rdev), path); !unused) {
      return unused.error().message;
    }
  }
  return "";
}

}  // namespace

Result<std::vector<NvmeDevice>> list_nvme() {
  auto devices = nvme::find_pci_controllers();
  if (!devices) return devices;
  for (NvmeDevice& device : *devices) device.used_by = user_of(device);
  return devices;
}

Result<NvmeController> inspect_nvme(const std::string& name) {
  auto device = connect(name);
  if (!device) return std::move(device).error();
  auto controller = nvme::Controller::open(*device->transport);
  if (!controller) return std::move(controller).error();
  return nvme::describe(**controller);
}

Result<std::vector<NvmeCheck>> test_nvme(const std::string& name) {
  auto device = connect(name);
  if (!device) return std::move(device).error();
  return nvme::run_selftest(*device->transport);
}

Result<NvmeTrialReport> try_soft_nvme(const NvmeTrial& trial) {
  return nvme::run_trial(trial);
}

}  // namespace penstock
