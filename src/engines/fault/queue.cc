#include "engines/fault/queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

namespace penstock::fault {
namespace {

// A direct transfer that is shortened must stay aligned.
constexpr std::uint64_t direct_bytes = 4096;

}  // namespace

Queue::Queue(std::unique_ptr<engine::Queue> inner, const FaultPlan& plan, std::uint64_t seed, std::size_t depth,
             FaultControl& control)
    : inner_(std::move(inner)),
      plan_(plan),
      depth_(depth),
      control_(control),
      random_(seed),
      order_(~seed),
      inner_done_(depth) {
  backlog_.reserve(depth);
  pending_.reserve(depth);
  held_.reserve(depth);
  late_.reserve(depth);
  control_.make_room(depth);
}

std::uint64_t Queue::random(std::uint64_t low, std::uint64_t high) {
  return low + random_() % (high - low + 1);
}

Queue::Fault Queue::draw() {
  std::uint64_t ticket = random(0, 999);
  const std::array<std::pair<std::uint32_t, Fault>, 6> faults{{{plan_.short_transfer, Fault::short_transfer},
                                                               {plan_.io_error, Fault::io_error},
                                                               {plan_.again, Fault::again},
                                                               {plan_.interrupted, Fault::interrupted},
                                                               {plan_.delay, Fault::delay},
                                                               {plan_.never, Fault::never}}};
  for (const auto& [share, fault] : faults) {
    if (ticket < share) return fault;
    ticket -= share;
  }
  return Fault::none;
}

std::size_t Queue::submit(std::span<const engine::Op> ops) {
  const std::size_t taken = std::min(ops.size(), depth_ - in_flight_);
  for (const engine::Op& op : ops.first(taken)) inject(op);
  in_flight_ += taken;
  pass_on_backlog();
  return taken;
}

void Queue::inject(engine::Op op) {
  Pending pending{.cookie = op.cookie};
  const bool is_call = op.kind == engine::OpKind::call;
  const bool hangs =
      is_call ? control_.hangs_calls_.load() : op.kind == engine::OpKind::write && control_.hangs_writes_.load();
  if (hangs) return control_.add(*this, op);
  switch (is_call ? Fault::none : draw()) {
    case Fault::none:
      break;
    case Fault::short_transfer:
      shorten(op, pending);
      break;
    case Fault::io_error:
      return fail(op, EIO);
    case Fault::again:
      return fail(op, EAGAIN);
    case Fault::interrupted:
      return fail(op, EINTR);
    case Fault::delay:
      pending.delay = std::chrono::microseconds(random(0, static_cast<std::uint64_t>(plan_.max_delay.count())));
      break;
    case Fault::never:
      return control_.add(*this, op);
  }
  pending_.push_back(pending);
  backlog_.push_back(op);
}

// Either fewer bytes are moved, or more are moved than are admitted, or both.
void Queue::shorten(engine::Op& op, Pending& pending) {
  if (op.length < 2) return;  // flush too
  const std::uint64_t unit = op.path == engine::Path::direct ? direct_bytes : 1;
  const bool moves_less = random(0, 1) == 0 && op.length > unit;
  if (moves_less) op.length = random(1, (op.length - 1) / unit) * unit;
  if ((!moves_less || random(0, 1) == 0) && op.length > 1) pending.most_bytes = random(1, op.length - 1);
}

void Queue::fail(const engine::Op& op, int error) {
  held_.push_back({{.cookie = op.cookie, .code = Code::io_error, .system_error = error}, TimePoint::min()});
}

void Queue::pass_on_backlog() {
  std::size_t taken = 0;
  while (taken < backlog_.size() && inner_->submit({&backlog_[taken], 1}) == 1) ++taken;
  backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<std::ptrdiff_t>(taken));
}

std::size_t Queue::poll(std::span<engine::Done> done, TimePoint deadline) {
  if (done.empty()) return 0;
  while (true) {
    pass_on_backlog();
    take_late();
    const TimePoint sleep_until = std::min(deadline, next_due());
    const std::size_t from_inner = inner_->poll(inner_done_, sleep_until);
    take_inner(std::span(inner_done_).first(from_inner));
    take_late();
    const TimePoint now = Clock::now();
    const std::size_t count = deliver(done, now);
    const bool woken = from_inner == 0 && now < sleep_until;
    if (count > 0 || woken || now >= deadline) return count;
  }
}

void Queue::take_inner(std::span<const engine::Done> done) {
  const TimePoint now = Clock::now();
  for (engine::Done completion : done) {
    const auto found = std::find_if(pending_.begin(), pending_.end(),
                                    [&](const Pending& one) { return one.cookie == completion.cookie; });
    if (found == pending_.end()) std::abort();  // the inner queue has invented or repeated a completion
    const Pending pending = *found;
    pending_.erase(found);
    completion.cause = nullptr;  // it does not last as long as a completion may be held here
    if (pending.most_bytes) completion.bytes = std::min(completion.bytes, *pending.most_bytes);
    held_.push_back({completion, pending.delay == Duration{} ? TimePoint::min() : now + pending.delay});
  }
}

void Queue::take_late() {
  const std::lock_guard lock(control_.mutex_);
  for (const engine::Done& completion : late_) held_.push_back({completion, TimePoint::min()});
  late_.clear();
}

TimePoint Queue::next_due() const {
  TimePoint due = TimePoint::max();
  for (const Held& held : held_) due = std::min(due, held.due);
  return due;
}

std::size_t Queue::deliver(std::span<engine::Done> done, TimePoint now) {
  if (plan_.reorder) std::shuffle(held_.begin(), held_.end(), order_);
  std::size_t count = 0;
  std::erase_if(held_, [&](const Held& held) {
    if (count == done.size() || held.due > now) return false;
    done[count++] = held.done;
    return true;
  });
  in_flight_ -= count;
  return count;
}

}  // namespace penstock::fault
