#include "engines/nvme/queue.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "engines/nvme/store.h"

namespace penstock::nvme {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;

constexpr std::uint32_t max_depth = 4096;
constexpr std::uintptr_t memory_alignment = 4;  // as PRPs have it
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
    case OpKind::call:  // not sent: its stores don't wait
      break;
  }
  return IoKind::deallocate;
}

}  // namespace

Result<std::unique_ptr<engine::Queue>> Queue::create(const engine::QueueOptions& options) {
  if (options.depth == 0 || options.depth > max_depth) {
    return Error{Code::invalid_argument, 0, "a queue of depth " + std::to_string(options.depth),
                 "ask for 1 to " + std::to_string(max_depth)};
  }
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return system_error(errno, "make an eventfd", "raise the limit on open files (ulimit -n)");
  return std::unique_ptr<engine::Queue>(new Queue(std::move(event), options));
}

Queue::Queue(UniqueFd event, const engine::QueueOptions& options)
    : event_(std::move(event)), flights_(options.depth), sleepers_(1) {
  free_.reserve(options.depth);
  ended_.reserve(options.depth);
  batch_.reserve(options.depth);
  for (std::uint32_t i = options.depth; i > 0; --i) free_.push_back(i - 1);
}

Queue::~Queue() {
  for (const Link& link : links_) {
    if (const auto connection = link.connection.lock()) connection->release(this);
  }
}

std::size_t Queue::submit(std::span<const Op> ops) {
  std::size_t taken = 0;
  // What has ended is still in flight for the caller.
  for (; taken < ops.size() && free_.size() > ended_.size(); ++taken) {
    const Op& op = ops[taken];
    if (op.kind == OpKind::call) {
      op.call->run();
      ended_.push_back({.cookie = op.cookie, .route = Route::direct});
    } else if (const auto link = link_or_log(*static_cast<Store*>(op.store)); !link) {
      ended_.push_back({.cookie = op.cookie, .code = link.error().code, .route = Route::direct});
    } else if (const auto address = address_of(op)) {
      take(op, *link, *address);
    } else {
      ended_.push_back({.cookie = op.cookie, .code = Code::out_of_memory, .route = Route::direct});
    }
  }
  for (Link& link : links_) send(link);
  return taken;
}

// The log says why there is none.
Result<std::size_t> Queue::link_or_log(Store& store) {
  return or_out_of_memory([&]() -> Result<std::size_t> {
    auto link = link_to(store);
    if (link) return link;
    log(LogLevel::error, link.error().message + "; " + link.error().hint);
    return Error{.code = Code::engine_unavailable, .message = {}, .hint = {}};
  });
}

Result<std::size_t> Queue::link_to(Store& store) {
  const auto& connection = store.connection();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].connection_id == connection->id()) return i;
  }
  auto share = connection->share_of(this, event_.get());
  if (!share) return std::move(share).error();
  Link link{connection->id(), connection, *share, 0, {}};
  link.waiting.reserve(flights_.size());
  link.share->make_room(flights_.size());
  // Stores come and go: the place of one that is gone is taken by the next.
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].in_flight != 0 || !links_[i].connection.expired()) continue;
    links_[i] = std::move(link);
    return i;
  }
  sleepers_.resize(links_.size() + 2);
  links_.push_back(std::move(link));
  return links_.size() - 1;
}

// Where the controller finds the memory, if it can reach it, or if there is none.
std::optional<std::uint64_t> Queue::address_of(const Op& op) {
  if (!moves_bytes(op.kind)) return 0;
  if (op.attached == nullptr || reinterpret_cast<std::uintptr_t>(op.memory) % memory_alignment != 0)
    return std::nullopt;
  const auto& attached = *static_cast<const AttachedMemory*>(op.attached);
  return static_cast<const Store*>(op.store)->connection()->address_of(attached, op.memory);
}

void Queue::take(const Op& op, std::size_t link, std::uint64_t address) {
  const auto& store = *static_cast<const Store*>(op.store);
  const std::uint32_t index = free_.back();
  free_.pop_back();
  // Blocks past the end of the namespace are not there: what comes before them is a short transfer.
  const std::uint64_t size = store.space().info.size_bytes();
  const std::uint64_t length = op.offset < size ? std::min(op.length, size - op.offset) : op.length;
  flights_[index] = {.op = op,
                     .link = link,
                     .io = {kind_of(op.kind), &store.space(), op.offset, length, address, index},
                     .busy = true};
  links_[link].waiting.push_back(index);
  ++links_[link].in_flight;
}

// As many as find a place, with one doorbell.
void Queue::send(Link& link) {
  if (link.waiting.empty()) return;
  batch_.clear();
  for (const std::uint32_t index : link.waiting) batch_.push_back(flights_[index].io);
  const std::size_t sent = link.share->submit(batch_);
  link.waiting.erase(link.waiting.begin(), link.waiting.begin() + static_cast<std::ptrdiff_t>(sent));
}

// By its place among those that wait.
void Queue::end_unsent(Link& link, std::size_t waiting, Code code) {
  const std::uint32_t index = link.waiting[waiting];
  link.waiting.erase(link.waiting.begin() + static_cast<std::ptrdiff_t>(waiting));
  ended_.push_back({.cookie = flights_[index].op.cookie, .code = code, .route = Route::direct});
  free(link, index);
}

void Queue::free(Link& link, std::uint32_t index) {
  flights_[index].busy = false;
  free_.push_back(index);
  --link.in_flight;
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
      const std::size_t got = link.share->poll(std::span(ios).first(wanted));
      for (std::size_t i = 0; i < got; ++i) done[count++] = finish(link, ios[i]);
      if (got < wanted) break;
    }
    send(link);
  }
  return count;
}

Done Queue::finish(Link& link, const IoDone& io) {
  const auto index = static_cast<std::uint32_t>(io.cookie);
  const Flight& flight = flights_[index];
  free(link, index);
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
      return collect(done);
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
    const auto interrupt = link.share->interrupt();
    // Others make room, or were in the way, and tell nobody.
    const bool looks = !interrupt || !link.waiting.empty() || link.share->missed();
    until = std::min(until, looks ? now + nap : link.share->next_deadline());
    if (interrupt) sleepers_[count++] = {*interrupt, POLLIN, 0};
  }
  const auto ns = std::max<std::int64_t>(std::chrono::nanoseconds(until - now).count(), 0);
  const timespec limit{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::ppoll(sleepers_.data(), count, &limit, nullptr);
  for (Link& link : links_) {
    if (link.in_flight != 0) link.share->after_sleep();
  }
  std::uint64_t wakes = 0;
  return ::read(event_.get(), &wakes, sizeof wakes) == sizeof wakes;
}

int Queue::event() {
  if (!events_) {
    events_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    watch(event_.get());
  }
  std::uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t read = ::read(event_.get(), &wakes, sizeof wakes);
  for (Link& link : links_) {
    if (link.in_flight == 0) continue;
    const auto interrupt = link.share->interrupt();
    if (!interrupt || !watch(*interrupt)) return -1;
    link.share->after_sleep();
  }
  // Also interrupts of links that have nothing in flight any more: nobody reads those.
  std::array<epoll_event, 8> told;
  while (::epoll_wait(events_.get(), told.data(), told.size(), 0) == static_cast<int>(told.size())) {
  }
  // What came after the last poll has been told already, and would not be told again.
  std::array<Done, 8> early;
  const std::size_t count = collect(early);
  ended_.insert(ended_.end(), early.begin(), early.begin() + static_cast<std::ptrdiff_t>(count));
  if (count > 0) {
    wake();
    return events_.get();
  }
  // Others make room, or were in the way, and tell nobody.
  const bool must_look = std::any_of(links_.begin(), links_.end(), [](const Link& link) {
    return link.in_flight != 0 && (!link.waiting.empty() || link.share->missed());
  });
  return must_look ? -1 : events_.get();
}

// Says whether it can be.
bool Queue::watch(int descriptor) {
  epoll_event wanted{.events = EPOLLIN | EPOLLET, .data = {}};
  return ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &wanted) == 0 || errno == EEXIST;
}

void Queue::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void Queue::cancel(std::uint64_t cookie) {
  for (std::uint32_t index = 0; index < flights_.size(); ++index) {
    if (!flights_[index].busy || flights_[index].op.cookie != cookie) continue;
    Link& link = links_[flights_[index].link];
    const auto waiting = std::find(link.waiting.begin(), link.waiting.end(), index);
    if (waiting != link.waiting.end()) {
      end_unsent(link, static_cast<std::size_t>(waiting - link.waiting.begin()), Code::cancelled);
    } else {
      link.share->cancel(index);
    }
    return;
  }
}

}  // namespace penstock::nvme
