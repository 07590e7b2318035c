#include "cuda/stream_order.h"

#include "cuda/quiet.h"

namespace penstock::cuda {

void StreamOrder::prepare(Device& device) {
  const auto cell = ControlMemory::of_process().take(device, sizeof(Word));
  if (cell) ControlMemory::of_process().give_back(*cell);
}

Result<std::unique_ptr<StreamOrder>> StreamOrder::begin(Device& device, void* stream, StreamHold hold) {
  const RelaxedApi& api = device.api();
  const std::string what = "order a request with a stream of " + device.info().domain.name();
  if (hold != StreamHold::none && api.stream_wait_value == nullptr) {
    return Error{Code::unsupported, 0, what + ": the driver has no cuStreamWaitValue32",
                 "update NVIDIA's driver to one for CUDA 12, or wait for the ticket instead"};
  }
  const Current current(device);
  auto* const handle = static_cast<CuStream>(stream);
  int capturing = cu_capture_status_none;
  const CuResult asked = api.stream_is_capturing(handle, &capturing);
  if (asked == cu_stream_capture_implicit) {
    return Error{Code::unsupported, asked,
                 what + ": it is the legacy default stream, and one that waits for it is being captured into a graph",
                 "submit before or after the capture, or on another stream"};
  }
  if (asked != cu_success) return device.driver().error(asked, what);
  if (capturing != cu_capture_status_none) {
    return Error{Code::unsupported, 0, what + ": the stream is being captured into a graph",
                 "submit before or after the capture, or on a stream that is not captured"};
  }
  CuContext context = nullptr;
  if (const CuResult result = api.stream_get_context(handle, &context); result != cu_success) {
    return device.driver().error(result, what, "give a stream that has not been destroyed");
  }
  if (context != device.context()) {
    return Error{
        Code::invalid_argument, 0, what + ": the stream belongs to another device or context",
        "use a stream of the device that the memory is on, made by the CUDA runtime or in its primary context"};
  }
  auto event = device.take_event();
  if (!event) return event.error();
  std::unique_ptr<StreamOrder> order(new StreamOrder(device, *event));
  if (hold == StreamHold::none) {
    if (const CuResult result = api.event_record(*event, handle); result != cu_success) {
      return device.driver().error(result, what);
    }
    return order;
  }
  auto cell = ControlMemory::of_process().take(device, sizeof(Word));
  if (!cell) return cell.error();
  if (!Quiet::of_process().begin_wait()) {
    ControlMemory::of_process().give_back(*cell);
    return Error{Code::would_deadlock, 0,
                 what + ": memory is being freed or registered with cuFile, and that takes too long",
                 "the device may be busy with work that waits for this thread: submit that first"};
  }
  order->cell_ = *cell;
  device.stream_waits().fetch_add(1);
  order->generation_ = order->word().load(std::memory_order_relaxed) + 1;
  CuResult result = api.event_record(*event, handle);
  if (result == cu_success) {
    result = api.stream_wait_value(handle, cell->device, order->generation_, cu_wait_value_geq);
  }
  if (result != cu_success) return device.driver().error(result, what);
  return order;
}

std::unique_ptr<StreamOrder> StreamOrder::answer(Device& device, const ControlMemory::Cell& word) {
  std::unique_ptr<StreamOrder> order(new StreamOrder(device, nullptr));
  order->cell_ = word;
  order->generation_ = 1;
  return order;
}

StreamOrder::~StreamOrder() {
  release();
  if (event_ != nullptr) device_.give_back_event(event_);
}

CuResult StreamOrder::reached() const {
  return device_.api().event_query(event_);
}

void StreamOrder::release() {
  if (cell_.host == nullptr || released_.exchange(true)) return;
  word().store(generation_, std::memory_order_release);
  if (event_ == nullptr) return;
  device_.stream_waits().fetch_sub(1);
  Quiet::of_process().end_wait();
  ControlMemory::of_process().give_back(cell_);
}

}  // namespace penstock::cuda
