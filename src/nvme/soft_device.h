// SoftDevice: the inside of a controller in software (soft_controller.h): what its thread does and has. It serves a
// BlockBackend as namespace 1.
//
// It is as strict as hardware is lax: doorbell values, PRP rules, identifiers that are used twice, entries that are
// fetched before they were written, memory that is taken away too early. What the host does wrong is a breach, kept in
// words. From a seed it misbehaves itself, in every way that a driver must survive.
//
// Thread safety: one thread calls run(); the other public calls from any thread. Lifetime: shared by that thread and
// the SoftController, since a backend that hangs may keep the thread for longer than anybody waits for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "nvme/block_backend.h"
#include "nvme/soft_iommu.h"
#include "nvme/transport.h"

namespace penstock::nvme {

// What the controller says of itself.
struct SoftShape {
  std::string name = "soft";
  std::string serial = "PENSTOCK-SOFT";
  std::uint32_t max_queue_entries = 1024;
  std::uint32_t doorbell_stride = 0;  // the exponent: 4 << stride bytes
  std::uint8_t mdts = 8;              // 1 MiB
  std::uint32_t block_bytes = 512;
  std::uint16_t io_queues = 64;
  bool write_zeroes = true;
  bool deallocate = true;
  std::uint8_t zeroes_exponent = 0;     // WZSL: of pages that one command zeroes; 0: no limit
  std::uint32_t deallocate_blocks = 0;  // DMRSL: of one range; 0: no limit
  bool interrupts = true;
  std::chrono::milliseconds stop_time{2000};  // for its backend to end what it has, when the controller is isolated
  // Lies: changes what identify tells, by its CNS.
  std::function<void(std::uint32_t cns, std::byte* data)> alter_identify;
};

// How it misbehaves. Probabilities are in thousandths of the I/O commands. What befalls a command follows from the seed
// and from how many commands came before it, so a run that sends enough of them meets the same faults every time.
struct SoftFaults {
  std::uint64_t seed = 0;
  std::uint32_t delay = 0;      // the completion comes later, by up to max_delay
  std::uint32_t shuffle = 0;    // it comes after those of later commands
  std::uint32_t lose = 0;       // the command is carried out, and never completed
  std::uint32_t duplicate = 0;  // it is completed twice
  std::uint32_t unknown = 0;    // another one is completed that it does not have: a random one
  std::uint32_t unfetched = 0;  // the next one is completed, as failed, before it is fetched
  std::uint32_t old_head = 0;   // the completion tells how far it had fetched when it fetched the command; no lie
  std::uint32_t fail = 0;       // with one of `statuses`, and not carried out
  std::vector<StatusField> statuses;
  std::chrono::microseconds max_delay{200};

  std::uint64_t fatal_after = 0;   // I/O commands, then a fatal status until the next reset, once
  std::uint64_t vanish_after = 0;  // I/O commands, then every register reads as all ones
  bool never_ready = false;
  bool starting_at_first = false;    // somebody has just enabled it: a host that resets it now is in breach
  std::uint32_t fatal_starts = 0;    // so often, when enabled, it is ready with a fatal status
  std::uint32_t refused_queues = 0;  // so many submission queues can't be made
  bool refuses_delete = false;       // completion queues can't be deleted
  bool untold_namespaces = false;    // to identify one is a success without data
  bool ignores_abort = false;
  bool ignores_delete = false;   // queues can't be deleted: such commands never end
  bool ignores_disable = false;  // it stays ready, and can only be isolated
};

struct SoftCounters {
  std::uint64_t commands = 0;   // of I/O
  std::uint64_t doorbells = 0;  // that brought some
  std::uint64_t resets = 0;
  std::uint64_t aborts = 0;
  std::uint64_t deleted_queues = 0;
};

class SoftDevice : private Sleeper {
 public:
  SoftDevice(std::unique_ptr<BlockBackend> backend, SoftShape shape, SoftFaults faults);

  const SoftShape& shape() const { return shape_; }
  std::uint64_t map(std::byte* data, std::size_t size_bytes);
  void unmap(std::uint64_t address, std::size_t size_bytes);
  // From now on no memory can be reached.
  void close() { iommu_.close(); }
  Registers registers() { return {registers_.get(), registers_bytes_, this}; }
  std::uint32_t interrupts() const { return shape_.interrupts ? shape_.io_queues + 1U : 0; }
  const std::vector<UniqueFd>& interrupt_events() const { return interrupts_; }
  std::vector<std::string> breaches() const { return breaches_.list(); }
  SoftCounters counters() const;

  // The thread's whole life: until it is asked to stop, and nothing of the backend's is in flight.
  void run();
  void ask_to_stop();
  // Whether run() has ended, which is waited for until then.
  bool has_ended(TimePoint deadline);

 private:
  struct SubmissionQueue {
    bool live = false;
    std::uint16_t completion_queue = 0;
    std::uint32_t entries = 0;
    std::uint32_t head = 0;
    std::uint64_t address = 0;
    Command* memory = nullptr;
    std::uint32_t in_flight = 0;
    std::vector<bool> busy;  // by command identifier
  };
  struct Posting {
    std::uint16_t queue = 0;
    std::uint16_t cid = 0;
    StatusField status;
    std::uint32_t result = 0;
    bool made_up = false;  // of no command that it has
    std::optional<std::uint32_t> old_head;
  };
  struct CompletionQueue {
    bool live = false;
    bool interrupt = false;
    bool has_news = false;
    std::uint16_t vector = 0;
    std::uint32_t entries = 0;
    std::uint64_t posted = 0;
    std::uint64_t seen = 0;  // by the host, as its doorbell says
    std::uint64_t address = 0;
    Completion* memory = nullptr;
    std::deque<Posting> waiting;  // for room

    bool has_room() const { return posted - seen < entries - 1; }
  };
  // A command on its way.
  struct Flight {
    std::uint32_t index = 0;
    Posting posting;
    std::uint32_t parts = 0;  // of the backend
    bool live = false;
    TimePoint due{};           // held back until then
    std::uint64_t number = 0;  // which I/O command it is, from 1 on
    std::vector<std::uint64_t> used;
  };
  struct Segment {
    std::byte* memory = nullptr;
    std::uint64_t length = 0;
  };

  // soft_device.cc: registers, queues and completions.
  void wake() override { backend_->wake(); }
  void work();
  void rest();
  bool has_news();
  bool look_at_configuration();
  void enable(std::uint32_t configuration);
  bool try_disable();
  void forget_everything();
  void vanish();
  void finish_starting();
  std::uint32_t load(std::uint32_t offset) const { return __atomic_load_n(word(offset), __ATOMIC_ACQUIRE); }
  void store(std::uint32_t offset, std::uint32_t value) { __atomic_store_n(word(offset), value, __ATOMIC_RELEASE); }
  std::uint32_t* word(std::uint32_t offset) const {
    return reinterpret_cast<std::uint32_t*>(registers_.get() + offset);
  }
  std::uint32_t tail_of(std::uint16_t queue) const { return load(tail_doorbell(queue, stride_bytes_)); }
  bool fetch(std::uint16_t queue);
  void start(std::uint16_t queue, const Command& command);
  bool collect(TimePoint deadline);
  bool send_waiting();
  void end_part(Flight& flight, bool ok);
  void finish(Flight& flight);
  void end(Flight& flight);
  void drop(Flight& flight);
  bool end_due();
  void post(const Posting& posting);
  bool post_waiting(CompletionQueue& queue);
  void write_completion(CompletionQueue& queue, const Posting& posting);
  bool note_head(std::uint16_t queue);
  void raise_interrupts();
  Flight& new_flight(std::uint16_t queue, std::uint16_t cid);
  // What befalls a command, one of these at a time.
  enum class Chance : std::uint64_t { old_head, delay, shuffle, lose, duplicate, unknown, fail, unfetched };
  std::uint64_t random(Chance chance, std::uint64_t command) const;
  bool happens(Chance chance, std::uint32_t thousandths, const Flight& flight) const;

  // soft_admin.cc
  void start_admin(const Command& command);
  StatusField identify(const Command& command, Flight& flight);
  StatusField create_completion_queue(const Command& command, Flight& flight);
  StatusField create_submission_queue(const Command& command, Flight& flight);
  StatusField delete_completion_queue(const Command& command);
  bool start_delete(const Command& command, Flight& flight);
  bool end_deletes();
  StatusField features(const Command& command, Flight& flight);
  StatusField get_log(const Command& command, Flight& flight);
  std::uint32_t abort(const Command& command);
  std::byte* queue_memory(const Command& command, std::uint64_t bytes, StatusField& status);

  // soft_io.cc
  void start_io(std::uint16_t queue, const Command& command);
  StatusField check_io(const Command& command, std::uint64_t blocks);
  StatusField start_transfer(const Command& command, Flight& flight);
  StatusField start_deallocate(const Command& command, Flight& flight);
  void start_part(Flight& flight, const BlockOp& op);
  // The memory that PRPs name; a status that is not success, and a breach, if they break the rules.
  StatusField walk_prps(const Command& command, std::uint64_t length, Flight& flight);
  StatusField add_segment(std::uint64_t address, std::uint64_t length, Flight& flight);

  const SoftShape shape_;
  const SoftFaults faults_;
  const std::unique_ptr<BlockBackend> backend_;
  const std::uint32_t stride_bytes_;
  std::size_t registers_bytes_;
  const std::unique_ptr<std::byte[], void (*)(void*)> registers_;
  Breaches breaches_;
  SoftIommu iommu_{breaches_};
  std::vector<UniqueFd> interrupts_;
  std::atomic<bool> stop_{false};
  std::mutex end_mutex_;
  std::condition_variable end_;
  bool has_ended_ = false;

  // Of the controller's thread.
  std::uint32_t configuration_ = 0;
  std::uint64_t page_bytes_ = 4096;
  bool running_ = false;
  bool fatal_ = false;
  bool fatal_spent_ = false;
  bool vanishing_ = false;
  bool vanished_ = false;
  TimePoint starts_until_{};  // enabled by somebody else, and not ready before
  std::uint32_t fatal_starts_ = 0;
  std::uint32_t refused_queues_ = 0;
  std::uint32_t queues_in_use_ = 1;  // none from there on is live
  std::vector<SubmissionQueue> submission_queues_;
  std::vector<CompletionQueue> completion_queues_;
  std::vector<std::unique_ptr<Flight>> flights_;
  std::vector<std::uint32_t> free_flights_;
  std::vector<Segment> segments_;
  std::deque<BlockOp> waiting_;  // for room in the backend
  struct Deletion {
    std::uint16_t queue = 0;
    Flight* flight = nullptr;
  };
  std::vector<Deletion> deletions_;  // that wait for commands of their queue
  std::uint32_t parts_in_flight_ = 0;
  std::uint32_t held_ = 0;  // flights that are due later
  std::uint32_t idle_rounds_ = 0;

  // Counted by the controller's thread alone.
  static std::uint64_t count(std::atomic<std::uint64_t>& counter) {
    const std::uint64_t counted = counter.load(std::memory_order_relaxed) + 1;
    counter.store(counted, std::memory_order_relaxed);
    return counted;
  }
  std::atomic<std::uint64_t> commands_{0};
  std::atomic<std::uint64_t> doorbells_{0};
  std::atomic<std::uint64_t> resets_{0};
  std::atomic<std::uint64_t> aborts_{0};
  std::atomic<std::uint64_t> deleted_queues_{0};
};

}  // namespace penstock::nvme
