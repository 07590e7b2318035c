// For tests of gathers inside CUDA graphs.
#pragma once

#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu/stream_order_test.h"
#include "penstock/rows_plan.h"
#include "support/environment.h"
#include "support/graph_capture.h"

namespace penstock::test {

inline constexpr std::size_t most_rows = 96;

struct PlanTable {
  std::size_t row_bytes = 0;
  std::size_t rows = 0;
  std::vector<std::byte> bytes;
  Rows opened;

  std::span<const std::byte> row(std::int64_t number) const {
    return std::span(bytes).subspan(static_cast<std::size_t>(number) * row_bytes, row_bytes);
  }
};

// Makes the GPU's context current, as a program does: in the thread's own capture mode.
class OwnContext {
 public:
  explicit OwnContext(const cuda::Device& gpu) { EXPECT_EQ(cuda_.api.context_push(gpu.context()), cuda::cu_success); }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;
  ~OwnContext() {
    cuda::CuContext popped = nullptr;
    EXPECT_EQ(cuda_.api.context_pop(&popped), cuda::cu_success);
  }

 private:
  const PlainCuda cuda_;
};

// A graph that takes numbers from pinned memory, as if it computed them, gathers by them, and brings rows and statuses
// back.
class PlanGraph {
 public:
  PlanGraph(const Context& context, cuda::CuStream stream, std::vector<const PlanTable*> tables, std::size_t count)
      : tables_(std::move(tables)), count_(count), stream_(stream) {
    for (const PlanTable* table : tables_) {
      const std::size_t rows_bytes = count * table->row_bytes;
      parts_.push_back(
          {context.allocate(Domain::pinned(), count * 8).value(), context.allocate(Domain::cuda(0), count * 8).value(),
           context.allocate(Domain::cuda(0), rows_bytes).value(), context.allocate(Domain::cuda(0), 4).value(),
           context.allocate(Domain::pinned(), rows_bytes + 4).value()});
    }
  }
  PlanGraph(const PlanGraph&) = delete;
  PlanGraph& operator=(const PlanGraph&) = delete;
  ~PlanGraph() { destroy(); }

  std::vector<PlannedGather> gathers() const {
    std::vector<PlannedGather> all;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      all.push_back({.table = i,
                     .numbers = {RowNumbers::Type::i64, parts_[i].numbers.region()},
                     .memory = parts_[i].rows.region(),
                     .status = parts_[i].status.region()});
    }
    return all;
  }

  // All that a round is, on the stream. REQUIRES: a current context.
  Status put(RowsPlan& plan) {
    for (const Part& part : parts_) {
      expect(cuda_.api.copy_to_device(address(part.numbers), part.asked.data(), count_ * 8, stream_));
    }
    if (Status status = plan.enqueue({stream_}, gathers()); !status) return status;
    for (const Part& part : parts_) {
      const std::size_t bytes = part.rows.size_bytes();
      expect(cuda_.api.copy_from_device(part.back.data(), address(part.rows), bytes, stream_));
      expect(cuda_.api.copy_from_device(part.back.data() + bytes, address(part.status), 4, stream_));
    }
    return {};
  }

  // A thread that waits for a stream spoils what others capture in the global mode.
  Status capture(RowsPlan& plan, int mode = cuda::cu_capture_mode_global) {
    expect(cuda_.captures.begin(stream_, mode));
    const Status status = put(plan);
    cuda::CuGraph graph = nullptr;
    expect(cuda_.captures.end(stream_, &graph));
    if (status) expect(cuda_.captures.instantiate(&executable_, graph, 0));
    expect(cuda_.captures.destroy(graph));
    return status;
  }
  void destroy() {
    if (executable_ != nullptr) expect(cuda_.captures.destroy_executable(std::exchange(executable_, nullptr)));
  }

  void ask(std::mt19937_64& random) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      for (std::size_t at = 0; at < count_; ++at) asked(i)[at] = static_cast<std::int64_t>(random() % tables_[i]->rows);
    }
  }
  std::int64_t* asked(std::size_t table) const { return reinterpret_cast<std::int64_t*>(parts_[table].asked.data()); }
  void launch() { expect(cuda_.captures.launch(executable_, stream_)); }
  void wait() { expect(cuda_.api.stream_synchronize(stream_)); }
  void replay() {
    launch();
    wait();
  }

  Code status(std::size_t table) const {
    std::uint32_t code = 0;
    std::memcpy(&code, parts_[table].back.data() + parts_[table].rows.size_bytes(), 4);
    return static_cast<Code>(code);
  }
  std::span<const std::byte> row(std::size_t table, std::size_t at) const {
    return {parts_[table].back.data() + at * tables_[table]->row_bytes, tables_[table]->row_bytes};
  }
  testing::AssertionResult holds_what_was_asked() const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (status(i) != Code::ok) return testing::AssertionFailure() << "status " << code_name(status(i));
      for (std::size_t at = 0; at < count_; ++at) {
        if (!same_bytes(tables_[i]->row(asked(i)[at]), row(i, at))) {
          return testing::AssertionFailure() << "row " << asked(i)[at] << " at " << at << " of table " << i;
        }
      }
    }
    return testing::AssertionSuccess();
  }
  testing::AssertionResult holds_zeros(std::size_t table) const {
    for (std::size_t at = 0; at < count_; ++at) {
      if (!same_bytes(std::vector<std::byte>(tables_[table]->row_bytes), row(table, at))) {
        return testing::AssertionFailure() << "row " << at;
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  struct Part {
    Buffer asked;
    Buffer numbers;
    Buffer rows;
    Buffer status;
    Buffer back;
  };
  static void expect(cuda::CuResult result) { EXPECT_EQ(result, cuda::cu_success); }
  static cuda::CuDevicePtr address(const Buffer& buffer) { return cuda::device_address(buffer.data()); }

  const PlainCuda cuda_;
  const std::vector<const PlanTable*> tables_;
  const std::size_t count_;
  cuda::CuStream stream_;
  std::vector<Part> parts_;
  cuda::CuGraphExecutable executable_ = nullptr;
};

class RowsPlans : public InStreamOrder {
 protected:
  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    if (gpu().api().stream_wait_value == nullptr) GTEST_SKIP() << "the driver has no waits for words";
    context_.emplace(make_context());
    ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
    tables_.push_back(make_table("wide", 1024, 3000, {}));
    tables_.push_back(make_table("narrow", 40, 70'000, {}));
    current_.emplace(gpu());
  }
  void TearDown() override {
    current_.reset();
    tables_.clear();
    context_.reset();
    InStreamOrder::TearDown();
  }

  PlanTable make_table(const std::string& name, std::size_t row_bytes, std::size_t rows, const RowsOptions& options) {
    PlanTable table{row_bytes, rows, content(rows, 0, rows * row_bytes), {}};
    const std::string path = folder_.path(name);
    write_file(path, table.bytes);
    if (options.mapping) warm(path);
    table.opened = Rows::open_raw(*context_, path, {.row_bytes = row_bytes}, options).value();
    return table;
  }
  RowsPlan make_plan(std::vector<const PlanTable*> tables, const RowsPlanOptions& options = {}) {
    std::vector<Rows> opened;
    for (const PlanTable* table : tables) opened.push_back(table->opened);
    return RowsPlan::make(Domain::cuda(0), opened, 2 * most_rows, options).value();
  }
  // Without a plan nobody holds frees back, and a GPU makes them wait until the graph has its answer.
  void let_frees_wait() {
    if (fake_) fake_->set_synchronizing_calls_block(0, 0);
  }
  cuda::CuStream own_stream() { return make_stream(cuda::cu_stream_non_blocking); }

  std::optional<Context> context_;
  std::vector<PlanTable> tables_;
  std::optional<OwnContext> current_;
};

// PENSTOCK_REPLAYS=N sets how many replays are compared byte by byte.
inline std::uint64_t replays_wanted() {
  constexpr std::uint64_t replays = under_thread_sanitizer ? 200 : 600;  // scripts/soak.sh wants more
  return from_environment("PENSTOCK_REPLAYS", replays);
}

}  // namespace penstock::test
