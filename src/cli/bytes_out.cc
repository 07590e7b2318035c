#include "bytes_out.h"

#include <algorithm>
#include <utility>

#include "interrupt.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

Status write_file(const Context& context, const std::string& name, Region memory) {
  if (interrupted()) return interrupted_error();
  Result<Store> store = context.open(name, {.access = Access::replace, .size_bytes = memory.size_bytes});
  if (!store.ok()) return store.error();
  if (memory.size_bytes != 0) {
    const Range range{.store = &*store, .offset = 0, .memory = memory};
    Result<Ticket> ticket = context.submit(Direction::write, {&range, 1});
    if (!ticket.ok()) return ticket.error();
    const Report report = await(std::move(*ticket));
    if (!report.ok()) return *report.error;
  }
  if (interrupted()) return interrupted_error();
  return store->commit();
}

Status print_bytes(const StandardOutput& out, Region memory) {
  Lens lens;
  for (std::size_t at = 0; at < memory.size_bytes; at += Lens::piece_bytes) {
    const auto piece = lens.look(memory.part(at, std::min(Lens::piece_bytes, memory.size_bytes - at)));
    if (!piece.ok()) return piece.error();
    if (Status status = out.write(*piece, Deadline()); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Result<BytesOut> BytesOut::to(std::string name) {
  if (name != "-") return BytesOut(std::move(name), std::nullopt);
  const Result<StandardOutput> taken = StandardOutput::take();
  if (!taken.ok()) return taken.error();
  return BytesOut(std::move(name), *taken);
}

Status BytesOut::write(const Context& context, Region memory) const {
  if (standard_) return print_bytes(*standard_, memory);
  return name_.empty() ? Status() : write_file(context, name_, memory);
}

}  // namespace penstock::cli
