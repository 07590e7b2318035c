#include "engines/cufile/buffers.h"

#include <algorithm>

#include "base/log.h"
#include "cuda/driver.h"
#include "engines/cufile/errors.h"

namespace penstock::cufile {
namespace {

// cuFile takes the device of a buffer from the context that is current.
Result<cuda::Device*> device_of(Region memory) {
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  return (*driver)->device(memory.domain.device());
}

}  // namespace

engine::MemoryKey Buffers::add(Region memory) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::ranges::find(entries_, false, &Entry::taken);
  if (entry == entries_.end()) return {};
  *entry = {.memory = memory, .taken = true};
  if (library_ != nullptr) register_entry(*entry);
  return {static_cast<std::uint32_t>(entry - entries_.begin() + 1)};
}

void Buffers::remove(engine::MemoryKey key) {
  if (!key) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[key.id - 1];
  const auto device = device_of(entry.memory);
  if (entry.ours && device) {
    const cuda::Current current(**device);
    library_->api().buffer_deregister(entry.memory.data);
  }
  entry = {};
}

void Buffers::use(const Library& library) {
  const std::lock_guard lock(mutex_);
  if (library_ != nullptr) return;
  library_ = &library;
  for (Entry& entry : entries_) {
    if (entry.taken) register_entry(entry);
  }
}

void Buffers::register_entry(Entry& entry) const {
  const auto device = device_of(entry.memory);
  if (!device) return;
  const cuda::Current current(**device);
  const CfError error = library_->api().buffer_register(entry.memory.data, entry.memory.size_bytes, 0);
  entry.ours = error.number == cf_success;
  entry.registered = entry.ours || error.number == cf_memory_already_registered;
  if (entry.registered) return;
  const Error refusal = make_error(error, "register " + std::to_string(entry.memory.size_bytes) + " bytes of " +
                                              entry.memory.domain.name() + " with cuFile");
  log(LogLevel::info, refusal.message + "; transfers go through buffers of cuFile's own");
}

Result<Place> Buffers::find(const engine::Op& op) const {
  if (op.key) {
    const Entry& entry = entries_[op.key.id - 1];
    const int device = entry.memory.domain.device();
    if (!entry.registered) return Place{op.memory, 0, device};
    return Place{entry.memory.data, static_cast<off_t>(op.memory - entry.memory.data), device};
  }
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const auto memory = (*driver)->find(op.memory, 1);
  if (!memory) return memory.error();
  return Place{op.memory, 0, memory->domain.device()};
}

}  // namespace penstock::cufile
