#include "penstock/kinds.h"

#include <utility>

#include "base/out_of_memory.h"
#include "services/kinds/table.h"
#include "services/models/contents.h"

namespace penstock {
namespace {

Error no_kinds() {
  return {Code::invalid_argument, 0, "these Kinds are of no store", "use those that open or create gave"};
}

Report failed_report(Error error) {
  Report report;
  report.outcome = Outcome::failed;
  report.error = std::move(error);
  return report;
}

}  // namespace

Kinds::Kinds() = default;
Kinds::Kinds(std::shared_ptr<kinds::Table> table) : table_(std::move(table)) {}
Kinds::Kinds(const Kinds&) = default;
Kinds::Kinds(Kinds&&) noexcept = default;
Kinds& Kinds::operator=(const Kinds&) = default;
Kinds& Kinds::operator=(Kinds&&) noexcept = default;
Kinds::~Kinds() = default;

Result<Kinds> Kinds::create(const Context& context, const std::string& store, const KindsOptions& options) {
  return or_out_of_memory([&]() -> Result<Kinds> {
    auto table = kinds::Table::create(context, store, options);
    if (!table) return std::move(table).error();
    return Kinds(std::move(*table));
  });
}

Result<Kinds> Kinds::open(const Context& context, const std::string& store, const KindsOptions& options) {
  return or_out_of_memory([&]() -> Result<Kinds> {
    auto table = kinds::Table::open(context, store, options);
    if (!table) return std::move(table).error();
    return Kinds(std::move(*table));
  });
}

Result<std::vector<Kind>> Kinds::parse(std::string_view json) {
  return or_out_of_memory([&]() -> Result<std::vector<Kind>> {
    auto dictionary = kinds::parse(json);
    if (!dictionary) return std::move(dictionary).error();
    return std::move(dictionary->kinds);
  });
}

std::vector<Kind> Kinds::list() const {
  return table_ ? table_->state()->dictionary.kinds : std::vector<Kind>();
}

Result<Kind> Kinds::find(std::string_view name) const {
  if (!table_) return no_kinds();
  return or_out_of_memory([&] {
    return table_->find([&](const auto& state) { return state.dictionary.find(name); },
                        [&] { return models::in_quotes(name); });
  });
}

Result<Kind> Kinds::find(std::uint32_t id) const {
  if (!table_) return no_kinds();
  return or_out_of_memory([&] {
    return table_->find([&](const auto& state) { return state.dictionary.find(id); },
                        [&] { return "with the id " + std::to_string(id); });
  });
}

const std::string& Kinds::dictionary() const {
  static const std::string none;
  return table_ ? table_->path() : none;
}

const std::string& Kinds::store() const {
  static const std::string none;
  return table_ ? table_->store_name() : none;
}

Locality Kinds::locality() const {
  if (!table_) return Locality::network;
  const auto state = table_->state();
  return state->store ? state->store.info().locality : Locality::network;
}
std::uint64_t Kinds::block_bytes() const {
  return table_ ? table_->state()->dictionary.block_bytes : 0;
}

Status Kinds::refresh() const {
  if (!table_) return no_kinds();
  return or_out_of_memory([&]() -> Status {
    const auto state = table_->refresh();
    return state ? Status() : state.error();
  });
}

Result<Kind> Kinds::add(const NewKind& kind) const {
  if (!table_) return no_kinds();
  return or_out_of_memory([&] { return table_->add(kind); });
}

Status Kinds::remove(std::uint32_t kind) const {
  if (!table_) return no_kinds();
  return or_out_of_memory([&] { return table_->remove(kind); });
}

Result<std::uint64_t> Kinds::append(std::uint32_t kind, Region records) const {
  const RecordsAppend part{kind, records};
  const auto first = append({&part, 1});
  if (!first) return first.error();
  return first->front();
}

Result<std::vector<std::uint64_t>> Kinds::append(std::span<const RecordsAppend> parts,
                                                 const std::function<bool()>& keep_going) const {
  if (!table_) return no_kinds();
  return or_out_of_memory([&] { return table_->append(parts, keep_going); });
}

Report Kinds::read(const Records& records, Region memory, const RequestOptions& options) const {
  const RecordsRead one{records, memory};
  return read({&one, 1}, options);
}

Result<Loaded> Kinds::read(const Records& records, Domain domain, const RequestOptions& options) const {
  const auto kind = find(records.kind);
  if (!kind) return kind.error();
  std::uint64_t bytes = 0;
  // More than can be read: there is no need to allocate it first.
  if (__builtin_mul_overflow(records.count, kind->record_bytes, &bytes) || bytes > kind->length_bytes) bytes = 0;
  Buffer buffer;
  if (bytes != 0) {
    auto allocated = table_->context().allocate(domain, bytes);
    if (!allocated) return std::move(allocated).error();
    buffer = std::move(*allocated);
  }
  Report report = read(records, buffer.region(), options);
  if (!report.ok()) return *report.error;
  return Loaded{std::move(buffer), std::move(report)};
}

Report Kinds::read(std::span<const RecordsRead> reads, const RequestOptions& options) const {
  if (!table_) return failed_report(no_kinds());
  try {
    const auto placed = table_->place(reads);
    if (!placed) return failed_report(placed.error());
    return table_->context().transfer(Direction::read, placed->ranges, options);
  } catch (const std::bad_alloc&) {
    return failed_report(out_of_memory());
  }
}

Result<Ticket> Kinds::submit(std::span<const RecordsRead> reads, const RequestOptions& options) const {
  if (!table_) return no_kinds();
  return or_out_of_memory([&]() -> Result<Ticket> {
    const auto placed = table_->place(reads);
    if (!placed) return placed.error();
    return table_->context().submit(Direction::read, placed->ranges, options);
  });
}

Result<Rows> Kinds::rows(std::uint32_t kind, const RowsOptions& options) const {
  if (Status status = refresh(); !status) return std::move(status).error();
  const auto found = find(kind);
  if (!found) return found.error();
  return Rows::open_raw(table_->context(), table_->store_name(),
                        {.offset = found->start_byte,
                         .row_bytes = found->record_bytes,
                         .count = found->records,
                         .growing = true,
                         .dtype = found->type,
                         .row_shape = found->shape},
                        options);
}

}  // namespace penstock
