// Environment: what all lanes of a Context share. It owns no lane, so that a lane which is stuck in the kernel can
// outlive its Context and still stand on something.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/fork_guard.h"
#include "core/completion_thread.h"
#include "core/device_memory.h"
#include "core/end_signal.h"
#include "core/memory_map.h"
#include "core/staged_window.h"
#include "core/statistics.h"
#include "core/stream_gate.h"
#include "core/trace.h"
#include "engine/engine.h"
#include "memory/allocation.h"
#include "penstock/machine.h"
#include "penstock/options.h"

namespace penstock::core {

struct Environment {
  Environment(std::shared_ptr<const engine::Table> table, const Options& chosen, const Machine& detected);

  ForkGuard fork_guard;
  const std::shared_ptr<const engine::Table> engines;
  const Machine machine;
  const Options options;                    // resolved
  const std::vector<engine::Probe> probes;  // by engine
  const std::shared_ptr<memory::Budget> pinned;
  MemoryMap memory;
  DeviceMemory device_memory;
  StatisticsHub statistics;
  TraceHub traces;
  CompletionThread completions;
  EndSignal ends;
  StreamGate streams;
  ShortestLatency shortest_local;  // past the page cache, on the way through staging memory
  ShortestLatency shortest_remote;
  std::atomic<std::uint64_t> lanes_replaced{0};
  std::atomic<std::uint64_t> quarantined_bytes{0};  // that orphans may still touch
};

}  // namespace penstock::core
