// Buffers: the GPU memory that was attached to the engine, and whether cuFile knows it.
//
// Memory that is attached before cuFile's driver is open is registered when it opens: looking at memory must not open
// it. Registering may wait for the device, so it is put off while a stream waits for us, until a file is opened or
// memory attached when none does. A registration that is put off, or that cuFile refuses or does not come back from,
// costs speed, nothing else.
//
// Thread safety: every call from any thread; `find` takes no lock, because an entry is written only while nobody uses
// its key, but for `registered`. Lifetime: outlives the queues.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "engine/op.h"
#include "engines/cufile/library.h"
#include "penstock/region.h"

namespace penstock::cufile {

// Where an operation's memory is, as cuFile wants it named.
struct Place {
  std::byte* base = nullptr;  // of the registration, or the memory itself
  off_t offset = 0;
  int device = 0;
};

class Buffers {
 public:
  // A key without id when there is no room left for one.
  engine::MemoryKey add(Region memory);
  void remove(engine::MemoryKey key);

  // Registers what was added before, and at once what will be. Called again, it registers what was put off.
  void use(const Library& library);

  // Of an operation's memory. An error where CUDA does not know it.
  Result<Place> find(const engine::Op& op) const;

  // For tests.
  bool registered(engine::MemoryKey key) const { return entries_[key.id - 1].registered; }

 private:
  struct Entry {
    Region memory;
    bool taken = false;
    bool put_off = false;                  // until the driver is open, and no stream waits
    std::atomic<bool> registered = false;  // so that base and offset may be used
    bool ours = false;                     // so that we end it
  };
  // REQUIRES: the lock.
  void register_entries(const Library& library);
  static void register_entry(Entry& entry, const Library& library);

  std::mutex mutex_;
  std::atomic<const Library*> library_{nullptr};  // set when it has been asked to register all entries
  std::atomic<bool> some_put_off_ = false;
  std::array<Entry, 4096> entries_;
};

}  // namespace penstock::cufile
