#include "engines/cufile/diagnosis.h"

#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace penstock::cufile {
namespace {

namespace fs = std::filesystem;
using State = Condition::State;

constexpr int oldest_p2pdma_driver = 565;
constexpr std::uint64_t small_bar1_bytes = 1ULL << 30;

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string first_line(const std::optional<std::string>& text) {
  return text ? text->substr(0, text->find('\n')) : std::string();
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The value of a line "name: value", for the indented texts of NVIDIA's driver.
std::optional<std::string> value_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + ":")) continue;
    const std::size_t begin = line.find_first_not_of(" \t", name.size() + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return std::nullopt;
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build …"
std::optional<NvidiaDriver> read_driver(const fs::path& root) {
  const auto text = read_text(root / "proc/driver/nvidia/version");
  if (!text) return std::nullopt;
  NvidiaDriver driver;
  const std::string line = first_line(text);
  driver.open_kernel_module = line.find("Open Kernel Module") != std::string::npos;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), driver.major);
    if (error == std::errc() && end != word.data() + word.size() && *end == '.') {
      driver.version = word;
      break;
    }
    driver.major = 0;
  }
  return driver;
}

// The largest of a PCI device's first resources, each a line with its first and its last address. It is not always in
// the second line: a BAR0 of 64 bits takes two.
std::optional<std::uint64_t> read_bar1_bytes(const fs::path& root, const std::string& bus) {
  constexpr int bars = 6;
  std::ifstream file(root / "sys/bus/pci/devices" / bus / "resource");
  std::uint64_t largest = 0;
  std::string line;
  for (int i = 0; i < bars && std::getline(file, line); ++i) {
    unsigned long long first = 0;
    unsigned long long last = 0;
    if (std::sscanf(line.c_str(), "%llx %llx", &first, &last) != 2 || last <= first) continue;
    largest = std::max<std::uint64_t>(largest, last - first + 1);
  }
  return largest != 0 ? std::optional(largest) : std::nullopt;
}

std::vector<GpuFacts> read_gpus(const fs::path& root) {
  std::vector<GpuFacts> gpus;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    const auto text = read_text(entry.path() / "information");
    if (!text) continue;
    GpuFacts gpu{value_of(*text, "Model").value_or("unknown"),
                 value_of(*text, "Bus Location").value_or(entry.path().filename().string()), std::nullopt};
    gpu.bar1_bytes = read_bar1_bytes(root, gpu.bus);
    gpus.push_back(std::move(gpu));
  }
  std::ranges::sort(gpus, {}, &GpuFacts::bus);
  return gpus;
}

// From the files that distributions keep beside their kernels; /proc/config.gz would need decompressing.
std::optional<bool> read_kernel_configuration(const fs::path& root, const std::string& release) {
  for (const std::string& name :
       {"boot/config-" + release, "lib/modules/" + release + "/config", "lib/modules/" + release + "/build/.config"}) {
    if (const auto text = read_text(root / name)) return text->find("\nCONFIG_PCI_P2PDMA=y") != std::string::npos;
  }
  return std::nullopt;
}

// Visible in containers too, but megabytes.
std::optional<bool> read_kernel_symbols(const fs::path& root) {
  std::ifstream symbols(root / "proc/kallsyms");
  bool any = false;
  for (std::string line; std::getline(symbols, line); any = true) {
    if (line.find(" p2pdma_pgmap_ops") != std::string::npos) return true;
  }
  return any ? std::optional(false) : std::nullopt;
}

Volume::Disk read_disk(const fs::path& root, files::DeviceNumber device) {
  std::error_code error;
  const fs::path folder = fs::canonical(root / "sys/dev/block" / device.name(), error);
  if (error) return Volume::Disk::other;
  const fs::path disk = is_there(folder / "partition") ? folder.parent_path() : folder;
  const std::string name = disk.filename().string();
  if (name.starts_with("md")) return Volume::Disk::md_raid;
  if (!name.starts_with("nvme")) return Volume::Disk::other;
  const std::string transport = first_line(read_text(disk / "device/transport"));
  return transport.empty() || transport == "pcie" ? Volume::Disk::nvme : Volume::Disk::nvme_fabrics;
}

// Of a line of mountinfo: "… - ext4 /dev/sda1 rw,data=ordered".
void read_type_and_options(const std::string& line, Volume& volume) {
  const std::size_t dash = line.find(" - ");
  if (dash == std::string::npos) return;
  std::istringstream words(line.substr(dash + 3));
  std::string source;
  words >> volume.type >> source >> volume.options;
}

std::vector<Volume> read_volumes(const fs::path& root) {
  std::vector<Volume> volumes;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto mounts = files::parse_mountinfo(line);
    if (mounts.empty() || mounts.front().device.major == 0) continue;  // no block device
    const auto same = [&](const Volume& volume) { return volume.device == mounts.front().device; };
    if (std::ranges::any_of(volumes, same)) continue;
    Volume volume{.device = mounts.front().device, .point = mounts.front().point};
    read_type_and_options(line, volume);
    volume.disk = read_disk(root, volume.device);
    const auto entry = read_text(root / "run/udev/data" / ("b" + volume.device.name()));
    volume.in_udev = entry && entry->find("E:ID_FS_USAGE=") != std::string::npos;
    volumes.push_back(std::move(volume));
  }
  return volumes;
}

struct Version {
  int major = 0;
  int minor = 0;
};
Version kernel_version(const std::string& release) {
  Version version;
  std::sscanf(release.c_str(), "%d.%d", &version.major, &version.minor);
  return version;
}

Condition met(std::string name, std::string detail) {
  return {std::move(name), State::met, std::move(detail), {}};
}
Condition missing(std::string name, std::string detail, std::string remedy) {
  return {std::move(name), State::missing, std::move(detail), std::move(remedy)};
}
Condition unknown(std::string name, std::string detail, std::string remedy) {
  return {std::move(name), State::unknown, std::move(detail), std::move(remedy)};
}

Condition nvidia_fs_condition(const Facts& facts) {
  const std::string name = "nvidia-fs kernel module";
  if (facts.nvidia_fs)
    return met(name, "loaded" + (facts.nvidia_fs_version.empty() ? "" : ", " + facts.nvidia_fs_version));
  return missing(name, "not loaded",
                 "install nvidia-gds (or nvidia-fs-dkms) and load it: modprobe nvidia_fs; or meet the conditions of "
                 "P2PDMA, which needs no such module");
}

Condition kernel_condition(const Facts& facts) {
  const std::string name = "P2PDMA: kernel";
  const Version version = kernel_version(facts.kernel_release);
  if (version.major == 0) return unknown(name, "the kernel's version can't be read", "make procfs visible");
  if (version.major < 6 || (version.major == 6 && version.minor < 2)) {
    return missing(name, facts.kernel_release, "use Linux 6.2 or newer");
  }
  if (!facts.kernel_p2pdma) {
    return unknown(name, facts.kernel_release + "; whether it has CONFIG_PCI_P2PDMA is not known here",
                   "look into /boot/config-" + facts.kernel_release + " of the host");
  }
  if (!*facts.kernel_p2pdma) {
    return missing(name, facts.kernel_release + " without CONFIG_PCI_P2PDMA", "use a kernel with CONFIG_PCI_P2PDMA=y");
  }
  return met(name, facts.kernel_release + " with CONFIG_PCI_P2PDMA");
}

Condition driver_condition(const Facts& facts) {
  const std::string name = "P2PDMA: NVIDIA driver";
  const std::string remedy = "install NVIDIA's open kernel modules, 565 or newer";
  if (!facts.driver) return missing(name, "no NVIDIA driver is loaded", remedy);
  const std::string detail = facts.driver->version + (facts.driver->open_kernel_module ? ", open" : ", proprietary");
  if (!facts.driver->open_kernel_module || facts.driver->major < oldest_p2pdma_driver) {
    return missing(name, detail, remedy);
  }
  return met(name, detail);
}

Condition gpu_condition(const Facts& facts) {
  const std::string name = "GPU";
  if (facts.gpus.empty()) {
    return missing(name, "NVIDIA's driver shows none", "check nvidia-smi; in a container, start it with GPU support");
  }
  std::string serving, others;
  for (const GpuFacts& gpu : facts.gpus) {
    std::string& list = has_gpudirect_storage(gpu.model) ? serving : others;
    list += (list.empty() ? "" : ", ") + gpu.model + " at " + gpu.bus;
  }
  if (serving.empty()) {
    return missing(name, others, "GeForce cards have no GPUDirect Storage: use a data-centre or professional GPU");
  }
  return met(
      name, serving + (others.empty() ? "" : "; served by staging, since GeForce has no GPUDirect Storage: " + others));
}

Condition bar1_condition(const Facts& facts) {
  const std::string name = "BAR1";
  for (const GpuFacts& gpu : facts.gpus) {
    if (!gpu.bar1_bytes) return unknown(name, "not shown for " + gpu.bus, "nvidia-smi -q shows it");
    if (*gpu.bar1_bytes >= small_bar1_bytes) continue;
    return missing(name, std::to_string(*gpu.bar1_bytes >> 20) + " MiB on " + gpu.bus,
                   "enable Above 4G Decoding and Resizable BAR in the firmware; a disk reaches no more of the GPU's "
                   "memory at a time than this");
  }
  if (facts.gpus.empty()) return unknown(name, "there is no GPU to look at", "");
  return met(name, std::to_string(*facts.gpus.front().bar1_bytes >> 20) + " MiB");
}

Condition multipath_condition(const Facts& facts) {
  const std::string name = "P2PDMA: NVMe without multipath";
  if (!facts.nvme_multipath) return met(name, "the kernel's NVMe driver has no multipath");
  if (!*facts.nvme_multipath) return met(name, "switched off");
  return missing(name, "nvme_core multipath is on",
                 "echo options nvme_core multipath=N > /etc/modprobe.d/nvme.conf, rebuild the initramfs, reboot");
}

Condition registry_condition(const Facts& facts) {
  const std::string name = "P2PDMA: driver registry";
  const std::string remedy =
      "echo 'options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"' > "
      "/etc/modprobe.d/nvidia-p2pdma.conf, rebuild the initramfs, reboot";
  if (!facts.registry) return unknown(name, "NVIDIA's driver does not show it", remedy);
  std::string lacking;
  for (const char* key : {"RMForceStaticBar1=1", "RmForceDisableIomapWC=1"}) {
    if (facts.registry->find(key) == std::string::npos) lacking += (lacking.empty() ? "" : ", ") + std::string(key);
  }
  return lacking.empty() ? met(name, *facts.registry) : missing(name, "without " + lacking, remedy);
}

Condition disk_condition(const Facts& facts) {
  const std::string name = "P2PDMA: NVMe disk of this machine";
  for (const Volume& volume : facts.volumes) {
    if (volume.disk == Volume::Disk::nvme) return met(name, volume.point);
  }
  const std::string remedy = "mount a local NVMe disk; kernel RAID, NVMe over fabrics and virtual disks don't work";
  return facts.volumes.empty() ? unknown(name, "no mounted disk is visible here", remedy)
                               : missing(name, "no file system is mounted from one", remedy);
}

Condition file_system_condition(const Volume& volume) {
  const std::string name = "file system";
  const std::string where = volume.type + " on " + volume.point;
  if (volume.type == "xfs") return met(name, where);
  if (volume.type != "ext4") return missing(name, where, "on local disks, GPUDirect Storage works with ext4 and xfs");
  for (const char* mode : {"data=journal", "data=writeback"}) {
    if (volume.options.find(mode) == std::string::npos) continue;
    return missing(name, where + " with " + mode, "mount it with data=ordered, ext4's default");
  }
  return met(name, where);
}

// Of the machine: one that fits is enough, and which one a file is on is seen when it is opened.
Condition file_systems_condition(const Facts& facts) {
  const std::string name = "file system";
  std::string fit, unfit;
  for (const Volume& volume : facts.volumes) {
    const Condition one = file_system_condition(volume);
    std::string& list = one.state == State::met ? fit : unfit;
    list += (list.empty() ? "" : ", ") + one.detail;
  }
  if (facts.volumes.empty()) return unknown(name, "no mounted disk is visible here", "");
  if (fit.empty()) return missing(name, unfit, "mount a disk with xfs, or with ext4 and data=ordered, its default");
  return met(name, fit + (unfit.empty() ? "" : "; not: " + unfit));
}

// Of the machine, likewise; what cuFile can't use anyway need not be known.
Condition udev_condition(const Facts& facts) {
  const std::string name = udev_condition_name;
  const Volume* unknown_one = nullptr;
  std::string known;
  for (const Volume& volume : facts.volumes) {
    if (file_system_condition(volume).state != State::met) continue;
    if (volume.in_udev) {
      known += (known.empty() ? "knows " : ", ") + volume.point;
    } else if (unknown_one == nullptr) {
      unknown_one = &volume;
    }
  }
  if (unknown_one == nullptr && known.empty())
    return unknown(name, "no mounted disk that cuFile can use is visible here", "");
  if (unknown_one == nullptr) return met(name, known);
  const std::string lacks = "no entry for " + unknown_one->device.name() + " (" + unknown_one->point +
                            "): cuFile refuses its files with 5027, as in most containers";
  return known.empty() ? missing(name, lacks, udev_cure(*unknown_one)) : met(name, known + "; but " + lacks);
}

bool lacks_none(const std::vector<Condition>& conditions) {
  return std::ranges::none_of(conditions, [](const Condition& one) { return one.state == State::missing; });
}

// What is not known counts as unmet: a driver that was opened without leave to fall back, and in vain, can't be opened
// again.
auto first_unmet(const std::vector<Condition>& conditions) {
  const auto missing_one = std::ranges::find(conditions, State::missing, &Condition::state);
  return missing_one != conditions.end() ? missing_one
                                         : std::ranges::find(conditions, State::unknown, &Condition::state);
}

std::vector<Condition> p2pdma_conditions(const Facts& facts) {
  std::vector<Condition> conditions{kernel_condition(facts), driver_condition(facts), disk_condition(facts)};
  if (facts.architecture == "x86_64") {
    conditions.push_back(multipath_condition(facts));
    conditions.push_back(registry_condition(facts));
  }
  return conditions;
}

}  // namespace

bool has_gpudirect_storage(const std::string& model) {
  return model.find("GeForce") == std::string::npos;
}

Facts gather_facts(const std::string& root_name) {
  const fs::path root(root_name);
  Facts facts;
  facts.nvidia_fs = is_there(root / "proc/driver/nvidia-fs") || is_there(root / "sys/module/nvidia_fs");
  facts.nvidia_fs_version = first_line(read_text(root / "sys/module/nvidia_fs/version"));
  facts.kernel_release = first_line(read_text(root / "proc/sys/kernel/osrelease"));
  facts.architecture = first_line(read_text(root / "proc/sys/kernel/arch"));
  if (utsname name{}; facts.architecture.empty() && ::uname(&name) == 0) facts.architecture = name.machine;
  facts.driver = read_driver(root);
  facts.gpus = read_gpus(root);
  if (const auto text = read_text(root / "sys/module/nvme_core/parameters/multipath")) {
    facts.nvme_multipath = text->starts_with('Y');
  }
  if (const auto text = read_text(root / "proc/driver/nvidia/params")) {
    facts.registry = value_of(*text, "RegistryDwords");
  }
  facts.volumes = read_volumes(root);
  facts.kernel_p2pdma = read_kernel_configuration(root, facts.kernel_release);
  // Nothing but the kernel may be left to decide.
  const bool decides = !facts.nvidia_fs && facts.driver && lacks_none(p2pdma_conditions(facts));
  if (!facts.kernel_p2pdma && decides) facts.kernel_p2pdma = read_kernel_symbols(root);
  return facts;
}

Diagnosis diagnose(const Facts& facts) {
  Diagnosis diagnosis;
  const std::vector<Condition> common{gpu_condition(facts), bar1_condition(facts), udev_condition(facts),
                                      file_systems_condition(facts)};
  const std::vector<Condition> p2pdma = p2pdma_conditions(facts);
  diagnosis.conditions.push_back(nvidia_fs_condition(facts));
  diagnosis.conditions.insert(diagnosis.conditions.end(), common.begin(), common.end());
  if (common.front().state == State::missing) {
    diagnosis.reason = "cuFile would take bytes through host memory: " + common.front().detail;
    diagnosis.remedy = common.front().remedy;
  } else if (facts.nvidia_fs) {
    diagnosis.route = Route::gds;
    return diagnosis;  // what P2PDMA would need is of no interest
  } else if (const auto first = first_unmet(p2pdma); first == p2pdma.end()) {
    diagnosis.route = Route::p2pdma;
  } else {
    diagnosis.reason = "cuFile would take bytes through host memory: nvidia-fs is not loaded, and " + first->name +
                       " is not met (" + first->detail + ")";
    diagnosis.remedy = "modprobe nvidia_fs, if it is installed; or for P2PDMA: " + first->remedy;
  }
  diagnosis.conditions.insert(diagnosis.conditions.end(), p2pdma.begin(), p2pdma.end());
  return diagnosis;
}

std::optional<Volume> find_volume(const Facts& facts, files::DeviceNumber device) {
  const auto found = std::ranges::find(facts.volumes, device, &Volume::device);
  return found == facts.volumes.end() ? std::nullopt : std::optional(*found);
}

std::string udev_cure(const Volume& volume) {
  return "start udev (systemd-udevd), mount the host's /run/udev into the container, or write the entry: mkdir -p "
         "/run/udev/data && printf 'I:1\\nE:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE=" +
         volume.type + "\\n' > /run/udev/data/b" + volume.device.name();
}

std::vector<Condition> diagnose_volume(const Volume& volume) {
  std::vector<Condition> conditions{file_system_condition(volume)};
  if (volume.disk == Volume::Disk::md_raid || volume.disk == Volume::Disk::nvme_fabrics) {
    conditions.push_back(missing("disk",
                                 volume.disk == Volume::Disk::md_raid ? "kernel RAID (md)" : "NVMe over fabrics",
                                 "P2PDMA needs a single local NVMe disk; nvidia-fs also works with these"));
  }
  if (volume.in_udev) {
    conditions.push_back(met(udev_condition_name, "knows " + volume.device.name()));
  } else {
    conditions.push_back(missing(udev_condition_name, "no entry for " + volume.device.name(), udev_cure(volume)));
  }
  return conditions;
}

}  // namespace penstock::cufile
