// QueueSet: queues by which kernels read and write stores, as they lie in memory; and the steps of a transfer, which
// CUDA kernels, threads of the CPU and a scheduler that explores interleavings share (the Platform; see queue_pair.h).
//
// Kernels use penstock/device.cuh, and programs penstock/gpu_queues.h; this is what the two agree on.
//
// A command names a stretch of a store, and memory in a *place*: pinned memory that belongs to the command's slot. The
// server writes to places and reads from them, and touches no other memory of the kernel's. What arrived there the
// caller's group copies on by itself. So a caller that gives up can't be written to afterwards: its place is used again
// only when the server has ended the command.
//
// A group holds one slot for each of its lanes, waits for all of them, and lets go. It asks for nothing else meanwhile,
// so any number of groups get on with any depth. Reads that are begun ahead have places of their own (AheadPlace), of
// which there may be none left: such a read begins when it is waited for.
//
// Thread safety: transfers from any number of groups. Lifetime: the memory named here outlives all of them.
#pragma once

#include "penstock/queue_pair.h"

namespace penstock::device {

// Of all structures here and in queue_pair.h. A kernel that was compiled with another refuses the set.
inline constexpr std::uint32_t layout_version = 2;

enum class IoStatus : std::uint32_t {
  done,
  timed_out,      // no answer by the deadline; the server may still read what was to be written
  failed,         // the store could not do it; IoResult::field says why
  out_of_window,  // the extent is not within the window of its store
  misaligned,     // the extent does not begin and end with blocks
  no_memory,      // a null pointer was given
  read_only,      // the store may only be read
  no_such_store,
  closed,           // the program has closed the set, or told kernels to stop
  stalled,          // a queue made no room for so long that nobody uses it any more, until it is reset
  wrong_layout,     // the kernel was compiled with other headers than the library
  nothing_pending,  // of `finish`: the read was finished before, moved elsewhere, or begun before the set was reset
};

struct [[nodiscard]] IoResult {
  IoStatus status = IoStatus::done;
  std::uint32_t field = 0;  // of a failure: the bits of an nvme::StatusField

  PENSTOCK_ANYWHERE bool ok() const { return status == IoStatus::done; }
};

// A stretch of a store. Not penstock::Extent, which is the program's: where both namespaces are used, name this one in
// full, or give {offset, bytes}.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t store = 0;  // its place in GpuQueuesOptions::stores
};

// What kernels may reach of a store, from `begin` to `end`.
struct StoreWindow {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t block_bytes = 0;  // extents begin and end with blocks, or end with the window; a power of two
  std::uint32_t writable = 0;
  std::uint32_t block_shift = 0;  // 1 << block_shift == block_bytes: a GPU takes long to divide
  std::uint32_t reserved = 0;
};

// A place for a read that was begun ahead.
struct AheadPlace {
  static constexpr std::uint32_t is_free = 0;
  static constexpr std::uint32_t is_taken = 1;
  static constexpr std::uint32_t is_left = 2;  // by who waited for it; free once its token is done

  std::uint32_t state = is_free;
  nvme::Token token;
};

// Pinned: what the program can see while kernels run. Words that only ever become 1.
struct Notes {
  std::uint32_t timed_out = 0;
  std::uint32_t stalled = 0;
};

// In memory of the GPU, addresses as the GPU sees them.
struct QueueSet {
  std::uint32_t layout = layout_version;  // first in every version
  std::uint32_t queue_count = 0;
  std::uint32_t store_count = 0;
  std::uint32_t ahead_count = 0;
  std::uint32_t place_bytes = 0;
  std::uint32_t generation = 0;  // how often the set was made new: reads that were begun before have ended
  std::uint64_t timeout_ns = 0;  // of a transfer
  std::uint64_t stall_ns = 0;
  nvme::QueuePairState* queues = nullptr;
  const StoreWindow* stores = nullptr;
  AheadPlace* ahead = nullptr;
  unsigned char* places = nullptr;  // pinned: those of all slots of the first queue, then the next, then those ahead
  Notes* notes = nullptr;
};

// A read that was begun, and must be finished once. It has one owner: made by default, moved from or finished, there is
// nothing pending. REQUIRES of an assignment: nothing is pending in its target, whose place would be lost until a
// reset.
struct Pending {
  static constexpr std::uint32_t not_begun = 0xffffffff;

  Pending() = default;
  PENSTOCK_ANYWHERE Pending(Pending&& other) noexcept { *this = static_cast<Pending&&>(other); }
  PENSTOCK_ANYWHERE Pending& operator=(Pending&& other) noexcept {
    extent = other.extent;
    result = other.result;
    place = other.place;
    queue = other.queue;
    generation = other.generation;
    other.forget();
    return *this;
  }
  PENSTOCK_ANYWHERE void forget() {
    result = {IoStatus::nothing_pending};
    place = not_begun;
  }

  Extent extent;
  IoResult result{IoStatus::nothing_pending};  // what was wrong when it was begun
  std::uint32_t place = not_begun;
  std::uint32_t queue = 0;
  std::uint32_t generation = 0;  // of the set
};

// Never, where no clock counts so far.
PENSTOCK_ANYWHERE constexpr std::uint64_t deadline_after(std::uint64_t now, std::uint64_t timeout_ns) {
  constexpr std::uint64_t never = ~std::uint64_t{0};
  return timeout_ns > never - now ? never : now + timeout_ns;
}

// A lane's part in commands that its group has sent, as far as it wanted one.
struct Visit {
  unsigned char* place = nullptr;
  std::uint64_t ticket = 0;
  IoResult result;
  bool wants = false;
  bool is_sent = false;  // the group's commands were; the same in all lanes
  bool is_done = false;
};

// What one group does with a set. Every function is entered by all lanes of the group together; a lane whose extent has
// no bytes only helps.
template <typename Platform>
class QueueSetIo {
 public:
  // REQUIRES: the same queue in all lanes, one of the set's.
  PENSTOCK_ANYWHERE QueueSetIo(const QueueSet& set, Platform& platform, std::uint32_t queue)
      : set_(set), p_(platform), queue_(queue) {}

  // When a call ends that begins now; a timeout of 0 is the set's. A call has one deadline, however many commands it
  // takes.
  PENSTOCK_ANYWHERE std::uint64_t deadline_after(std::uint64_t timeout_ns) const {
    return device::deadline_after(p_.now(), timeout_ns != 0 ? timeout_ns : set_.timeout_ns);
  }

  // Calls use(bytes, ok) when a lane's bytes have arrived, or have not: all lanes of the group together. `bytes` is
  // pinned memory, which is the lane's until the call returns. REQUIRES: at most place_bytes, and `use` does not come
  // here again.
  template <typename Use>
  PENSTOCK_ANYWHERE IoResult visit(const Extent& extent, std::uint64_t deadline, Use use) {
    const auto nothing = [](unsigned char*, bool) {};
    return run(nvme::IoOpcode::read, extent, check(extent, false), deadline, nothing, use);
  }

  // The same in two steps. Between them the bytes at `place` are the lane's, if it is done and the result is ok.
  PENSTOCK_ANYWHERE Visit begin_visit(const Extent& extent, std::uint64_t deadline) {
    return begin(nvme::IoOpcode::read, extent, check(extent, false), deadline, [](unsigned char*, bool) {});
  }
  PENSTOCK_ANYWHERE void end_visit(const Visit& visit) {
    if (!visit.is_sent) return;
    p_.sync();  // others of the group may have copied from this lane's place
    nvme::QueuePair<Platform> queue(set_.queues[queue_], p_);
    if (visit.is_done) queue.let_go(visit.ticket);
    if (visit.wants && !visit.is_done) queue.leave(visit.ticket);
  }

  // Of any length: as many commands one after the other as it takes places.
  PENSTOCK_ANYWHERE IoResult read(const Extent& extent, void* to, std::uint64_t deadline) {
    return in_pieces(extent, check(extent, false, to), [&](const Extent& piece, std::uint64_t done) {
      auto* const target = static_cast<unsigned char*>(to) + done;
      return visit(piece, deadline, [&](const unsigned char* bytes, bool ok) { copy(target, bytes, piece, ok); });
    });
  }
  PENSTOCK_ANYWHERE IoResult write(const Extent& extent, const void* from, std::uint64_t deadline) {
    return in_pieces(extent, check(extent, true, from), [&](const Extent& piece, std::uint64_t done) {
      const auto* const source = static_cast<const unsigned char*>(from) + done;
      const auto fill = [&](unsigned char* place, bool wants) { copy(place, source, piece, wants); };
      const auto nothing = [](unsigned char*, bool) {};
      return run(nvme::IoOpcode::write, piece, {}, deadline, fill, nothing);
    });
  }

  // Begins reads of at most place_bytes each, as far as there are places.
  PENSTOCK_ANYWHERE Pending begin_read(const Extent& extent) {
    Pending pending;
    pending.extent = extent;
    pending.queue = queue_;
    pending.generation = set_.generation;
    pending.result = check(extent, false);
    const bool wants = pending.result.ok() && extent.bytes != 0 && extent.bytes <= set_.place_bytes;
    const std::uint32_t place = wants ? take_ahead() : Pending::not_begun;
    const bool has_place = place != Pending::not_begun;
    nvme::Command command = make_command(nvme::IoOpcode::read, extent);
    command.prp1 = (ahead_begin() + place) * set_.place_bytes;
    nvme::QueuePair<Platform> queue(set_.queues[queue_], p_);
    const nvme::Tickets tickets = queue.take(has_place, p_.now() + set_.stall_ns);
    nvme::Token* const token = has_place ? &set_.ahead[place].token : nullptr;
    const bool sent = tickets.count != 0 && queue.send(tickets, command, token);
    if (has_place && sent) pending.place = place;
    if (has_place && !sent) p_.store_release(set_.ahead[place].state, AheadPlace::is_free);
    return pending;
  }
  // Waits for a read that was begun, or does it now. Without memory it is dropped, whatever became of it.
  PENSTOCK_ANYWHERE IoResult finish(Pending& pending, void* to, std::uint64_t deadline) {
    if (pending.generation != set_.generation) pending.forget();
    IoResult result = pending.result;
    bool is_begun = pending.place != Pending::not_begun;
    const Extent rest = is_begun || to == nullptr || !result.ok() ? Extent{} : pending.extent;
    // Lanes may have begun on different queues.
    while (p_.any(is_begun)) {
      const auto number = static_cast<std::uint32_t>(p_.of_first(is_begun, pending.queue));
      const bool is_next = is_begun && pending.queue == number;
      const IoResult waited = finish_on(number, pending, is_next, to, deadline);
      if (is_next && to != nullptr) result = waited;
      is_begun = is_begun && !is_next;
    }
    pending.forget();
    const IoResult read_now = read(rest, to, deadline);
    return rest.bytes != 0 ? read_now : result;
  }

 private:
  PENSTOCK_ANYWHERE std::uint64_t ahead_begin() const {
    return std::uint64_t{set_.queue_count} * set_.queues[0].memory.entries;
  }

  PENSTOCK_ANYWHERE IoResult check(const Extent& extent, bool writes) const {
    if (extent.bytes == 0) return {};
    if (extent.store >= set_.store_count) return {IoStatus::no_such_store};
    const StoreWindow& window = set_.stores[extent.store];
    if (extent.offset < window.begin || extent.offset > window.end || extent.bytes > window.end - extent.offset) {
      return {IoStatus::out_of_window};
    }
    const std::uint64_t mask = window.block_bytes - 1;
    if ((extent.offset & mask) != 0 || ((extent.bytes & mask) != 0 && extent.offset + extent.bytes != window.end)) {
      return {IoStatus::misaligned};
    }
    if (writes && window.writable == 0) return {IoStatus::read_only};
    return {};
  }
  PENSTOCK_ANYWHERE IoResult check(const Extent& extent, bool writes, const void* memory) const {
    if (memory == nullptr && extent.bytes != 0) return {IoStatus::no_memory};
    return check(extent, writes);
  }

  PENSTOCK_ANYWHERE void copy(unsigned char* to, const unsigned char* from, const Extent& piece, bool wants) {
    p_.copy(to, from, wants ? static_cast<std::uint32_t>(piece.bytes) : 0);
  }

  // Each lane goes on until its extent is done or a piece of it failed; the others help meanwhile.
  template <typename Transfer>
  PENSTOCK_ANYWHERE IoResult in_pieces(const Extent& extent, IoResult result, Transfer transfer) {
    std::uint64_t done = 0;
    while (p_.any(result.ok() && done < extent.bytes)) {
      Extent piece{extent.offset + done, result.ok() ? extent.bytes - done : 0, extent.store};
      if (piece.bytes > set_.place_bytes) piece.bytes = set_.place_bytes;
      const IoResult one = transfer(piece, done);
      if (piece.bytes != 0) result = one;
      done += piece.bytes;
    }
    return result;
  }

  // But for the place.
  PENSTOCK_ANYWHERE nvme::Command make_command(nvme::IoOpcode opcode, const Extent& extent) const {
    nvme::Command command{};
    if (extent.bytes == 0 || extent.store >= set_.store_count) return command;
    const StoreWindow& window = set_.stores[extent.store];
    command.opcode = static_cast<std::uint8_t>(opcode);
    command.flags = nvme::sgl::in_command;
    command.nsid = extent.store + 1;
    command.prp2 = nvme::sgl::pack(nvme::sgl::offset, static_cast<std::uint32_t>(extent.bytes));
    command.set_first_block(extent.offset >> window.block_shift);
    command.dw12 = static_cast<std::uint32_t>((extent.bytes + window.block_bytes - 1) >> window.block_shift) - 1;
    return command;
  }

  // One command of each lane whose extent has bytes and is in order.
  template <typename Before, typename After>
  PENSTOCK_ANYWHERE IoResult run(nvme::IoOpcode opcode, const Extent& extent, IoResult result, std::uint64_t deadline,
                                 Before before, After after) {
    const Visit visit = begin(opcode, extent, result, deadline, before);
    if (visit.is_sent) after(visit.place, visit.is_done && visit.result.ok());
    end_visit(visit);
    return visit.result;
  }
  template <typename Before>
  PENSTOCK_ANYWHERE Visit begin(nvme::IoOpcode opcode, const Extent& extent, IoResult result, std::uint64_t deadline,
                                Before before) {
    Visit visit;
    visit.result = result;
    visit.wants = extent.bytes != 0 && result.ok();
    nvme::Command command = make_command(opcode, extent);  // before anything makes a GPU load the window anew
    nvme::QueuePair<Platform> queue(set_.queues[queue_], p_);
    const nvme::Tickets tickets = queue.take(visit.wants, p_.now() + set_.stall_ns);
    if (tickets.count == 0) {
      if (visit.wants) visit.result = why_poisoned(queue_);
      return visit;
    }
    visit.ticket = tickets.own;
    const std::uint64_t slot = std::uint64_t{queue_} * queue.entries() + queue.slot_number(tickets.own);
    command.prp1 = slot * set_.place_bytes;
    visit.place = set_.places + command.prp1;
    before(visit.place, visit.wants);
    visit.is_sent = queue.send(tickets, command, nullptr);
    if (!visit.is_sent) {
      if (visit.wants) visit.result = why_poisoned(queue_);
      return visit;
    }
    const nvme::Token& token = queue.token_of(tickets.own);
    const nvme::Waited waited = queue.wait(visit.wants ? &token : nullptr, deadline);
    if (!visit.wants) return visit;
    const auto ended = queue.look_at(token);
    visit.is_done = ended.is_done;
    visit.result = ended.is_done ? outcome(ended.status) : why_not_done(waited, queue_);
    return visit;
  }

  PENSTOCK_ANYWHERE IoResult finish_on(std::uint32_t number, const Pending& pending, bool is_next, void* to,
                                       std::uint64_t deadline) {
    AheadPlace* const ahead = is_next ? &set_.ahead[pending.place] : nullptr;
    nvme::QueuePair<Platform> queue(set_.queues[number], p_);
    const nvme::Waited waited = queue.wait(ahead != nullptr ? &ahead->token : nullptr, deadline);
    bool is_done = false;
    IoResult result;
    if (ahead != nullptr) {
      const auto ended = queue.look_at(ahead->token);
      is_done = ended.is_done;
      result = is_done ? outcome(ended.status) : why_not_done(waited, number);
    }
    const bool arrived = is_done && result.ok() && to != nullptr;
    const unsigned char* const bytes = set_.places + (ahead_begin() + pending.place) * set_.place_bytes;
    copy(static_cast<unsigned char*>(to), arrived ? bytes : nullptr, pending.extent, arrived);
    p_.sync();
    if (ahead != nullptr) p_.store_release(ahead->state, is_done ? AheadPlace::is_free : AheadPlace::is_left);
    return result;
  }

  PENSTOCK_ANYWHERE static IoResult outcome(nvme::StatusField field) {
    if (field.ok()) return {};
    if (field.bits == nvme::status::queue_deleted.bits) return {IoStatus::closed, field.bits};
    return {IoStatus::failed, field.bits};
  }
  PENSTOCK_ANYWHERE IoResult why_not_done(nvme::Waited waited, std::uint32_t queue) {
    if (waited == nvme::Waited::poisoned) return why_poisoned(queue);
    p_.note(set_.notes->timed_out);
    return {IoStatus::timed_out};
  }
  PENSTOCK_ANYWHERE IoResult why_poisoned(std::uint32_t queue) {
    const std::uint32_t poison = p_.load_acquire(set_.queues[queue].poison);
    if (poison != static_cast<std::uint32_t>(nvme::Poison::stalled)) return {IoStatus::closed};
    p_.note(set_.notes->stalled);
    return {IoStatus::stalled};
  }

  // A place that is free, if a few looks find one.
  PENSTOCK_ANYWHERE std::uint32_t take_ahead() {
    constexpr std::uint32_t looks = 8;
    if (set_.ahead_count == 0) return Pending::not_begun;
    std::uint32_t at = p_.spread() % set_.ahead_count;
    for (std::uint32_t i = 0; i < looks; ++i) {
      AheadPlace& place = set_.ahead[at];
      std::uint32_t state = p_.load_acquire(place.state);
      const bool is_done = (p_.load_acquire(place.token.state) & nvme::Token::done_bit) != 0;
      const bool can_be_had = state == AheadPlace::is_free || (state == AheadPlace::is_left && is_done);
      if (can_be_had && p_.compare_exchange(place.state, state, AheadPlace::is_taken)) return at;
      at = at + 1 < set_.ahead_count ? at + 1 : 0;
    }
    return Pending::not_begun;
  }

  const QueueSet set_;  // a copy, so that a GPU keeps it in registers
  Platform& p_;
  const std::uint32_t queue_;
};

}  // namespace penstock::device
