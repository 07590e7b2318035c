#include "gpu_by_hand.h"

#include <fcntl.h>
#include <penstock/checksum.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "content.h"
#include "tally.h"

namespace bench {

namespace {

constexpr std::size_t piece_bytes = 4 << 20;
constexpr std::size_t spot_count = 32;
constexpr std::size_t spot_bytes = 512;

struct Piece {
  std::uint64_t position = 0;
  std::size_t size_bytes = 0;
};
using NextPiece = std::function<std::optional<Piece>()>;

// Has several threads share out the pieces of something large.
void in_pieces(std::uint64_t size_bytes, const std::function<void(const NextPiece&)>& work) {
  std::atomic<std::uint64_t> next{0};
  const NextPiece take = [&]() -> std::optional<Piece> {
    const std::uint64_t position = next.fetch_add(piece_bytes);
    if (position >= size_bytes) return std::nullopt;
    return Piece{position, std::min<std::size_t>(piece_bytes, size_bytes - position)};
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1U, 16U); ++i) {
    threads.emplace_back([&] { work(take); });
  }
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  penstock::Checksum sum;
  sum.add(bytes);
  return sum.value();
}

// Checksums of the pieces of two things that should be equal; the checksum of those stands for the whole.
class PieceSums {
 public:
  explicit PieceSums(std::uint64_t size_bytes)
      : found_((size_bytes + piece_bytes - 1) / piece_bytes), expected_(found_) {}

  // Overwrites `bytes`, which hold what was found.
  void add(const Piece& piece, std::span<std::byte> bytes, const Content& content) {
    found_[piece.position / piece_bytes] = checksum(bytes);
    content(piece.position, bytes);
    expected_[piece.position / piece_bytes] = checksum(bytes);
  }

  Json json() const { return {{"checksum", hex(found_)}, {"expected", hex(expected_)}}; }

 private:
  static std::string hex(const std::vector<std::uint64_t>& sums) {
    penstock::Checksum all;
    all.add(std::as_bytes(std::span(sums)));
    return all.hex();
  }

  std::vector<std::uint64_t> found_;
  std::vector<std::uint64_t> expected_;
};

int open_for_reading(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_errno("open " + path);
  return descriptor;
}

void read_all(int descriptor, std::uint64_t offset, std::span<std::byte> bytes, const std::string& path) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = pread(descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0) fail_errno("read " + path);
    if (got == 0) fail("read " + path + ": the file is too short");
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace

Gpu::Gpu() : driver_(*value_of(cuda::Driver::get())) {
  check(api().device_get(&device_, 0), "find the first GPU");
  check(api().primary_context_retain(&context_, device_), "make a context");
  make_current();
}

Gpu::~Gpu() {
  api().context_pop(nullptr);
  api().primary_context_release(device_);
}

void Gpu::make_current() const {
  check(api().context_push(context_), "make the context current");
}

std::uint64_t Gpu::free_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  check(api().memory_get_info(&free, &total), "ask for free GPU memory");
  return free;
}

void Gpu::check(cuda::CuResult result, const char* what) const {
  if (result != cuda::cu_success) fail(driver_.error(result, what).message);
}

void Gpu::refuse_kernels() {
  // The table is the process's own and not in use yet; the driver has no setting for this.
  using LoadData = cuda::CuResult(cuda::CuModule*, const void*);
  const_cast<cuda::RelaxedApi&>(driver_.api()).module_load_data =
      cuda::Relaxed<LoadData>([](cuda::CuModule*, const void*) { return cuda::cu_not_supported; });
}

DeviceMemory::DeviceMemory(const Gpu& gpu, std::size_t size_bytes) : gpu_(gpu) {
  gpu_.check(gpu_.api().memory_allocate(&address_, size_bytes), "allocate GPU memory");
}

DeviceMemory::~DeviceMemory() {
  gpu_.api().memory_free(address_);
}

PinnedMemory::PinnedMemory(const Gpu& gpu, std::size_t size_bytes) : gpu_(gpu), memory_(size_bytes) {
  constexpr unsigned flags = cuda::cu_host_register_portable | cuda::cu_host_register_device_map;
  gpu_.check(gpu_.api().host_register(bytes().data(), bytes().size(), flags), "pin memory");
}

PinnedMemory::~PinnedMemory() {
  gpu_.api().host_unregister(bytes().data());
}

Stream::Stream(const Gpu& gpu) : gpu_(gpu) {
  gpu_.check(gpu_.api().stream_create(&stream_, cuda::cu_stream_non_blocking, 0), "make a stream");
}

Stream::~Stream() {
  if (stream_ != nullptr) gpu_.api().stream_destroy(stream_);
}

void Stream::copy_to_device(std::byte* device, std::span<const std::byte> host) const {
  const auto address = reinterpret_cast<cuda::CuDevicePtr>(device);
  gpu_.check(gpu_.api().copy_to_device(address, host.data(), host.size(), stream_), "copy to the GPU");
}

void Stream::copy_to_host(std::span<std::byte> host, const std::byte* device) const {
  const auto address = reinterpret_cast<cuda::CuDevicePtr>(device);
  gpu_.check(gpu_.api().copy_from_device(host.data(), address, host.size(), stream_), "copy from the GPU");
}

void Stream::synchronize() const {
  gpu_.check(gpu_.api().stream_synchronize(stream_), "wait for copies");
}

namespace {

constexpr const char* idle_kernel = R"(
.version 7.0
.target sm_60
.address_size 64
.visible .entry idle(.param .u64 nanoseconds)
{
  .reg .u64 %time<4>;
  .reg .pred %early;
  ld.param.u64 %time0, [nanoseconds];
  mov.u64 %time1, %globaltimer;
again:
  mov.u64 %time2, %globaltimer;
  sub.u64 %time3, %time2, %time1;
  setp.lt.u64 %early, %time3, %time0;
  @%early bra again;
  ret;
}
)";

}  // namespace

Idler::Idler(const Gpu& gpu) : gpu_(gpu) {
  if (gpu_.api().module_load_data(&module_, idle_kernel) != cuda::cu_success) module_ = nullptr;
  if (module_ == nullptr) return;
  if (gpu_.api().module_get_function(&function_, module_, "idle") != cuda::cu_success) function_ = nullptr;
}

Idler::~Idler() {
  if (module_ != nullptr) gpu_.api().module_unload(module_);
}

bool Idler::start(const Stream& stream, std::uint64_t nanoseconds) const {
  if (function_ == nullptr) return false;
  void* parameters[] = {&nanoseconds};
  gpu_.check(gpu_.api().launch_kernel(function_, 1, 1, 1, 1, 1, 1, 0, stream.handle(), parameters, nullptr),
             "start a kernel");
  return true;
}

void spoiled(std::uint64_t, std::span<std::byte> bytes) {
  std::memset(bytes.data(), 0xa5, bytes.size());
}

Content content_of_file(std::uint64_t offset) {
  return [offset](std::uint64_t position, std::span<std::byte> bytes) { fill_content(offset + position, bytes); };
}

void fill(const Gpu& gpu, DeviceRange memory, const Content& content) {
  in_pieces(memory.size_bytes, [&](const NextPiece& next) {
    gpu.make_current();
    const PinnedMemory buffer(gpu, piece_bytes);
    const Stream stream(gpu);
    while (const auto piece = next()) {
      const auto bytes = buffer.bytes().first(piece->size_bytes);
      content(piece->position, bytes);
      stream.copy_to_device(memory.data + piece->position, bytes);
      stream.synchronize();
    }
  });
}

Json compare(const Gpu& gpu, DeviceRange memory, const Content& content) {
  PieceSums sums(memory.size_bytes);
  in_pieces(memory.size_bytes, [&](const NextPiece& next) {
    gpu.make_current();
    const PinnedMemory buffer(gpu, piece_bytes);
    const Stream stream(gpu);
    while (const auto piece = next()) {
      const auto bytes = buffer.bytes().first(piece->size_bytes);
      stream.copy_to_host(bytes, memory.data + piece->position);
      stream.synchronize();
      sums.add(*piece, bytes, content);
    }
  });
  return sums.json();
}

Json compare_file(const std::string& path, std::uint64_t size_bytes, const Content& content) {
  PieceSums sums(size_bytes);
  const int descriptor = open_for_reading(path);
  in_pieces(size_bytes, [&](const NextPiece& next) {
    std::vector<std::byte> buffer(piece_bytes);
    while (const auto piece = next()) {
      const auto bytes = std::span(buffer).first(piece->size_bytes);
      read_all(descriptor, piece->position, bytes, path);
      sums.add(*piece, bytes, content);
    }
  });
  close(descriptor);
  return sums.json();
}

void compare_spots_of_file(const std::string& path, std::uint64_t size_bytes, const Content& content) {
  std::mt19937_64 random{std::random_device{}()};
  std::vector<std::byte> found(spot_bytes);
  std::vector<std::byte> expected(spot_bytes);
  const int descriptor = open_for_reading(path);
  for (std::size_t i = 0; i < spot_count; ++i) {
    const std::uint64_t position = random() % (size_bytes / spot_bytes) * spot_bytes;
    read_all(descriptor, position, found, path);
    content(position, expected);
    if (found != expected) fail("wrong bytes at position " + std::to_string(position) + " of " + path);
  }
  close(descriptor);
}

Spots::Spots(const Gpu& gpu, DeviceRange memory)
    : gpu_(gpu), memory_(memory), buffer_(gpu, 2 * spot_bytes), stream_(gpu) {}

void Spots::spoil() {
  if (memory_.size_bytes < spot_bytes) return;
  const auto bytes = buffer_.bytes().first(spot_bytes);
  spoiled(0, bytes);
  positions_.clear();
  for (std::size_t i = 0; i < spot_count; ++i) {
    positions_.push_back(random_() % (memory_.size_bytes / spot_bytes) * spot_bytes);
    stream_.copy_to_device(memory_.data + positions_.back(), bytes);
  }
  stream_.synchronize();
}

void Spots::compare(const Content& content) {
  const auto found = buffer_.bytes().first(spot_bytes);
  const auto expected = buffer_.bytes().subspan(spot_bytes, spot_bytes);
  for (const std::uint64_t position : positions_) {
    stream_.copy_to_host(found, memory_.data + position);
    stream_.synchronize();
    content(position, expected);
    if (!std::ranges::equal(found, expected)) fail("wrong bytes at position " + std::to_string(position));
  }
}

Copies::Copies(const Gpu& gpu, std::size_t size_bytes)
    : size_bytes_(size_bytes), buffer_(gpu, buffer_bytes), memory_(gpu, size_bytes), stream_(gpu) {}

Json Copies::run(double seconds) {
  const double cpu_start = cpu_seconds();
  const double start = now();
  std::uint64_t bytes = 0;
  do {
    for (std::size_t done = 0; done < size_bytes_; done += copy_bytes) {
      const std::size_t length = std::min(copy_bytes, size_bytes_ - done);
      stream_.copy_to_device(memory_.data() + done, buffer_.bytes().subspan(done % buffer_bytes, length));
    }
    stream_.synchronize();
    bytes += size_bytes_;
  } while (now() - start < seconds);
  return {{"bytes", bytes}, {"seconds", now() - start}, {"cpu_seconds", cpu_seconds() - cpu_start}};
}

StagedThreads::StagedThreads(const Gpu& gpu, const Settings& settings)
    : gpu_(gpu),
      settings_(settings),
      descriptor_(open_for_reading(settings.file)),
      slots_(gpu, settings.threads * 2 * settings.chunk_bytes),
      memory_(gpu, settings.size_bytes) {}

StagedThreads::~StagedThreads() {
  close(descriptor_);
}

Json StagedThreads::run(double seconds, bool copy) {
  const double cpu_start = cpu_seconds();
  const double start = now();
  next_ = 0;
  bytes_ = 0;
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < settings_.threads; ++i) {
    threads.emplace_back([this, i, copy, end = start + seconds] { load_chunks(i, copy, end); });
  }
  threads.clear();
  return {{"bytes", bytes_.load()}, {"seconds", now() - start}, {"cpu_seconds", cpu_seconds() - cpu_start}};
}

Json StagedThreads::check() {
  fill(gpu_, {memory_.data(), settings_.size_bytes}, spoiled);
  Json result = run(0, true);
  result.update(compare(gpu_, {memory_.data(), settings_.size_bytes}, content_of_file(0)));
  return result;
}

// One load at least, then load after load without a pause between them until the time is over.
void StagedThreads::load_chunks(std::uint32_t thread, bool copy, double end) {
  gpu_.make_current();
  const Stream streams[2] = {Stream(gpu_), Stream(gpu_)};
  const std::size_t chunks = (settings_.size_bytes + settings_.chunk_bytes - 1) / settings_.chunk_bytes;
  std::uint64_t done = 0;
  for (std::size_t turn = 0;; ++turn) {
    const std::uint64_t chunk = next_.fetch_add(1);
    if (chunk >= chunks && now() > end) break;
    const std::uint64_t offset = chunk % chunks * settings_.chunk_bytes;
    const std::size_t length = std::min(settings_.chunk_bytes, settings_.size_bytes - offset);
    const auto slot = slots_.bytes().subspan((thread * 2 + turn % 2) * settings_.chunk_bytes, length);
    if (copy) streams[turn % 2].synchronize();
    read_all(descriptor_, offset, slot, settings_.file);
    if (copy) streams[turn % 2].copy_to_device(memory_.data() + offset, slot);
    done += length;
  }
  for (const Stream& stream : streams) stream.synchronize();
  bytes_ += done;
}

}  // namespace bench
