// Echo: a Transform for tests. What is stored is a word that says whether it is damaged, and bytes; memory gets both
// as often as it has room. Its kernels are copies within the GPU's memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "support/support.h"

namespace penstock::test {

struct Echo : Transform {
  Status by_cpu(const Piece& piece) const override {
    ++by_cpu_count;
    std::uint32_t status = 0;
    std::memcpy(&status, piece.stored.data(), sizeof(status));
    if (status != 0) return failure_of(piece.tag, status);
    for (std::size_t at = 0; at < piece.memory.size(); at += piece.stored.size()) {
      std::ranges::copy(piece.stored.first(std::min(piece.stored.size(), piece.memory.size() - at)),
                        piece.memory.data() + at);
    }
    return {};
  }
  bool is_for(const Gpu&) const override { return has_kernels; }
  Status by_gpu(const Piece& piece, const OnGpu& gpu) const override {
    ++by_gpu_count;
    {
      const std::scoped_lock lock(mutex);
      lanes.insert(std::this_thread::get_id());
    }
    if (refuses) return Error{Code::device_error, 0, "no kernel today", ""};
    const auto& api = cuda::Driver::get().value()->api();
    const auto put = [&](std::byte* to, std::size_t bytes) {
      return api.copy_between_devices(cuda::device_address(to),
                                      reinterpret_cast<cuda::CuDevicePtr>(piece.stored.data()), bytes,
                                      static_cast<cuda::CuStream>(gpu.stream.handle)) == cuda::cu_success;
    };
    bool is_put = put(reinterpret_cast<std::byte*>(gpu.status), sizeof(std::uint32_t));
    for (std::size_t at = 0; at < piece.memory.size(); at += piece.stored.size()) {
      is_put = is_put && put(piece.memory.data() + at, std::min(piece.stored.size(), piece.memory.size() - at));
    }
    return is_put ? Status() : Status(Error{Code::device_error, 0, "a copy was refused", ""});
  }

  bool has_kernels = false;
  bool refuses = false;
  mutable std::atomic<int> by_cpu_count{0};
  mutable std::atomic<int> by_gpu_count{0};
  mutable std::mutex mutex;
  mutable std::set<std::thread::id> lanes;  // that called by_gpu; guarded by mutex
};

// Pieces of these lengths, one after another from `offset` on, and what they are to become: twice and a half as long.
struct EchoFile {
  EchoFile(std::uint64_t offset, std::vector<std::uint64_t> lengths) : bytes(offset, std::byte{0x55}) {
    for (const std::uint64_t length : lengths) {
      offsets.push_back(bytes.size());
      auto stored = content(offsets.size(), 0, length);
      std::fill_n(stored.begin(), sizeof(std::uint32_t), std::byte{0});
      bytes.insert(bytes.end(), stored.begin(), stored.end());
      auto made = stored;
      made.insert(made.end(), stored.begin(), stored.end());
      made.insert(made.end(), stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(length / 2));
      expected.push_back(std::move(made));
    }
    sizes = std::move(lengths);
  }
  void damage(std::size_t piece, std::byte how) { bytes[offsets[piece]] = how; }
  // `stored` has to live as long as the ranges.
  void add_ranges(const Store& store, const std::shared_ptr<const Transform>& transform, Region memory,
                  std::vector<Stored>& stored, std::vector<Range>& ranges) const {
    stored.reserve(sizes.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      stored.push_back({transform, sizes[i], i});
      ranges.push_back({&store, offsets[i], memory.part(at, expected[i].size()), &stored.back()});
      at += expected[i].size();
    }
  }
  std::size_t memory_bytes() const {
    std::size_t sum = 0;
    for (const auto& made : expected) sum += made.size();
    return sum;
  }
  std::uint64_t stored_bytes() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t size : sizes) sum += size;
    return sum;
  }

  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<std::byte>> expected;
};

}  // namespace penstock::test
