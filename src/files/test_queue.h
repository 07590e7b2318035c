// For tests of queues: a file in blocks of known bytes, memory to read them into, and what comes home.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/queue.h"
#include "files/test_scratch.h"

namespace penstock::files {

class BlockFile {
 public:
  BlockFile(std::size_t block_bytes, std::size_t count)
      : block_bytes_(block_bytes),
        count_(count),
        name_(folder_.write_pattern("a", block_bytes * count)),
        memory_(block_bytes * count) {}

  const ScratchFolder& folder() const { return folder_; }
  const std::string& name() const { return name_; }
  std::byte* memory() const { return memory_.data(); }
  std::size_t size_bytes() const { return block_bytes_ * count_; }

  // Reads the block of this index into its place; the index is the cookie.
  engine::Op read(engine::Store& store, std::size_t index, engine::Path path) const {
    return {.path = path,
            .store = &store,
            .offset = index * block_bytes_,
            .length = block_bytes_,
            .memory = memory() + index * block_bytes_,
            .cookie = index};
  }
  bool all_read() const { return has_pattern(memory(), 0, size_bytes()); }

 private:
  const std::size_t block_bytes_;
  const std::size_t count_;
  const ScratchFolder folder_;
  const std::string name_;
  const AlignedMemory memory_;
};

// What came home, in the order in which it came: at least `count`, or fewer if that takes too long.
inline std::vector<engine::Done> collect(engine::Queue& queue, std::size_t count) {
  std::vector<engine::Done> all;
  std::array<engine::Done, 16> done{};
  const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
  while (all.size() < count && Clock::now() < deadline) {
    const auto got = std::span(done).first(queue.poll(done, deadline));
    all.insert(all.end(), got.begin(), got.end());
  }
  return all;
}

}  // namespace penstock::files
