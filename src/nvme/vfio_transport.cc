#include "nvme/vfio_transport.h"

#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "nvme/spec.h"
#include "nvme/vfio_answer.h"

namespace penstock::nvme {
namespace {

// The admin queue's, and those of as many I/O queues as a Controller has.
constexpr std::uint32_t most_vectors = 65;

using RegionInfo = VfioAnswer<vfio_region_info>;

Result<RegionInfo> ask_region(int device, std::uint32_t index, const std::string& what) {
  vfio_region_info question{};
  question.index = index;
  return RegionInfo::ask(device, VFIO_DEVICE_GET_REGION_INFO, question, what);
}

// How much of a region can be mapped from its start on.
std::uint64_t mappable_bytes(const RegionInfo& region) {
  if ((region->flags & VFIO_REGION_INFO_FLAG_MMAP) == 0) return 0;
  const bool tells = (region->flags & VFIO_REGION_INFO_FLAG_CAPS) != 0;
  const auto capability = tells ? region.capability(VFIO_REGION_INFO_CAP_SPARSE_MMAP) : std::span<const std::byte>();
  using Head = vfio_region_info_cap_sparse_mmap;
  std::uint32_t count = 0;
  if (!read_at(capability, offsetof(Head, nr_areas), count)) return region->size;
  vfio_region_sparse_mmap_area area{};
  for (std::uint32_t i = 0; i < count && read_at(capability, sizeof(Head) + i * sizeof area, area); ++i) {
    if (area.offset == 0) return std::min<std::uint64_t>(area.size, region->size);
  }
  return 0;
}

}  // namespace

std::size_t take_as_many(std::size_t wanted, const std::function<int(std::size_t count)>& take) {
  int outcome = take(wanted);
  while (outcome > 0 && static_cast<std::size_t>(outcome) < wanted) {
    wanted = static_cast<std::size_t>(outcome);
    outcome = take(wanted);
  }
  return outcome == 0 ? wanted : 0;
}

Result<std::unique_ptr<Transport>> VfioTransport::open(const std::string& address) {
  auto place = find_for_vfio(address);
  if (!place) return std::move(place).error();
  auto group = VfioGroup::open(*place);
  if (!group) return std::move(group).error();
  auto device = (*group)->open_device(address);
  if (!device) return std::move(device).error();
  std::unique_ptr<VfioTransport> transport(new VfioTransport(address, std::move(*group), std::move(*device)));
  if (auto status = transport->check_device(); !status) return std::move(status).error();
  if (auto status = transport->map_registers(); !status) return std::move(status).error();
  if (auto status = transport->set_command(true); !status) return std::move(status).error();
  transport->take_interrupts();
  return std::unique_ptr<Transport>(std::move(transport));
}

VfioTransport::VfioTransport(std::string name, std::unique_ptr<VfioGroup> group, UniqueFd device)
    : name_(std::move(name)), group_(std::move(group)), device_(std::move(device)) {}

VfioTransport::~VfioTransport() {
  if (registers_ == nullptr) return;
  // Closing stops the device, takes its interrupts and unmaps everything; this is in case something keeps it open.
  if (auto status = set_command(false); !status) log(LogLevel::warning, status.error().message);
  ::munmap(registers_, registers_bytes_);
}

Status VfioTransport::check_device() {
  vfio_device_info info{};
  info.argsz = sizeof info;
  if (::ioctl(device_.get(), VFIO_DEVICE_GET_INFO, &info) != 0) return system_error(errno, "ask VFIO for " + name_);
  can_reset_ = (info.flags & VFIO_DEVICE_FLAGS_RESET) != 0;
  if ((info.flags & VFIO_DEVICE_FLAGS_PCI) != 0 && info.num_regions > VFIO_PCI_CONFIG_REGION_INDEX) return {};
  return Error{Code::unsupported, 0, name_ + " is not a PCI device that VFIO knows",
               "check that it is bound to vfio-pci"};
}

Status VfioTransport::map_registers() {
  const std::string what = "map the registers of " + name_;
  auto region = ask_region(device_.get(), VFIO_PCI_BAR0_REGION_INDEX, what);
  if (!region) return std::move(region).error();
  const std::uint64_t bytes = mappable_bytes(*region);
  // The registers, and doorbells for the admin queue at least; the Controller checks those of the others.
  if (bytes < reg::doorbells + 8 || bytes > SIZE_MAX) {
    return Error{Code::unsupported, 0,
                 what + ": BAR 0 has " + std::to_string((*region)->size) + " bytes, of which " + std::to_string(bytes) +
                     " can be mapped",
                 "it may be off or broken; the kernel log may say more"};
  }
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, device_.get(), static_cast<off_t>((*region)->offset));
  if (memory == MAP_FAILED) return system_error(errno, what);
  ::madvise(memory, bytes, MADV_DONTFORK);
  registers_ = static_cast<std::byte*>(memory);
  registers_bytes_ = bytes;
  return {};
}

// Whether the device answers to reads and writes of its registers, and may read and write memory.
Status VfioTransport::set_command(bool enabled) {
  const std::string what = std::string(enabled ? "enable" : "disable") + " " + name_ + " on the bus";
  auto config = ask_region(device_.get(), VFIO_PCI_CONFIG_REGION_INDEX, what);
  if (!config) return std::move(config).error();
  const auto at = static_cast<off_t>((*config)->offset + PCI_COMMAND);
  std::uint16_t command = 0;
  if (::pread(device_.get(), &command, sizeof command, at) != sizeof command) return system_error(errno, what);
  command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;  // nobody serves the pin
  if (!enabled) command &= static_cast<std::uint16_t>(~PCI_COMMAND_MASTER);
  if (::pwrite(device_.get(), &command, sizeof command, at) != sizeof command) return system_error(errno, what);
  return {};
}

// All at once: older kernels can't add vectors later. Without them we poll, which works everywhere.
void VfioTransport::take_interrupts() {
  vfio_irq_info info{};
  info.argsz = sizeof info;
  info.index = VFIO_PCI_MSIX_IRQ_INDEX;
  if (::ioctl(device_.get(), VFIO_DEVICE_GET_IRQ_INFO, &info) != 0 || info.count == 0 ||
      (info.flags & VFIO_IRQ_INFO_EVENTFD) == 0) {
    log(LogLevel::info, name_ + " has no MSI-X interrupts: completions are polled");
    return;
  }
  std::vector<UniqueFd> events(std::min(info.count, most_vectors));
  std::vector<std::int32_t> numbers;
  for (UniqueFd& event : events) {
    event = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event) return log(LogLevel::warning, system_error(errno, "make an eventfd for " + name_).message);
    numbers.push_back(event.get());
  }
  events.resize(
      take_as_many(events.size(), [&](std::size_t count) { return set_interrupts(std::span(numbers).first(count)); }));
  interrupts_ = std::move(events);
  if (!interrupts_.empty()) return;
  log(LogLevel::warning, "take the interrupts of " + name_ + ": refused; completions are polled");
}

// As VFIO_DEVICE_SET_IRQS returns.
int VfioTransport::set_interrupts(std::span<const std::int32_t> events) const {
  vfio_irq_set set{};
  set.argsz = static_cast<std::uint32_t>(sizeof set + events.size_bytes());
  set.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
  set.index = VFIO_PCI_MSIX_IRQ_INDEX;
  set.count = static_cast<std::uint32_t>(events.size());
  std::vector<std::byte> request(set.argsz);
  std::memcpy(request.data(), &set, sizeof set);
  std::memcpy(request.data() + sizeof set, events.data(), events.size_bytes());
  return ::ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, request.data());
}

// The IOMMU has the last word; the other two are for a device that would go on trying.
Status VfioTransport::isolate() {
  if (auto status = set_command(false); !status) log(LogLevel::warning, status.error().message);
  if (can_reset_ && ::ioctl(device_.get(), VFIO_DEVICE_RESET) != 0) {
    log(LogLevel::warning, system_error(errno, "reset " + name_).message);
  }
  return group_->unmap_all();
}

}  // namespace penstock::nvme
