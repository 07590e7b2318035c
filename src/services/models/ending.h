// How requests of this folder are ended early.
#pragma once

#include <utility>

#include "penstock/request.h"

namespace penstock::models {

// Cancels a request and waits until it has ended: from then on it is known whether its memory is free. (Cancelling
// waits as long as lanes should need; on a starved machine they may need longer.)
inline void end(Ticket& ticket) {
  while (!ticket.ended()) ticket.cancel();
}

// A ticket whose request does not go on without it, however its owner is left.
class OwnTicket {
 public:
  OwnTicket() = default;
  OwnTicket(Ticket ticket) : ticket_(std::move(ticket)) {}
  OwnTicket(OwnTicket&& other) noexcept : ticket_(std::exchange(other.ticket_, {})) {}
  OwnTicket& operator=(OwnTicket&& other) noexcept {
    std::swap(ticket_, other.ticket_);
    return *this;
  }
  ~OwnTicket() {
    if (ticket_) end(ticket_);
  }

  explicit operator bool() const { return static_cast<bool>(ticket_); }
  Ticket& operator*() { return ticket_; }
  Ticket* operator->() { return &ticket_; }

 private:
  Ticket ticket_;
};

}  // namespace penstock::models
