// bench_gpu_packed: a packed tensor of normally distributed BF16 weights to GPU memory, one subcommand a process:
//   make    writes the file: a packed tensor alone
//   kernel  the kernel alone, from GPU memory to GPU memory
//   pinned  as hand, from slots that have their bytes already
//   hand    as a careful program does it: threads that read runs of chunks into pinned slots, copy them to a scratch on
//           the GPU (or let the kernel read the slots), decode, and look at the status; with the library's kernel
//   load    the same by requests of Penstock
// Bytes are decoded bytes.
#include <fcntl.h>
#include <penstock/penstock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "gpu_by_hand.h"
#include "rounds.h"
#include "services/models/range_list.h"
#include "services/packed/codec.h"
#include "services/packed/unpack.h"
#include "tally.h"

namespace {

namespace cuda = penstock::cuda;
namespace packed = penstock::packed;
using bench::Json;
using bench::value_of;
using penstock::Domain;

struct Settings {
  std::string file;
  std::string options_json = "{}";
  std::uint64_t size_bytes = 0;  // decoded
  std::uint32_t threads = 8;
  std::uint32_t block_threads = cuda::unpack_threads;
  std::uint64_t slot_bytes = 4 << 20;
  std::uint32_t slots = 3;
  bool over_the_bus = false;
};

constexpr std::size_t chunk_bytes = packed::chunk_values * 2;

// A few different chunks, which the tensor repeats: making billions of random numbers would take longer than all else.
class Weights {
 public:
  static constexpr std::size_t different = 64;

  Weights() : values_(different * chunk_bytes), chunks_(different) {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < different; ++i) {
      threads.emplace_back([this, i] {
        std::mt19937_64 random(i);
        std::normal_distribution<float> weight(0, 0.02F);
        for (std::size_t v = 0; v < packed::chunk_values; ++v) {
          const auto bits = std::bit_cast<std::uint32_t>(weight(random));
          const auto rounded = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
          std::memcpy(values_.data() + i * chunk_bytes + v * 2, &rounded, 2);
        }
        packed::encode_chunk(packed::best_kernels(), packed::Kind::bf16, 0, values(i), chunks_[i]);
      });
    }
  }
  std::span<const std::byte> values(std::size_t chunk) const {
    return std::span(values_).subspan(chunk % different * chunk_bytes, chunk_bytes);
  }
  std::span<const std::byte> stored(std::size_t chunk) const { return chunks_[chunk % different]; }
  bench::Content content() const {
    return [this](std::uint64_t position, std::span<std::byte> bytes) {
      for (std::size_t done = 0; done < bytes.size();) {
        const auto from = values((position + done) / chunk_bytes).subspan((position + done) % chunk_bytes);
        const std::size_t length = std::min(from.size(), bytes.size() - done);
        std::memcpy(bytes.data() + done, from.data(), length);
        done += length;
      }
    };
  }

 private:
  std::vector<std::byte> values_;
  std::vector<std::vector<std::byte>> chunks_;
};

packed::TensorIndex index_of(const Weights& weights, std::uint64_t size_bytes) {
  packed::TensorIndex index{.kind = packed::Kind::bf16, .values = size_bytes / 2, .bytes = 0, .starts = {}};
  std::uint64_t place = packed::index_bytes(index.values);
  for (std::uint64_t chunk = 0; chunk < size_bytes / chunk_bytes; ++chunk) {
    index.starts.push_back(static_cast<std::uint32_t>(place / packed::chunk_alignment));
    place += weights.stored(chunk).size();
  }
  index.starts.push_back(static_cast<std::uint32_t>(place / packed::chunk_alignment));
  index.bytes = packed::round_up(place, packed::tensor_alignment);
  return index;
}

void write_all(int descriptor, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) bench::fail_errno("write the packed tensor");
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void make_file(const Settings& settings) {
  const Weights weights;
  const packed::TensorIndex index = index_of(weights, settings.size_bytes);
  const int descriptor = ::open(settings.file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) bench::fail_errno("make " + settings.file);
  if (::ftruncate(descriptor, static_cast<off_t>(index.bytes)) != 0) bench::fail_errno("make " + settings.file);
  write_all(descriptor, 0, packed::write_index(index));
  std::atomic<std::uint32_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1U, 8U); ++i) {
    threads.emplace_back([&] {
      for (std::uint32_t chunk = next++; chunk < index.chunks(); chunk = next++) {
        std::vector<std::byte> bytes(weights.stored(chunk).begin(), weights.stored(chunk).end());
        constexpr std::size_t number_at = 20;
        std::memcpy(bytes.data() + number_at, &chunk, sizeof chunk);
        write_all(descriptor, index.offset(chunk), bytes);
      }
    });
  }
  threads.clear();
  if (::fsync(descriptor) != 0) bench::fail_errno("write " + settings.file);
  ::close(descriptor);
}

// The file's tensor.
struct Tensor {
  explicit Tensor(const Settings& settings) : size_bytes(settings.size_bytes) {
    const int descriptor = ::open(settings.file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) bench::fail_errno("open " + settings.file);
    const auto index = index_of(weights, size_bytes);
    std::vector<std::byte> front(packed::index_bytes(size_bytes / 2));
    if (::pread(descriptor, front.data(), front.size(), 0) != static_cast<ssize_t>(front.size())) {
      bench::fail("read the index of " + settings.file);
    }
    ::close(descriptor);
    transform = std::make_shared<packed::Unpack>(
        "weights", value_of(packed::read_index(front, {packed::Kind::bf16, size_bytes / 2, index.bytes})), 0);
  }
  std::vector<packed::ChunkRun> runs(std::uint64_t stored_bytes) const {
    return transform->runs(0, size_bytes, {.stored_bytes = stored_bytes});
  }
  std::uint64_t stored_bytes() const { return transform->index().bytes; }

  const std::uint64_t size_bytes;
  const Weights weights;
  std::shared_ptr<packed::Unpack> transform;
};

// What the kernel takes for a run.
penstock::UnpackRun on_gpu(const packed::TensorIndex& index, const packed::ChunkRun& run) {
  penstock::UnpackRun made;
  made.memory_bytes = run.bytes;
  made.first_chunk = run.first;
  made.count = run.count;
  made.last_values = index.values_of(run.first + run.count - 1);
  for (std::uint32_t i = 0; i <= run.count; ++i) made.starts[i] = index.starts[run.first + i] - index.starts[run.first];
  return made;
}

class Kernel {
 public:
  Kernel(const bench::Gpu& gpu, std::uint32_t block_threads)
      : gpu_(gpu),
        block_threads_(block_threads),
        device_(*value_of(value_of(cuda::Driver::get())->device(0))),
        function_(device_.kernels()[cuda::Kernel::unpack_bf16]) {
    if (function_ == nullptr) bench::fail("the GPU has no kernel for packed chunks");
  }
  void launch(const bench::Stream& stream, penstock::UnpackRun& run) const {
    void* parameters[] = {&run};
    gpu_.check(gpu_.api().launch_kernel(function_, run.count, 1, 1, block_threads_, 1, 1, 0, stream.handle(),
                                        parameters, nullptr),
               "decode");
  }

 private:
  const bench::Gpu& gpu_;
  const std::uint32_t block_threads_;
  cuda::Device& device_;
  cuda::CuFunction function_;
};

// Words of pinned memory that kernels write to where something is wrong.
class Words {
 public:
  explicit Words(const bench::Gpu& gpu) : memory_(gpu, 4096) {
    std::memset(memory_.bytes().data(), 0, memory_.bytes().size());
    gpu.check(gpu.api().host_get_device_pointer(&address_, memory_.bytes().data(), 0), "find pinned memory");
  }
  std::uint64_t address(std::size_t word) const { return address_ + word * sizeof(std::uint32_t); }
  void check() const {
    for (const std::byte byte : memory_.bytes()) {
      if (byte != std::byte{0}) bench::fail("the kernel found damage");
    }
  }

 private:
  bench::PinnedMemory memory_;
  cuda::CuDevicePtr address_ = 0;
};

Json sample(std::uint64_t bytes, double start, double cpu_start) {
  return {{"bytes", bytes}, {"seconds", bench::now() - start}, {"cpu_seconds", bench::cpu_seconds() - cpu_start}};
}

void read_all(int descriptor, std::uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got <= 0) bench::fail_errno("read the packed tensor");
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

// All of the stored bytes lie in GPU memory.
class Alone {
 public:
  Alone(const bench::Gpu& gpu, const Settings& settings)
      : gpu_(gpu),
        tensor_(settings),
        kernel_(gpu, settings.block_threads),
        words_(gpu),
        stream_(gpu),
        stored_(gpu, tensor_.stored_bytes()),
        memory_(gpu, tensor_.size_bytes) {
    const int descriptor = ::open(settings.file.c_str(), O_RDONLY | O_CLOEXEC);
    const bench::PinnedMemory slot(gpu, 64 << 20);
    for (std::uint64_t done = 0; done < tensor_.stored_bytes();) {
      const auto part = slot.bytes().first(std::min<std::uint64_t>(slot.bytes().size(), tensor_.stored_bytes() - done));
      read_all(descriptor, done, part);
      stream_.copy_to_device(stored_.data() + done, part);
      stream_.synchronize();
      done += part.size();
    }
    ::close(descriptor);
    for (const packed::ChunkRun& run : tensor_.runs(UINT64_MAX)) {
      penstock::UnpackRun& made = runs_.emplace_back(on_gpu(tensor_.transform->index(), run));
      made.stored = reinterpret_cast<std::uint64_t>(stored_.data() + run.offset);
      made.memory = reinterpret_cast<std::uint64_t>(memory_.data() + std::uint64_t{run.first} * chunk_bytes);
      made.status = words_.address(0);
    }
  }
  Json run(double seconds) {
    const double cpu_start = bench::cpu_seconds();
    const double start = bench::now();
    std::uint64_t bytes = 0;
    do {
      for (penstock::UnpackRun& run : runs_) kernel_.launch(stream_, run);
      stream_.synchronize();
      bytes += tensor_.size_bytes;
    } while (bench::now() - start < seconds);
    words_.check();
    return sample(bytes, start, cpu_start);
  }
  Json check() {
    bench::fill(gpu_, {memory_.data(), tensor_.size_bytes}, bench::spoiled);
    Json result = run(0);
    result.update(bench::compare(gpu_, {memory_.data(), tensor_.size_bytes}, tensor_.weights.content()));
    return result;
  }

 private:
  const bench::Gpu& gpu_;
  const Tensor tensor_;
  const Kernel kernel_;
  const Words words_;
  const bench::Stream stream_;
  const bench::DeviceMemory stored_;
  const bench::DeviceMemory memory_;
  std::vector<penstock::UnpackRun> runs_;
};

// A thread of the bare pipeline: its slots, of which one is filled while others are on their way.
class Worker {
 public:
  Worker(const bench::Gpu& gpu, const Settings& settings)
      : gpu_(gpu),
        slot_bytes_(settings.slot_bytes),
        slots_(gpu, settings.slots * settings.slot_bytes),
        stream_(gpu),
        events_(settings.slots, nullptr) {
    if (!settings.over_the_bus) scratch_.emplace(gpu, settings.slot_bytes);
    gpu.check(gpu.api().host_get_device_pointer(&slots_address_, slots_.bytes().data(), 0), "find pinned memory");
    for (cuda::CuEvent& event : events_) {
      gpu.check(gpu.api().event_create(&event, cuda::cu_event_disable_timing), "make an event");
    }
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    for (cuda::CuEvent event : events_) gpu_.api().event_destroy(event);
  }

  // The next slot, when it is free.
  std::span<std::byte> next_slot() {
    turn_ = (turn_ + 1) % events_.size();
    wait(events_[turn_]);
    return slots_.bytes().subspan(turn_ * slot_bytes_, slot_bytes_);
  }
  void decode(const Kernel& kernel, std::span<const std::byte> stored, penstock::UnpackRun& run) {
    run.stored = slots_address_ + turn_ * slot_bytes_;
    if (scratch_) {
      stream_.copy_to_device(scratch_->data(), stored);
      run.stored = reinterpret_cast<std::uint64_t>(scratch_->data());
    }
    kernel.launch(stream_, run);
    gpu_.check(gpu_.api().event_record(events_[turn_], stream_.handle()), "record an event");
  }
  void finish() const { stream_.synchronize(); }

 private:
  void wait(cuda::CuEvent event) const {
    for (;;) {
      const cuda::CuResult state = gpu_.api().event_query(event);
      if (state == cuda::cu_success) return;
      if (state != cuda::cu_not_ready) gpu_.check(state, "wait for a slot");
      std::this_thread::yield();
    }
  }

  const bench::Gpu& gpu_;
  const std::uint64_t slot_bytes_;
  const bench::PinnedMemory slots_;
  const bench::Stream stream_;
  std::vector<cuda::CuEvent> events_;
  std::optional<bench::DeviceMemory> scratch_;
  cuda::CuDevicePtr slots_address_ = 0;
  std::size_t turn_ = 0;
};

class ByHand {
 public:
  ByHand(const bench::Gpu& gpu, const Settings& settings)
      : gpu_(gpu),
        tensor_(settings),
        kernel_(gpu, settings.block_threads),
        words_(gpu),
        memory_(gpu, tensor_.size_bytes),
        runs_(tensor_.runs(settings.slot_bytes)),
        descriptor_(::open(settings.file.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) bench::fail_errno("open " + settings.file);
    for (std::uint32_t i = 0; i < settings.threads; ++i) workers_.push_back(std::make_unique<Worker>(gpu, settings));
  }
  ~ByHand() { ::close(descriptor_); }
  ByHand(const ByHand&) = delete;
  ByHand& operator=(const ByHand&) = delete;

  Json run(double seconds) {
    const double cpu_start = bench::cpu_seconds();
    const double start = bench::now();
    next_ = 0;
    bytes_ = 0;
    std::vector<std::jthread> threads;
    for (const auto& worker : workers_) {
      threads.emplace_back([this, &worker, end = start + seconds] { work(*worker, end); });
    }
    threads.clear();
    words_.check();
    return sample(bytes_, start, cpu_start);
  }
  Json check() {
    bench::fill(gpu_, {memory_.data(), tensor_.size_bytes}, bench::spoiled);
    Json result = run(0);
    result.update(bench::compare(gpu_, {memory_.data(), tensor_.size_bytes}, tensor_.weights.content()));
    return result;
  }

 private:
  // One load at least, then load after load without a pause between them until the time is over.
  void work(Worker& worker, double end) {
    gpu_.make_current();
    std::uint64_t done = 0;
    for (std::uint64_t turn = next_++; turn < runs_.size() || bench::now() < end; turn = next_++) {
      const packed::ChunkRun& run = runs_[turn % runs_.size()];
      const auto slot = worker.next_slot().first(run.stored_bytes);
      read_all(descriptor_, run.offset, slot);
      penstock::UnpackRun made = on_gpu(tensor_.transform->index(), run);
      made.memory = reinterpret_cast<std::uint64_t>(memory_.data() + std::uint64_t{run.first} * chunk_bytes);
      made.status = words_.address(0);
      worker.decode(kernel_, slot, made);
      done += run.bytes;
    }
    worker.finish();
    bytes_ += done;
  }

  const bench::Gpu& gpu_;
  const Tensor tensor_;
  const Kernel kernel_;
  const Words words_;
  const bench::DeviceMemory memory_;
  const std::vector<packed::ChunkRun> runs_;
  const int descriptor_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

// Pinned memory to the GPU as ByHand does it, without reading: the slots have the same runs all the time.
class Pinned {
 public:
  Pinned(const bench::Gpu& gpu, const Settings& settings)
      : gpu_(gpu),
        tensor_(settings),
        kernel_(gpu, settings.block_threads),
        words_(gpu),
        memory_(gpu, tensor_.size_bytes) {
    const auto runs = tensor_.runs(settings.slot_bytes);
    const int descriptor = ::open(settings.file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) bench::fail_errno("open " + settings.file);
    for (std::uint32_t i = 0; i < settings.threads; ++i) {
      Part& part = parts_.emplace_back(Part{std::make_unique<Worker>(gpu, settings), {}});
      for (std::uint32_t slot = 0; slot < settings.slots; ++slot) {
        const packed::ChunkRun& run = runs[(i * settings.slots + slot) % runs.size()];
        const auto bytes = part.worker->next_slot().first(run.stored_bytes);
        read_all(descriptor, run.offset, bytes);
        part.slots.push_back({bytes, on_gpu(tensor_.transform->index(), run)});
        part.slots.back().run.memory =
            reinterpret_cast<std::uint64_t>(memory_.data() + std::uint64_t{run.first} * chunk_bytes);
        part.slots.back().run.status = words_.address(0);
      }
    }
    ::close(descriptor);
  }
  Json run(double seconds) {
    const double cpu_start = bench::cpu_seconds();
    const double start = bench::now();
    bytes_ = 0;
    std::vector<std::jthread> threads;
    for (Part& part : parts_) {
      threads.emplace_back([this, &part, end = start + seconds] {
        gpu_.make_current();
        std::uint64_t done = 0;
        do {
          for (Slot& slot : part.slots) {
            part.worker->next_slot();
            part.worker->decode(kernel_, slot.bytes, slot.run);
            done += slot.run.memory_bytes;
          }
        } while (bench::now() < end);
        part.worker->finish();
        bytes_ += done;
      });
    }
    threads.clear();
    words_.check();
    return sample(bytes_, start, cpu_start);
  }

 private:
  struct Slot {
    std::span<const std::byte> bytes;
    penstock::UnpackRun run;
  };
  struct Part {
    std::unique_ptr<Worker> worker;
    std::vector<Slot> slots;
  };
  const bench::Gpu& gpu_;
  const Tensor tensor_;
  const Kernel kernel_;
  const Words words_;
  const bench::DeviceMemory memory_;
  std::vector<Part> parts_;
  std::atomic<std::uint64_t> bytes_{0};
};

class Load {
 public:
  Load(const bench::Gpu& gpu, const Settings& settings)
      : gpu_(gpu),
        tensor_(settings),
        context_(value_of(penstock::Context::create(value_of(penstock::Options::from_json(settings.options_json))))),
        store_(value_of(context_.open(settings.file))),
        buffer_(value_of(context_.allocate(Domain::cuda(0), tensor_.size_bytes))) {}
  Json run(double seconds) {
    bench::Tally tally;
    std::uint64_t loads = 0;
    const double start = bench::now();
    do {
      // As a model does it: the ranges are made for each load.
      penstock::models::RangeList list(context_);
      list.add(store_, {.memory = buffer_.region(), .packed = {tensor_.transform, 0}});
      tally.add(context_.transfer(penstock::Direction::read, list.ranges()));
      ++loads;
    } while (bench::now() - start < seconds);
    return tally.json(bench::now() - start, loads);
  }
  Json check() {
    bench::fill(gpu_, {buffer_.data(), tensor_.size_bytes}, bench::spoiled);
    Json result = run(0);
    result.update(bench::compare(gpu_, {buffer_.data(), tensor_.size_bytes}, tensor_.weights.content()));
    return result;
  }
  Json ready() const {
    return {{"version", std::string(penstock::version())},
            {"stored_bytes", tensor_.stored_bytes()},
            {"ratio", static_cast<double>(tensor_.stored_bytes()) / static_cast<double>(tensor_.size_bytes)},
            {"kernels", penstock::can_unpack(Domain::cuda(0))}};
  }

 private:
  const bench::Gpu& gpu_;
  const Tensor tensor_;
  penstock::Context context_;
  penstock::Store store_;
  penstock::Buffer buffer_;
};

template <typename Subject>
void converse_with(Subject& subject, const Json& ready) {
  bench::converse(ready, {{"run", [&](double seconds) { return subject.run(seconds); }},
                          {"check", [&](double) { return subject.check(); }}});
}

void run(const std::string& what, const Settings& settings) {
  if (what == "make") return make_file(settings);
  bench::Gpu gpu;
  if (what == "kernel") {
    Alone alone(gpu, settings);
    return converse_with(alone, Json::object());
  }
  if (what == "hand") {
    ByHand hand(gpu, settings);
    return converse_with(hand, Json::object());
  }
  if (what == "pinned") {
    Pinned pinned(gpu, settings);
    return bench::converse(Json::object(), {{"run", [&](double seconds) { return pinned.run(seconds); }}});
  }
  Load load(gpu, settings);
  converse_with(load, load.ready());
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Measures packed weights to the first GPU; answers commands on its standard input.");
  for (const char* name : {"make", "kernel", "hand", "pinned", "load"}) {
    bench::Arguments command = arguments.add_command(name);
    command.add("file", settings.file).required();
    command.add("--size", settings.size_bytes, "decoded bytes").required().between(chunk_bytes, 1ULL << 40);
    command.add("--threads", settings.threads).between(1, 64);
    command.add("--block-threads", settings.block_threads, "of the kernel").between(32, 512);
    command.add("--slot", settings.slot_bytes, "bytes").between(1 << 18, 64 << 20);
    command.add("--slots", settings.slots, "of a thread").between(1, 16);
    command.add_flag("--over-the-bus", settings.over_the_bus, "the kernel reads the slots, without a scratch");
    command.add("--options", settings.options_json, "of the Context, as JSON");
  }
  arguments.parse(argc, argv);
  settings.size_bytes = settings.size_bytes / chunk_bytes * chunk_bytes;
  run(arguments.command(), settings);
}
