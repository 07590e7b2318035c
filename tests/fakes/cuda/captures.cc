#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "driver.h"

namespace fake_cuda {

namespace {

// The manual has no list of calls that are "potentially unsafe". Here all are but those that give a stream work, ask
// about devices and streams, or are about contexts and captures themselves.
constexpr std::array<std::string_view, 33> safe_calls = {
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxGetState",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyAsync",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyBatchAsync_v2",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuEventRecord",
    "cuLaunchKernel",
    "cuStreamGetCaptureInfo_v3",
    "cuUserObjectCreate",
    "cuGraphRetainUserObject",
};

}  // namespace

int& capture_mode() {
  thread_local int mode = cu_capture_mode_global;
  return mode;
}

bool Driver::spoils_captures(const char* function) {
  const int mode = capture_mode();
  if (captures.empty() || mode == cu_capture_mode_relaxed) return false;
  if (std::find(safe_calls.begin(), safe_calls.end(), function) != safe_calls.end()) return false;
  bool is_forbidden = false;
  for (const auto& capture : captures) {
    const bool by_own = capture->thread == this_thread() && capture->mode != cu_capture_mode_relaxed;
    const bool by_any = mode == cu_capture_mode_global && capture->mode == cu_capture_mode_global;
    if (!by_own && !by_any) continue;
    spoil(*capture, std::string(function) + " was called");
    is_forbidden = true;
  }
  return is_forbidden;
}

void Driver::spoil(Capture& capture, const std::string& how) {
  capture.is_spoilt = true;
  breach("while a graph was being captured, " + how);
}

CuResult Driver::begin_capture(Stream& stream, int mode) {
  if (stream.is_legacy || mode < cu_capture_mode_global || mode > cu_capture_mode_relaxed) return cu_invalid_value;
  if (stream.capture != nullptr) return cu_invalid_value;
  stream.capture =
      std::make_shared<Capture>(Capture{.thread = this_thread(), .mode = mode, .graph = new_handle<CuGraph>()});
  captures.push_back(stream.capture);
  return cu_success;
}

CuResult Driver::end_capture(Stream& stream, CuGraph& graph) {
  graph = nullptr;
  if (stream.capture == nullptr) return cu_invalid_value;
  const bool is_own = stream.capture->thread == this_thread();
  if (!is_own && stream.capture->mode != cu_capture_mode_relaxed) return cu_stream_capture_wrong_thread;
  const auto capture = std::exchange(stream.capture, nullptr);
  std::erase(captures, capture);
  if (capture->is_spoilt) return cu_stream_capture_invalidated;
  // A program may wait for whatever it likes. The library resets the word in the graph: otherwise the wait is one of a
  // request that was captured by mistake, and lets all replays through but the first.
  for (auto wait = capture->operations.begin(); wait != capture->operations.end(); ++wait) {
    const bool is_reset = std::any_of(wait, capture->operations.end(), [&](const Operation& later) {
      return !later.waits_for_value && later.word == wait->word;
    });
    if (wait->waits_for_value && wait->is_of_library && !is_reset)
      breach("a wait for a value was captured into a graph");
  }
  graph = capture->graph;
  graphs[graph] = Graph{stream.device, std::move(capture->operations), std::move(capture->objects)};
  return cu_success;
}

Capture* Driver::capture_of(CuGraph graph) const {
  for (const auto& capture : captures) {
    if (capture->graph == graph) return capture.get();
  }
  return nullptr;
}

void Driver::forget_captures() {
  for (const auto& device : devices) {
    for (const auto& weak : device->streams) {
      if (const auto stream = weak.lock()) stream->capture.reset();
    }
  }
  captures.clear();
}

std::shared_ptr<Capture> Driver::capture_beside(const Stream& legacy) const {
  for (const auto& weak : legacy.device->streams) {
    const auto stream = weak.lock();
    if (stream != nullptr && stream->is_blocking && stream->capture != nullptr) return stream->capture;
  }
  return nullptr;
}

}  // namespace fake_cuda
