// Share: what one user of a controller, usually a lane of core, has of it: a queue pair, which it shares with others
// where the controller has fewer than there are users.
//
// Of those who share a pair one at a time is inside; the others come again. Completions of another are put into its
// inbox, and it is woken.
//
// Thread safety: one thread uses a Share. Lifetime: ends when nothing of its user is in flight, or never will be
// anything else (is_stuck); before the Controller.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "nvme/controller.h"
#include "nvme/io_queue.h"

namespace penstock::nvme {

class Share;

struct SharedQueue {
  std::mutex mutex;  // guards what follows
  std::unique_ptr<IoQueue> queue;
  std::vector<Share*> shares;  // by the number in their cookies; null: gone
};

class Share {
 public:
  // `event` is written to when the inbox is filled; -1: the user looks by itself.
  Share(std::shared_ptr<SharedQueue> shared, int event);
  ~Share();
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // For so many operations in flight: nothing is allocated for one then.
  void make_room(std::size_t operations);
  // As IoQueue, with cookies of 32 bits, to which the share adds its own. None is taken while another user is inside.
  std::size_t submit(std::span<Io> ios);
  std::size_t poll(std::span<IoDone> done);
  void cancel(std::uint32_t cookie);

  std::optional<int> interrupt() const { return interrupt_; }
  // Another user was inside at the last poll: there may be completions that no interrupt tells of any more.
  bool missed() const { return missed_; }
  TimePoint next_deadline();
  void after_sleep();
  // What is in flight never ends.
  bool is_stuck();

 private:
  std::unique_lock<std::mutex> try_enter() { return {shared_->mutex, std::try_to_lock}; }
  void deliver(const IoDone& done);

  const std::shared_ptr<SharedQueue> shared_;  // with the other shares
  const int event_;
  const std::optional<int> interrupt_;
  std::uint64_t number_ = 0;
  bool missed_ = false;
  std::vector<IoDone> inbox_;  // guarded by the queue's mutex
};

}  // namespace penstock::nvme
