#include "engines/cufile/buffers.h"

#include <algorithm>

#include "base/log.h"
#include "cuda/driver.h"
#include "cuda/quiet.h"
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
  entry->memory = memory;
  entry->taken = true;
  entry->put_off = true;
  if (const Library* library = library_) register_entries(*library);
  return {static_cast<std::uint32_t>(entry - entries_.begin() + 1)};
}

void Buffers::remove(engine::MemoryKey key) {
  if (!key) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[key.id - 1];
  const auto device = device_of(entry.memory);
  if (entry.ours && device) {
    const Library& library = *library_;
    static_cast<void>(library.take_down(
        "cuFileBufDeregister", [device = *device, base = entry.memory.data, remove = library.api().buffer_deregister] {
          const cuda::Current current(*device);
          remove(base);
        }));
  }
  entry.memory = {};
  entry.taken = false;
  entry.registered = false;
  entry.ours = false;
}

void Buffers::use(const Library& library) {
  if (library_ != nullptr && !some_put_off_) return;
  const std::lock_guard lock(mutex_);
  register_entries(library);
  library_ = &library;
}

void Buffers::register_entries(const Library& library) {
  bool some_put_off = false;
  for (Entry& entry : entries_) {
    if (!entry.taken || !entry.put_off) continue;
    // A call that hangs is waited for only so long, and then no longer stands in the way of streams.
    entry.put_off = !cuda::Quiet::of_process().run([&] { register_entry(entry, library); });
    some_put_off |= entry.put_off;
  }
  some_put_off_ = some_put_off;
}

void Buffers::register_entry(Entry& entry, const Library& library) {
  const auto device = device_of(entry.memory);
  if (!device) return;
  const Region memory = entry.memory;
  const auto error = library.set_up(
      "cuFileBufRegister",
      [device = *device, memory, add = library.api().buffer_register] {
        const cuda::Current current(*device);
        return add(memory.data, memory.size_bytes, 0);
      },
      [device = *device, memory, remove = library.api().buffer_deregister] {
        const cuda::Current current(*device);
        remove(memory.data);
      });
  entry.ours = error && error->number == cf_success;
  entry.registered = entry.ours || (error && error->number == cf_memory_already_registered);
  if (entry.registered) return;
  const std::string what =
      "register " + std::to_string(memory.size_bytes) + " bytes of " + memory.domain.name() + " with cuFile";
  const std::string refusal = error ? make_error(*error, what).message : what + ": " + error.error().message;
  log(LogLevel::info, refusal + "; transfers go through buffers of cuFile's own");
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
