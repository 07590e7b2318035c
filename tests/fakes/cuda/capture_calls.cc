// The driver's own functions: captures and graphs.
#include "call.h"

using namespace fake_cuda;

FAKE_CUDA_EXPORT CuResult cuThreadExchangeStreamCaptureMode(int* mode) {
  return call(__func__, [&](Driver&, Lock&) {
    if (mode == nullptr || *mode < cu_capture_mode_global || *mode > cu_capture_mode_relaxed) return cu_invalid_value;
    std::swap(*mode, capture_mode());
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamBeginCapture_v2(CuStream stream, int mode) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    return d.begin_capture(*found, mode);
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamEndCapture(CuStream stream, CuGraph* graph) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    return graph == nullptr ? cu_invalid_value : d.end_capture(*found, *graph);
  });
}

FAKE_CUDA_EXPORT CuResult cuGraphInstantiateWithFlags(CuGraphExecutable* executable, CuGraph graph,
                                                      unsigned long long flags) {
  return call(__func__, [&](Driver& d, Lock&) {
    const Graph* const found = Driver::find(d.graphs, graph);
    if (executable == nullptr || found == nullptr || flags != 0) return cu_invalid_value;
    *executable = d.new_handle<CuGraphExecutable>();
    d.executables[*executable] = *found;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuGraphLaunch(CuGraphExecutable executable, CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    const Graph* const graph = Driver::find(d.executables, executable);
    if (graph == nullptr || graph->device != found->device) return cu_invalid_value;
    for (const Operation& each : graph->operations) {
      auto operation = std::make_unique<Operation>(each);
      operation->stream = found;
      if (const CuResult result = d.enqueue(std::move(operation)); result != cu_success) return result;
    }
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuGraphExecDestroy(CuGraphExecutable executable) {
  return call(__func__,
              [&](Driver& d, Lock&) { return d.executables.erase(executable) == 0 ? cu_invalid_value : cu_success; });
}

FAKE_CUDA_EXPORT CuResult cuGraphDestroy(CuGraph graph) {
  return call(__func__, [&](Driver& d, Lock&) { return d.graphs.erase(graph) == 0 ? cu_invalid_value : cu_success; });
}
