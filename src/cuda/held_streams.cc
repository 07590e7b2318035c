#include "cuda/held_streams.h"

#include <utility>

#include "base/out_of_memory.h"

namespace penstock::cuda {
namespace {

// All that have held a stream.
struct Known {
  std::mutex mutex;
  std::vector<std::weak_ptr<HeldStreams>> all;

  static Known& of_process() {
    static auto* const known = new Known;
    return *known;
  }
};

}  // namespace

Status HeldStreams::hold(Device& device, void* stream) {
  return or_out_of_memory([&]() -> Status {
    auto order = StreamOrder::begin(device, stream, StreamHold::until_release);
    if (!order) return std::move(order).error();
    const std::scoped_lock lock(mutex_);
    if (state_ == State::broken) {
      return Error{Code::would_deadlock, 0, "copies can't get past streams that wait for them", ""};
    }
    if (state_ == State::let_go) return {};
    if (streams_.empty()) {
      Known& known = Known::of_process();
      const std::scoped_lock known_lock(known.mutex);
      std::erase_if(known.all, [](const auto& each) { return each.expired(); });
      known.all.push_back(weak_from_this());
    }
    streams_.push_back(std::move(*order));
    return {};
  });
}

void HeldStreams::let_go() {
  end(State::let_go);
}

bool HeldStreams::is_broken() const {
  const std::scoped_lock lock(mutex_);
  return state_ == State::broken;
}

void HeldStreams::end(State how) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::holding) return;
  state_ = how;
  streams_.clear();
}

void HeldStreams::break_all() {
  std::vector<std::weak_ptr<HeldStreams>> all;
  {
    Known& known = Known::of_process();
    const std::scoped_lock lock(known.mutex);
    all.swap(known.all);
  }
  for (const auto& each : all) {
    if (const auto held = each.lock()) held->end(State::broken);
  }
}

}  // namespace penstock::cuda
