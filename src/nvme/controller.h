// Controller: drives one NVMe controller through a Transport: reset, identify, queues, shutdown, and what to do when it
// does not answer.
//
// A command that takes too long is dealt with by a ladder: abort it; delete its queue; reset the controller; isolate
// it. Whatever step helps, commands that did not end come back as transient failures, to be retried by whoever asked,
// and memory is given back only then: until the ladder has ended, a command is in flight. If nothing helps, it stays
// so.
//
// Thread safety: every call from any thread. Lifetime: outlived by its IoQueues never, and outlives them; the Transport
// outlives both.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "nvme/cpu_platform.h"
#include "nvme/dma_memory.h"
#include "nvme/spec.h"
#include "nvme/transport.h"
#include "penstock/queue_pair.h"
#include "penstock/result.h"

namespace penstock::nvme {

class IoQueue;

struct ControllerOptions {
  std::uint32_t queue_entries = 256;             // of each I/O submission queue, at most
  std::uint32_t io_queues = 64;                  // at most
  std::uint64_t max_transfer_bytes = 256 << 10;  // of one command, at most
  Duration command_time = std::chrono::seconds(10);
  Duration admin_time = std::chrono::seconds(5);
  Duration ready_time{};  // to become ready; zero: as the controller says
};

struct ControllerInfo {
  std::string serial;
  std::string model;
  std::string firmware;
  std::uint32_t version = 0;
  std::uint32_t max_queue_entries = 0;
  std::uint32_t io_queues = 0;
  std::uint64_t max_transfer_bytes = 0;  // of one command, by our limit and the controller's: a power of two
  std::uint64_t page_bytes = 0;
  bool write_zeroes = false;
  std::uint64_t max_zeroes_bytes = UINT64_MAX;  // of one command
  bool deallocate = false;
  std::uint64_t max_deallocate_blocks = UINT64_MAX;  // of one command
  bool volatile_write_cache = false;
};

struct NamespaceInfo {
  std::uint32_t id = 0;
  std::uint32_t block_bytes = 0;
  std::uint64_t size_blocks = 0;
  std::string refusal;  // why it can't be used; empty if it can

  std::uint64_t size_bytes() const { return size_blocks * block_bytes; }
};

// A namespace, and which of its blocks may be changed: looked at for every command.
struct Namespace {
  NamespaceInfo info;
  std::uint64_t first_writable = 0;
  std::uint64_t writable_blocks = 0;  // 0: read-only
};

class Controller {
 public:
  // Resets the controller and makes it ready. REQUIRES: nobody else drives it.
  static Result<std::unique_ptr<Controller>> open(Transport& transport, const ControllerOptions& options = {});
  // Shuts it down. REQUIRES: no IoQueue is left.
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  const ControllerInfo& info() const { return info_; }
  const std::vector<NamespaceInfo>& namespaces() const { return namespaces_; }
  Result<NamespaceInfo> find_namespace(std::uint32_t id) const;
  const ControllerOptions& options() const { return options_; }
  Transport& transport() { return transport_; }

  // Code::unsupported when the controller has no more queues.
  Result<std::unique_ptr<IoQueue>> make_queue();

  // Why it can't be used any more; empty while it can.
  std::string failure() const;
  std::uint32_t resets() const;
  // Nothing could stop it: what it was given stays in flight for ever.
  bool is_unstoppable() const;

 private:
  friend class IoQueue;
  enum class State : std::uint8_t {
    working,
    failed,       // it can't reach memory any more
    unstoppable,  // it might: nothing that it was given is ever freed
  };

  Controller(Transport& transport, const ControllerOptions& options);

  // With the lock held, all of these.
  Status start();
  Status check_capabilities();
  std::uint32_t pairs_with_doorbells() const;
  void shut_down();
  Status disable();
  Status enable();
  Status wait_until_ready(bool ready);
  Status identify_all();
  Status identify_limits();
  Status read_namespace(std::uint32_t id);
  Status negotiate_queues();
  Result<std::uint32_t> admin(const Command& command, const std::string& what);
  Status identify(std::uint32_t cns, std::uint32_t nsid, const std::string& what);
  Status create_pair(IoQueue& queue);
  Status delete_pair(IoQueue& queue);
  bool try_abort(IoQueue& queue, const Token& overdue);
  void reset(const std::string& why);
  void isolate(const std::string& why);
  void fail(State state, const std::string& why);
  bool is_gone() const { return registers_.read32(reg::csts) == all_ones; }

  // For IoQueues: the ladder, for a command that took too long; and what its owner does with a poisoned queue, after
  // which nothing of it is in flight, unless the controller is unstoppable.
  void recover(IoQueue& queue, const Token& overdue);
  void rejoin(IoQueue& queue);
  // False if its memory may still be written.
  bool remove(IoQueue& queue);
  // A look at the status, for when nothing else is heard: a controller that failed or is gone is reset or given up.
  void check_alive();
  void note_success() { __atomic_store_n(&resets_in_a_row_, 0, __ATOMIC_RELAXED); }

  Transport& transport_;
  const ControllerOptions options_;
  Registers registers_;
  Capabilities capabilities_;
  ControllerInfo info_;
  std::vector<NamespaceInfo> namespaces_;

  mutable std::mutex mutex_;  // guards what follows
  State state_ = State::working;
  std::string failure_;
  std::uint32_t resets_ = 0;
  std::uint32_t resets_in_a_row_ = 0;  // without a command that ended well; written without the lock too
  DmaMemory admin_memory_;             // submissions, completions, a page of data
  std::vector<Slot> admin_slots_;
  QueuePairState admin_queue_;
  Token admin_token_;
  bool admin_stuck_ = false;      // a command of it never ended
  std::vector<IoQueue*> queues_;  // by identifier
};

}  // namespace penstock::nvme
