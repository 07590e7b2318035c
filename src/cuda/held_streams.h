// HeldStreams: streams of the user's that wait for one thing of ours, such as the load of a group of tensors.
//
// Thread safety: any thread. Lifetime: its last owner lets the streams go on.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/stream_order.h"

namespace penstock::cuda {

class HeldStreams : public std::enable_shared_from_this<HeldStreams> {
 public:
  // Work put on the stream from now on begins when the streams are let go; at once if they were. Errors as those of
  // StreamOrder::begin, and Code::would_deadlock after a break.
  Status hold(Device& device, void* stream);
  void let_go();

  // Lets go of all streams that are held in the process: our copies can't get past them, so what they wait for would
  // never be there.
  static void break_all();
  bool is_broken() const;

 private:
  enum class State : std::uint8_t { holding, let_go, broken };

  void end(State how);

  mutable std::mutex mutex_;
  State state_ = State::holding;
  std::vector<std::unique_ptr<StreamOrder>> streams_;
};

}  // namespace penstock::cuda
