#include "engines/nvme/connection.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"

namespace penstock::nvme {
namespace {

std::atomic<std::uint64_t> next_id{1};

struct Pages {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
};

Pages pages_around(const Attachments::Memory& memory) {
  const std::size_t page = system_page_bytes();
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data);
  const std::size_t lead = begin % page;
  return {memory.data - lead, (lead + memory.size_bytes + page - 1) / page * page};
}

}  // namespace

engine::MemoryKey Attachments::add(Region memory) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t id = 1; id < slots; ++id) {
    if (memory_[id].data != nullptr) continue;
    memory_[id] = {memory.data, memory.size_bytes};
    return {id};
  }
  return {};
}

void Attachments::remove(engine::MemoryKey key) {
  const std::lock_guard lock(mutex_);
  for (Connection* connection : connections_) connection->forget(key);
  memory_[key.id] = {};
}

void Attachments::join(Connection& connection) {
  const std::lock_guard lock(mutex_);
  connections_.push_back(&connection);
}

void Attachments::leave(Connection& connection) {
  const std::lock_guard lock(mutex_);
  std::erase(connections_, &connection);
}

bool Connection::Lane::make_bounces(Transport& transport) {
  // Fewer where little memory may be locked.
  for (std::uint32_t count = bounces; count > 0; count /= 4) {
    auto memory = DmaMemory::create(transport, count * bounce_bytes);
    if (!memory && count == 1) log(LogLevel::error, memory.error().message + "; " + memory.error().hint);
    if (!memory) continue;
    bounce = std::move(*memory);
    for (std::uint32_t i = 0; i < count; ++i) free_bounces.push_back(i);
    return true;
  }
  return false;
}

Result<std::shared_ptr<Connection>> Connection::open(std::unique_ptr<Transport> transport,
                                                     const ControllerOptions& options, Attachments& attachments) {
  std::shared_ptr<Connection> connection(new Connection(std::move(transport), attachments));
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
  for (std::uint32_t id = 0; id < Attachments::slots; ++id) forget({id});
  controller_.reset();
}

Result<Connection::Lane*> Connection::lane_of(const void* user) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(users_.begin(), users_.end(), [user](const User& one) { return one.user == user; });
  if (found != users_.end()) return found->lane.get();
  auto queue = controller_->make_queue();
  if (!queue) return std::move(queue).error();
  auto lane = std::make_unique<Lane>();
  lane->queue = std::move(*queue);
  users_.push_back({user, std::move(lane)});
  return users_.back().lane.get();
}

void Connection::release(const void* user) {
  const std::lock_guard lock(mutex_);
  std::erase_if(users_, [user](const User& one) { return one.user == user; });
}

std::optional<std::uint64_t> Connection::address_of(engine::MemoryKey key, const std::byte* memory) {
  if (!key) return std::nullopt;
  const auto& address = mappings_[key.id].address;
  if (address.load(std::memory_order_acquire) == unmapped) map(key);
  const std::uint64_t first = address.load(std::memory_order_acquire);
  if (first == refused) return std::nullopt;
  return first + static_cast<std::uint64_t>(memory - pages_around(attachments_.at(key)).data);
}

void Connection::map(engine::MemoryKey key) {
  const std::lock_guard lock(mutex_);
  Mapping& mapping = mappings_[key.id];
  if (mapping.address.load(std::memory_order_relaxed) != unmapped) return;
  const Pages pages = pages_around(attachments_.at(key));
  const auto mapped = transport_->map(pages.data, pages.size_bytes);
  mapping.size_bytes = pages.size_bytes;
  mapping.address.store(mapped ? *mapped : refused, std::memory_order_release);
}

void Connection::forget(engine::MemoryKey key) {
  const std::lock_guard lock(mutex_);
  Mapping& mapping = mappings_[key.id];
  const std::uint64_t address = mapping.address.exchange(unmapped);
  if (address != unmapped && address != refused) transport_->unmap(address, mapping.size_bytes);
}

Status Connection::run(const Io& io, const std::string& what) {
  const std::lock_guard running(run_mutex_);
  auto lane = lane_of(this);
  if (!lane) return std::move(lane).error();
  IoQueue& queue = *(*lane)->queue;
  queue.submit({&io, 1});
  IoDone done;
  // Bounded by the deadlines of commands, after which the controller is reset or given up.
  while (queue.poll({&done, 1}) == 0) {
    queue.after_sleep();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (done.code == Code::ok) return {};
  return Error{done.code, done.system_error, what + " failed", controller_->failure()};
}

}  // namespace penstock::nvme
