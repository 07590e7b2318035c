// Launcher: starts pieces. It takes what each needs (a place, a queue, staging memory, room in the store's Flow), or
// says why there has to be a wait.
//
// Thread safety: the lane's. Lifetime: its lane's.
#pragma once

#include <cstdint>
#include <memory>

#include "core/carrier.h"
#include "core/cutter.h"
#include "core/lane_resources.h"

namespace penstock::core {

enum class Launch : std::uint8_t {
  started,   // a piece, or what needed none was dealt with
  full,      // the lane can start nothing before something has come back
  waits,     // enough of the part's store is in flight; others may go on
  finished,  // the part has nothing left to start
};

// Who makes the bytes of a piece of what is stored.
enum class Maker : std::uint8_t {
  nobody,       // they are stored as they are
  cpu,          // in the caller's memory
  cpu_for_gpu,  // in staging memory
  gpu,
};

class Launcher {
 public:
  Launcher(LaneResources& lane, const Cutter& cutter, Carrier& carrier)
      : lane_(lane), cutter_(cutter), carrier_(carrier) {}

  // Whether it is worth asking.
  bool has_room() const { return lane_.has_place() && lane_.cached_bytes < lane_.settings.cached_bytes_most; }
  // Before parts are asked for one after another: what was full is looked at again.
  void begin_round() { full_ = nullptr; }
  // The part has more to start, and there are no places for it: longer operations would help, if its store likes them.
  static void note_lack_of_places(const Part& part);
  // The next piece of the part, in its present stage. REQUIRES: has_room().
  Launch start_next(Part& part, TimePoint now);

 private:
  Launch start_edge(Part& part, TimePoint now);
  Launch start_flush(Part& part, TimePoint now);
  Launch start_straight(Part& part, const NextPiece& next, TimePoint now);
  Launch start_from_host(Part& part, const NextPiece& next, TimePoint now);
  // What lies in part of a block, and can't be written now.
  Launch leave_edge(Part& part, const NextPiece& next) const;
  bool has_queue(std::size_t engine) { return lane_.queues.has(engine) || make_queue(engine); }
  bool make_queue(std::size_t engine);
  bool has_flow(Flow& flow);
  Result<StagingArena*> staging_for(const StoreEntry& entry, const Span& span, std::uint64_t bytes);
  StagingArena* long_slots_for(const Request& request);
  std::uint32_t take(Part& part, StoreEntry& entry, const Cut& piece, const StagingArena::Block& block);
  Maker maker_of(const Request& request, const Span& span);
  // `made`: where the CPU makes what is copied to a GPU.
  Result<std::unique_ptr<Making>> begin_making(const Request& request, const Span& span, Maker maker, std::byte* made);
  void widen_to_blocks(Piece& piece, Direction direction) const;
  void enter_flow(Piece& piece, const Part& part);

  LaneResources& lane_;
  const Cutter& cutter_;
  Carrier& carrier_;
  const Flow* full_ = nullptr;                     // found so in this round
  Code queue_failure_ = Code::engine_unavailable;  // why the last one that could not be made was not
};

}  // namespace penstock::core
