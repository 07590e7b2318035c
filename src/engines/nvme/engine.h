// The nvme engines: stores on NVMe controllers that this process drives itself, without the kernel.
//
// `nvme:0000:01:00.0/1` is a namespace of a controller on the PCI bus, through VFIO. `soft-nvme:FILE` is a controller
// in software over a file: for tests, for trying out, and for driving it from a GPU; it has the speed of its file at
// best. One Engine serves every kind of controller; what differs is how one is connected.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "nvme/controller.h"
#include "nvme/soft_controller.h"

namespace penstock::nvme {

// A way to a namespace, found by a store's name.
struct Device {
  std::unique_ptr<Transport> transport;  // none: that of `controller`
  std::string controller;                // what `reach` knows it by; all stores that name it share one driver
  std::uint32_t namespace_id = 1;
  StoreKind kind = StoreKind::block_device;
  std::uint64_t size_bytes = 0;  // of the store, which the namespace may exceed; 0: all of it
  // The blocks that may be written, if the store was opened for that; 0 blocks: all of them.
  std::uint64_t first_writable = 0;
  std::uint64_t writable_blocks = 0;
  std::string serial;  // what the controller must say that it is; empty: anything
  Identity identity;   // of a disk; what may change behind the controller tells it by `state`
  std::function<Result<engine::State>()> state;
};

struct Settings {
  engine::Description description;
  std::function<engine::Probe()> probe;
  // REQUIRES: access is read or write; the Engine refuses the others.
  std::function<Result<Device>(const std::string& name, const OpenOptions& options)> connect;
  // For Devices without a transport of their own.
  std::function<Result<std::unique_ptr<Transport>>(const std::string& controller)> reach;
  ControllerOptions controller;
};

std::unique_ptr<engine::Engine> make_engine(Settings settings);

// Controllers on the PCI bus, through VFIO.
std::unique_ptr<engine::Engine> make_pci_engine();
// What a name means; writing needs everything that OpenOptions has for it.
Result<Device> connect_pci(const std::string& name, const OpenOptions& options);

// A controller in software over a store of `files`, which it keeps.
Result<Device> connect_soft(const std::shared_ptr<engine::Engine>& files, const std::string& name,
                            const OpenOptions& options, const SoftShape& shape = {}, const SoftFaults& faults = {});
// Over the files of another engine. The shape and the faults are for tests.
std::unique_ptr<engine::Engine> make_soft_engine(std::unique_ptr<engine::Engine> files, const SoftShape& shape = {},
                                                 const SoftFaults& faults = {}, const ControllerOptions& options = {});

}  // namespace penstock::nvme
