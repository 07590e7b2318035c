// The GPU without Penstock's data path: contexts, pinned memory and copies by plain calls of the driver. The yardsticks
// are made of these, and what checks bytes on the GPU, so that Penstock does not vouch for itself.
//
// Only the table of driver functions is Penstock's, which spares the benchmark CUDA's headers. Whatever fails ends the
// program with the reason.
//
// Thread safety: a Gpu from any thread, everything else from one at a time. Lifetime: the Gpu outlives the rest.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "rounds.h"

namespace bench {

namespace cuda = penstock::cuda;

// The first GPU and its primary context, which is current on the thread that makes this.
class Gpu {
 public:
  Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  const cuda::RelaxedApi& api() const { return driver_.api(); }
  // For further threads, until they end.
  void make_current() const;
  std::uint64_t free_bytes() const;
  void check(cuda::CuResult result, const char* what) const;
  // From now on the driver refuses to load kernels, as it does where they don't fit. Before the first Context.
  void refuse_kernels();

 private:
  cuda::Driver& driver_;
  cuda::CuDevice device_ = 0;
  cuda::CuContext context_ = nullptr;
};

class DeviceMemory {
 public:
  DeviceMemory(const Gpu& gpu, std::size_t size_bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  // An address of the GPU's: the CPU can't touch it.
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 private:
  const Gpu& gpu_;
  cuda::CuDevicePtr address_ = 0;
};

class PinnedMemory {
 public:
  PinnedMemory(const Gpu& gpu, std::size_t size_bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  std::span<std::byte> bytes() const { return memory_.bytes(); }

 private:
  const Gpu& gpu_;
  Memory memory_;
};

class Stream {
 public:
  explicit Stream(const Gpu& gpu);
  Stream(Stream&& other) noexcept : gpu_(other.gpu_), stream_(std::exchange(other.stream_, nullptr)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  cuda::CuStream handle() const { return stream_; }
  void copy_to_device(std::byte* device, std::span<const std::byte> host) const;
  void copy_to_host(std::span<std::byte> host, const std::byte* device) const;
  void synchronize() const;

 private:
  const Gpu& gpu_;
  cuda::CuStream stream_ = nullptr;
};

// A kernel that does nothing for a while. A driver that can't compile it has none.
class Idler {
 public:
  explicit Idler(const Gpu& gpu);
  Idler(const Idler&) = delete;
  Idler& operator=(const Idler&) = delete;
  ~Idler();

  // Puts it on the stream; false: there is none.
  bool start(const Stream& stream, std::uint64_t nanoseconds) const;

 private:
  const Gpu& gpu_;
  cuda::CuModule module_ = nullptr;
  cuda::CuFunction function_ = nullptr;
};

// What memory must hold: writes the bytes at `position` of it.
using Content = std::function<void(std::uint64_t position, std::span<std::byte> bytes)>;
// What no file holds.
void spoiled(std::uint64_t position, std::span<std::byte> bytes);
// That of a benchmark file from `offset` on.
Content content_of_file(std::uint64_t offset);

struct DeviceRange {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
};

// Writes `content` to GPU memory.
void fill(const Gpu& gpu, DeviceRange memory, const Content& content);
// Reads all of GPU memory, or of a file, and gives the checksum that it has and that it should have.
Json compare(const Gpu& gpu, DeviceRange memory, const Content& content);
Json compare_file(const std::string& path, std::uint64_t size_bytes, const Content& content);
// A few small places only; ends the program if one differs.
void compare_spots_of_file(const std::string& path, std::uint64_t size_bytes, const Content& content);

// A few small places of GPU memory, other ones each time: spoiled before a round and compared after it, so that no
// round passes that has moved nothing.
class Spots {
 public:
  Spots(const Gpu& gpu, DeviceRange memory);
  void spoil();
  void compare(const Content& content);

 private:
  const Gpu& gpu_;
  const DeviceRange memory_;
  PinnedMemory buffer_;
  Stream stream_;
  std::vector<std::uint64_t> positions_;
  std::mt19937_64 random_{std::random_device{}()};
};

// Pinned memory to the GPU, the ceiling of everything that is staged: one buffer again and again, in large copies.
class Copies {
 public:
  Copies(const Gpu& gpu, std::size_t size_bytes);
  // Whole loads until `seconds` have passed.
  Json run(double seconds);

 private:
  static constexpr std::size_t buffer_bytes = 256 << 20;
  static constexpr std::size_t copy_bytes = 64 << 20;

  const std::size_t size_bytes_;
  PinnedMemory buffer_;
  DeviceMemory memory_;
  Stream stream_;
};

// What a careful program does without a library: threads that read chunks of a file into two pinned slots each and copy
// them to the GPU, one slot being filled while the other is copied.
class StagedThreads {
 public:
  struct Settings {
    std::string file;
    std::size_t size_bytes = 0;
    std::uint32_t threads = 4;
    std::size_t chunk_bytes = 4 << 20;
  };
  StagedThreads(const Gpu& gpu, const Settings& settings);
  ~StagedThreads();
  // Without `copy` the bytes stay in the slots: what reading alone can deliver.
  Json run(double seconds, bool copy);
  Json check();

 private:
  void load_chunks(std::uint32_t thread, bool copy, double end);

  const Gpu& gpu_;
  const Settings settings_;
  const int descriptor_;
  PinnedMemory slots_;
  DeviceMemory memory_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace bench
