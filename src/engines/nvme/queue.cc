#include "engines/nvme/queue.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engines/nvme/store.h"

namespace penstock::nvme {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;

constexpr std::uint32_t max_depth = 4096;
// A fast disk answers within this; whoever sleeps at once pays for waking up as well.
constexpr auto spin_time = std::chrono::microseconds(20);
constexpr auto longest_sleep = std::chrono::milliseconds(50);
// Where there are no interrupts.
constexpr auto nap = std::chrono::microseconds(50);

IoKind kind_of(OpKind kind) {
  switch (kind) {
    case OpKind::read:
      return IoKind::read;
    case OpKind::write:
      return IoKind::write;
    case OpKind::flush:
      return IoKind::flush;
    case OpKind::zero:
      return IoKind::zero;
    case OpKind::deallocate:
      break;
  }
  return IoKind::deallocate;
}

bool moves_bytes(const Op& op) {
  return op.kind == OpKind::read || op.kind == OpKind::write;
}

}  // namespace

Result<std::unique_ptr<engine::Queue>> Queue::create(std::uint32_t depth) {
  if (depth == 0 || depth > max_depth) {
    return Error{Code::invalid_argument, 0, "a queue of depth " + std::to_string(depth),
                 "ask for 1 to " + std::to_string(max_depth)};
  }
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return system_error(errno, "make an eventfd", "raise the limit on open files (ulimit -n)");
  return std::unique_ptr<engine::Queue>(new Queue(std::move(event), depth));
}

Queue::Queue(UniqueFd event, std::uint32_t depth) : event_(std::move(event)), flights_(depth), sleepers_(1) {
  free_.reserve(depth);
  ended_.reserve(depth);
  batch_.reserve(depth);
  for (std::uint32_t i = depth; i > 0; --i) free_.push_back(i - 1);
}

Queue::~Queue() {
  for (const Link& link : links_) {
    if (const auto connection = link.connection.lock()) connection->release(this);
  }
}

std::size_t Queue::submit(std::span<const Op> ops) {
  std::size_t taken = 0;
  while (taken < ops.size()) {
    auto* const store = static_cast<Store*>(ops[taken].store);
    const auto found = link_to(*store);
    if (!found) {
      if (free_.size() <= ended_.size()) break;
      log(LogLevel::error, found.error().message);
      ended_.push_back({.cookie = ops[taken++].cookie, .code = Code::engine_unavailable, .route = Route::direct});
      continue;
    }
    Link& link = links_[*found];
    batch_.clear();
    const std::size_t begun = taken;
    while (taken < ops.size() && ops[taken].store == store && start(ops[taken], link, *found)) ++taken;
    if (batch_.empty() && link.in_flight == 0 && free_.size() > ended_.size()) {
      // No room, and nothing on its way that would make some: there is no memory to copy through.
      ended_.push_back({.cookie = ops[taken++].cookie, .code = Code::out_of_memory, .route = Route::direct});
      continue;
    }
    const std::size_t sent = link.lane->queue->submit(batch_);
    link.in_flight += sent;
    // Commands that found no place are taken back, the last first.
    for (std::size_t i = batch_.size(); i > sent; --i) {
      Flight& flight = flights_[batch_[i - 1].cookie];
      if (flight.bounce != no_bounce) link.lane->free_bounces.push_back(flight.bounce);
      flight.busy = false;
      free_.push_back(static_cast<std::uint32_t>(batch_[i - 1].cookie));
    }
    taken -= batch_.size() - sent;
    if (taken == begun || sent < batch_.size()) break;
  }
  return taken;
}

Result<std::size_t> Queue::link_to(Store& store) {
  const auto& connection = store.connection();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].connection_id == connection->id()) return i;
  }
  auto lane = connection->lane_of(this);
  if (!lane) return std::move(lane).error();
  const Link link{connection->id(), connection, *lane, 0};
  // Stores come and go: the place of one that is gone is taken by the next.
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].in_flight != 0 || !links_[i].connection.expired()) continue;
    links_[i] = link;
    return i;
  }
  links_.push_back(link);
  sleepers_.resize(links_.size() + 1);
  return links_.size() - 1;
}

// False when there is no room for it now.
bool Queue::start(const Op& op, Link& link, std::size_t link_index) {
  if (free_.size() <= ended_.size()) return false;  // what has ended is still in flight for the caller
  const auto& store = *static_cast<const Store*>(op.store);
  const std::uint32_t index = free_.back();
  Flight& flight = flights_[index];
  flight = {op, link_index, no_bounce, true};
  // Blocks past the end of the namespace are not there: what comes before them is a short transfer.
  const std::uint64_t size = store.space().info.size_bytes();
  const std::uint64_t length = op.offset < size ? std::min(op.length, size - op.offset) : op.length;
  Io io{kind_of(op.kind), &store.space(), op.offset, length, 0, index};
  if (moves_bytes(op) && !place(flight, store, *link.lane, io)) {
    flight.busy = false;
    return false;
  }
  free_.pop_back();
  batch_.push_back(io);
  return true;
}

// Where the controller finds the memory: where it is, or else in a bounce buffer, which may be shorter.
bool Queue::place(Flight& flight, const Store& store, Connection::Lane& lane, Io& io) {
  const Op& op = flight.op;
  const bool aligned = reinterpret_cast<std::uintptr_t>(op.memory) % 4 == 0;
  if (const auto address = aligned ? store.connection()->address_of(op.key, op.memory) : std::nullopt) {
    io.address = *address;
    return true;
  }
  if (lane.bounce.data() == nullptr && !lane.make_bounces(store.connection()->controller().transport())) return false;
  if (lane.free_bounces.empty()) return false;
  flight.bounce = lane.free_bounces.back();
  lane.free_bounces.pop_back();
  io.length = std::min<std::uint64_t>(io.length, Connection::Lane::bounce_bytes);
  io.address = lane.bounce_address(flight.bounce);
  if (op.kind == OpKind::write) std::memcpy(lane.bounce_at(flight.bounce), op.memory, io.length);
  return true;
}

std::size_t Queue::collect(std::span<Done> done) {
  std::size_t count = std::min(done.size(), ended_.size());
  std::copy_n(ended_.begin(), count, done.begin());
  ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
  for (Link& link : links_) {
    if (link.in_flight == 0) continue;
    std::array<IoDone, 32> ios;
    while (count < done.size()) {
      const std::size_t wanted = std::min(ios.size(), done.size() - count);
      const std::size_t got = link.lane->queue->poll(std::span(ios).first(wanted));
      for (std::size_t i = 0; i < got; ++i) done[count++] = finish(link, ios[i]);
      if (got < wanted) break;
    }
  }
  return count;
}

Done Queue::finish(Link& link, const IoDone& io) {
  const auto index = static_cast<std::uint32_t>(io.cookie);
  Flight& flight = flights_[index];
  if (flight.bounce != no_bounce) {
    if (flight.op.kind == OpKind::read && io.bytes > 0) {
      std::memcpy(flight.op.memory, link.lane->bounce_at(flight.bounce), io.bytes);
    }
    link.lane->free_bounces.push_back(flight.bounce);
  }
  flight.busy = false;
  free_.push_back(index);
  --link.in_flight;
  return {flight.op.cookie, io.bytes, io.code, io.system_error, Route::direct};
}

std::size_t Queue::poll(std::span<Done> done, TimePoint deadline) {
  if (done.empty()) return 0;
  TimePoint spin_until{};
  while (true) {
    if (const std::size_t count = collect(done); count > 0) return count;
    const TimePoint now = Clock::now();
    if (now >= deadline) return 0;
    if (spin_until == TimePoint{}) spin_until = now + spin_time;
    if (now < spin_until) {
      CpuPlatform::relax();
    } else if (sleep(deadline)) {
      return 0;
    }
  }
}

// Says whether it was woken.
bool Queue::sleep(TimePoint deadline) {
  const TimePoint now = Clock::now();
  TimePoint until = std::min(deadline, now + longest_sleep);
  std::size_t count = 0;
  sleepers_[count++] = {event_.get(), POLLIN, 0};
  for (const Link& link : links_) {
    if (link.in_flight == 0) continue;
    const auto interrupt = link.lane->queue->interrupt();
    until = std::min(until, interrupt ? link.lane->queue->next_deadline() : now + nap);
    if (interrupt) sleepers_[count++] = {*interrupt, POLLIN, 0};
  }
  const auto ns = std::max<std::int64_t>(std::chrono::nanoseconds(until - now).count(), 0);
  const timespec limit{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::ppoll(sleepers_.data(), count, &limit, nullptr);
  for (Link& link : links_) {
    if (link.in_flight != 0) link.lane->queue->after_sleep();
  }
  std::uint64_t wakes = 0;
  return ::read(event_.get(), &wakes, sizeof wakes) == sizeof wakes;
}

void Queue::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void Queue::cancel(std::uint64_t cookie) {
  for (std::uint32_t index = 0; index < flights_.size(); ++index) {
    if (!flights_[index].busy || flights_[index].op.cookie != cookie) continue;
    links_[flights_[index].link].lane->queue->cancel(index);
    return;
  }
}

}  // namespace penstock::nvme
