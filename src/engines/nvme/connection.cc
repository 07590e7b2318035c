#include "engines/nvme/connection.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engines/nvme/store.h"

namespace penstock::nvme {
namespace {

std::atomic<std::uint64_t> next_id{1};

// Of a run by itself: beyond the deadline of a command and every step that follows it.
constexpr auto longest_run = std::chrono::seconds(120);
constexpr std::uint32_t most_attempts = 8;
constexpr auto first_backoff = std::chrono::milliseconds(1);

std::size_t bytes_into_page(const std::byte* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % system_page_bytes();
}

}  // namespace

Result<std::unique_ptr<engine::Attached>> Attachments::attach(Region memory) {
  if (!memory.domain.host_accessible()) return std::unique_ptr<engine::Attached>();
  const std::lock_guard lock(mutex_);
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free == taken_.end()) {
    return Error{Code::unsupported, 0, std::to_string(slots) + " pieces of memory are already attached",
                 "attach fewer, larger ones"};
  }
  const auto slot = static_cast<std::uint32_t>(free - taken_.begin());
  std::unique_ptr<engine::Attached> attached = std::make_unique<AttachedMemory>(*this, slot, memory);
  *free = true;
  return attached;
}

bool Attachments::reaches(const engine::Attached& attached, const engine::Store& store) {
  const auto& memory = static_cast<const AttachedMemory&>(attached);
  return static_cast<const Store&>(store).connection()->address_of(memory, memory.pages()).has_value();
}

void Attachments::remove(const AttachedMemory& memory) {
  if (in_child()) return;
  const std::lock_guard lock(mutex_);
  for (Connection* connection : connections_) connection->forget(memory.slot());
  taken_[memory.slot()] = false;
}

AttachedMemory::AttachedMemory(Attachments& attachments, std::uint32_t slot, Region memory)
    : attachments_(attachments),
      slot_(slot),
      pages_(memory.data - bytes_into_page(memory.data)),
      pages_bytes_((bytes_into_page(memory.data) + memory.size_bytes + system_page_bytes() - 1) / system_page_bytes() *
                   system_page_bytes()) {}

void Attachments::join(Connection& connection) {
  const std::lock_guard lock(mutex_);
  connections_.push_back(&connection);
}

void Attachments::leave(Connection& connection) {
  const std::lock_guard lock(mutex_);
  std::erase(connections_, &connection);
}

Result<std::shared_ptr<Connection>> Connection::open(std::unique_ptr<Transport> transport,
                                                     const ControllerOptions& options, Attachments& attachments) {
  std::shared_ptr<Connection> connection(new Connection(std::move(transport), attachments), [](Connection* one) {
    if (!one->attachments_.in_child()) delete one;
  });
  auto controller = Controller::open(*connection->transport_, options);
  if (!controller) return std::move(controller).error();
  connection->controller_ = std::move(*controller);
  return connection;
}

Connection::Connection(std::unique_ptr<Transport> transport, Attachments& attachments)
    : id_(next_id++), transport_(std::move(transport)), attachments_(attachments) {
  attachments_.join(*this);
}

Connection::~Connection() {
  attachments_.leave(*this);
  users_.clear();
  queues_.clear();
  for (std::uint32_t slot = 0; slot < Attachments::slots; ++slot) forget(slot);
  controller_.reset();
}

Result<Share*> Connection::share_of(const void* user, int event) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(users_.begin(), users_.end(), [user](const User& one) { return one.user == user; });
  if (found != users_.end()) return found->share.get();
  auto queue = queue_for_another();
  if (!queue) return std::move(queue).error();
  users_.push_back({user, std::make_unique<Share>(std::move(*queue), event)});
  return users_.back().share.get();
}

// A new one, or where no more can be had, the one that has the fewest users.
Result<std::shared_ptr<SharedQueue>> Connection::queue_for_another() {
  auto made = controller_->make_queue();
  if (made) {
    auto queue = std::make_shared<SharedQueue>();
    queue->queue = std::move(*made);
    queues_.push_back(queue);
    return queue;
  }
  if (queues_.empty() || !controller_->failure().empty()) return std::move(made).error();
  if (made.error().code != Code::unsupported) {
    log(LogLevel::warning, made.error().message + "; lanes share the queues that there are; " + made.error().hint);
  }
  return *std::min_element(queues_.begin(), queues_.end(),
                           [](const auto& a, const auto& b) { return a.use_count() < b.use_count(); });
}

void Connection::release(const void* user) {
  const std::lock_guard lock(mutex_);
  std::erase_if(users_, [user](const User& one) { return one.user == user; });
  std::erase_if(queues_, [](const auto& queue) { return queue.use_count() == 1; });
}

std::optional<std::uint64_t> Connection::address_of(const AttachedMemory& attached, const std::byte* memory) {
  const auto& address = mappings_[attached.slot()].address;
  if (address.load(std::memory_order_acquire) == unmapped) map(attached);
  const std::uint64_t first = address.load(std::memory_order_acquire);
  if (first == refused) return std::nullopt;
  return first + static_cast<std::uint64_t>(memory - attached.pages());
}

void Connection::map(const AttachedMemory& attached) {
  const std::lock_guard lock(mutex_);
  Mapping& mapping = mappings_[attached.slot()];
  if (mapping.address.load(std::memory_order_relaxed) != unmapped) return;
  const auto mapped = transport_->map(attached.pages(), attached.pages_bytes());
  if (!mapped) log(LogLevel::warning, mapped.error().message + "; its bytes are copied; " + mapped.error().hint);
  mapping.size_bytes = attached.pages_bytes();
  mapping.address.store(mapped ? *mapped : refused, std::memory_order_release);
}

void Connection::forget(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  Mapping& mapping = mappings_[slot];
  const std::uint64_t address = mapping.address.exchange(unmapped);
  if (address != unmapped && address != refused) transport_->unmap(address, mapping.size_bytes);
}

Status Connection::run(const Io& io, const std::string& what) {
  if (attachments_.in_child()) {
    return Error{Code::closed, 0, what + ": the controller belongs to the parent of a fork", "open it again here"};
  }
  const std::lock_guard running(run_mutex_);
  auto share = share_of(this);
  if (!share) return std::move(share).error();
  const TimePoint deadline = Clock::now() + longest_run;
  Result<IoDone> done = run_once(**share, io, deadline);
  for (std::uint32_t again = 1; done && done->system_error == EAGAIN && again < most_attempts; ++again) {
    std::this_thread::sleep_for(first_backoff * (1 << again));
    done = run_once(**share, io, deadline);
  }
  if (!done) return Error{done.error().code, 0, what + ": " + done.error().message, done.error().hint};
  if (done->code == Code::ok) return {};
  return Error{done->code, done->system_error, what + " failed", controller_->failure()};
}

Result<IoDone> Connection::run_once(Share& share, const Io& io, TimePoint deadline) {
  const std::uint32_t cookie = next_run_++;
  Io mine = io;
  mine.cookie = cookie;
  bool sent = false;
  while (true) {
    if (!sent) sent = share.submit({&mine, 1}) == 1;
    IoDone done;
    // What comes late, from a run that was given up, is not this one's.
    if (share.poll({&done, 1}) == 1 && done.cookie == cookie) return done;
    if (share.is_stuck()) return Error{Code::io_error, 0, "the controller can't be stopped", controller_->failure()};
    if (Clock::now() > deadline) {
      share.cancel(cookie);
      return Error{Code::timed_out, 0, "the controller does not answer", ""};
    }
    share.after_sleep();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace penstock::nvme
