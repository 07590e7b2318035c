#include "services/rows/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/out_of_memory.h"
#include "penstock/gpu.h"
#include "services/rows/fill.h"
#include "services/rows/gather.h"
#include "services/rows/sorted.h"

namespace penstock::rows {
namespace {

// A thread copies so much at once: less is not worth handing to another.
constexpr std::size_t share_bytes = 16 << 10;

constexpr std::size_t most_states = 1024;     // of rounds that go on without an answer
constexpr double most_unasked_seconds = 1e9;  // in nanoseconds, that is a number

constexpr const char* find_kernel = "rows_find";
constexpr const char* place_kernel = "rows_place";
Error closed() {
  return {Code::closed, 0, "the plan is closed", "make another, and capture the graphs that have it anew"};
}

Error of_parent() {
  return {Code::closed, 0, "the plan belongs to the parent of this process", "make one after the fork"};
}

// Some of the rows that were asked for.
struct Share {
  std::size_t first_row = 0;
  AskedRows rows;
};

// Whole rows, by whoever has time. One of those that fail tells why.
template <typename Make>
Status in_shares(const Table& table, const AskedRows& asked, const Crew& crew, const Make& make) {
  const std::size_t row_bytes = table.info().row_bytes;
  const std::size_t element_bytes = asked.numbers.element_bytes();
  const std::size_t share_rows = std::max<std::size_t>(1, share_bytes / row_bytes);
  std::mutex mutex;
  Status all;
  crew.share((asked.numbers.size() + share_rows - 1) / share_rows, [&](std::size_t i) {
    const std::size_t first = i * share_rows;
    const std::size_t count = std::min(share_rows, asked.numbers.size() - first);
    const RowNumbers numbers(asked.numbers.type(),
                             asked.numbers.memory().part(first * element_bytes, count * element_bytes));
    const Share share{first, {numbers, asked.memory.subspan(first * row_bytes, count * row_bytes)}};
    if (Status status = or_out_of_memory([&] { return make(share); }); !status) {
      const std::scoped_lock lock(mutex);
      all = std::move(status);
    }
  });
  return all;
}

Error bad_gather(std::size_t place, const std::string& what, const std::string& hint) {
  return {Code::invalid_argument, 0, "gather " + std::to_string(place) + " of the round: " + what, hint};
}

}  // namespace

Status Plan::prepare_caches() {
  // Without entries nothing is launched.
  for (const char* kernel : {find_kernel, place_kernel}) {
    if (Status status = launch_kernel(gpu_, {}, kernel, 0, 0); !status) return status;
  }
  if (most_rows_ > UINT32_MAX) {
    return Error{Code::invalid_argument, 0, "a plan with a cache, for " + std::to_string(most_rows_) + " rows",
                 "give at most " + std::to_string(UINT32_MAX) + ", or no cache"};
  }
  auto caches = make_caches(gpu_, tables_, options_.cache_bytes);
  if (!caches) return std::move(caches).error();
  caches_ = std::move(*caches);
  if (options_.unasked_seconds == 0) return {};
  auto states = tables_.front()->context().allocate(gpu_, most_states * sizeof(cuda::RowsRound));
  if (!states) return std::move(states).error();
  gpu_states_ = std::move(*states);
  std::vector<std::byte> zeros(gpu_states_.size_bytes());
  return copy(gpu_states_.region(), Region::host(zeros.data(), zeros.size()));
}

Status Plan::prepare() {
  // Not a number is no good either.
  if (!(options_.unasked_seconds >= 0) || (options_.unasked_seconds > 0 && options_.cache_bytes == 0)) {
    return Error{Code::invalid_argument, 0, "unasked_seconds of a plan that can't go without asking",
                 "give 0, or more and cache_bytes besides"};
  }
  if (options_.cache_bytes != 0) {
    if (Status status = prepare_caches(); !status) return status;
  }
  const auto room = most_room(sources(), most_rows_);
  if (!room) return room.error();
  auto slot = make_slot(*room);
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
    // Kernels read numbers as they are.
    const auto address_of = [](const Region& memory) { return reinterpret_cast<std::uintptr_t>(memory.data); };
    if (!caches_.empty() && (address_of(numbers) % each.numbers.element_bytes() != 0 ||
                             address_of(each.status) % sizeof(std::uint32_t) != 0)) {
      return bad_gather(i, "numbers, or a status, that are not aligned", "with a cache, align them as their type is");
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

Result<Plan::Slot> Plan::make_slot(const Room& room) {
  auto round = std::make_shared<Round>();
  auto memory = tables_.front()->context().allocate(Domain::pinned(), room.pinned_bytes);
  if (!memory) return std::move(memory).error();
  round->memory = std::move(*memory);
  if (room.gpu_bytes != 0) {
    auto gpu_memory = tables_.front()->context().allocate(gpu_, room.gpu_bytes);
    if (!gpu_memory) return std::move(gpu_memory).error();
    round->gpu_memory = std::move(*gpu_memory);
  }
  auto address = gpu_address(gpu_, round->memory.data());
  if (!address) return std::move(address).error();
  round->address = *address;
  std::memset(round->memory.data(), 0, sizeof(std::uint64_t));
  auto meeting =
      Rendezvous::make(gpu_, [plan = shared_from_this(), round](const Crew& crew) { plan->answer(*round, crew); });
  if (!meeting) return std::move(meeting).error();
  // Those beyond what there is room for always ask.
  if (gpu_states_.size_bytes() != 0 && slots_made_ < most_states) {
    round->gpu_state = reinterpret_cast<std::uintptr_t>(gpu_states_.data()) + slots_made_ * sizeof(cuda::RowsRound);
    round->trusted_ns = static_cast<std::uint64_t>(std::min(options_.unasked_seconds, most_unasked_seconds) * 1e9);
    round->words = meeting->words();
  }
  ++slots_made_;
  return Slot{std::move(round), std::move(*meeting)};
}

// REQUIRES: mutex_.
Result<Plan::Slot> Plan::take_slot(const Room& room) {
  const auto found = std::ranges::find_if(slots_, [&](const Slot& slot) {
    return slot.round->memory.size_bytes() >= room.pinned_bytes &&
           slot.round->gpu_memory.size_bytes() >= room.gpu_bytes && slot.meeting.is_idle();
  });
  if (found == slots_.end()) return make_slot(room);
  Slot slot = std::move(*found);
  slots_.erase(found);
  return slot;
}

Status Plan::enqueue(CudaStream stream, std::span<const PlannedGather> gathers) {
  if (in_child()) return of_parent();
  const std::shared_lock open(open_);
  if (is_closed_) return closed();
  if (Status status = check_gathers(gathers); !status) return status;
  if (Status status = check(); !status) return status;
  const std::scoped_lock lock(mutex_);
  auto slot = take_slot(needed_room(sources(), gathers));
  if (!slot) return std::move(slot).error();
  Status status;
  if (caches_.empty()) {
    const Copies copies = lay_out(*slot->round, gathers);
    status = slot->meeting.enqueue(stream, copies.before, copies.after);
  } else {
    count_unasked(*slot->round);
    const KernelEntries entries = lay_out_cached(*slot->round, sources(), gathers);
    status = slot->meeting.enqueue_kernels(stream,
                                           {find_kernel, entries.address, entries.count, slot->round->gpu_state != 0},
                                           {place_kernel, entries.address, entries.count, false});
  }
  slots_.push_back(std::move(*slot));
  return status;
}

void Plan::count_unasked(Round& round) {
  if (round.gpu_state == 0) return;
  const std::uint64_t passed = round.passed();
  unasked_rounds_ += passed - round.counted_passed;
  unasked_rows_ += (passed - round.counted_passed) * round.rows;
  round.counted_passed = passed;
}

Status Plan::check() {
  if (in_child()) return of_parent();
  const std::scoped_lock lock(mutex_);
  if (!error_) return {};
  return *std::exchange(error_, std::nullopt);
}

RowsPlanReport Plan::report() {
  if (in_child()) return {};
  const std::scoped_lock lock(mutex_);
  for (const Slot& slot : slots_) count_unasked(*slot.round);
  RowsPlanReport report{.rounds = rounds_,
                        .unasked_rounds = unasked_rounds_,
                        .rows = rows_ + unasked_rows_,
                        .cold_rows = cold_rows_,
                        .missing_rows = missing_rows_,
                        .failed_gathers = failed_gathers_,
                        .hit_rows = hit_rows_ + unasked_rows_};
  for (const Cache& cache : caches_) {
    report.cache_rows += cache.shape().rows();
    report.cache_bytes += cache.shape().bytes();
  }
  return report;
}

void Plan::close() {
  std::vector<Slot> slots;
  std::vector<std::shared_ptr<const Table>> tables;
  is_closing_ = true;
  const std::unique_lock open(open_);
  is_closed_ = true;
  tables.swap(tables_);
  const std::scoped_lock lock(mutex_);
  for (const Slot& slot : slots_) count_unasked(*slot.round);
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
  rows_.fetch_add(part.rows.numbers.size(), std::memory_order_relaxed);
  const Table& table = *tables_[part.table];
  return part.entries.empty() ? copy_rows(table, part.rows, crew) : answer_missing(table, part, crew);
}

Status Plan::answer_missing(const Table& table, const Part& part, const Crew& crew) {
  const auto joined = join_missing(part);
  if (!joined) return joined.error();
  const std::uint32_t missing = *joined;
  hit_rows_.fetch_add(part.rows.numbers.size() - missing, std::memory_order_relaxed);
  if (missing == 0) return table.check_unchanged();
  const RowNumbers asked(part.rows.numbers.type(), part.rows.numbers.memory().part(0, missing * sizeof(std::uint64_t)));
  if (!options_.zeros_for_missing) {
    if (Status status = check_numbers(table, asked, part.places); !status) return status;
  }
  return copy_rows(table, {asked, part.rows.memory.first(missing * table.info().row_bytes)}, crew);
}

// The rows of the numbers, into memory of the host.
Status Plan::copy_rows(const Table& table, const AskedRows& asked, const Crew& crew) {
  if (is_mapped(table)) {
    Status status = copy_mapped(table, asked, crew);
    // Which number it is that is no row, or zeros for it: below.
    if (status || status.error().code != Code::out_of_range) return status;
  }
  const GatherOptions options{.zeros_for_missing = options_.zeros_for_missing,
                              .deadline_seconds = options_.deadline_seconds};
  auto mapped = mapped_fill(table, asked.numbers, options);
  if (!mapped) return std::move(mapped).error();
  if (!mapped->fill) {
    // The next replay has other rows in this memory, and what was abandoned may come home then.
    const RowsReport report =
        gather(table, asked.numbers, Region::host(asked.memory.data(), asked.memory.size()), options, Lone::by_scratch);
    cold_rows_.fetch_add(report.cold_rows, std::memory_order_relaxed);
    missing_rows_.fetch_add(report.missing_rows, std::memory_order_relaxed);
    if (report.ok()) return {};
    return *report.error;
  }
  missing_rows_.fetch_add(mapped->missing_rows, std::memory_order_relaxed);
  const Status status = in_shares(table, asked, crew, [&](const Share& share) {
    return mapped->fill->make(share.first_row * table.info().row_bytes, share.rows.memory);
  });
  return status ? table.check_unchanged() : status;
}

// Of a table all of which is mapped: each thread checks, copies and looks at its own rows.
Status Plan::copy_mapped(const Table& table, const AskedRows& asked, const Crew& crew) {
  const Fill fill(table.layout(), asked.numbers);
  const Status status = in_shares(table, asked, crew, [&](const Share& share) -> Status {
    if (Status checked = check_numbers(table, share.rows.numbers); !checked) return checked;
    if (Status made = fill.make(share.first_row * table.info().row_bytes, share.rows.memory); !made) return made;
    look(table, share.rows.numbers);
    return {};
  });
  return status ? table.check_unchanged() : status;
}

void Plan::answer(Round& round, const Crew& crew) {
  for (const Part& part : round.parts) {
    Status status = out_of_memory();
    try {
      status = answer_part(part, crew);
    } catch (const std::bad_alloc&) {
    }
    const auto code = static_cast<std::uint32_t>(status ? Code::ok : status.error().code);
    if (!status) note(std::move(status).error());
    // With a cache the GPU writes zeros and statuses itself.
    for (cuda::RowsEntry& entry : part.entries) entry.code = code;
    if (!part.entries.empty()) continue;
    if (code != 0) std::ranges::fill(part.rows.memory, std::byte{0});
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
  if (!plan_) return;
  if (plan_->in_child()) {
    // Threads of the parent may have held its locks, and its GPU is not ours: all of it is left as it is.
    static_cast<void>(new std::shared_ptr<rows::Plan>(std::move(plan_)));
  } else {
    plan_->close();
  }
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
