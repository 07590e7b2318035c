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

#include "penstock/rendezvous.h"
#include "penstock/rows_plan.h"
#include "services/rows/table.h"

namespace penstock::rows {

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  Plan(Domain gpu, std::vector<std::shared_ptr<const Table>> tables, std::uint64_t most_rows, RowsPlanOptions options)
      : gpu_(gpu), tables_(std::move(tables)), most_rows_(most_rows), options_(options) {}

  // Memory for the first round, so that what is too much is known at once.
  Status prepare();
  Status enqueue(CudaStream stream, std::span<const PlannedGather> gathers);
  Status check();
  RowsPlanReport report() const;
  // Waits for rounds that are being answered. Others find no rows from now on.
  void close();

 private:
  // A gather as the host has it.
  struct Part {
    std::size_t table = 0;
    RowNumbers numbers;
    std::span<std::byte> memory;
    std::byte* status = nullptr;
  };
  // One round: pinned memory for numbers, statuses and rows, and the place where the GPU asks for it.
  struct Round {
    Buffer memory;
    std::uint64_t address = 0;  // of the memory, as the GPU sees it
    std::vector<Part> parts;
  };
  struct Slot {
    std::shared_ptr<Round> round;  // shared with the answer
    Rendezvous meeting;
  };
  struct Copies {
    std::vector<GpuCopy> before;
    std::vector<GpuCopy> after;
  };

  Status check_gathers(std::span<const PlannedGather> gathers) const;
  std::uint64_t needed_bytes(std::span<const PlannedGather> gathers) const;
  Result<Slot> make_slot(std::uint64_t bytes);
  Result<Slot> take_slot(std::uint64_t bytes);
  Copies lay_out(Round& round, std::span<const PlannedGather> gathers) const;

  void answer(Round& round, const Crew& crew);
  Status answer_part(const Part& part, const Crew& crew);
  void note(Error error);

  const Domain gpu_;
  // Set before the lock is asked for, which graphs that are replayed all the time would not let go of.
  std::atomic<bool> is_closing_{false};
  std::shared_mutex open_;  // held by rounds that are answered; guards what follows
  bool is_closed_ = false;
  std::vector<std::shared_ptr<const Table>> tables_;

  const std::uint64_t most_rows_;
  const RowsPlanOptions options_;
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> rows_{0};
  std::atomic<std::uint64_t> cold_rows_{0};
  std::atomic<std::uint64_t> missing_rows_{0};
  std::atomic<std::uint64_t> failed_gathers_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::optional<Error> error_;
  std::vector<Slot> slots_;  // of rounds on streams, and of graphs
};

}  // namespace penstock::rows
