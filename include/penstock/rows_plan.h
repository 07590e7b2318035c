// RowsPlan: gathers inside CUDA graphs, and in the order of a stream, of rows whose numbers the GPU has just computed.
//
//   auto plan = penstock::RowsPlan::make(penstock::Domain::cuda(0), {&table, 1}, 1024).value();
//   // while the stream is captured: `numbers` and `memory` are GPU memory that kernels before and after use
//   plan.enqueue({stream}, {{.numbers = {penstock::RowNumbers::Type::i64, numbers}, .memory = memory}});
//   // replays need no call; now and then: plan.check()
//
// The stream copies the numbers to the host, asks, waits for the answer, and takes the rows to their places. Threads of
// the process answer (penstock/rendezvous.h): rows in the page cache are copied from the mapping of their table, all
// others are read first, which takes as long as the disk does. Each enqueue has words and memory of its own, so graphs
// may run at the same time; one that was captured must be instantiated once.
//
// With a cache (`cache_bytes`) a kernel first takes the rows that are in GPU memory, and only those that are missing
// are asked for; they stay for later rounds, of all graphs of the plan. The CPU is asked in each round nevertheless,
// unless `unasked_seconds` says otherwise: it compares the files with what they were, so that no row of a file that has
// changed is given.
//
// A replay that fails gives rows of zeros, and a status word that says why (0: the rows are right, else a Code); check
// tells the rest. When the plan is gone, the graph goes on, with rows of zeros and Code::closed.
//
// While there is a plan, GPU memory that is freed by Penstock is kept for later, as with a Standing.
//
// Thread safety: any thread. Lifetime: tables and their Context must outlive it, graphs need not be destroyed before
// it. GPU memory of numbers, rows and status is borrowed as long as the graph may run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/cuda.h"
#include "penstock/rows.h"

namespace penstock {

namespace rows {
class Plan;
}

struct RowsPlanOptions {
  bool zeros_for_missing = false;  // as GatherOptions has it; otherwise one such number fails the gather
  double deadline_seconds = 10;    // of the reads of cold rows, in a replay: a GPU waits for them
  // GPU memory for rows that were gathered before, of all tables together; 0: none are kept. Code::unsupported where
  // the GPU has no kernels of ours (Gpu::kernels).
  std::uint64_t cache_bytes = 0;
  // With a cache: a round whose rows are all there does not ask the CPU, if the last one of its graph that did, did so
  // no longer ago and without an error. That a file has changed, or the plan was closed, is then noticed so much later.
  // 0: each round asks.
  double unasked_seconds = 0;
};

struct PlannedGather {
  std::size_t table = 0;  // of the plan's, by its place
  RowNumbers numbers;     // in GPU memory
  Region memory;          // in GPU memory, exactly as large as the rows
  Region status = {};     // 4 bytes in GPU memory, which are written with the rows; or none
};

struct RowsPlanReport {
  std::uint64_t rounds = 0;          // that were answered
  std::uint64_t unasked_rounds = 0;  // beside these: that needed no answer
  std::uint64_t rows = 0;
  std::uint64_t cold_rows = 0;
  std::uint64_t missing_rows = 0;
  std::uint64_t failed_gathers = 0;  // whose rows are zeros
  std::uint64_t hit_rows = 0;        // of the rows: that the GPU found in its cache
  std::uint64_t cache_rows = 0;      // that have room there
  std::uint64_t cache_bytes = 0;     // GPU memory that it takes
};

// Made by default, or moved from, it is of no tables: calls fail with Code::invalid_argument.
class PENSTOCK_EXPORT RowsPlan {
 public:
  // For gathers of at most `most_rows` in one round, of all tables together.
  static Result<RowsPlan> make(Domain gpu, std::span<const Rows> tables, std::uint64_t most_rows,
                               const RowsPlanOptions& options = {});
  RowsPlan();
  RowsPlan(RowsPlan&&) noexcept;
  RowsPlan& operator=(RowsPlan&&) noexcept;
  ~RowsPlan();

  // Puts a round on a stream, which may be one that is captured. Waits for nothing. Fails with the error of an earlier
  // round, if that was not told yet, and puts nothing on the stream then.
  Status enqueue(CudaStream stream, std::span<const PlannedGather> gathers);
  Status enqueue(CudaStream stream, const PlannedGather& gather) { return enqueue(stream, {&gather, 1}); }
  // The first error of the rounds since it was last told.
  Status check();
  RowsPlanReport report() const;

 private:
  explicit RowsPlan(std::shared_ptr<rows::Plan> plan);
  std::shared_ptr<rows::Plan> plan_;  // shared with rounds that may still be asked for
};

}  // namespace penstock
