// VfioTransport: a controller on the PCI bus, driven by this process through VFIO. The IOMMU lets it reach what is
// mapped here, and nothing else.
//
// Thread safety and lifetime: as Transport. When it goes, or the process dies, the kernel stops the device and takes
// the memory away from it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/transport.h"
#include "nvme/vfio_group.h"

namespace penstock::nvme {

// As many interrupts as are wanted, or as there are; 0: none. `take` is told how many to take, and returns as
// VFIO_DEVICE_SET_IRQS does: 0 if that went well, or how many there are.
std::size_t take_as_many(std::size_t wanted, const std::function<int(std::size_t count)>& take);

class VfioTransport : public Transport {
 public:
  // The controller at a PCI address, which must be bound to vfio-pci.
  static Result<std::unique_ptr<Transport>> open(const std::string& address);
  ~VfioTransport() override;

  const std::string& name() const override { return name_; }
  Registers registers() override { return {registers_, registers_bytes_}; }
  Result<std::uint64_t> map(std::byte* data, std::size_t size_bytes) override { return group_->map(data, size_bytes); }
  void unmap(std::uint64_t address, std::size_t size_bytes) override { group_->unmap(address, size_bytes); }
  std::uint32_t interrupts() const override { return static_cast<std::uint32_t>(interrupts_.size()); }
  Result<int> interrupt(std::uint32_t vector) override { return interrupts_[vector].get(); }
  Status isolate() override;

 private:
  VfioTransport(std::string name, std::unique_ptr<VfioGroup> group, UniqueFd device);
  Status check_device();
  Status map_registers();
  Status set_command(bool enabled);
  void take_interrupts();
  int set_interrupts(std::span<const std::int32_t> events) const;

  const std::string name_;
  const std::unique_ptr<VfioGroup> group_;
  const UniqueFd device_;
  bool can_reset_ = false;
  std::byte* registers_ = nullptr;
  std::size_t registers_bytes_ = 0;
  std::vector<UniqueFd> interrupts_;  // by vector; none: completions are polled for
};

}  // namespace penstock::nvme
