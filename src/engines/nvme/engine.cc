#include "engines/nvme/engine.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engines/nvme/connection.h"
#include "engines/nvme/queue.h"
#include "engines/nvme/soft_backend.h"
#include "engines/nvme/store.h"
#include "nvme/errors.h"

namespace penstock::nvme {
namespace {

// Blocks of a controller that a store may write.
struct Claim {
  std::string controller;
  Namespace space;

  bool overlaps(const Claim& other) const {
    return controller == other.controller && space.info.id == other.space.info.id &&
           space.first_writable < other.space.first_writable + other.space.writable_blocks &&
           other.space.first_writable < space.first_writable + space.writable_blocks;
  }
};

// A controller that stores share. The lock is held while it is opened and closed: whoever comes then waits.
struct SharedConnection {
  std::mutex mutex;
  std::shared_ptr<Connection> connection;  // while there are users
  std::size_t users = 0;
};

class Engine : public engine::Engine {
 public:
  explicit Engine(Settings settings) : settings_(std::move(settings)) {}

  const engine::Description& description() const override { return settings_.description; }
  engine::Probe probe() const override { return settings_.probe(); }
  std::optional<engine::Meaning> meaning_of(std::int32_t number) const override {
    const auto status = status_from_number(number);
    return status ? std::optional(engine::Meaning{text_of(*status), {}}) : std::nullopt;
  }

  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    if (options.access != Access::read && options.access != Access::write) {
      return Error{Code::unsupported, 0, name + ": a namespace has a fixed size; it can't be created or replaced",
                   "open it for writing in place"};
    }
    auto device = settings_.connect(name, options);
    if (!device) return std::move(device).error();
    auto connection = connection_to(*device);
    if (!connection) return std::move(connection).error();
    Controller& controller = (*connection)->controller();
    if (const std::string failure = controller.failure(); !failure.empty()) {
      return Error{Code::io_error, 0, name + " can no longer be used: " + failure,
                   "close all stores on this controller, then open it again"};
    }
    auto found = controller.find_namespace(device->namespace_id);
    if (!found) return std::move(found).error();
    const bool writes = options.access == Access::write;
    Namespace space{.info = *found};
    if (writes) {
      if (auto status = check_target(*device, controller, *found); !status) return std::move(status).error();
      space.first_writable = device->first_writable;
      space.writable_blocks = device->writable_blocks != 0 ? device->writable_blocks : found->size_blocks;
    }
    auto info = describe(name, *device, controller, *found);
    if (!info) return std::move(info).error();
    info->writable = writes;
    auto claim = claim_window(*device, space, name);
    if (!claim) return std::move(claim).error();
    return std::unique_ptr<engine::Store>(std::make_unique<Store>(
        std::move(*info), std::move(*connection), std::move(space), std::move(device->state), std::move(*claim)));
  }

  engine::Memory* memory() override { return &attachments_; }

  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    return Queue::create(options);
  }

 private:
  Result<std::shared_ptr<Connection>> connection_to(Device& device) {
    if (device.transport) return Connection::open(std::move(device.transport), settings_.controller, attachments_);
    const auto shared = shared_connection(device.controller);
    const std::lock_guard lock(shared->mutex);
    if (!shared->connection) {
      auto transport = settings_.reach(device.controller);
      if (!transport) return std::move(transport).error();
      auto opened = Connection::open(std::move(*transport), settings_.controller, attachments_);
      if (!opened) return opened;
      shared->connection = std::move(*opened);
    }
    ++shared->users;
    return std::shared_ptr<Connection>(shared->connection.get(), [this, shared](Connection*) {
      if (attachments_.in_child()) return;
      const std::lock_guard leaving(shared->mutex);
      if (--shared->users == 0) shared->connection.reset();
    });
  }

  // Shared with the users, who leave it when they like.
  std::shared_ptr<SharedConnection> shared_connection(const std::string& controller) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<SharedConnection>& shared = connections_[controller];
    if (!shared) shared = std::make_shared<SharedConnection>();
    return shared;
  }

  // That it is the disk which was meant, and that the window lies on it.
  static Status check_target(const Device& device, Controller& controller, const NamespaceInfo& space) {
    if (!device.serial.empty() && device.serial != controller.info().serial) {
      return Error{Code::invalid_argument, 0,
                   controller.transport().name() + " has the serial number " + controller.info().serial + ", not " +
                       device.serial,
                   "check that it is the right disk: `penstock nvme identify`"};
    }
    if (device.first_writable > space.size_blocks ||
        device.writable_blocks > space.size_blocks - device.first_writable) {
      return Error{Code::out_of_range, 0,
                   "the window of writable blocks reaches past the end of namespace " + std::to_string(space.id),
                   "it has " + std::to_string(space.size_blocks) + " blocks"};
    }
    return {};
  }

  // Core changes parts of a block under locks of one open store: two of them must not share a block that both write.
  Result<std::shared_ptr<void>> claim_window(const Device& device, const Namespace& space, const std::string& name) {
    if (device.controller.empty() || space.writable_blocks == 0) return std::shared_ptr<void>();
    const std::lock_guard lock(mutex_);
    std::erase_if(claims_, [](const std::weak_ptr<Claim>& claim) { return claim.expired(); });
    const Claim wanted{device.controller, space};
    for (const std::weak_ptr<Claim>& one : claims_) {
      const auto other = one.lock();
      if (!other || !other->overlaps(wanted)) continue;
      return Error{Code::in_use, 0, name + ": some of these blocks are already open for writing",
                   "close the other store first, or choose another window"};
    }
    auto claim = std::make_shared<Claim>(wanted);
    claims_.push_back(claim);
    return std::shared_ptr<void>(std::move(claim));
  }

  static Result<StoreInfo> describe(const std::string& name, const Device& device, Controller& controller,
                                    const NamespaceInfo& space) {
    StoreInfo info;
    info.name = name;
    info.kind = device.kind;
    info.file_system = "nvme";
    info.size_bytes = device.size_bytes != 0 ? device.size_bytes : space.size_bytes();
    info.block_bytes = space.block_bytes;
    info.alignments = {space.block_bytes, 4, static_cast<std::uint32_t>(controller.info().max_transfer_bytes)};
    info.direct = true;
    info.identity = device.identity;
    if (!device.state) return info;
    auto state = device.state();
    if (!state) return std::move(state).error();
    info.identity = std::move(state->identity);
    info.size_bytes = state->size_bytes;
    return info;
  }

  const Settings settings_;
  Attachments attachments_;
  std::mutex mutex_;                                                      // guards what follows
  std::map<std::string, std::shared_ptr<SharedConnection>> connections_;  // by controller
  std::vector<std::weak_ptr<Claim>> claims_;
};

}  // namespace

std::unique_ptr<engine::Engine> make_engine(Settings settings) {
  return std::make_unique<Engine>(std::move(settings));
}

Result<Device> connect_soft(const std::shared_ptr<engine::Engine>& files, const std::string& name,
                            const OpenOptions& options, const SoftShape& shape, const SoftFaults& faults) {
  auto store = files->open(name, options);
  if (!store) return std::move(store).error();
  auto backend = StoreBackend::create(files, std::move(*store));
  if (!backend) return std::move(backend).error();
  engine::Store* const file = &(*backend)->store();
  SoftShape named = shape;
  named.name = "soft-nvme:" + name;
  Device device;
  device.kind = StoreKind::file;
  // The blocks are those of opening: what is appended later is not among them.
  device.state = [file] {
    auto state = file->state();
    if (state) state->size_bytes = std::min(state->size_bytes, file->info().size_bytes);
    return state;
  };
  device.transport = std::make_unique<SoftController>(std::move(*backend), std::move(named), faults);
  return device;
}

std::unique_ptr<engine::Engine> make_soft_engine(std::unique_ptr<engine::Engine> files, const SoftShape& shape,
                                                 const SoftFaults& faults, const ControllerOptions& options) {
  // Shared by the functions below, which the engine copies.
  const std::shared_ptr<engine::Engine> inner = std::move(files);
  Settings settings;
  settings.description = {.name = "soft-nvme",
                          .summary = "files behind an NVMe controller in software, which this process drives itself",
                          .schemes = {"soft-nvme"},
                          .sleeps_in_kernel = true,
                          .host = engine::HostReach::attached};
  settings.controller = options;
  settings.probe = [inner] {
    engine::Probe probe = inner->probe();
    probe.device_route.reset();
    probe.conditions.clear();
    return probe;
  };
  settings.connect = [inner, shape, faults](const std::string& name, const OpenOptions& open) {
    return connect_soft(inner, name, open, shape, faults);
  };
  return make_engine(std::move(settings));
}

}  // namespace penstock::nvme
