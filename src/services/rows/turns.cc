#include "services/rows/turns.h"

#include <algorithm>
#include <utility>

namespace penstock::rows {
namespace {

// Of one gather: lanes that read rows are slow to copy others, and the disk must not wait for that.
constexpr std::size_t turns_most = 4;
// Of its part of the scratch that a turn is expected to take, so that few have to be cut shorter.
constexpr double turn_share = 0.75;
// A turn has no more than so many times the cold rows of the one before, so that few have to be cut shorter again and
// again where they take little one time and much another.
constexpr std::size_t growth_most = 2;
// Rows of a turn that are read straight to their places. A disk that reads 200,000 a second takes 80 ms for them, and
// the other turns keep it busy for a quarter of a second while the rows of this one are copied from the scratch.
constexpr std::size_t straight_rows_most = 16384;
constexpr std::uint64_t straight_bytes_most = 64 << 20;  // a turn of long rows takes no longer

}  // namespace

Turns::Turns(const Table& table, std::span<const ColdRow> cold, std::size_t rows, Lone lone, std::uint64_t room_bytes)
    : table_(table),
      cold_(cold),
      rows_(rows),
      lone_(lone),
      room_bytes_(room_bytes),
      straight_most_(std::clamp<std::uint64_t>(straight_bytes_most / table.info().row_bytes, 1, straight_rows_most)) {
  plan_whole();
  if (whole_.rows.count != 0) return;
  const std::uint64_t row_bytes = scratch_bytes_of_row(table_);
  at_once_ = std::clamp<std::uint64_t>(room_bytes_ / row_bytes, 2, turns_most);
  scratch_bytes_ = std::max<std::uint64_t>(1, room_bytes_ / at_once_);
  cold_wanted_ = std::clamp<std::uint64_t>(scratch_bytes_ / row_bytes, 1, straight_most_);
}

void Turns::plan_whole() {
  const std::size_t straight_most = turns_most * straight_most_;
  if (different_rows_at_least(cold_) > room_bytes_ / table_.info().row_bytes + straight_most) return;
  std::vector<ColdRow> all(cold_.begin(), cold_.end());
  std::ranges::sort(all);
  ColdPlan whole = plan(all);
  if (whole.scratch_bytes > room_bytes_ || whole.straight_rows > straight_most) return;
  whole_ = {.rows = {0, rows_}, .cold = std::move(all), .plan = std::move(whole)};
}

// Where most go by the scratch, all do: then all rows of the turn are placed together, and nothing has to be left out
// in between. Rows of 64 bytes, half of them cold, took five times as long where each run of them was placed by itself.
ColdPlan Turns::plan(std::span<const ColdRow> cold) const {
  ColdPlan plan = plan_cold(table_, cold, lone_);
  const bool are_few = plan.straight_rows < cold.size() - plan.straight_rows;
  return are_few && plan.straight_rows != 0 ? plan_cold(table_, cold, Lone::by_scratch) : plan;
}

Turn Turns::next() {
  if (scratch_bytes_ == 0) return std::exchange(whole_, {});
  Turn turn{.rows = {rows_done_, 0}};
  for (std::size_t count = std::min(cold_wanted_, cold_.size() - cold_done_);; count /= 2) {
    const auto first = cold_.subspan(cold_done_, count);
    turn.cold.assign(first.begin(), first.end());
    std::ranges::sort(turn.cold);
    turn.plan = plan(turn.cold);
    if (count <= 1 || fits(turn.plan)) break;
  }
  cold_done_ += turn.cold.size();
  rows_done_ = cold_done_ == cold_.size() ? rows_ : cold_[cold_done_].position;
  turn.rows.count = rows_done_ - turn.rows.first;
  // The rows of the next one will take about as much as these.
  const auto times = [](std::uint64_t most, std::uint64_t taken) {
    return static_cast<double>(most) / static_cast<double>(std::max<std::uint64_t>(1, taken));
  };
  const double longer =
      std::min(times(scratch_bytes_, turn.plan.scratch_bytes), times(straight_most_, turn.plan.straight_rows));
  const auto wanted = static_cast<std::size_t>(turn_share * longer * static_cast<double>(turn.cold.size()));
  cold_wanted_ = std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(1, growth_most * turn.cold.size()));
  return turn;
}

bool Turns::fits(const ColdPlan& plan) const {
  return plan.scratch_bytes <= scratch_bytes_ && plan.straight_rows <= straight_most_;
}

}  // namespace penstock::rows
