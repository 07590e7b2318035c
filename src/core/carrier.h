// Carrier: the life of a lane's pieces, from the first operation to the last: what is sent, what comes back, and what
// to do about it.
//
// Invariants:
//  1. Every operation given to a Queue occupies a Piece until it comes back.
//  2. A piece that does not come home within the grace, or whose request ends without it, becomes an orphan: it
//     belongs to no part, and keeps its store and the Buffers that it may touch.
//
// Thread safety: the lane's. Lifetime: its lane's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/lane_resources.h"
#include "core/request.h"

namespace penstock::core {

class Carrier {
 public:
  explicit Carrier(LaneResources& lane);

  // Sends a piece on its way. Bytes to be written are fetched into staging memory first, where they go through it.
  void begin(std::uint32_t index, TimePoint now);
  // These return the part that may have ended by it, or null.
  Part* on_done(std::size_t engine, const engine::Done& done, TimePoint now);
  Part* on_copied(const cuda::CopyDone& done, TimePoint now);
  void send_due_retries(TimePoint now);
  bool has_retries() const { return !retries_.empty(); }
  TimePoint next_retry() const;

  // Ends what has not reached an engine, and asks the engines to end the rest. What is being read into staging memory,
  // or will be lent, can't touch the caller's: it is let go of at once, and should be home by `patience_end`.
  void withdraw(Part& part, TimePoint patience_end);
  // Lets go of what did not come home.
  void abandon(Part& part);
  std::uint32_t orphans() const { return orphans_; }
  // When the first orphan should have been home that was let go of at once.
  TimePoint patience_end() const;

 private:
  using Phase = Piece::Phase;

  void send(std::uint32_t index, TimePoint now);
  void copy(std::uint32_t index, cuda::Toward toward);
  // What is stored is there: makes the piece's bytes of it, or has its GPU do that.
  void make(std::uint32_t index);
  static cuda::CuResult launch_making(cuda::CuStream stream, void* piece);
  // What became of a copy, and of what a GPU made of it; nothing: the bytes are there.
  static std::optional<Error> failure_of(const Piece& piece, cuda::CuResult copied);
  void on_moved(std::uint32_t index, std::uint64_t bytes, Route route, TimePoint now);
  void on_failed(std::uint32_t index, const engine::Done& done, TimePoint now);
  void on_orphan_home(std::uint32_t index);
  void take_loan(Piece& piece, const engine::Done& done);
  static void leave_shared_read(Piece& piece);
  void continue_short(std::uint32_t index, std::uint64_t before, Route route, TimePoint now);
  void lock_block(std::uint32_t index, TimePoint now);
  void write_back_block(std::uint32_t index, TimePoint now);
  void write_block(std::uint32_t index);
  void retry_at(std::uint32_t index, TimePoint time);
  void finish(std::uint32_t index);
  void account(std::uint32_t index);
  void fail(std::uint32_t index, Code code, std::int32_t system_error, const Error* cause = nullptr);
  // Of a request that was stopped: what is not finished is not continued.
  void drop(std::uint32_t index);
  void free(std::uint32_t index);
  void leave_flow(Piece& piece);
  void make_orphan(Piece& piece);

  LaneResources& lane_;
  std::vector<std::uint32_t> retries_;
  std::uint32_t orphans_ = 0;
};

}  // namespace penstock::core
