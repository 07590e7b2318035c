#include "bytes_out.h"

#include "interrupt.h"

namespace penstock::cli {

Status write_file(Context& context, const std::string& name, Region memory) {
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

}  // namespace penstock::cli
