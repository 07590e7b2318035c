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

Result<std::unique_ptr<engine::Attached>> Buffers::attach(Region memory) {
  if (memory.domain.host_accessible()) return std::unique_ptr<engine::Attached>();
  auto buffer = std::make_unique<AttachedBuffer>(*this, memory);
  const std::lock_guard lock(mutex_);
  attached_.push_back(buffer.get());
  if (const Library* library = library_) register_all(*library);
  return std::unique_ptr<engine::Attached>(std::move(buffer));
}

AttachedBuffer::~AttachedBuffer() {
  buffers_.remove(*this);
}

void Buffers::remove(AttachedBuffer& buffer) {
  const std::lock_guard lock(mutex_);
  std::erase(attached_, &buffer);
  const auto device = device_of(buffer.memory_);
  if (!buffer.ours_ || !device) return;
  const Library& library = *library_;
  static_cast<void>(library.take_down(
      "cuFileBufDeregister", [device = *device, base = buffer.memory_.data, remove = library.api().buffer_deregister] {
        const cuda::Current current(*device);
        remove(base);
      }));
}

void Buffers::use(const Library& library) {
  if (library_ != nullptr && !some_put_off_) return;
  const std::lock_guard lock(mutex_);
  register_all(library);
  library_ = &library;
}

void Buffers::register_all(const Library& library) {
  bool some_put_off = false;
  for (AttachedBuffer* const buffer : attached_) {
    if (!buffer->put_off_) continue;
    // A call that hangs is waited for only so long, and then no longer stands in the way of streams.
    buffer->put_off_ = !cuda::Quiet::of_process().run([&] { buffer->register_with(library); });
    some_put_off |= buffer->put_off_;
  }
  some_put_off_ = some_put_off;
}

void AttachedBuffer::register_with(const Library& library) {
  const auto device = device_of(memory_);
  if (!device) return;
  const auto error = library.set_up(
      "cuFileBufRegister",
      [device = *device, memory = memory_, add = library.api().buffer_register] {
        const cuda::Current current(*device);
        return add(memory.data, memory.size_bytes, 0);
      },
      [device = *device, memory = memory_, remove = library.api().buffer_deregister] {
        const cuda::Current current(*device);
        remove(memory.data);
      });
  ours_ = error && error->number == cf_success;
  registered_ = ours_ || (error && error->number == cf_memory_already_registered);
  if (registered_) return;
  const std::string what =
      "register " + std::to_string(memory_.size_bytes) + " bytes of " + memory_.domain.name() + " with cuFile";
  const std::string refusal = error ? make_error(*error, what).message : what + ": " + error.error().message;
  log(LogLevel::info, refusal + "; transfers go through cuFile's own buffers");
}

Place AttachedBuffer::place_of(std::byte* memory) const {
  const int device = memory_.domain.device();
  if (!registered_) return {memory, 0, device};
  return {memory_.data, static_cast<off_t>(memory - memory_.data), device};
}

Result<Place> Buffers::find(const engine::Op& op) {
  if (op.attached != nullptr) return static_cast<const AttachedBuffer*>(op.attached)->place_of(op.memory);
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const auto memory = (*driver)->find(op.memory, 1);
  if (!memory) return memory.error();
  return Place{op.memory, 0, memory->domain.device()};
}

}  // namespace penstock::cufile
