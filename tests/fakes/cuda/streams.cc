#include <pthread.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "driver.h"

namespace fake_cuda {

namespace {

constexpr std::chrono::microseconds first_poll{20};
constexpr std::chrono::microseconds longest_poll{2000};

}  // namespace

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t own = ++last;
  return own;
}

// As a real driver was seen to do it: each unit has so many channels, whatever the priorities of streams.
std::shared_ptr<Channel> Driver::channel_for(Stream& stream, Unit unit) {
  auto& own = stream.channels[connections == 0 ? Unit::compute : unit];
  if (own != nullptr) return own;
  if (connections == 0) return own = std::make_shared<Channel>();
  Device& device = *stream.device;
  auto& channels = device.channels[unit];
  if (channels.size() < connections) {
    channels.push_back(std::make_shared<Channel>());
    channels.back()->is_shared = true;
    return own = channels.back();
  }
  return own = channels[device.next_channel[unit]++ % connections];
}

std::shared_ptr<Stream> Driver::new_stream(Device& device, unsigned flags) {
  auto stream = std::make_shared<Stream>(Stream{.device = &device,
                                                .handle = new_handle<CuStream>(),
                                                .is_legacy = false,
                                                .is_blocking = (flags & cu_stream_non_blocking) == 0});
  std::erase_if(device.streams, [](const std::weak_ptr<Stream>& old) { return old.expired(); });
  device.streams.push_back(stream);
  return stream;
}

std::shared_ptr<Stream> Driver::stream_of(CuStream handle, Device* current) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number > 2) {
    const auto* const stream = find(streams, handle);
    return stream == nullptr ? nullptr : *stream;
  }
  if (current == nullptr) return nullptr;
  auto& stream = number == 2 ? current->per_thread[this_thread()] : current->legacy;
  if (stream == nullptr) {
    stream = new_stream(*current, 0);
    stream->is_legacy = number != 2;
  }
  return stream;
}

// The legacy null stream follows all blocking streams of its context, and they follow it.
std::vector<Point> Driver::implied_order(const Stream& stream) {
  std::vector<Point> points;
  if (!stream.is_blocking) return points;
  for (const auto& weak : stream.device->streams) {
    auto other = weak.lock();
    if (other == nullptr || other.get() == &stream || !other->is_blocking) continue;
    if (!stream.is_legacy && !other->is_legacy) continue;
    if (other->completed < other->queued) points.push_back({other, other->queued});
  }
  return points;
}

CuResult Driver::enqueue(std::unique_ptr<Operation> operation) {
  Stream& stream = *operation->stream;
  if (stream.capture != nullptr) {
    if (stream.capture->is_spoilt) return cu_stream_capture_invalidated;
    operation->is_of_library = capture_mode() == cu_capture_mode_relaxed;
    operation->stream.reset();
    stream.capture->operations.push_back(std::move(*operation));
    return cu_success;
  }
  if (stream.is_legacy) {
    if (const auto capture = capture_beside(stream)) {
      spoil(*capture, "work was given to the legacy stream");
      return cu_stream_capture_implicit;
    }
  }
  const auto implied = implied_order(stream);
  operation->after.insert(operation->after.end(), implied.begin(), implied.end());
  // What went to another unit must be done first.
  const Unit unit = operation->unit.value_or(stream.last_unit);
  if (unit != stream.last_unit) operation->after.push_back({operation->stream, stream.queued});
  stream.last_unit = unit;
  ++stream.queued;
  operation->healings = stream.device->healings;
  if (operation->waits_for_value) stream.device->waits_for_values.push_back(operation.get());
  happens_before(operation.get());

  const auto channel = channel_for(stream, unit);
  channel->operations.push_back(std::move(operation));
  if (std::find(working.begin(), working.end(), channel) == working.end()) {
    working.push_back(channel);
    std::thread(&Driver::work, this, channel).detach();
  }
  channel->wake.notify_one();
  return cu_success;
}

void Driver::work(std::shared_ptr<Channel> channel) {
  ::pthread_setname_np(::pthread_self(), "fake-cuda");
  const Inside inside;
  stop_watching();
  {
    Lock lock(mutex);
    for (;;) {
      channel->wake.wait(lock, [&] { return !channel->operations.empty() || channel->is_closing || is_stopping; });
      if (is_stopping || channel->operations.empty()) break;
      const std::unique_ptr<Operation> operation = std::move(channel->operations.front());
      channel->operations.pop_front();
      Stream& stream = *operation->stream;
      const CuResult result = execute(lock, *channel, *operation);
      if (result != cu_success && stream.device->error == cu_success) stream.device->error = result;
      std::erase(stream.device->waits_for_values, operation.get());
      ++stream.completed;
      start_watching();
      happens_before(&stream);
      stop_watching();
      announce();
    }
    channel->operations.clear();
    std::erase(working, channel);
    channel.reset();
    announce();
  }
  start_watching();
}

CuResult Driver::execute(Lock& lock, Channel& channel, Operation& operation) {
  Device& device = *operation.stream->device;
  auto poll = first_poll;
  const auto may_run = [&] {
    return !device.is_hung && operation.ready() &&
           std::all_of(operation.after.begin(), operation.after.end(),
                       [&](const Point& point) { return reached(point); });
  };
  while (!may_run()) {
    if (is_stopping || is_dropped(device, operation)) return cu_success;
    if (operation.waits_for_value) {
      channel.wake.wait_for(lock, poll);
      poll = std::min(poll * 2, longest_poll);
    } else {
      channel.wake.wait(lock);
    }
  }
  if (!pause(lock, channel, operation, start_of_run(device, operation))) return cu_success;

  start_watching();
  happens_after(&operation);
  for (const Point& point : operation.after) happens_after(point.stream.get());
  stop_watching();
  return operation.run(lock);
}

// False when there is nothing more to do: the driver ends or the device broke.
bool Driver::pause(Lock& lock, Channel& channel, const Operation& operation, Clock::time_point until) {
  const Device& device = *operation.stream->device;
  for (;;) {
    if (is_stopping || is_dropped(device, operation)) return false;
    if (device.is_hung) {
      channel.wake.wait(lock);
    } else if (Clock::now() < until) {
      channel.wake.wait_until(lock, until);
    } else {
      return true;
    }
  }
}

// Copies take their time before the bytes move, so that a slot that is reused too early gives wrong bytes.
Clock::time_point Driver::start_of_run(Device& device, const Operation& operation) {
  auto start = Clock::now();
  if (max_delay_us > 0) start += std::chrono::microseconds(random() % max_delay_us);
  const auto occupy = [&](Clock::time_point& free_at, std::size_t bytes) {
    if (device.bytes_per_s == 0 || bytes == 0) return;
    const double seconds = static_cast<double>(bytes) / static_cast<double>(device.bytes_per_s);
    free_at =
        std::max(free_at, start) + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    start = free_at;
  };
  occupy(device.to_device_free_at, operation.bytes_to_device);
  occupy(device.from_device_free_at, operation.bytes_from_device);
  return start;
}

CuResult Driver::wait(Lock& lock, Device& device, const std::vector<Point>& points,
                      std::optional<std::chrono::milliseconds> limit) {
  const auto all_reached = [&] {
    return std::all_of(points.begin(), points.end(), [&](const Point& point) { return reached(point); });
  };
  const auto is_over = [&] { return is_stopping || device.error != cu_success || all_reached(); };
  ++waiters;
  const bool ended = limit ? changed.wait_for(lock, *limit, is_over) : (changed.wait(lock, is_over), true);
  const CuResult broken = is_stopping ? cu_deinitialized : device.error;
  if (--waiters == 0) changed.notify_all();
  if (!ended) return cu_not_ready;
  if (broken != cu_success) return broken;
  for (const Point& point : points) happens_after(point.stream.get());
  return cu_success;
}

CuResult Driver::synchronizing_call(Lock& lock, Device& device, const char* function) {
  if (synchronizing_calls_block == 0 || device.waits_for_values.empty()) return cu_success;
  const bool waits = std::any_of(device.waits_for_values.begin(), device.waits_for_values.end(),
                                 [](const Operation* operation) { return !operation->ready(); });
  if (waits) breach(std::string(function) + " was called while a stream waited for a value");
  const CuResult result = wait(lock, device, all_work(device), synchronizing_limit);
  return result == cu_not_ready ? cu_unknown : result;
}

std::vector<Point> Driver::all_work(const Device& device, bool blocking_alone) const {
  std::vector<Point> points;
  for (const auto& weak : device.streams) {
    auto stream = weak.lock();
    if (stream != nullptr && (stream->is_blocking || !blocking_alone)) points.push_back({stream, stream->queued});
  }
  return points;
}

void Driver::destroy_stream(CuStream handle) {
  const auto stream = streams.extract(handle).mapped();
  std::erase(captures, stream->capture);
  close_own_channels(*stream);
}

void Driver::close_own_channels(const Stream& stream) {
  for (const auto& [unit, channel] : stream.channels) {
    if (!channel->is_shared) close(*channel);
  }
}

void Driver::close(Channel& channel) {
  channel.is_closing = true;
  channel.wake.notify_all();
}

void Driver::announce() {
  changed.notify_all();
  for (const auto& channel : working) channel->wake.notify_all();
}

}  // namespace fake_cuda
