#include "penstock/window_ring.h"

#include <algorithm>
#include <utility>

#include "base/out_of_memory.h"

namespace penstock {

Result<WindowRing> WindowRing::create(const Context& context, const WindowShape& shape) {
  return or_out_of_memory([&]() -> Result<WindowRing> {
    std::vector<Turn> turns(std::max<std::size_t>(shape.count, 1));
    for (Turn& turn : turns) {
      if (shape.size_bytes == 0) break;
      Result<Buffer> memory = context.allocate(shape.domain, shape.size_bytes);
      if (!memory) return std::move(memory).error();
      turn.memory = std::move(*memory);
    }
    return WindowRing(std::move(turns));
  });
}

WindowRing::~WindowRing() {
  // Cancelling waits as long as lanes should need; on a starved machine they may need longer.
  for (Turn& turn : turns_) {
    while (turn.ticket && !turn.ticket.ended()) turn.ticket.cancel();
  }
}

Window WindowRing::window(std::size_t turn) const {
  const std::size_t number = turn % turns_.size();
  return {number, turns_[number].memory.region()};
}

void WindowRing::start(const Begin& begin) {
  while (!failed_ && begun_ - ended_ < turns_.size()) {
    Result<Ticket> ticket = begin(window(begun_));
    if (!ticket) failed_ = std::move(ticket).error();
    if (failed_ || !*ticket) return;
    turns_[begun_++ % turns_.size()].ticket = std::move(*ticket);
  }
}

Result<std::optional<Window>> WindowRing::next(const Begin& begin, const Await& await) {
  start(begin);
  if (begun_ == ended_ && failed_) return *failed_;
  if (begun_ == ended_) return std::optional<Window>();
  const Window oldest = window(ended_);
  Ticket& ticket = turns_[oldest.number].ticket;
  if (Status status = await(ticket, oldest); !status) {
    failed_ = status.error();
    return std::move(status).error();
  }
  ticket = {};
  ++ended_;
  return std::optional(oldest);
}

Status WindowRing::wait_for_end(Ticket& ticket, const Window&) {
  ticket.wait();
  const Report report = ticket.report();
  return report.ok() ? Status() : Status(*report.error);
}

}  // namespace penstock
