// How requests of this folder are ended early.
#pragma once

#include "penstock/request.h"

namespace penstock::models {

// Cancels a request and waits until it has ended: from then on it is known whether its memory is free. (Cancelling
// waits as long as lanes should need; on a starved machine they may need longer.)
inline void end(Ticket& ticket) {
  while (!ticket.ended()) ticket.cancel();
}

}  // namespace penstock::models
