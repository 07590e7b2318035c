#include "engines/posix/queue.h"

#include "files/transfer.h"

namespace penstock::posix {
namespace {

class Worker : public files::Worker {
 public:
  engine::Done run(const engine::Op& op) override { return files::transfer(op); }
};

}  // namespace

Queue::Queue(const engine::QueueOptions& options) : ThreadedQueue(options, [] { return std::make_unique<Worker>(); }) {}

}  // namespace penstock::posix
