#include "engines/nvme/engine.h"

#include <algorithm>
#include <utility>

#include "engines/nvme/connection.h"
#include "engines/nvme/queue.h"
#include "engines/nvme/soft_backend.h"
#include "engines/nvme/store.h"

namespace penstock::nvme {
namespace {

class Engine : public engine::Engine {
 public:
  explicit Engine(Settings settings) : settings_(std::move(settings)) {}

  const engine::Description& description() const override { return settings_.description; }
  engine::Probe probe() const override { return settings_.probe(); }

  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    if (options.access != Access::read && options.access != Access::write) {
      return Error{Code::unsupported, 0,
                   name + ": the size of a namespace is what it is; it can't be created or replaced",
                   "open it for writing in place"};
    }
    auto device = settings_.connect(name, options);
    if (!device) return std::move(device).error();
    auto connection = Connection::open(std::move(device->transport), settings_.controller, attachments_);
    if (!connection) return std::move(connection).error();
    auto found = (*connection)->controller().find_namespace(device->namespace_id);
    if (!found) return std::move(found).error();
    const bool writes = options.access == Access::write;
    Namespace space{.info = *found};
    if (writes) {
      space.first_writable = device->first_writable;
      space.writable_blocks = device->writable_blocks != 0 ? device->writable_blocks : found->size_blocks;
    }
    auto info = describe(name, *device, (*connection)->controller(), *found);
    if (!info) return std::move(info).error();
    info->writable = writes;
    return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(*info), std::move(*connection),
                                                                  std::move(space), std::move(device->identity)));
  }

  Result<engine::MemoryKey> attach(Region memory) override {
    return memory.domain.host_accessible() ? attachments_.add(memory) : engine::MemoryKey{};
  }
  void detach(engine::MemoryKey key) override { attachments_.remove(key); }

  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    return Queue::create(options);
  }

 private:
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
    info.identity.size_bytes = info.size_bytes;
    if (!device.identity) return info;
    auto identity = device.identity();
    if (!identity) return std::move(identity).error();
    info.identity = *identity;
    info.size_bytes = identity->size_bytes;
    return info;
  }

  const Settings settings_;
  Attachments attachments_;
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
  device.identity = [file] {
    auto identity = file->identity();
    if (identity) identity->size_bytes = std::min(identity->size_bytes, file->info().size_bytes);
    return identity;
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
                          .sleeps_in_kernel = true};
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
