// NVMe controllers that this process can drive itself: list them, ask what they are, and test the driver with one. A
// Context opens stores on them like any other (docs/nvme.md).
//
// A controller is named as its stores are: "nvme:0000:01:00.0" is on the PCI bus, handed to VFIO by bind_nvme;
// "soft-nvme:FILE" is in software, over a file.
//
// Thread safety: every call from any thread. Lifetime: values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/export.h"
#include "penstock/result.h"

namespace penstock {

// A controller on the PCI bus, as sysfs shows it.
struct NvmeDevice {
  std::string address;             // "0000:01:00.0"
  std::string driver;              // that is bound to it; empty: none
  std::string iommu_group;         // empty: no IOMMU, or not in use
  std::vector<std::string> disks;  // of the kernel's driver: "nvme0n1"
  std::string used_by;             // why it can't be taken; empty if it can
};
PENSTOCK_EXPORT Result<std::vector<NvmeDevice>> list_nvme();

// A change of a controller's driver.
struct NvmeBinding {
  std::string address;
  std::string driver_before;       // empty: none
  std::string driver_after;        // or what it would be
  std::string iommu_group;         // whose node in /dev/vfio a user needs
  std::vector<std::string> steps;  // done, or to be done; empty if there is nothing to do
};
enum class NvmeBindingMode : std::uint8_t { dry_run, run };
// Hands a controller to VFIO, so that this process or another can drive it. Code::in_use if anything uses one of its
// disks: a mount, swap, a device built on it or on a partition, a program that has it open exclusively. A failure
// half-way is undone.
PENSTOCK_EXPORT Result<NvmeBinding> bind_nvme(const std::string& address, NvmeBindingMode mode);
// Gives it back to the kernel's driver. Code::in_use while a process drives it.
PENSTOCK_EXPORT Result<NvmeBinding> unbind_nvme(const std::string& address, NvmeBindingMode mode);

struct NvmeNamespace {
  std::uint32_t id = 0;
  std::uint32_t block_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::string refusal;  // why it can't be used; empty if it can
};
struct NvmeController {
  std::string serial;
  std::string model;
  std::string firmware;
  std::string version;  // "1.4"
  std::uint32_t max_queue_entries = 0;
  std::uint32_t io_queues = 0;
  std::uint64_t max_transfer_bytes = 0;
  bool write_zeroes = false;
  bool deallocate = false;
  bool volatile_write_cache = false;
  std::vector<NvmeNamespace> namespaces;
};
// Resets the controller, identifies it, and shuts it down again.
PENSTOCK_EXPORT Result<NvmeController> inspect_nvme(const std::string& name);

struct NvmeRegister {
  std::string name;  // "CAP"
  std::uint32_t offset = 0;
  std::uint64_t value = 0;
  std::string meaning;  // in words
};
struct NvmeRegisters {
  std::vector<NvmeRegister> registers;  // while the controller is ready
  std::optional<Error> problem;         // why it does not get ready; then the registers are as found
};
// Resets the controller to read its registers, and shuts it down again. Fails only if they can't be reached.
PENSTOCK_EXPORT Result<NvmeRegisters> read_nvme_registers(const std::string& name);

struct NvmeCheck {
  std::string name;
  bool ok = false;
  std::string detail;  // what was seen, or went wrong
};
// Tests the controller with everything but writes, and compares what it reads. Any thread calls `keep_going` before
// every read; if it returns false, the remaining checks fail.
PENSTOCK_EXPORT Result<std::vector<NvmeCheck>> test_nvme(const std::string& name,
                                                         const std::function<bool()>& keep_going = {});

// A run of the driver against a controller in software, with blocks in memory, that misbehaves from a seed.
struct NvmeTrial {
  std::uint64_t seed = 1;
  std::uint64_t operations = 100'000;
  std::uint32_t block_bytes = 512;
  bool faults = true;
  std::function<bool()> keep_going;  // called now and then; false ends the run, with a report so far
};
struct NvmeTrialReport {
  std::uint64_t operations = 0;  // that ended, with every byte compared
  std::uint64_t retries = 0;
  std::uint64_t commands = 0;
  std::uint64_t doorbells = 0;
  std::uint64_t aborts = 0;
  std::uint64_t resets = 0;
  std::uint64_t strange_completions = 0;  // ignored by the driver
  double seconds = 0;
  std::vector<std::string> wrong;     // lost, duplicated, or with wrong bytes: the driver's mistakes
  std::vector<std::string> breaches;  // protocol rules that the driver broke
};
PENSTOCK_EXPORT Result<NvmeTrialReport> try_soft_nvme(const NvmeTrial& trial = {});

}  // namespace penstock
