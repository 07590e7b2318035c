// LaneResources: what a lane works with. It belongs to the lane; what starts pieces and what carries them share it.
//
// Thread safety: the worker's, but for what its members say. Lifetime: its lane's.
#pragma once

#include <cstdint>
#include <memory>

#include "core/engine_queues.h"
#include "core/environment.h"
#include "core/flow.h"
#include "core/gpu_copies.h"
#include "core/inbox.h"
#include "core/long_slots.h"
#include "core/piece.h"
#include "core/staging.h"

namespace penstock::core {

enum class Runner : std::uint8_t {
  own_thread,
  one_caller,  // of a synchronous request
  callers,     // whoever waits
};

struct LaneSettings {
  Runner runner = Runner::own_thread;
  std::uint32_t depth = 64;
  std::uint32_t threads = 32;  // for engines that block
  std::uint64_t staging_bytes = 8 << 20;
  std::uint64_t cached_bytes_most = 32 << 20;  // in flight through the page cache
  LongSlots long_slots = {};
  bool is_inline = false;         // operations run inside submit and poll
  std::uint32_t flow_shares = 1;  // of the window of a store, as lanes have them
};

struct LaneResources {
  LaneResources(Environment& all, const LaneSettings& chosen)
      : environment(all),
        settings(chosen),
        statistics(all.statistics.add_lane()),
        trace(all.traces.add_lane()),
        pieces(2 * chosen.depth),
        staging(chosen.staging_bytes, all.pinned, all.engines,
                chosen.runner == Runner::own_thread ? all.given : nullptr, chosen.long_slots.staging_bytes()),
        copies(staging, all.streams, all.device_memory, pieces.size(), all.options.deadlines.stream_seconds),
        queues(*all.engines,
               {.depth = chosen.depth,
                .threads = chosen.threads,
                .sharers = chosen.long_slots.threads,
                .run_inline = chosen.is_inline},
               pieces, inbox, trace),
        flow(chosen.depth, chosen.flow_shares) {}

  // Whether one more operation may be in flight. What is only on its way to a GPU keeps no disk busy.
  bool has_place() const { return pieces.has_free() && pieces.in_use() - copies.pending() < settings.depth; }

  Environment& environment;
  const LaneSettings settings;
  const std::shared_ptr<LaneStatistics> statistics;  // shared with the hub
  LaneTrace* const trace;                            // null: nobody wants to know
  Inbox inbox;
  Pieces pieces;  // more than operations: others are being copied
  LaneStaging staging;
  GpuCopies copies;
  EngineQueues queues;
  LaneFlow flow;
  std::uint64_t cached_bytes = 0;   // in flight through the page cache
  std::uint32_t slots_filling = 0;  // from the page cache
};

}  // namespace penstock::core
