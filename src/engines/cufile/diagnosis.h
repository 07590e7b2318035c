// Diagnosis: what a machine offers to cuFile and what it lacks, condition by condition, without opening anything of
// cuFile's. Facts are gathered from the files that the kernel and its drivers show; what follows from them is a pure
// function.
//
// Thread safety: pure functions of the system's state.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "files/mount.h"
#include "penstock/engine_info.h"
#include "penstock/route.h"

namespace penstock::cufile {

struct NvidiaDriver {
  bool open_kernel_module = false;
  int major = 0;        // 580 of 580.65.06
  std::string version;  // "580.65.06"
};

// Whether NVIDIA gives GPUDirect Storage to GPUs of this model: to all but GeForce.
bool has_gpudirect_storage(const std::string& model);

struct GpuFacts {
  std::string model;
  std::string bus;  // "0000:01:00.0"
  std::optional<std::uint64_t> bar1_bytes;
};

// A file system on a block device of this machine.
struct Volume {
  files::DeviceNumber device;
  std::string point;
  std::string type;     // "ext4"
  std::string options;  // of the file system, "rw,data=ordered"
  enum class Disk { nvme, nvme_fabrics, md_raid, other } disk = Disk::other;
  bool in_udev = false;  // udev's database knows its file system
};

struct Facts {
  bool nvidia_fs = false;
  std::string nvidia_fs_version;
  std::string kernel_release;
  std::string architecture;
  std::optional<bool> kernel_p2pdma;  // CONFIG_PCI_P2PDMA
  std::optional<NvidiaDriver> driver;
  std::vector<GpuFacts> gpus;
  std::optional<bool> nvme_multipath;
  std::optional<std::string> registry;  // NVIDIA's RegistryDwords
  std::vector<Volume> volumes;
};

// `root` is "/"; tests bring trees of their own.
Facts gather_facts(const std::string& root);

struct Diagnosis {
  Route route = Route::cufile_compat;  // the best to hope for
  std::string reason;                  // why not better; empty if it is the best
  std::string remedy;
  std::vector<Condition> conditions;
};
Diagnosis diagnose(const Facts& facts);

inline constexpr const char* udev_condition_name = "udev database";
// Of a file on a volume: why cuFile may refuse it although the machine is fine.
std::vector<Condition> diagnose_volume(const Volume& volume);

// The volume that a file's device number means; nothing where it is no block device's.
std::optional<Volume> find_volume(const Facts& facts, files::DeviceNumber device);
// The commands that make udev's database know the file system of a volume.
std::string udev_cure(const Volume& volume);

}  // namespace penstock::cufile
