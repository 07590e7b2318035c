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

// The fake knows of no nodes: one that follows others comes after all that the stream was given.
FAKE_CUDA_EXPORT CuResult cuStreamGetCaptureInfo_v3(CuStream stream, int* status, std::uint64_t* id, CuGraph* graph,
                                                    const CuGraphNode** dependencies, const CuGraphEdgeData** edges,
                                                    std::size_t* dependency_count) {
  return call_of_stream(__func__, stream, [&](Driver&, Lock&, const std::shared_ptr<Stream>& found) {
    if (status == nullptr) return cu_invalid_value;
    *status = found->capture == nullptr ? cu_capture_status_none : cu_capture_status_active;
    if (found->capture == nullptr) return cu_success;
    if (found->capture->is_spoilt) return cu_stream_capture_invalidated;
    if (id != nullptr) *id = reinterpret_cast<std::uintptr_t>(found->capture->graph);
    if (graph != nullptr) *graph = found->capture->graph;
    if (dependencies != nullptr) *dependencies = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (dependency_count != nullptr) *dependency_count = 0;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuUserObjectCreate(CuUserObject* object, void* pointer, CuHostFunction destroy,
                                             unsigned references, unsigned flags) {
  return call(__func__, [&](Driver& d, Lock&) {
    if (object == nullptr || destroy == nullptr || references != 1 || flags != cu_user_object_no_destructor_sync) {
      return cu_invalid_value;
    }
    *object = d.new_handle<CuUserObject>();
    d.user_objects[*object] = std::make_shared<UserObject>(pointer, destroy);
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuGraphRetainUserObject(CuGraph graph, CuUserObject object, unsigned references,
                                                  unsigned flags) {
  return call(__func__, [&](Driver& d, Lock&) {
    Capture* const capture = d.capture_of(graph);
    const auto found = d.user_objects.find(object);
    if (capture == nullptr || found == d.user_objects.end() || references != 1 || flags != cu_graph_user_object_move) {
      return cu_invalid_value;
    }
    capture->objects.push_back(std::move(found->second));
    d.user_objects.erase(found);
    return cu_success;
  });
}
