// nvme: namespaces of controllers on the PCI bus.
#include <unistd.h>

#include <utility>

#include "engines/nvme/engine.h"
#include "nvme/pci.h"
#include "nvme/vfio_transport.h"

namespace penstock::nvme {
namespace {

Status check_writing(const std::string& name, const OpenOptions& options) {
  if (!options.allow_block_device_write) {
    return Error{Code::read_only, 0, name + " is a disk: writing destroys its data",
                 "if you mean it, allow it explicitly: allow_block_device_write in C++, device_write=True in Python"};
  }
  if (options.serial.empty() || options.writable_blocks == 0) {
    return Error{Code::read_only, 0,
                 "writing to " + name + " needs the serial number of its controller and the blocks that may change",
                 "give the serial, the first writable block and how many blocks"};
  }
  return {};
}

engine::Probe probe_vfio() {
  engine::Probe probe;
  probe.available = ::access("/dev/vfio/vfio", F_OK) == 0;
  if (probe.available) return probe;
  probe.reason = "there is no /dev/vfio/vfio: the kernel's VFIO is not loaded";
  probe.remedy = "modprobe vfio-pci; docs/nvme.md says how to hand a controller to Penstock";
  return probe;
}

}  // namespace

Result<Device> connect_pci(const std::string& name, const OpenOptions& options) {
  auto parsed = parse_namespace_name(name);
  if (!parsed) return std::move(parsed).error();
  Device device;
  device.controller = parsed->address;
  device.namespace_id = parsed->id;
  device.identity = Identity("namespace " + std::to_string(parsed->id) + " of " + parsed->address);
  if (options.access == Access::read) return device;
  if (auto status = check_writing(name, options); !status) return std::move(status).error();
  device.serial = options.serial;
  device.first_writable = options.first_writable_block;
  device.writable_blocks = options.writable_blocks;
  return device;
}

std::unique_ptr<engine::Engine> make_pci_engine() {
  Settings settings;
  settings.description = {.name = "nvme",
                          .summary = "NVMe controllers that this process drives itself, through VFIO",
                          .schemes = {"nvme"},
                          .sleeps_in_kernel = true,
                          .host = engine::HostReach::attached};
  settings.probe = probe_vfio;
  settings.connect = connect_pci;
  settings.reach = VfioTransport::open;
  return make_engine(std::move(settings));
}

}  // namespace penstock::nvme
