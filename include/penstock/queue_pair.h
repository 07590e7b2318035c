// A submission queue and its completion queue, driven by any number of threads or warps at once.
//
// One source for the CPU, for CUDA kernels, and for a scheduler that explores interleavings: what differs is the
// Platform: cuda_platform.cuh for kernels, and of the library's own for the CPU and for tests. A Platform is one group
// of lanes that act together: a warp's active threads on a GPU, a single thread elsewhere. Every function here is
// entered by all lanes of a group together.
//
// How it works:
//  1. A group takes consecutive tickets, 64 bits wide, with one addition. Ticket t has slot t mod N, and a command
//     identifier of 15 bits: the slot and, above it, part of the generation, so that a completion that comes twice or
//     too late is told from the next one of its slot.
//  2. It waits until its slots and the one after them are free, so that N slots hold N - 1 commands.
//  3. Its lanes write their entries; the leader waits for its turn, rings the doorbell once, and passes the turn on.
//     So doorbells are rung in the order of tickets.
//  4. Whoever waits drains the completion queue, one group at a time: the drainer writes the outcome into the token of
//     the caller and frees the slot. Nobody holds a slot while waiting for another.
//     A command without a token of its caller's is *held*: its outcome goes to the slot's own token, and the slot, with
//     whatever memory belongs to it, stays its caller's until that lets go. A caller that holds a slot asks for no
//     other. One that stops waiting leaves the slot; whoever needs it next frees it once its command has ended.
//  5. A completion counts only if it fits: its queue is this one, its identifier is that of a command in flight, and
//     that command was fetched, by the completion's own submission head or by one that counted before. Heads need not
//     come in order: firmware may note one when it fetches a command, and post it after those of later commands. What
//     does not fit is counted, and changes nothing else. A group judges as one thread would that takes one completion
//     after the other.
//  6. A ticket can't be given back. A caller that stops waiting leaves its command and its token in flight.
//  7. Once the queue is poisoned nobody rings any more, and every wait ends. What was rung may still be in flight at
//     the controller: only deleting the queue, resetting the controller or isolating it ends that.
//
// Invariants:
//  I1. slot.turn == 2t: free for ticket t. slot.turn == 2t + 1: ticket t has it, in flight unless slot.own is done. It
//  only grows, unless poisoned. I2. published <= rung <= tickets. Doorbells hold `rung` mod N, in order. `rung` is
//  stored before the doorbell and
//      `published` after it: a command may be completed in between.
//  I3. Tickets in flight at the controller are N - 1 at the most, so it never has to wait for room in a completion
//      queue of M >= N entries whose head is rung at most M - N entries late.
//  I4. fetched <= rung, and every ticket whose slot was freed is below `fetched`. Neither ever goes back.
//  I5. While ticket t is in flight, rung < t + N. So a head that was true once t was fetched stands, with its 16 bits,
//      for one count of 64 bits only: the one in (t, t + N).
//
// Thread safety: submit, try_submit, drain and wait from any number of groups; the rest while nobody else is inside.
// Lifetime: the memory named here, and every token, outlives the commands in flight.
#pragma once

#include "penstock/nvme_commands.h"

namespace penstock::nvme {

// Where the outcome of a command goes. The caller's; its command is in flight from submit until done().
struct Token {
  static constexpr std::uint32_t done_bit = 1U << 31;
  std::uint32_t state = done_bit;
  std::uint32_t result = 0;  // the completion's first double word
};

struct Submission {
  Command command;
  Token* token;
};

struct alignas(32) Slot {
  std::uint64_t turn;
  Token* token;
  Token own;           // of a command that is held; of any other not done while that is in flight
  std::uint32_t left;  // whether who held it has left
};

enum class Poison : std::uint32_t { none, stalled, timed_out, deleted, reset, removed };
enum class Waited : std::uint32_t { done, timed_out, poisoned };

// The memory of a queue pair, for whoever drives it. REQUIRES: entries and completion_entries are powers of two,
// 2 <= entries <= completion_entries, entries <= max_entries.
struct QueuePairMemory {
  static constexpr std::uint32_t max_entries = 1U << 14;

  std::uint16_t id = 0;
  std::uint32_t entries = 0;
  std::uint32_t completion_entries = 0;
  Command* submissions = nullptr;
  Completion* completions = nullptr;
  Slot* slots = nullptr;  // one for each entry
  std::uint32_t* tail_doorbell = nullptr;
  std::uint32_t* head_doorbell = nullptr;
};

// What a group has taken: so many tickets from `first` on, and for a lane that wanted one, its own.
struct Tickets {
  std::uint64_t first = 0;
  std::uint64_t own = 0;
  std::uint32_t count = 0;
  bool wanted = false;
};

// Among the numbers that the lanes of a group gave: the largest of those before this lane, or 0, and of all.
struct Largest {
  std::uint32_t before = 0;
  std::uint32_t of_all = 0;
};

struct QueuePairState {
  QueuePairMemory memory;
  // Each on a cache line of its own: they have different writers.
  alignas(128) std::uint64_t tickets = 0;
  alignas(128) std::uint64_t published = 0;
  alignas(128) std::uint32_t draining = 0;
  std::uint64_t head = 0;                    // completions seen; of the drainer
  std::uint64_t head_rung = 0;               // and told to the controller
  std::uint64_t fetched = 0;                 // commands, by the largest head that counted
  alignas(128) std::uint32_t poison = 0;     // a Poison
  std::uint32_t strange_completions = 0;     // that fit no command in flight, and were ignored
  alignas(128) std::uint64_t doorbells = 0;  // rung for submissions; of whoever has the turn
  std::uint64_t rung = 0;                    // commands, by those doorbells or the one that follows
};

template <typename Platform>
class QueuePair {
 public:
  PENSTOCK_ANYWHERE QueuePair(QueuePairState& state, Platform& platform) : q_(state), m_(state.memory), p_(platform) {}

  // For the memory as it is: zeroed completions, nothing in flight. Tickets go on after those of an earlier use, from
  // the first slot: a completion that is left from then fits no command.
  PENSTOCK_ANYWHERE void initialize() {
    const std::uint64_t mask = m_.entries - 1;
    const std::uint64_t first = (q_.tickets + mask) & ~mask;
    for (std::uint32_t i = 0; i < m_.entries; ++i) m_.slots[i] = {2 * (first + i), nullptr, {}, 0};
    q_.tickets = q_.published = q_.rung = q_.fetched = first;
    q_.head = q_.head_rung = 0;
    q_.draining = q_.poison = 0;
  }

  // Each lane submits `count` commands, the same number in every lane; waits for room. Returns how many of the group's
  // commands, counted across lanes and then along them, are in flight: all, unless the queue was or became poisoned. If
  // no room was made by the deadline, the queue is poisoned as stalled, because a ticket can't be given back: the
  // deadline should be long past anything that a working controller does.
  PENSTOCK_ANYWHERE std::uint32_t submit(const Submission* submissions, std::uint32_t count,
                                         std::uint64_t stall_deadline) {
    const std::uint32_t total = count * p_.size();
    std::uint32_t published = 0;
    while (published < total) {
      const std::uint32_t left = total - published;
      const std::uint32_t piece = left < m_.entries - 1 ? left : m_.entries - 1;
      std::uint64_t first = 0;
      if (p_.is_leader()) first = p_.fetch_add(q_.tickets, std::uint64_t{piece});
      first = p_.broadcast(first);
      if (!wait_for_room(first, piece, stall_deadline)) break;
      if (!place_and_publish(submissions, first, piece, published)) break;
      published += piece;
    }
    return published;
  }

  // Submits from the front as many as there is room for now, and never waits for room. REQUIRES: a group of one.
  PENSTOCK_ANYWHERE std::uint32_t try_submit(const Submission* submissions, std::uint32_t count) {
    std::uint64_t first = p_.load_acquire(q_.tickets);
    std::uint32_t room = 0;
    do {
      // While `tickets` stands at `first`, nobody else can have these slots.
      room = 0;
      const std::uint32_t most = count < m_.entries - 1 ? count : m_.entries - 1;
      if (is_free(first)) {
        while (room < most && is_free(first + room + 1)) ++room;
      }
      if (room == 0 || is_poisoned()) return 0;
    } while (!p_.compare_exchange(q_.tickets, first, first + room));
    return place_and_publish(submissions, first, room, 0) ? room : 0;
  }

  // Takes a ticket for each lane that wants one, and waits until its slot is free; nothing (count == 0) if no lane
  // wants one, or the queue was or became poisoned, with the deadline as in submit. What was taken must be sent.
  // REQUIRES: fewer lanes than entries, and a caller that holds nothing of this queue.
  PENSTOCK_ANYWHERE Tickets take(bool wants, std::uint64_t stall_deadline) {
    Tickets tickets;
    tickets.count = p_.count(wants);
    tickets.wanted = wants;
    if (tickets.count == 0) return tickets;
    if (p_.is_leader()) tickets.first = p_.fetch_add(q_.tickets, std::uint64_t{tickets.count});
    tickets.first = p_.broadcast(tickets.first);
    tickets.own = tickets.first + p_.rank_among(wants);
    if (!wait_for_room(tickets.first, tickets.count, stall_deadline)) tickets.count = 0;
    return tickets;
  }
  // Sends what was taken; without a token the command is held. False if the queue was poisoned: nothing is in flight.
  PENSTOCK_ANYWHERE bool send(const Tickets& tickets, const Command& command, Token* token) {
    if (tickets.wanted) place({command, token}, tickets.own);
    p_.sync();
    bool published = false;
    if (p_.is_leader()) published = publish(tickets.first, tickets.count);
    if (p_.broadcast(published ? 1 : 0)) return true;
    if (tickets.wanted) take_back(tickets.own);
    p_.sync();
    return false;
  }
  PENSTOCK_ANYWHERE std::uint32_t entries() const { return m_.entries; }
  // The slot of a ticket, and so the memory that belongs to it.
  PENSTOCK_ANYWHERE std::uint32_t slot_number(std::uint64_t ticket) const {
    return static_cast<std::uint32_t>(ticket) & (m_.entries - 1);
  }
  // Of a command that is held.
  PENSTOCK_ANYWHERE const Token& token_of(std::uint64_t ticket) { return slot_of(ticket).own; }
  // REQUIRES: the command is held by the caller and has ended.
  PENSTOCK_ANYWHERE void let_go(std::uint64_t ticket) {
    p_.store_release(slot_of(ticket).turn, 2 * (ticket + m_.entries));
  }
  // The same for a command that may not have ended. The caller must not look at it any more.
  PENSTOCK_ANYWHERE void leave(std::uint64_t ticket) { p_.store_release(slot_of(ticket).left, 1U); }

  // Takes what has completed, unless another group is doing so; says how many completions were taken.
  PENSTOCK_ANYWHERE std::uint32_t drain() {
    bool locked = false;
    if (p_.is_leader()) locked = p_.try_lock(q_.draining);
    if (!p_.broadcast(locked ? 1 : 0)) return 0;
    const bool leads = p_.is_leader();
    const std::uint64_t own_head = leads ? q_.head : 0;  // all three on their way at once
    const std::uint64_t own_fetched = leads ? q_.fetched : 0;
    const std::uint64_t head_rung = leads ? q_.head_rung : 0;
    const std::uint64_t begin = p_.broadcast(own_head);
    std::uint64_t head = begin;
    std::uint64_t fetched = p_.broadcast(own_fetched);
    std::uint32_t looks = p_.looks();
    // Bounded, so that a waiter looks at its own token now and then.
    while (head - begin < m_.completion_entries) {
      const std::uint64_t at = head + p_.rank();
      const Completion completion =
          p_.load_completion(m_.completions[at & (m_.completion_entries - 1)], expected_phase(at));
      const std::uint32_t status = completion.status;
      // Two that name one command are not taken at once: the second fits only while the first has not ended it.
      const bool is_first = p_.is_first(Completion::cid(status));
      const std::uint32_t taken = p_.leading(is_first && Completion::phase(status) == expected_phase(at));
      const bool is_taken = p_.rank() < taken;
      const Claim claim = is_taken ? judge(completion, status) : Claim{};
      const Largest moved = p_.largest(claim.head > fetched ? static_cast<std::uint32_t>(claim.head - fetched) : 0);
      const bool was_fetched = claim.ticket < claim.head || claim.ticket < fetched + moved.before;
      if (is_taken) finish(completion, status, claim, claim.in_flight && was_fetched);
      fetched += moved.of_all;
      head += taken;
      if (taken == 0 && head == begin && --looks != 0) continue;
      if (taken < p_.size()) break;
    }
    p_.sync();
    if (leads) end_drain(head, fetched, head_rung);
    return static_cast<std::uint32_t>(head - begin);
  }

  PENSTOCK_ANYWHERE bool is_done(const Token& token) { return look_at(token).is_done; }
  // REQUIRES: is_done(token), seen by this thread.
  PENSTOCK_ANYWHERE static StatusField status_of(const Token& token) { return outcome_in(token.state).status; }
  // Both by one load.
  struct Outcome {
    bool is_done = false;
    StatusField status;
  };
  PENSTOCK_ANYWHERE Outcome look_at(const Token& token) { return outcome_in(p_.load_acquire(token.state)); }

  // Until the tokens of all lanes are done, the deadline of one has passed, or the queue is poisoned. A lane without a
  // token waits with the others.
  PENSTOCK_ANYWHERE Waited wait(const Token& token, std::uint64_t deadline) { return wait(&token, deadline); }
  PENSTOCK_ANYWHERE Waited wait(const Token* token, std::uint64_t deadline) {
    p_.begin_wait();
    while (true) {
      if (p_.all(token == nullptr || is_done(*token))) return Waited::done;
      const bool poisoned = p_.any(is_poisoned());
      const bool late = p_.any(p_.now() >= deadline);
      const bool drained = drain() > 0;
      if (p_.all(token == nullptr || is_done(*token))) return Waited::done;
      // Whatever was drained: completions of nothing may come without an end.
      if (poisoned) return Waited::poisoned;
      if (late) return Waited::timed_out;
      if (!drained) p_.pause();
    }
  }

  PENSTOCK_ANYWHERE bool is_poisoned() { return p_.load_relaxed(q_.poison) != 0; }
  // The first reason stays.
  PENSTOCK_ANYWHERE void poison(Poison reason) {
    std::uint32_t none = 0;
    p_.compare_exchange(q_.poison, none, static_cast<std::uint32_t>(reason));
  }

  // Ends what is still in flight with `field`. REQUIRES: the queue is poisoned, nobody is inside, and the controller
  // can't touch memory of these commands any more.
  PENSTOCK_ANYWHERE std::uint32_t end_in_flight(StatusField field) {
    std::uint32_t ended = 0;
    for (std::uint32_t i = 0; i < m_.entries; ++i) {
      Slot& slot = m_.slots[i];
      if ((slot.turn & 1) == 0) continue;
      slot.token->result = 0;
      p_.store_release(slot.token->state, Token::done_bit | field.bits);
      p_.completed(slot.token);
      slot.turn = slot.turn - 1 + 2 * std::uint64_t{m_.entries};
      ++ended;
    }
    return ended;
  }

  // The identifier that the command of a token in flight has at the controller; -1 if it is not in flight.
  PENSTOCK_ANYWHERE std::int32_t command_id(const Token& token) {
    for (std::uint32_t i = 0; i < m_.entries; ++i) {
      const std::uint64_t turn = p_.load_acquire(m_.slots[i].turn);
      if ((turn & 1) != 0 && m_.slots[i].token == &token) return command_id(turn >> 1);
    }
    return -1;
  }

 private:
  PENSTOCK_ANYWHERE static Outcome outcome_in(std::uint32_t state) {
    return {(state & Token::done_bit) != 0, {static_cast<std::uint16_t>(state & 0x7fff)}};
  }
  // Never 0xffff, which stands for no command in particular.
  PENSTOCK_ANYWHERE static std::uint16_t command_id(std::uint64_t ticket) {
    return static_cast<std::uint16_t>(ticket & 0x7fff);
  }
  PENSTOCK_ANYWHERE Slot& slot_of(std::uint64_t ticket) { return m_.slots[ticket & (m_.entries - 1)]; }
  // Free for the ticket, or taken by it already: a later group may have been quicker.
  PENSTOCK_ANYWHERE bool is_free(std::uint64_t ticket) { return p_.load_acquire(slot_of(ticket).turn) >= 2 * ticket; }
  // Of a slot that is not free for the ticket: whether it is, now that what was left in it is cleared away.
  PENSTOCK_ANYWHERE bool reclaim(std::uint64_t ticket) {
    Slot& slot = slot_of(ticket);
    std::uint64_t turn = p_.load_acquire(slot.turn);
    if (turn + 2 * std::uint64_t{m_.entries} != 2 * ticket + 1) return turn >= 2 * ticket;
    if (p_.load_acquire(slot.left) == 0 || !is_done(slot.own)) return false;
    return p_.compare_exchange(slot.turn, turn, 2 * ticket) || turn >= 2 * ticket;
  }
  // The first pass writes ones (NVMe 2.0 §3.3.3.2.1).
  PENSTOCK_ANYWHERE bool expected_phase(std::uint64_t at) const { return (at & m_.completion_entries) == 0; }

  PENSTOCK_ANYWHERE bool wait_for_room(std::uint64_t first, std::uint32_t count, std::uint64_t stall_deadline) {
    bool late = false;
    while (true) {
      const bool is_over = is_poisoned();
      // The slot behind them is not touched: this may be on its way while the others are looked at.
      const std::uint64_t behind = first + count;
      const bool is_behind_free = p_.load_relaxed(slot_of(behind).turn) >= 2 * behind;
      bool room = true;
      for (std::uint32_t i = p_.rank(); i < count; i += p_.size()) {
        room = room && (is_free(first + i) || reclaim(first + i));
      }
      room = room && (is_behind_free || reclaim(behind));
      if (p_.any(is_over)) return false;
      if (p_.all(room)) return true;
      if (late) {
        poison(Poison::stalled);
        return false;
      }
      late = p_.any(p_.now() >= stall_deadline);
      if (drain() == 0) p_.pause();
    }
  }

  // The group's commands from number `begin` on get the tickets from `first` on.
  PENSTOCK_ANYWHERE bool place_and_publish(const Submission* submissions, std::uint64_t first, std::uint32_t count,
                                           std::uint32_t begin) {
    const std::uint32_t lanes = p_.size();
    // The first of this lane's commands, which are those whose number is its rank modulo the lanes.
    const std::uint32_t start = (p_.rank() + lanes - begin % lanes) % lanes;
    for (std::uint32_t i = start; i < count; i += lanes) place(submissions[(begin + i) / lanes], first + i);
    p_.sync();
    bool published = false;
    if (p_.is_leader()) published = publish(first, count);
    if (p_.broadcast(published ? 1 : 0)) return true;
    // The controller will never hear of these: take them back, and their tokens with them.
    for (std::uint32_t i = start; i < count; i += lanes) {
      take_back(first + i);
    }
    p_.sync();
    return false;
  }
  PENSTOCK_ANYWHERE void take_back(std::uint64_t ticket) {
    Slot& slot = slot_of(ticket);
    p_.store_release(slot.token->state, Token::done_bit | status::queue_deleted.bits);
    p_.store_release(slot.turn, 2 * ticket);
  }

  PENSTOCK_ANYWHERE void place(const Submission& submission, std::uint64_t ticket) {
    Slot& slot = slot_of(ticket);
    slot.token = submission.token != nullptr ? submission.token : &slot.own;
    p_.store_relaxed(slot.left, 0U);
    p_.store_relaxed(slot.own.state, 0U);
    if (slot.token != &slot.own) p_.store_relaxed(slot.token->state, 0U);
    // A release, although the doorbell follows: a controller may complete what it was not told of yet.
    p_.store_release(slot.turn, 2 * ticket + 1);
    p_.write_entry(m_.submissions[ticket & (m_.entries - 1)], submission.command, command_id(ticket));
  }

  // Of the leader.
  PENSTOCK_ANYWHERE bool publish(std::uint64_t first, std::uint32_t count) {
    for (bool is_next = false; !is_next;) {
      const bool poisoned = is_poisoned();  // both on their way at once
      is_next = p_.load_acquire(q_.published) == first;
      if (poisoned) return false;
      if (!is_next) p_.pause();
    }
    p_.store_relaxed(q_.rung, first + count);  // ordered by the doorbell
    p_.ring(*m_.tail_doorbell, static_cast<std::uint32_t>(first + count) & (m_.entries - 1));
    p_.count(q_.doorbells);
    // The turn passes through memory and the doorbell doesn't: without this the next doorbell could arrive first.
    p_.order_doorbells();
    p_.store_ordered(q_.published, first + count);
    return true;
  }

  // What a completion says in itself, whatever others said before.
  struct Claim {
    std::uint64_t ticket = 0;
    std::uint64_t head = 0;  // commands fetched, among them its own; 0: it says nothing that could be true
    bool in_flight = false;
  };
  PENSTOCK_ANYWHERE Claim judge(const Completion& completion, std::uint32_t status) {
    const std::uint32_t submission = completion.submission;
    const std::uint32_t head = submission & 0xffff;
    Slot& slot = slot_of(Completion::cid(status));
    // All three on their way at once. Of a command that was rung, the completion brought them along; for any other the
    // acquire is needed.
    const std::uint64_t rung = p_.load_relaxed(q_.rung);
    const std::uint32_t own = p_.load_relaxed(slot.own.state);
    const std::uint64_t turn = p_.load_acquire(slot.turn);
    const std::uint64_t ticket = turn >> 1;
    if (submission >> 16 != m_.id || head >= m_.entries || (turn & 1) == 0 ||
        command_id(ticket) != Completion::cid(status) || (own & Token::done_bit) != 0) {
      return {};
    }
    const std::uint64_t past = (head - ticket) & (m_.entries - 1);
    const bool is_possible = past != 0 && ticket + past <= rung;
    return {ticket, is_possible ? ticket + past : 0, true};
  }

  PENSTOCK_ANYWHERE void finish(const Completion& completion, std::uint32_t status, const Claim& claim, bool counts) {
    if (!counts) {
      p_.fetch_add(q_.strange_completions, 1U);
      return;
    }
    Slot& slot = slot_of(claim.ticket);
    Token* const token = slot.token;
    // The drainer's alone: what was rung is not taken back, and no other lane has this command. A slot that is held is
    // freed by its holder.
    if (token != &slot.own) p_.store_release(slot.turn, 2 * (claim.ticket + m_.entries));
    token->result = completion.result;
    p_.store_release(token->state, Token::done_bit | Completion::field(status).bits);
    p_.completed(token);
  }

  // Of the leader: tells the controller, as late as invariant I3 allows, and lets others drain.
  PENSTOCK_ANYWHERE void end_drain(std::uint64_t head, std::uint64_t fetched, std::uint64_t head_rung) {
    q_.head = head;
    q_.fetched = fetched;
    const std::uint64_t slack = m_.completion_entries - m_.entries;
    const std::uint64_t most = m_.completion_entries / 4;
    if (head - head_rung > (slack < most ? slack : most) && !is_poisoned()) {
      p_.ring(*m_.head_doorbell, static_cast<std::uint32_t>(head) & (m_.completion_entries - 1));
      p_.order_doorbells();
      q_.head_rung = head;
    }
    p_.store_release(q_.draining, 0U);
  }

  QueuePairState& q_;
  const QueuePairMemory m_;  // a copy, so that a GPU keeps it in registers
  Platform& p_;
};

}  // namespace penstock::nvme
