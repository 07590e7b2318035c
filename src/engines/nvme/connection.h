// Connection: a controller in use by stores of the engine: its driver, its shares, and mapped memory.
//
// Attachments: gives memory that is made known to the engine a number, by which each Connection maps it when it first
// meets it.
//
// Thread safety: any thread, but what a Share holds is its user's. Lifetime: of the stores that share it; the
// Attachments outlive it. It goes when nothing is in flight on it. In the child of a fork nothing of it is touched, and
// it is left behind: the doorbells there are the parent's.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/memory.h"
#include "engines/nvme/share.h"
#include "nvme/controller.h"

namespace penstock::nvme {

class Connection;

class AttachedMemory;

class Attachments : public engine::Memory {
 public:
  static constexpr std::uint32_t slots = 1024;

  Result<std::unique_ptr<engine::Attached>> attach(Region memory) override;
  bool reaches(const engine::Attached& attached, const engine::Store& store) override;
  void remove(const AttachedMemory& memory);
  // Of a fork: the device is the parent's alone.
  bool in_child() const { return ::getpid() != process_; }

  void join(Connection& connection);
  void leave(Connection& connection);

 private:
  std::mutex mutex_;  // guards what follows
  std::array<bool, slots> taken_{};
  std::vector<Connection*> connections_;
  const pid_t process_ = ::getpid();
};

class AttachedMemory : public engine::Attached {
 public:
  AttachedMemory(Attachments& attachments, std::uint32_t slot, Region memory);
  ~AttachedMemory() override { attachments_.remove(*this); }

  std::uint32_t slot() const { return slot_; }
  // The whole pages around it, of which controllers map no less.
  std::byte* pages() const { return pages_; }
  std::size_t pages_bytes() const { return pages_bytes_; }

 private:
  Attachments& attachments_;
  const std::uint32_t slot_;
  std::byte* const pages_;
  const std::size_t pages_bytes_;
};

class Connection {
 public:
  static Result<std::shared_ptr<Connection>> open(std::unique_ptr<Transport> transport,
                                                  const ControllerOptions& options, Attachments& attachments);
  ~Connection();

  // Never used again for another Connection.
  std::uint64_t id() const { return id_; }
  Controller& controller() { return *controller_; }

  // The share of a user, made when first asked for; the same until released. `event` is as Share takes it.
  Result<Share*> share_of(const void* user, int event = -1);
  // REQUIRES: nothing is in flight on the user's share.
  void release(const void* user);

  // Where the controller finds attached memory; nothing if it can't reach it.
  std::optional<std::uint64_t> address_of(const AttachedMemory& attached, const std::byte* memory);
  void forget(std::uint32_t slot);

  // One operation without memory, to its end, on the calling thread; tried again where that may help.
  Status run(const Io& io, const std::string& what);

 private:
  struct Mapping {
    std::atomic<std::uint64_t> address{0};  // of the first page; or unmapped, or refused
    std::size_t size_bytes = 0;
  };
  static constexpr std::uint64_t unmapped = 0;
  static constexpr std::uint64_t refused = 1;
  struct User {
    const void* user = nullptr;
    std::unique_ptr<Share> share;
  };

  Connection(std::unique_ptr<Transport> transport, Attachments& attachments);
  void map(const AttachedMemory& attached);
  Result<std::shared_ptr<SharedQueue>> queue_for_another();
  Result<IoDone> run_once(Share& share, const Io& io, TimePoint deadline);

  const std::uint64_t id_;
  const std::unique_ptr<Transport> transport_;
  Attachments& attachments_;
  std::unique_ptr<Controller> controller_;
  std::mutex mutex_;                                  // guards what follows, but for the loads of addresses
  std::vector<std::shared_ptr<SharedQueue>> queues_;  // shared with their shares
  std::vector<User> users_;
  std::array<Mapping, Attachments::slots> mappings_{};  // by the slot of attached memory
  std::mutex run_mutex_;
  std::uint32_t next_run_ = 0;
};

}  // namespace penstock::nvme
