// Queue of the posix engine: positional reads and writes on threads.
//
// Thread safety and lifetime: as engine::Queue. Nothing is allocated for an operation.
#pragma once

#include "files/threaded_queue.h"

namespace penstock::posix {

class Queue : public files::ThreadedQueue {
 public:
  explicit Queue(const engine::QueueOptions& options);
};

}  // namespace penstock::posix
