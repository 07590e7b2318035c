// Stores on a real NVMe controller, or one that others wrote, driven through VFIO.
//
//   PENSTOCK_CONFORMANCE_NVME="ADDRESS SERIAL DISK DISK"
//
// names a controller with two namespaces whose bytes the kernel reaches too, on another way than the controller: as
// these disks. Past our driver that is the only way to them. tests/guest has such a machine. All that is on the disks
// is lost.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "conformance/engine_cases.h"

namespace penstock::test {
namespace {

constexpr std::size_t unit_bytes = 4096;  // a multiple of every block

[[noreturn]] void give_up(const std::string& what) {
  std::perror(what.c_str());
  std::abort();
}

struct Disk {
  std::uint32_t namespace_id = 0;
  std::string path;
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;
};

Disk look_at(std::uint32_t namespace_id, const std::string& path) {
  Disk disk{namespace_id, path};
  int block = 0;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::ioctl(fd, BLKGETSIZE64, &disk.size_bytes) != 0 || ::ioctl(fd, BLKSSZGET, &block) != 0) give_up(path);
  ::close(fd);
  disk.block_bytes = static_cast<std::uint32_t>(block);
  return disk;
}

void write_past_cache(const std::string& path, std::span<const std::byte> bytes) {
  const std::size_t whole = (bytes.size() + unit_bytes - 1) / unit_bytes * unit_bytes;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(unit_bytes, whole), &std::free);
  std::memset(memory.get(), 0, whole);
  if (!bytes.empty()) std::memcpy(memory.get(), bytes.data(), bytes.size());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT);
  if (fd < 0 || ::pwrite(fd, memory.get(), whole, 0) != static_cast<ssize_t>(whole)) give_up(path);
  ::close(fd);
}

// The stores of one test: the first that it makes is on the first disk, another on the second.
class Namespaces {
 public:
  explicit Namespaces(std::array<Disk, 2> disks) : disks_(std::move(disks)) {}

  const Disk& disk_of(const std::string& path) { return disks_[place_of(path)]; }
  void write(const std::string& path, std::span<const std::byte> bytes) {
    sizes_[place_of(path)] = bytes.size();
    write_past_cache(disk_of(path).path, bytes);
  }
  std::vector<std::byte> read(const std::string& path) {
    return read_past_cache(disk_of(path).path, 0, sizes_[place_of(path)]);
  }

 private:
  std::size_t place_of(const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path();
    if (folder != folder_) paths_.clear();
    folder_ = folder;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      if (paths_[i] == path) return i;
    }
    if (paths_.size() == disks_.size()) give_up("more stores than namespaces: " + path);
    paths_.push_back(path);
    return paths_.size() - 1;
  }

  const std::array<Disk, 2> disks_;
  std::array<std::size_t, 2> sizes_{};
  std::string folder_;
  std::vector<std::string> paths_;
};

EngineCase case_of(const std::string& address, const std::string& serial, const Disk& first, const Disk& second) {
  // Shared by the functions below, which are copied with the case.
  const auto spaces = std::make_shared<Namespaces>(std::array{first, second});
  Stores stores{.scheme = "nvme:", .are_files = false};
  stores.name_of = [=](const std::string& path) {
    return address + "/" + std::to_string(spaces->disk_of(path).namespace_id);
  };
  stores.write = [=](const std::string& path, std::span<const std::byte> bytes) { spaces->write(path, bytes); };
  stores.write_zeros = [](const std::string&, std::uint64_t) { return false; };
  stores.read = [=](const std::string& path) { return spaces->read(path); };
  stores.to_write = {.access = Access::write,
                     .allow_block_device_write = true,
                     .serial = serial,
                     .writable_blocks = first.size_bytes / first.block_bytes};
  return {"nvme_" + std::to_string(first.block_bytes), [] { return nvme::make_pci_engine(); }, std::move(stores)};
}

}  // namespace

std::vector<EngineCase> nvme_cases() {
  const char* const named = std::getenv("PENSTOCK_CONFORMANCE_NVME");
  if (named == nullptr) return {};
  std::istringstream words(named);
  std::string address, serial, first, second;
  if (!(words >> address >> serial >> first >> second)) give_up("PENSTOCK_CONFORMANCE_NVME=" + std::string(named));
  const Disk disks[] = {look_at(1, first), look_at(2, second)};
  return {case_of(address, serial, disks[0], disks[1]), case_of(address, serial, disks[1], disks[0])};
}

}  // namespace penstock::test
