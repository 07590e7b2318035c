// Queue of the cufile engine: cuFile's blocking calls on threads, and its batches for bursts of small transfers.
//
// Thread safety and lifetime: as engine::Queue. A call that hangs keeps its thread; the queue is leaked then, as the
// contract says.
#pragma once

#include "engines/cufile/batch.h"
#include "files/threaded_queue.h"

namespace penstock::cufile {

// What the threads of a queue need; outlives them.
struct Lending {
  const Library& library;
  BatchSwitch& batches;
};

class Queue : public files::ThreadedQueue {
 public:
  Queue(const engine::QueueOptions& options, Lending lending);
};

}  // namespace penstock::cufile
