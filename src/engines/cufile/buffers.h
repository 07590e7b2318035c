// Buffers: the GPU memory that was attached to the engine, and whether cuFile knows it.
//
// Memory that is attached before cuFile's driver is open is registered when it opens: looking at memory must not open
// it. Registering may wait for the device, so it is put off while a stream waits for us, until a file is opened or
// memory attached when none does. A registration that is put off, or that cuFile refuses or does not come back from,
// costs speed, nothing else.
//
// Thread safety: every call from any thread; `find` takes no lock. Lifetime: outlives the queues and what is attached.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/memory.h"
#include "engine/op.h"
#include "engines/cufile/library.h"

namespace penstock::cufile {

// Where an operation's memory is, as cuFile wants it named.
struct Place {
  std::byte* base = nullptr;  // of the registration, or the memory itself
  off_t offset = 0;
  int device = 0;
};

class Buffers;

class AttachedBuffer : public engine::Attached {
 public:
  AttachedBuffer(Buffers& buffers, Region memory) : buffers_(buffers), memory_(memory) {}
  ~AttachedBuffer() override;

  // So that base and offset may be used.
  bool is_registered() const { return registered_; }
  Place place_of(std::byte* memory) const;

 private:
  friend class Buffers;

  void register_with(const Library& library);

  Buffers& buffers_;
  const Region memory_;
  // These are guarded by the mutex of Buffers, but for loads of `registered_`.
  bool put_off_ = true;  // until the driver is open, and no stream waits
  std::atomic<bool> registered_ = false;
  bool ours_ = false;  // so that we end it
};

class Buffers : public engine::Memory {
 public:
  Result<std::unique_ptr<engine::Attached>> attach(Region memory) override;
  void remove(AttachedBuffer& buffer);

  // Registers what was attached before, and at once what will be. Called again, it registers what was put off.
  void use(const Library& library);

  // Of an operation's memory. An error where CUDA does not know it.
  static Result<Place> find(const engine::Op& op);

 private:
  // REQUIRES: the lock.
  void register_all(const Library& library);

  std::mutex mutex_;
  std::atomic<const Library*> library_{nullptr};  // set when it has been asked to register all of them
  std::atomic<bool> some_put_off_ = false;
  std::vector<AttachedBuffer*> attached_;
};

}  // namespace penstock::cufile
