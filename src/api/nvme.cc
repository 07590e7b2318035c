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
#include "nvme/vfio_transport.h"

namespace penstock {
namespace {

constexpr std::string_view soft_scheme = "soft-nvme:";
constexpr std::string_view pci_scheme = "nvme:";

// A controller, and for one in software the engine that its blocks are reached by.
struct Connected {
  std::unique_ptr<engine::Engine> files;
  std::unique_ptr<nvme::Transport> transport;
};

Result<Connected> connect(const std::string& name) {
  if (name.starts_with(pci_scheme)) {
    auto device = nvme::connect_pci(name.substr(pci_scheme.size()), {});
    if (!device) return std::move(device).error();
    auto transport = nvme::VfioTransport::open(device->controller);
    if (!transport) return std::move(transport).error();
    return Connected{nullptr, std::move(*transport)};
  }
  if (!name.starts_with(soft_scheme)) {
    return Error{Code::unknown_scheme, 0, "\"" + name + "\" names no controller that can be driven from here",
                 "use nvme:ADDRESS (`penstock nvme list` shows them) or soft-nvme:FILE"};
  }
  Connected connected{engines::best_for_files(), nullptr};
  auto device = nvme::connect_soft(*connected.files, name.substr(soft_scheme.size()), {});
  if (!device) return std::move(device).error();
  connected.transport = std::move(device->transport);
  return connected;
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
  auto connected = connect(name);
  if (!connected) return std::move(connected).error();
  auto controller = nvme::Controller::open(*connected->transport);
  if (!controller) return std::move(controller).error();
  return nvme::describe(**controller);
}

Result<std::vector<NvmeCheck>> test_nvme(const std::string& name) {
  auto connected = connect(name);
  if (!connected) return std::move(connected).error();
  return nvme::run_selftest(*connected->transport);
}

Result<NvmeTrialReport> try_soft_nvme(const NvmeTrial& trial) {
  return nvme::run_trial(trial);
}

}  // namespace penstock
