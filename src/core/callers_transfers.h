// CallersTransfers: transfers of one range that their callers make themselves, in one or two system calls and without a
// Request: cached bytes, writes through the page cache, and what is short and needs neither staging nor a stage.
//
// What must be able to end early, or is told to somebody else, is not among them. Nothing fails here: what does not
// come out whole is left to a Request, which does all of it again and says what is wrong.
//
// Thread safety: any thread. Lifetime: shorter than its Environment's.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/environment.h"
#include "core/planner.h"
#include "penstock/request.h"

namespace penstock::core {

class CallersTransfers {
 public:
  explicit CallersTransfers(Environment& environment);

  // A caller that waits for a transfer, by itself or for lanes.
  class Caller {
   public:
    Caller(CallersTransfers& transfers, std::uint64_t bytes);
    ~Caller();
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

   private:
    CallersTransfers& transfers_;
    const bool is_counted_;
  };
  // False: nothing is done yet, though some of the bytes may have moved. Allocates nothing for short cached reads.
  // REQUIRES: a Caller for it lives.
  bool run(Direction direction, const Range& range, const RequestOptions& options, Report& report);
  // Only if all of a short range is in the page cache: it never waits for storage. False: nothing is done yet.
  bool read_if_cached(const Range& range, const RequestOptions& options);

 private:
  struct Transfer;
  static bool is_plain(const Range& range, const RequestOptions& options);
  // Null: it is left to a Request.
  StoreEntry* served(const Range& range, const RequestOptions& options) const;
  bool may_go(Route route) const { return (allowed_ & route_bit(route)) != 0; }
  bool read(Transfer& transfer, Report& report);
  bool read_cached(Transfer& transfer, Report& report);
  bool read_past_cache(Transfer& transfer, Report& report);
  bool write(Transfer& transfer, bool durable, Report& report);
  std::optional<WindowPlan> plan_write(const Transfer& transfer) const;
  static void note_write(const Transfer& transfer, engine::Path path);
  bool flush(const Transfer& transfer) const;
  bool leaves_processors(std::uint64_t bytes) const;
  static bool is_aligned(const Transfer& transfer, Direction direction);
  // Of the bytes from `done` on; true if all moved.
  bool run_op(const Transfer& transfer, engine::OpKind kind, engine::Path path, std::uint64_t done = 0) const;
  void count(const Transfer& transfer, Route route, TimePoint end) const;
  void tell(const Transfer& transfer, Route route, Report& report) const;

  Environment& environment_;
  const RouteSet allowed_;                 // none where all want a Request
  std::atomic<std::uint32_t> callers_{0};  // with long transfers
};

}  // namespace penstock::core
