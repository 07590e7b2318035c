// StreamSteps: two words between a stream of the user's and this program. The stream waits for steps that the program
// allows, and marks steps that it has passed. Both words only grow, and are taken anew for each request: while a stream
// may still look at one, no other request has it.
//
// Thread safety: allow, allow_all and passed from any thread; wait and mark from the thread that enqueues. Lifetime:
// allows all steps when it is destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "cuda/control_memory.h"
#include "cuda/driver.h"

namespace penstock::cuda {

class StreamSteps {
 public:
  // Whether the driver can do that.
  static bool is_supported(const Device& device);
  // Until allow_all, nothing of ours begins that may wait for the device. Steps are numbered from 1 to `steps`.
  static Result<std::unique_ptr<StreamSteps>> begin(Device& device, void* stream, std::uint32_t steps);
  ~StreamSteps();
  StreamSteps(const StreamSteps&) = delete;
  StreamSteps& operator=(const StreamSteps&) = delete;

  // REQUIRES: the device is current, for both. Later work on the stream begins when the step is allowed.
  CuResult wait(std::uint32_t step);
  // The stream has passed the step when its earlier work is done.
  CuResult mark(std::uint32_t step);

  // This step and all before it.
  void allow(std::uint32_t step);
  void allow_all();
  // The last step that the stream has passed; 0: none.
  std::uint32_t passed() const;

 private:
  using Word = std::atomic<std::uint32_t>;

  StreamSteps(Device& device, void* stream, std::uint32_t steps)
      : device_(device), stream_(static_cast<CuStream>(stream)), steps_(steps) {}
  static Word& word(const ControlMemory::Cell& cell) { return *reinterpret_cast<Word*>(cell.host); }

  Device& device_;
  CuStream const stream_;
  const std::uint32_t steps_;
  ControlMemory::Cell allowed_;
  ControlMemory::Cell passed_;
  std::uint32_t allowed_before_ = 0;  // what the word was at the beginning
  std::uint32_t passed_before_ = 0;
  std::uint32_t enqueued_ = 0;  // the last step that the stream is to mark
  bool is_lost_ = false;        // a wait may be on the stream without a mark behind it
  std::mutex mutex_;
  std::uint32_t allowed_steps_ = 0;
  bool has_ended_ = true;
};

}  // namespace penstock::cuda
