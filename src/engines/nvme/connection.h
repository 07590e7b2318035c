// Connection: a controller in use by stores of the engine: its driver, a queue for each lane, and mapped memory.
//
// Attachments: the memory that was made known to the engine; each Connection maps it when it first meets it.
//
// Thread safety: any thread, but what a Lane holds is its user's. Lifetime: of the stores that share it; the
// Attachments outlive it. It goes when nothing is in flight on it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/op.h"
#include "nvme/controller.h"
#include "nvme/io_queue.h"
#include "penstock/region.h"

namespace penstock::nvme {

class Connection;

class Attachments {
 public:
  static constexpr std::uint32_t slots = 1024;

  struct Memory {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
  };

  // Without id when all slots are taken: such memory is served by copies.
  engine::MemoryKey add(Region memory);
  void remove(engine::MemoryKey key);
  const Memory& at(engine::MemoryKey key) const { return memory_[key.id]; }

  void join(Connection& connection);
  void leave(Connection& connection);

 private:
  std::mutex mutex_;  // guards all but memory_, whose entries are written only while nobody has their key
  std::array<Memory, slots> memory_{};
  std::vector<Connection*> connections_;
};

class Connection {
 public:
  // What one lane of core has of a controller.
  struct Lane {
    static constexpr std::size_t bounce_bytes = 128 << 10;
    static constexpr std::size_t bounces = 16;
    std::unique_ptr<IoQueue> queue;
    // For memory that the controller can't reach: copied through here. Made when first needed.
    DmaMemory bounce;
    std::vector<std::uint32_t> free_bounces;

    std::byte* bounce_at(std::uint32_t index) const { return bounce.data() + index * bounce_bytes; }
    std::uint64_t bounce_address(std::uint32_t index) const { return bounce.address() + index * bounce_bytes; }
    // False if there is no memory for it.
    bool make_bounces(Transport& transport);
  };

  static Result<std::shared_ptr<Connection>> open(std::unique_ptr<Transport> transport,
                                                  const ControllerOptions& options, Attachments& attachments);
  ~Connection();

  // Never used again for another Connection.
  std::uint64_t id() const { return id_; }
  Controller& controller() { return *controller_; }

  // The lane of a user, made when first asked for; the same until released.
  Result<Lane*> lane_of(const void* user);
  // REQUIRES: nothing is in flight on the user's lane.
  void release(const void* user);

  // Where the controller finds attached memory; nothing if it can't reach it.
  std::optional<std::uint64_t> address_of(engine::MemoryKey key, const std::byte* memory);
  void forget(engine::MemoryKey key);

  // One operation, to its end, on the calling thread.
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
    std::unique_ptr<Lane> lane;
  };

  Connection(std::unique_ptr<Transport> transport, Attachments& attachments);
  void map(engine::MemoryKey key);

  const std::uint64_t id_;
  const std::unique_ptr<Transport> transport_;
  Attachments& attachments_;
  std::unique_ptr<Controller> controller_;
  std::mutex mutex_;  // guards what follows, but for the loads of addresses
  std::vector<User> users_;
  std::array<Mapping, Attachments::slots> mappings_{};
  std::mutex run_mutex_;
};

}  // namespace penstock::nvme
