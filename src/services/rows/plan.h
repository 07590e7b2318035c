// Plan: what the rounds of a RowsPlan share, and how one is answered.
//
// Thread safety: any thread. Lifetime: shared with rounds, which graphs may ask for as long as they live; `close` ends
// all use of the tables.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

#include "base/fork_guard.h"
#include "penstock/rendezvous.h"
#include "penstock/rows_plan.h"
#include "services/rows/cache.h"
#include "services/rows/round.h"
#include "services/rows/table.h"

namespace penstock::rows {

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  Plan(Domain gpu, std::vector<std::shared_ptr<const Table>> tables, std::uint64_t most_rows, RowsPlanOptions options)
      : gpu_(gpu), tables_(std::move(tables)), most_rows_(most_rows), options_(options) {}

  // The caches, and memory for the first round, so that what is too much is known at once.
  Status prepare();
  Status enqueue(CudaStream stream, std::span<const PlannedGather> gathers);
  Status check();
  RowsPlanReport report();
  // Waits for rounds that are being answered. Others find no rows from now on.
  void close();
  bool in_child() const { return fork_guard_.in_child(); }

 private:
  struct Slot {
    std::shared_ptr<Round> round;  // shared with the answer
    Rendezvous meeting;
  };
  Status check_gathers(std::span<const PlannedGather> gathers) const;
  Sources sources() const { return {tables_, caches_}; }
  Result<Slot> make_slot(const Room& room);
  Status prepare_caches();
  // REQUIRES: mutex_.
  void count_unasked(Round& round);
  Result<Slot> take_slot(const Room& room);

  void answer(Round& round, const Crew& crew);
  Status answer_part(const Part& part, const Crew& crew);
  Status answer_missing(const Table& table, const Part& part, const Crew& crew);
  Status copy_rows(const Table& table, const AskedRows& asked, const Crew& crew);
  Status copy_mapped(const Table& table, const AskedRows& asked, const Crew& crew);
  void note(Error error);

  const Domain gpu_;
  // Set before the lock is asked for, which graphs that are replayed all the time would not let go of.
  std::atomic<bool> is_closing_{false};
  std::shared_mutex open_;  // held by rounds that are answered; guards what follows
  bool is_closed_ = false;
  std::vector<std::shared_ptr<const Table>> tables_;

  const std::uint64_t most_rows_;
  const RowsPlanOptions options_;
  const ForkGuard fork_guard_;
  std::vector<Cache> caches_;  // a table's each, or none. Kernels use them as long as there are graphs
  Buffer gpu_states_;          // of rounds that the GPU may go on with by itself, in GPU memory
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> rows_{0};
  std::atomic<std::uint64_t> hit_rows_{0};
  std::atomic<std::uint64_t> cold_rows_{0};
  std::atomic<std::uint64_t> missing_rows_{0};
  std::atomic<std::uint64_t> failed_gathers_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::optional<Error> error_;
  std::vector<Slot> slots_;  // of rounds on streams, and of graphs
  std::size_t slots_made_ = 0;
  std::uint64_t unasked_rounds_ = 0;  // beside those that slots have not told yet
  std::uint64_t unasked_rows_ = 0;
};

}  // namespace penstock::rows
