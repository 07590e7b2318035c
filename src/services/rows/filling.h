// Filling: the rows of a gather that lanes copy, straight into host memory or through pinned slots to a GPU. They lie
// in a mapping or in the scratch, or are zeros.
//
// Thread safety: one thread's. Lifetime: of the call; borrows the errand.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "services/rows/errand.h"
#include "services/rows/fill.h"
#include "services/rows/sorted.h"
#include "services/rows/turns.h"

namespace penstock::rows {

class Filling {
 public:
  explicit Filling(Errand& errand) : errand_(errand) {}

  // All rows, which are all mapped.
  Status all();
  // Of these rows those that are not cold, before those are read straight to their places. Zeros go to some of these.
  Status around_cold(const Positions& rows, const Sorted& sorted);
  // The rows of the turn, of which the cold ones lie in the scratch. Where some were read straight, `around_cold` had
  // the others, and only those in the scratch are left.
  Status from_scratch(const Turn& turn, const Region& scratch, const Sorted& sorted);

  const Report& report() const { return report_; }
  // Of the rows, without zeros that are read over.
  std::uint64_t in_place_bytes() const { return in_place_bytes_; }

 private:
  // Where rows are copied from; null: they are zeros, or cold.
  using Sources = std::vector<const std::byte*>;

  Result<Sources> sources_of(const Positions& rows, const Sorted& sorted) const;
  // What is `held` stays as long as lanes may use it. `bridged` of the rows will be read over.
  bool is_filled_here(std::span<const Positions> runs) const;
  Status fill_here(const Fill& fill, const Positions& rows, std::span<const Positions> runs, std::size_t bridged);
  Status fill(std::unique_ptr<const Fill> fill, const Positions& rows, std::span<const Positions> runs,
              std::shared_ptr<const void> held, std::size_t bridged = 0);

  Errand& errand_;
  Report report_;
  std::uint64_t in_place_bytes_ = 0;
};

// All of these rows but the cold ones, and up to `bridged` of those between two others. `cold` are some of the rows, by
// position.
std::vector<Positions> runs_around(const Positions& rows, std::span<const ColdRow> cold, std::size_t bridged);

}  // namespace penstock::rows
