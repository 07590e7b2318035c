#include "services/rows/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/out_of_memory.h"
#include "services/rows/fill.h"
#include "services/rows/gather.h"

namespace penstock::rows {
namespace {

constexpr std::uint64_t slot_line_bytes = 64;
// A block of the GPU's copies so much at once; long rounds more, so that the list stays short.
constexpr std::uint64_t shortest_copy_bytes = 4096;
// A thread copies so much at once: less is not worth handing to another.
constexpr std::size_t share_bytes = 32 << 10;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + slot_line_bytes - 1) / slot_line_bytes * slot_line_bytes;
}

void add_copies(std::vector<GpuCopy>& list, GpuCopy whole, std::uint64_t longest) {
  for (std::uint64_t done = 0; done < whole.bytes; done += longest) {
    list.push_back({whole.from + done, whole.to + done, std::min(longest, whole.bytes - done)});
  }
}

std::uint64_t address_of(const Region& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data);
}

Error closed() {
  return {Code::closed, 0, "the plan is closed", "make another, and capture the graphs that have it anew"};
}

Error bad_gather(std::size_t place, const std::string& what, const std::string& hint) {
  return {Code::invalid_argument, 0, "gather " + std::to_string(place) + " of the round: " + what, hint};
}

}  // namespace

Status Plan::prepare() {
  std::uint64_t row_bytes = 0;
  for (const auto& table : tables_) row_bytes = std::max(row_bytes, table->info().row_bytes);
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(most_rows_, row_bytes + sizeof(std::uint64_t), &bytes)) return out_of_memory();
  auto slot = make_slot(bytes + 4 * slot_line_bytes * tables_.size());
  if (!slot) return std::move(slot).error();
  slots_.push_back(std::move(*slot));
  return {};
}

Status Plan::check_gathers(std::span<const PlannedGather> gathers) const {
  std::uint64_t rows = 0;
  if (gathers.empty() || gathers.size() > Rendezvous::copies_limit / 4) {
    return Error{Code::invalid_argument, 0, std::to_string(gathers.size()) + " gathers in one round",
                 "give at least one, and at most " + std::to_string(Rendezvous::copies_limit / 4)};
  }
  for (std::size_t i = 0; i < gathers.size(); ++i) {
    const PlannedGather& each = gathers[i];
    if (each.table >= tables_.size()) {
      return bad_gather(i, "there is no table " + std::to_string(each.table),
                        "the plan has " + std::to_string(tables_.size()));
    }
    const Region& numbers = each.numbers.memory();
    if (each.numbers.size() == 0 || numbers.data == nullptr || numbers.size_bytes % each.numbers.element_bytes() != 0) {
      return bad_gather(i, "it has no whole numbers of rows", "give at least one, in GPU memory");
    }
    for (const Region& memory : {numbers, each.memory, each.status}) {
      if (memory.size_bytes != 0 && memory.domain != gpu_) {
        return bad_gather(i, "memory of " + memory.domain.name(),
                          "numbers, rows and status must be in memory of " + gpu_.name());
      }
    }
    if (each.memory.size_bytes / tables_[each.table]->info().row_bytes != each.numbers.size() ||
        each.memory.size_bytes % tables_[each.table]->info().row_bytes != 0) {
      return bad_gather(i,
                        std::to_string(each.numbers.size()) + " rows of " +
                            std::to_string(tables_[each.table]->info().row_bytes) + " bytes don't fill memory of " +
                            std::to_string(each.memory.size_bytes),
                        "give memory of exactly their size");
    }
    if (each.status.size_bytes != 0 && each.status.size_bytes != sizeof(std::uint32_t)) {
      return bad_gather(i, "a status of " + std::to_string(each.status.size_bytes) + " bytes", "give 4, or none");
    }
    rows += each.numbers.size();
  }
  if (rows > most_rows_) {
    return Error{Code::out_of_range, 0,
                 std::to_string(rows) + " rows in one round of a plan for " + std::to_string(most_rows_),
                 "make the plan for more, or gather less"};
  }
  return {};
}

std::uint64_t Plan::needed_bytes(std::span<const PlannedGather> gathers) const {
  std::uint64_t bytes = 0;
  for (const PlannedGather& each : gathers) {
    bytes += aligned(each.numbers.memory().size_bytes) + slot_line_bytes + aligned(each.memory.size_bytes);
  }
  return bytes;
}

Result<Plan::Slot> Plan::make_slot(std::uint64_t bytes) {
  auto round = std::make_shared<Round>();
  auto memory = tables_.front()->context().allocate(Domain::pinned(), bytes);
  if (!memory) return std::move(memory).error();
  round->memory = std::move(*memory);
  auto address = gpu_address(gpu_, round->memory.data());
  if (!address) return std::move(address).error();
  round->address = *address;
  auto meeting =
      Rendezvous::make(gpu_, [plan = shared_from_this(), round](const Crew& crew) { plan->answer(*round, crew); });
  if (!meeting) return std::move(meeting).error();
  return Slot{std::move(round), std::move(*meeting)};
}

// REQUIRES: mutex_.
Result<Plan::Slot> Plan::take_slot(std::uint64_t bytes) {
  const auto found = std::ranges::find_if(
      slots_, [&](const Slot& slot) { return slot.round->memory.size_bytes() >= bytes && slot.meeting.is_idle(); });
  if (found == slots_.end()) return make_slot(bytes);
  Slot slot = std::move(*found);
  slots_.erase(found);
  return slot;
}

Plan::Copies Plan::lay_out(Round& round, std::span<const PlannedGather> gathers) const {
  std::uint64_t all = 0;
  for (const PlannedGather& each : gathers) all += each.memory.size_bytes;
  // Each gather adds one for what is left of it, and one for its status.
  const std::uint64_t copies = Rendezvous::copies_limit - 2 * gathers.size();
  const std::uint64_t longest =
      std::max(shortest_copy_bytes, (all / copies + shortest_copy_bytes) / shortest_copy_bytes * shortest_copy_bytes);
  Copies list;
  std::uint64_t offset = 0;
  round.parts.clear();
  for (const PlannedGather& each : gathers) {
    const Region& numbers = each.numbers.memory();
    std::byte* const host = round.memory.data() + offset;
    const std::uint64_t status_offset = aligned(numbers.size_bytes);
    const std::uint64_t rows_offset = status_offset + slot_line_bytes;
    const std::uint64_t address = round.address + offset;
    round.parts.push_back({each.table, RowNumbers(each.numbers.type(), Region::host(host, numbers.size_bytes)),
                           std::span(host + rows_offset, each.memory.size_bytes), host + status_offset});
    list.before.push_back({address_of(numbers), address, numbers.size_bytes});
    add_copies(list.after, {address + rows_offset, address_of(each.memory), each.memory.size_bytes}, longest);
    if (each.status.size_bytes != 0) {
      list.after.push_back({address + status_offset, address_of(each.status), sizeof(std::uint32_t)});
    }
    offset += rows_offset + aligned(each.memory.size_bytes);
  }
  return list;
}

Status Plan::enqueue(CudaStream stream, std::span<const PlannedGather> gathers) {
  const std::shared_lock open(open_);
  if (is_closed_) return closed();
  if (tables_.front()->in_child()) {
    return Error{Code::closed, 0, "the plan belongs to the parent of this process", "make one after the fork"};
  }
  if (Status status = check_gathers(gathers); !status) return status;
  if (Status status = check(); !status) return status;
  const std::scoped_lock lock(mutex_);
  auto slot = take_slot(needed_bytes(gathers));
  if (!slot) return std::move(slot).error();
  const Copies copies = lay_out(*slot->round, gathers);
  Status status = slot->meeting.enqueue(stream, copies.before, copies.after);
  slots_.push_back(std::move(*slot));
  return status;
}

Status Plan::check() {
  const std::scoped_lock lock(mutex_);
  if (!error_) return {};
  return *std::exchange(error_, std::nullopt);
}

RowsPlanReport Plan::report() const {
  return {.rounds = rounds_,
          .rows = rows_,
          .cold_rows = cold_rows_,
          .missing_rows = missing_rows_,
          .failed_gathers = failed_gathers_};
}

void Plan::close() {
  std::vector<Slot> slots;
  std::vector<std::shared_ptr<const Table>> tables;
  is_closing_ = true;
  const std::unique_lock open(open_);
  is_closed_ = true;
  tables.swap(tables_);
  const std::scoped_lock lock(mutex_);
  slots.swap(slots_);
}

void Plan::note(Error error) {
  failed_gathers_.fetch_add(1, std::memory_order_relaxed);
  const std::scoped_lock lock(mutex_);
  if (!error_) error_ = std::move(error);
}

Status Plan::answer_part(const Part& part, const Crew& crew) {
  if (is_closing_) return closed();
  const std::shared_lock open(open_);
  if (is_closed_) return closed();
  const Table& table = *tables_[part.table];
  const GatherOptions options{.zeros_for_missing = options_.zeros_for_missing,
                              .deadline_seconds = options_.deadline_seconds};
  rows_.fetch_add(part.numbers.size(), std::memory_order_relaxed);
  auto mapped = mapped_fill(table, part.numbers, options);
  if (!mapped) return std::move(mapped).error();
  if (!mapped->fill) {
    const RowsReport report =
        gather(table, part.numbers, Region::host(part.memory.data(), part.memory.size()), options);
    cold_rows_.fetch_add(report.cold_rows, std::memory_order_relaxed);
    missing_rows_.fetch_add(report.missing_rows, std::memory_order_relaxed);
    if (report.ok()) return {};
    return *report.error;
  }
  missing_rows_.fetch_add(mapped->missing_rows, std::memory_order_relaxed);
  const std::size_t row_bytes = table.info().row_bytes;
  const std::size_t piece_bytes = std::max<std::size_t>(1, share_bytes / row_bytes) * row_bytes;
  std::mutex mutex;
  Status all;
  crew.share((part.memory.size() + piece_bytes - 1) / piece_bytes, [&](std::size_t i) {
    const std::size_t begin = i * piece_bytes;
    const auto piece = part.memory.subspan(begin, std::min(piece_bytes, part.memory.size() - begin));
    if (Status status = mapped->fill->make(begin, piece); !status) {
      const std::scoped_lock lock(mutex);
      all = std::move(status);
    }
  });
  if (!all) return all;
  return table.check_unchanged();
}

void Plan::answer(Round& round, const Crew& crew) {
  for (const Part& part : round.parts) {
    Status status = out_of_memory();
    try {
      status = answer_part(part, crew);
    } catch (const std::bad_alloc&) {
    }
    const auto code = static_cast<std::uint32_t>(status ? Code::ok : status.error().code);
    if (!status) {
      std::ranges::fill(part.memory, std::byte{0});
      note(std::move(status).error());
    }
    std::memcpy(part.status, &code, sizeof code);
  }
  rounds_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace penstock::rows

namespace penstock {
namespace {

Error no_plan() {
  return {Code::invalid_argument, 0, "this RowsPlan is of no tables", "use one that make() gave"};
}

}  // namespace

RowsPlan::RowsPlan() = default;
RowsPlan::RowsPlan(std::shared_ptr<rows::Plan> plan) : plan_(std::move(plan)) {}
RowsPlan::RowsPlan(RowsPlan&&) noexcept = default;
RowsPlan& RowsPlan::operator=(RowsPlan&& other) noexcept {
  std::swap(plan_, other.plan_);
  return *this;
}
RowsPlan::~RowsPlan() {
  if (plan_) plan_->close();
}

Result<RowsPlan> RowsPlan::make(Domain gpu, std::span<const Rows> tables, std::uint64_t most_rows,
                                const RowsPlanOptions& options) {
  return or_out_of_memory([&]() -> Result<RowsPlan> {
    std::vector<std::shared_ptr<const rows::Table>> all;
    for (const Rows& each : tables) {
      if (each.table_) all.push_back(each.table_);
    }
    if (all.empty() || all.size() != tables.size() || gpu.host_accessible() || most_rows == 0) {
      return Error{Code::invalid_argument, 0,
                   "a plan for " + std::to_string(most_rows) + " rows of " + std::to_string(all.size()) +
                       " tables, in memory of " + gpu.name(),
                   "give a GPU, at least one table that is open, and how many rows there are at most"};
    }
    if (Status status = all.front()->context().prepare(gpu); !status) return std::move(status).error();
    RowsPlan plan(std::make_shared<rows::Plan>(gpu, std::move(all), most_rows, options));
    if (Status status = plan.plan_->prepare(); !status) return std::move(status).error();
    return plan;
  });
}

Status RowsPlan::enqueue(CudaStream stream, std::span<const PlannedGather> gathers) {
  if (!plan_) return no_plan();
  try {
    return plan_->enqueue(stream, gathers);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status RowsPlan::check() {
  if (!plan_) return no_plan();
  return plan_->check();
}

RowsPlanReport RowsPlan::report() const {
  return plan_ ? plan_->report() : RowsPlanReport();
}

}  // namespace penstock
