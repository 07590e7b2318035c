// StreamOrder: a request's place in a stream of the user's. The request begins when the stream's earlier work is done;
// the stream's later work begins when the request has ended, however it has ended, unless StreamHold::none asks for the
// first half alone: then nothing is enqueued that could hold up the stream or a hardware queue that it shares.
//
// The stream waits for a word in pinned memory, because an event that is not recorded yet would order nothing. Words
// are used again at once: a wait is for a generation or any later one.
//
// Thread safety: reached and release from any thread. Lifetime: released by its destructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "cuda/control_memory.h"
#include "cuda/driver.h"

namespace penstock::cuda {

enum class StreamHold : std::uint8_t { none, until_release };

class StreamOrder {
 public:
  // Makes the words that streams wait for, as far as that is not done. What can't be made is told by begin.
  static void prepare(Device& device);
  // Records an event on the stream and, with StreamHold::until_release, makes it wait. `stream` as CUDA's APIs take it;
  // null is the legacy null stream. While it waits, nothing of ours begins that may wait for the device. A stream that
  // is being captured, or is of another context, is refused.
  static Result<std::unique_ptr<StreamOrder>> begin(Device& device, void* stream,
                                                    StreamHold hold = StreamHold::until_release);
  // That of a request which a stream began by itself, and waits for by a word: released, the word is 1.
  static std::unique_ptr<StreamOrder> answer(Device& device, const ControlMemory::Cell& word);
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // REQUIRES: not an answer. cu_success: the stream's earlier work is done; cu_not_ready; or why it never will be.
  CuResult reached() const;
  // Whether the stream's later work waits for the release.
  bool holds_stream() const { return cell_.host != nullptr; }
  // Lets the stream go on.
  void release();

 private:
  using Word = std::atomic<std::uint32_t>;

  Word& word() const { return *reinterpret_cast<Word*>(cell_.host); }
  StreamOrder(Device& device, CuEvent event) : device_(device), event_(event) {}

  Device& device_;
  const CuEvent event_;  // null: an answer
  ControlMemory::Cell cell_;
  std::uint32_t generation_ = 0;
  std::atomic<bool> released_{false};
};

}  // namespace penstock::cuda
