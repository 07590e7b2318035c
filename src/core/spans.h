// Spans: the ranges of a request as core knows them, in memory that the next request finds warm. To get fresh memory
// from the system takes longer than to fill it, and all lanes wait meanwhile.
//
// Thread safety: Spans as its request's; SpareSpans any thread. Lifetime: SpareSpans a Context's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace penstock::cuda {
class Device;
}
namespace penstock::engine {
class Attached;
}

namespace penstock::core {

// A Range, checked and with its names looked up.
struct Span {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::byte* memory = nullptr;                 // null: there is none
  const engine::Attached* attached = nullptr;  // to the engine that reaches the memory by itself, if one does
  cuda::Device* gpu = nullptr;                 // whose memory it is; null: the host's
  std::uint32_t store = 0;                     // index into Request::stores
  std::uint32_t transform : 31 = 0;            // index into Request::transforms, plus one; 0: none
  bool is_out_of_reach : 1 = false;            // of the engine that serves it from the host
};
static_assert(sizeof(Span) == 48);

// The memory of a list that nobody has. That of a long one stays only until the system is short of memory.
class SpareSpans {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t spans = 0;  // that it has room for
  };
  static constexpr std::size_t most_kept = (64 << 20) / sizeof(Span);

  Block take(std::size_t spans) {
    {
      const std::scoped_lock lock(mutex_);
      if (kept_.spans >= spans) return std::exchange(kept_, {});
    }
    return {std::make_unique_for_overwrite<std::byte[]>(spans * sizeof(Span)), spans};
  }
  // The longest is kept.
  void keep(Block block) {
    if (!block.bytes || block.spans > most_kept) return;
    if (block.spans > most_owned) offer_to_system(block);
    const std::scoped_lock lock(mutex_);
    if (block.spans > kept_.spans) std::swap(block, kept_);
  }

 private:
  static constexpr std::size_t most_owned = (8 << 20) / sizeof(Span);

  // What is in it is lost, but its pages stay as they are while nobody else needs any.
  static void offer_to_system(const Block& block);

  std::mutex mutex_;
  Block kept_;
};

// Grows to a length that is known before; a single one needs no memory.
class Spans {
 public:
  Spans() = default;
  Spans(const Spans&) = delete;
  Spans& operator=(const Spans&) = delete;

  // REQUIRES: called once, before any is added.
  void reserve(std::size_t size, SpareSpans& spare) {
    if (size <= 1) return;
    block_ = spare.take(size);
    data_ = reinterpret_cast<Span*>(block_.bytes.get());
  }
  // REQUIRES: fewer than were reserved.
  Span& add(const Span& span) { return *new (data_ + size_++) Span(span); }
  // It has none afterwards.
  SpareSpans::Block let_go() {
    size_ = 0;
    data_ = &one_;
    return std::exchange(block_, {});
  }

  std::size_t size() const { return size_; }
  Span& operator[](std::size_t index) { return data_[index]; }
  const Span& operator[](std::size_t index) const { return data_[index]; }
  const Span* begin() const { return data_; }
  const Span* end() const { return data_ + size_; }

 private:
  std::size_t size_ = 0;
  Span one_;
  Span* data_ = &one_;
  SpareSpans::Block block_;
};

}  // namespace penstock::core
