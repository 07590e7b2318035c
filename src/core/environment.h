// Environment: what all lanes of a Context share. It owns no lane, so that a lane which is stuck in the kernel can
// outlive its Context and still stand on something.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/fork_guard.h"
#include "base/once.h"
#include "core/caching.h"
#include "core/completion_thread.h"
#include "core/device_memory.h"
#include "core/end_signal.h"
#include "core/flow.h"
#include "core/memory_map.h"
#include "core/spans.h"
#include "core/statistics.h"
#include "core/stream_gate.h"
#include "core/trace.h"
#include "engine/engine.h"
#include "memory/allocation.h"
#include "memory/given.h"
#include "penstock/machine.h"
#include "penstock/options.h"

namespace penstock::core {

// Probes: whether engines work here, found out when somebody first wants to know.
//
// Thread safety: any thread. Lifetime: shorter than the table's.
class Probes {
 public:
  explicit Probes(const engine::Table& engines)
      : engines_(engines), known_(std::make_unique<Known[]>(engines.size())) {}

  const engine::Probe& operator[](std::size_t engine) const {
    Known& known = known_[engine];
    known.once.run([&] { known.probe = engines_[engine]->probe(); });
    return known.probe;
  }

 private:
  struct Known {
    Once once;
    engine::Probe probe;
  };
  const engine::Table& engines_;
  const std::unique_ptr<Known[]> known_;  // by engine
};

struct Environment : std::enable_shared_from_this<Environment> {
  Environment(std::shared_ptr<const engine::Table> table, const Options& chosen, const Machine& detected,
              std::shared_ptr<memory::Given> staging = nullptr);

  ForkGuard fork_guard;
  const std::shared_ptr<const engine::Table> engines;
  const Machine machine;
  const Options options;  // resolved
  const Probes probes;
  const std::shared_ptr<Calls> calls;  // shared: stores may outlive the Context
  const std::shared_ptr<memory::Budget> pinned;
  const std::shared_ptr<memory::Budget> on_use;  // the part of it that Buffers may take which requests attach
  const std::shared_ptr<memory::Given> given;    // that lanes stage in; null: each has its own
  MemoryMap memory;
  DeviceMemory device_memory;
  StatisticsHub statistics;
  TraceHub traces;
  mutable CompletionThread completions;
  mutable EndSignal ends;
  StreamGate streams;
  const Flows flows;
  mutable Caching caching;
  SpareSpans spare_spans;
  std::atomic<std::uint64_t> lanes_replaced{0};
  std::atomic<std::uint64_t> orphans{0};            // of all lanes
  std::atomic<std::uint64_t> quarantined_bytes{0};  // that they may still touch
};

}  // namespace penstock::core
