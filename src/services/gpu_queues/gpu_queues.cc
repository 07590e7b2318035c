#include "penstock/gpu_queues.h"

#include <utility>

#include "base/out_of_memory.h"
#include "services/gpu_queues/server.h"

namespace penstock {
namespace {

Error no_set() {
  return {Code::invalid_argument, 0, "these GpuQueues are closed, or were never opened",
          "use what GpuServer::open gave"};
}
Error set_closed() {
  return {Code::closed, 0, "the GpuServer of these GpuQueues is closed", "start another, and open them there"};
}
Error in_child_error() {
  return {Code::closed, 0, "the GpuServer belongs to the parent of this process", "start one after the fork"};
}

}  // namespace

namespace gpu_queues {

// A set that somebody has, with the server that serves it.
class OpenSet {
 public:
  OpenSet(std::shared_ptr<Server> server, std::shared_ptr<Set> set)
      : server_(std::move(server)), set_(std::move(set)) {}
  ~OpenSet() {
    if (!server_->in_child()) {
      server_->close(set_);
      return;
    }
    // Nothing of the GPU's can be given back here: the driver stayed with the parent.
    new std::pair(std::move(server_), std::move(set_));
  }
  OpenSet(const OpenSet&) = delete;
  OpenSet& operator=(const OpenSet&) = delete;

  Server& server() const { return *server_; }
  Set& set() const { return *set_; }
  // Whether the server has not closed it.
  bool is_open() const { return !set_->closed.load(std::memory_order_acquire); }

 private:
  std::shared_ptr<Server> server_;
  std::shared_ptr<Set> set_;
};

}  // namespace gpu_queues

GpuQueues::GpuQueues() = default;
GpuQueues::GpuQueues(std::unique_ptr<gpu_queues::OpenSet> set) : set_(std::move(set)) {}
GpuQueues::GpuQueues(GpuQueues&&) noexcept = default;
GpuQueues& GpuQueues::operator=(GpuQueues&&) noexcept = default;
GpuQueues::~GpuQueues() = default;

GpuQueues::operator bool() const {
  return set_ && set_->is_open();
}

device::QueueSet* GpuQueues::handle() const {
  return *this ? set_->set().handle() : nullptr;
}

const GpuQueuesOptions& GpuQueues::options() const {
  static const GpuQueuesOptions nothing;
  return set_ ? set_->set().options() : nothing;
}

Status GpuQueues::stop() {
  if (!set_) return no_set();
  if (set_->server().in_child()) return in_child_error();
  if (!set_->is_open()) return set_closed();
  return set_->set().stop();
}

Status GpuQueues::reset() {
  if (!set_) return no_set();
  if (set_->server().in_child()) return in_child_error();
  if (!set_->is_open()) return set_closed();
  return or_out_of_memory([&] { return set_->server().reset(set_->set()); });
}

void GpuQueues::close() {
  set_.reset();
}

GpuQueuesReport GpuQueues::report() const {
  if (!set_) return {};
  GpuQueuesReport report = set_->set().report();
  report.server_dead = set_->is_open() && set_->server().is_dead();
  return report;
}

GpuServer::GpuServer() = default;
GpuServer::GpuServer(std::shared_ptr<gpu_queues::Server> server) : server_(std::move(server)) {}
GpuServer::GpuServer(GpuServer&&) noexcept = default;

GpuServer& GpuServer::operator=(GpuServer&& other) noexcept {
  std::swap(server_, other.server_);
  return *this;
}

GpuServer::~GpuServer() {
  close();
}

Result<GpuServer> GpuServer::start(const Context& context, const GpuServerOptions& options) {
  return or_out_of_memory([&]() -> Result<GpuServer> {
    auto server = gpu_queues::Server::start(context, options);
    if (!server) return std::move(server).error();
    return GpuServer(std::move(*server));
  });
}

Result<GpuQueues> GpuServer::open(const GpuQueuesOptions& options) {
  if (!server_) return Error{Code::invalid_argument, 0, "this GpuServer was never started, or is closed", "start one"};
  if (server_->in_child()) return in_child_error();
  return or_out_of_memory([&]() -> Result<GpuQueues> {
    auto set = server_->open(options);
    if (!set) return std::move(set).error();
    return GpuQueues(std::make_unique<gpu_queues::OpenSet>(server_, std::move(*set)));
  });
}

std::uint32_t GpuServer::threads() const {
  return server_ ? server_->threads() : 0;
}

void GpuServer::close() {
  if (!server_) return;
  if (server_->in_child()) {
    new std::shared_ptr(std::move(server_));
    return;
  }
  server_->close();
  server_.reset();
}

}  // namespace penstock
