#include "services/gpu_queues/selftest.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/out_of_memory.h"
#include "penstock/cuda_module.h"
#include "penstock/gpu_array.h"
#include "penstock/gpu_selftest.h"

extern "C" const char penstock_selftest_kernels[];

namespace penstock::gpu_queues {
namespace {

constexpr std::uint64_t batch_reads = 4096;
constexpr std::uint64_t array_reads = 65536;
constexpr std::uint64_t layer_most_bytes = 64 << 20;
constexpr std::uint64_t element_bytes = 8;

constexpr std::uint32_t block_threads = 128;

class Selftest {
 public:
  Selftest(const Context& context, const Store& store, Domain gpu) : context_(context), store_(store), gpu_(gpu) {}

  Result<std::vector<NvmeCheck>> run() {
    if (Status status = prepare(); !status) return std::move(status).error();
    const std::uint64_t blocks = size_bytes_ / SelftestJob::block_bytes;
    SelftestJob job;
    job.handle = reinterpret_cast<std::uint64_t>(queues_.handle());
    job.places = blocks;
    job.count = 1;
    try_reads("a block", "penstock_selftest_blocks", 1, SelftestJob::block_bytes, job);
    job.count = batch_reads;
    try_reads("a batch", "penstock_selftest_blocks", batch_reads, SelftestJob::block_bytes, job);
    try_layer(job);
    if (size_bytes_ >= element_bytes) {
      job.handle = reinterpret_cast<std::uint64_t>(array_.handle());
      job.places = size_bytes_ / element_bytes;
      job.count = array_reads;
      try_reads("an array", "penstock_selftest_array", array_reads, element_bytes, job);
    }
    return std::move(checks_);
  }

 private:
  struct Piece {
    std::uint64_t offset, bytes;
  };

  Status prepare() {
    auto size = store_.size_bytes();
    if (!size) return std::move(size).error();
    size_bytes_ = *size / SelftestJob::block_bytes * SelftestJob::block_bytes;
    if (size_bytes_ == 0) {
      return Error{Code::out_of_range, 0, store_.info().name + " has not one block of 512 bytes",
                   "give a larger store"};
    }
    if (penstock_selftest_kernels[0] == '\0') {
      return Error{Code::unsupported, 0, "this library was built without nvcc, so it has no kernels to test with",
                   "build it where CUDA's compiler is, or run your own kernels (docs/gpu-initiated.md)"};
    }
    auto kernels = CudaModule::load(gpu_, penstock_selftest_kernels);
    if (!kernels) return std::move(kernels).error();
    kernels_ = std::move(*kernels);
    layer_bytes_ = std::min(size_bytes_, layer_most_bytes);
    auto memory = context_.allocate(
        gpu_, std::max({layer_bytes_, batch_reads * SelftestJob::block_bytes, array_reads * element_bytes}));
    if (!memory) return std::move(memory).error();
    memory_ = std::move(*memory);
    auto failures = context_.allocate(gpu_, sizeof failures_);
    if (!failures) return std::move(failures).error();
    failures_memory_ = std::move(*failures);
    auto server = GpuServer::start(context_);
    if (!server) return std::move(server).error();
    server_ = std::move(*server);
    auto queues = server_.open({.gpu = gpu_, .stores = {{.store = store_}}});
    if (!queues) return std::move(queues).error();
    queues_ = std::move(*queues);
    // Of a large store only part fits, so pages are given up and read again.
    auto array = GpuArray::open(context_, queues_, {.extent = {0, size_bytes_}, .memory_bytes = array_memory_bytes()});
    if (!array) return std::move(array).error();
    array_ = std::move(*array);
    return {};
  }
  std::uint64_t array_memory_bytes() const {
    const std::uint64_t table_bytes = size_bytes_ / queues_.options().place_bytes * sizeof(std::uint64_t);
    return table_bytes + (16 << 20);
  }

  void try_reads(const char* name, const char* kernel, std::uint64_t count, std::uint64_t bytes, SelftestJob job) {
    std::vector<Piece> pieces;
    for (std::uint64_t i = 0; i < count; ++i) pieces.push_back({bytes * job.place(i), bytes});
    check(name, std::to_string(count) + " of " + std::to_string(bytes) + " bytes", kernel, count, job, pieces);
  }
  void try_layer(SelftestJob job) {
    constexpr std::uint64_t shares = 32;
    const std::uint64_t unit = queues_.options().place_bytes;
    job.count = layer_bytes_;
    job.share_bytes = (layer_bytes_ + shares * unit - 1) / (shares * unit) * unit;
    check("a layer", std::to_string(layer_bytes_) + " bytes", "penstock_selftest_layer", shares * block_threads, job,
          {{0, layer_bytes_}});
  }

  void check(const std::string& name, const std::string& what, const char* kernel, std::uint64_t threads,
             SelftestJob job, const std::vector<Piece>& pieces) {
    NvmeCheck result{.name = name, .ok = false, .detail = {}};
    const TimePoint begin = Clock::now();
    double seconds = 0;
    Status status = clear();
    if (status) {
      job.memory = reinterpret_cast<std::uint64_t>(memory_.data());
      job.failures = reinterpret_cast<std::uint64_t>(failures_memory_.data());
      const auto blocks = static_cast<std::uint32_t>((threads + block_threads - 1) / block_threads);
      // All of its waits have deadlines.
      status = kernels_->run(kernel, {blocks, block_threads}, &job);
      seconds = seconds_between(begin, Clock::now());
    }
    if (status) status = compare(pieces);
    result.ok = status.ok();
    result.detail = status ? what + ", all as the CPU reads them, in " + std::to_string(seconds * 1e3) + " ms"
                           : what + ": " + status.error().message;
    checks_.push_back(std::move(result));
  }

  Region host(std::vector<std::byte>& bytes) { return Region::host(bytes.data(), bytes.size()); }
  Status clear() {
    std::vector<std::byte> junk(memory_.size_bytes(), std::byte{0x5a});
    std::vector<std::byte> zeros(sizeof failures_);
    Status status = copy(memory_.region(), host(junk));
    return status ? copy(Region{failures_memory_.data(), zeros.size(), gpu_}, host(zeros)) : status;
  }
  Status compare(const std::vector<Piece>& pieces) {
    std::vector<std::byte> words(sizeof failures_);
    Status status = copy(host(words), {failures_memory_.data(), words.size(), gpu_});
    if (!status) return status;
    std::memcpy(failures_.data(), words.data(), words.size());
    if (failures_[0] != 0) return failure();
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces) bytes += piece.bytes;
    std::vector<std::byte> got(bytes);
    std::vector<std::byte> expected(bytes);
    status = copy(host(got), {memory_.data(), bytes, gpu_});
    if (!status) return status;
    std::vector<Range> ranges;
    std::uint64_t at = 0;
    for (const Piece& piece : pieces) {
      ranges.push_back({&store_, piece.offset, Region::host(expected.data() + at, piece.bytes)});
      at += piece.bytes;
    }
    const Report report = context_.transfer(Direction::read, ranges);
    if (!report.ok()) return *report.error;
    const auto differs = std::mismatch(got.begin(), got.end(), expected.begin()).first;
    if (differs == got.end()) return {};
    return Error{Code::io_error, 0,
                 "byte " + std::to_string(differs - got.begin()) + " of what the GPU read is not that of the store",
                 ""};
  }
  Error failure() const {
    const GpuQueuesReport report = queues_.report();
    const std::string why = report.last_error ? ": " + report.last_error->message : "";
    return {Code::io_error, 0,
            std::to_string(failures_[0]) + " reads failed, with status " + std::to_string(failures_[1]) + why, ""};
  }

  const Context context_;
  const Store store_;
  const Domain gpu_;
  std::uint64_t size_bytes_ = 0;  // in whole blocks
  std::uint64_t layer_bytes_ = 0;
  std::optional<CudaModule> kernels_;
  Buffer memory_;
  Buffer failures_memory_;
  GpuServer server_;
  GpuQueues queues_;
  GpuArray array_;
  std::array<std::uint64_t, 2> failures_{};
  std::vector<NvmeCheck> checks_;
};

}  // namespace
}  // namespace penstock::gpu_queues

namespace penstock {

Result<std::vector<NvmeCheck>> test_gpu_io(const Context& context, const Store& store, Domain gpu) {
  if (gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, gpu.name() + " is no GPU", "give cuda:N"};
  }
  return or_out_of_memory([&] { return gpu_queues::Selftest(context, store, gpu).run(); });
}

}  // namespace penstock
