// Queue of the nvme engines: an I/O queue pair on each controller whose stores it meets.
//
// Polls for a moment and then sleeps until an interrupt, a wake or a deadline. What finds no place at the controller,
// because others use its queues too, waits here.
//
// Thread safety and lifetime: as engine::Queue. Nothing is allocated for an operation.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "engine/engine.h"
#include "engines/nvme/connection.h"

namespace penstock::nvme {

class Store;

class Queue : public engine::Queue {
 public:
  static Result<std::unique_ptr<engine::Queue>> create(const engine::QueueOptions& options);
  ~Queue() override;

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  int event() override;
  void wake() override;
  void cancel(std::uint64_t cookie) override;

 private:
  // A controller that was met. Its Connection is alive while operations are in flight on it, and maybe not after.
  struct Link {
    std::uint64_t connection_id = 0;
    std::weak_ptr<Connection> connection;
    Share* share = nullptr;
    std::size_t in_flight = 0;           // those that wait included
    std::vector<std::uint32_t> waiting;  // flights that were not sent yet, the first first
  };
  struct Flight {
    engine::Op op;
    std::size_t link = 0;
    Io io;
    bool busy = false;
  };

  Queue(UniqueFd event, const engine::QueueOptions& options);
  Result<std::size_t> link_or_log(Store& store);
  Result<std::size_t> link_to(Store& store);
  static std::optional<std::uint64_t> address_of(const engine::Op& op);
  void take(const engine::Op& op, std::size_t link, std::uint64_t address);
  void send(Link& link);
  void end_unsent(Link& link, std::size_t waiting, Code code);
  void free(Link& link, std::uint32_t index);
  std::size_t collect(std::span<engine::Done> done);
  engine::Done finish(Link& link, const IoDone& io);
  bool sleep(TimePoint deadline);
  bool watch(int descriptor);

  const UniqueFd event_;
  UniqueFd events_;  // that one, and the interrupts of all links; made when it is first asked for
  std::vector<Link> links_;
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_;
  std::vector<engine::Done> ended_;  // without a controller
  std::vector<Io> batch_;            // for one controller, to go with one doorbell
  std::vector<pollfd> sleepers_;
};

}  // namespace penstock::nvme
