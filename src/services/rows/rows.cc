#include "penstock/rows.h"

#include <algorithm>
#include <utility>

#include "base/out_of_memory.h"
#include "services/rows/gather.h"
#include "services/rows/table.h"

namespace penstock {
namespace {

Error no_table() {
  return {Code::invalid_argument, 0, "these Rows are of no table", "use those that one of the open functions gave"};
}

RowsReport report_of(Error error) {
  RowsReport report;
  report.outcome = Outcome::failed;
  report.error = std::move(error);
  return report;
}

// `fill` fills memory for so many rows of the table.
template <typename Fill>
Result<GatheredRows> into_new_memory(const rows::Table& table, std::uint64_t count, Domain domain, const Fill& fill) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, table.info().row_bytes, &bytes)) return out_of_memory();
  Buffer buffer;
  if (bytes != 0) {
    auto allocated = table.context().allocate(domain, bytes);
    if (!allocated) return std::move(allocated).error();
    buffer = std::move(*allocated);
  }
  RowsReport report = fill(buffer.region());
  if (!report.ok()) return std::move(*report.error);
  return GatheredRows{std::move(buffer), std::move(report)};
}

Result<std::shared_ptr<const rows::Table>> join_tables(std::span<const std::shared_ptr<const rows::Table>> tables) {
  const rows::Table& first = *tables.front();
  TableInfo info = first.info();
  std::vector<std::shared_ptr<const rows::Shard>> shards;
  for (const auto& table : tables) {
    const TableInfo& other = table->info();
    if (other.row_bytes != info.row_bytes) {
      return Error{Code::invalid_argument, 0,
                   "rows of " + std::to_string(info.row_bytes) + " bytes can't be joined with rows of " +
                       std::to_string(other.row_bytes) + " in " + table->layout()->name,
                   "join tables whose rows have one size"};
    }
    if (table->context() != first.context()) {
      return Error{Code::invalid_argument, 0, "tables of two Contexts can't be joined", "open them by one"};
    }
    if (other.dtype != info.dtype) info.dtype.clear();
    if (other.row_shape != info.row_shape) info.row_shape.clear();
    std::ranges::copy(table->shards(), std::back_inserter(shards));
  }
  return std::shared_ptr<const rows::Table>(
      std::make_shared<rows::Table>(first.context(), std::move(info), std::move(shards), first.options()));
}

}  // namespace

Rows::Rows() = default;
Rows::Rows(std::shared_ptr<const rows::Table> table) : table_(std::move(table)) {}
Rows::Rows(const Rows&) = default;
Rows::Rows(Rows&&) noexcept = default;
Rows& Rows::operator=(const Rows&) = default;
Rows& Rows::operator=(Rows&&) noexcept = default;
Rows::~Rows() = default;

Result<Rows> Rows::open_tensor(const Context& context, const std::string& name, std::string_view tensor,
                               const RowsOptions& options) {
  return or_out_of_memory([&]() -> Result<Rows> {
    auto table = rows::open_tensor(context, name, tensor, options);
    if (!table) return std::move(table).error();
    return Rows(std::move(*table));
  });
}

Result<Rows> Rows::open_npy(const Context& context, const std::string& name, const RowsOptions& options) {
  return or_out_of_memory([&]() -> Result<Rows> {
    auto table = rows::open_npy(context, name, options);
    if (!table) return std::move(table).error();
    return Rows(std::move(*table));
  });
}

Result<Rows> Rows::open_raw(const Context& context, const std::string& name, const RawRows& raw,
                            const RowsOptions& options) {
  return or_out_of_memory([&]() -> Result<Rows> {
    auto table = rows::open_raw(context, name, raw, options);
    if (!table) return std::move(table).error();
    return Rows(std::move(*table));
  });
}

Result<Rows> Rows::join(std::span<const Rows> tables) {
  return or_out_of_memory([&]() -> Result<Rows> {
    std::vector<std::shared_ptr<const rows::Table>> parts;
    for (const Rows& each : tables) {
      if (!each.table_) return no_table();
      parts.push_back(each.table_);
    }
    if (parts.empty()) return Error{Code::invalid_argument, 0, "no tables were given to join", "give at least one"};
    auto table = join_tables(parts);
    if (!table) return std::move(table).error();
    return Rows(std::move(*table));
  });
}

const TableInfo& Rows::info() const {
  static const TableInfo none{.row_shape = {}, .dtype = {}, .stores = 0};
  return table_ ? table_->info() : none;
}

RowsReport Rows::gather(const RowNumbers& numbers, Region memory, const GatherOptions& options) const {
  if (!table_) return report_of(no_table());
  try {
    return rows::gather(*table_, numbers, memory, options);
  } catch (const std::bad_alloc&) {
    return report_of(out_of_memory());
  }
}

Result<GatheredRows> Rows::gather(const RowNumbers& numbers, Domain domain, const GatherOptions& options) const {
  if (!table_) return no_table();
  return into_new_memory(*table_, numbers.size(), domain,
                         [&](Region memory) { return gather(numbers, memory, options); });
}

RowsReport Rows::rows(std::uint64_t begin, std::uint64_t count, Region memory, const GatherOptions& options) const {
  if (!table_) return report_of(no_table());
  std::uint64_t end = 0;
  if (__builtin_add_overflow(begin, count, &end)) end = UINT64_MAX;
  try {
    return rows::read_rows(*table_, {begin, end}, memory, options);
  } catch (const std::bad_alloc&) {
    return report_of(out_of_memory());
  }
}

Result<GatheredRows> Rows::rows(std::uint64_t begin, std::uint64_t count, Domain domain,
                                const GatherOptions& options) const {
  if (!table_) return no_table();
  // Before memory is allocated that could never be filled.
  if (begin > info().rows || count > info().rows - begin) {
    RowsReport refused = rows(begin, count, Region::host(nullptr, 0), options);
    return std::move(*refused.error);
  }
  return into_new_memory(*table_, count, domain, [&](Region memory) { return rows(begin, count, memory, options); });
}

Result<std::uint64_t> Rows::prefetch(const RowNumbers& numbers) const {
  if (!table_) return no_table();
  return or_out_of_memory([&] { return rows::prefetch(*table_, numbers); });
}

}  // namespace penstock
