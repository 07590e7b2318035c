#include "model.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>

namespace fake_cufile {

Model& model() {
  static Model& model = *new Model;  // calls that hang may outlive the process's statics
  return model;
}

const Cuda& cuda_driver() {
  static const Cuda driver = [] {
    Cuda found;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) std::abort();
#define FIND(member, symbol, arguments) \
  found.api.member = reinterpret_cast<decltype(found.api.member)>(::dlsym(library, #symbol));
    PENSTOCK_CUDA_REQUIRED(FIND)
    PENSTOCK_CUDA_OPTIONAL(FIND)
#undef FIND
    found.fake = FakeCuda::loaded().value();
    return found;
  }();
  return driver;
}

bool Model::calls_cuda() {
  constexpr cuda::CuResult stream_capture_unsupported = 900;
  std::uint64_t id = 0;
  return cuda_driver().api.pointer_get_attribute(&id, cuda::cu_pointer_buffer_id, 0) != stream_capture_unsupported;
}

int Model::injected(const std::string& function) {
  const auto found = injections.find(function);
  if (found == injections.end()) return 0;
  Injection& injection = found->second;
  if (injection.calls_left > 1) {
    --injection.calls_left;
    return 0;
  }
  const int number = injection.number;
  if (!injection.always) injections.erase(found);
  return number;
}

int Model::injected_late(Lock& lock, const std::string& function) {
  if (!calls_cuda()) return cuda_failed.number;
  ++counters.hanging;
  changed.wait(lock, [&] { return !hanging_functions.contains(function) || ending; });
  --counters.hanging;
  changed.notify_all();
  return ending ? 5030 : injected(function);
}

bool Model::goes_direct() const {
  if (force_compat || (secretly_posix && allow_compat)) return false;
  return mode == fake_cufile_gds || (mode == fake_cufile_p2pdma && use_p2pdma);
}

bool Model::has_context() {
  cuda::CuContext context = nullptr;
  if (cuda_driver().api.context_pop(&context) != cuda::cu_success) {
    ++counters.without_context;
    return false;
  }
  cuda_driver().api.context_push(context);
  return true;
}

int Model::check(const Transfer& transfer) {
  if (!files.contains(transfer.handle)) return -5027;
  if (!has_context()) return -5047;
  const auto buffer = buffers.find(transfer.base);
  if (buffer != buffers.end()) {
    const bool within = transfer.memory_offset >= 0 && transfer.size <= buffer->second &&
                        static_cast<std::size_t>(transfer.memory_offset) <= buffer->second - transfer.size;
    return within ? 0 : -5017;
  }
  for (const auto& [base, size] : buffers) {
    if (transfer.base > base && transfer.base < base + size) ++counters.interior_pointers;
  }
  return 0;
}

ssize_t Model::move(Lock& lock, const Transfer& transfer, int fd) {
  const std::size_t bytes = part_bytes == 0 ? transfer.size : std::min(transfer.size, part_bytes);
  const unsigned us = delay_us;
  lock.unlock();
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
  std::vector<std::byte> host(bytes);
  const auto address =
      reinterpret_cast<std::uint64_t>(transfer.base) + static_cast<std::uint64_t>(transfer.memory_offset);
  const FakeCuda& gpu = cuda_driver().fake;
  ssize_t moved = 0;
  int result = cuda::cu_success;
  if (transfer.is_read) {
    moved = ::pread(fd, host.data(), bytes, transfer.file_offset);
    if (moved > 0) result = gpu.poke(address, host.data(), static_cast<std::size_t>(moved));
  } else {
    result = gpu.peek(address, host.data(), bytes);
    if (result == cuda::cu_success) moved = ::pwrite(fd, host.data(), bytes, transfer.file_offset);
  }
  const int error = errno;
  lock.lock();
  errno = error;
  return result == cuda::cu_success ? moved : -5012;
}

ssize_t Model::transfer(Lock& lock, const Transfer& transfer, const std::string& function) {
  ++counters.transfers;
  if (const int number = injected(function)) {
    errno = number;
    return number < cf_error_base ? -1 : -number;
  }
  if (!calls_cuda()) return -cuda_failed.number;
  if (const int refusal = check(transfer)) return refusal;
  ++counters.in_transfers;
  changed.wait(lock, [this] { return !hang || ending; });
  const ssize_t moved = ending ? -5044 : move(lock, transfer, files.at(transfer.handle).plain.get());
  --counters.in_transfers;
  changed.notify_all();
  if (moved > 0 && counting) {
    Ways& ways = transfer.is_read ? reads : writes;
    ++(!goes_direct() ? ways.posix : mode == fake_cufile_gds ? ways.nvidia_fs : ways.p2pdma);
  }
  return moved;
}

}  // namespace fake_cufile

using namespace fake_cufile;

FAKE_CUFILE_EXPORT void fake_cufile_reset() {
  Model& m = model();
  Lock lock(m.mutex);
  m.ending = true;
  m.changed.notify_all();
  m.changed.wait(lock, [&] { return m.counters.in_transfers + m.counters.hanging == 0; });
  m.mode = fake_cufile_compat;
  m.version = 1150;
  m.part_bytes = 0;
  m.delay_us = 0;
  m.hang = m.ending = m.secretly_posix = m.force_compat = m.use_p2pdma = m.counting = false;
  m.allow_compat = true;
  m.stall = fake_cufile_no_stall;
  m.statistics_level = 0;
  m.injections.clear();
  m.hanging_functions.clear();
  m.files.clear();
  m.buffers.clear();
  m.batches.clear();
  m.reads = m.writes = {};
  m.counters = {};
}

FAKE_CUFILE_EXPORT void fake_cufile_set_mode(int mode) {
  const Lock lock(model().mutex);
  model().mode = mode;
}

FAKE_CUFILE_EXPORT void fake_cufile_set_version(int version) {
  const Lock lock(model().mutex);
  model().version = version;
}

FAKE_CUFILE_EXPORT void fake_cufile_set_part(std::uint64_t bytes) {
  const Lock lock(model().mutex);
  model().part_bytes = bytes;
}

FAKE_CUFILE_EXPORT void fake_cufile_set_delay(unsigned us) {
  const Lock lock(model().mutex);
  model().delay_us = us;
}

FAKE_CUFILE_EXPORT void fake_cufile_set_hang(int hang) {
  const Lock lock(model().mutex);
  model().hang = hang != 0;
  model().changed.notify_all();
}

FAKE_CUFILE_EXPORT void fake_cufile_hang(const char* function, int hang) {
  const Lock lock(model().mutex);
  if (hang != 0) {
    model().hanging_functions.insert(function);
  } else {
    model().hanging_functions.erase(function);
  }
  model().changed.notify_all();
}

FAKE_CUFILE_EXPORT void fake_cufile_set_secretly_posix(int posix) {
  const Lock lock(model().mutex);
  model().secretly_posix = posix != 0;
}

FAKE_CUFILE_EXPORT void fake_cufile_set_stall(int stall) {
  const Lock lock(model().mutex);
  model().stall = stall;
}

FAKE_CUFILE_EXPORT void fake_cufile_open_by_others(int compat) {
  const Lock lock(model().mutex);
  model().allow_compat = compat != 0;
  ++model().counters.use_count;
}

FAKE_CUFILE_EXPORT void fake_cufile_fail(const char* function, unsigned nth, int number, int always) {
  const Lock lock(model().mutex);
  model().injections[function] = {nth, number, always != 0};
}

FAKE_CUFILE_EXPORT FakeCufileCounters fake_cufile_counters() {
  const Lock lock(model().mutex);
  FakeCufileCounters counters = model().counters;
  counters.handles = model().files.size();
  counters.buffers = model().buffers.size();
  counters.batches = model().batches.size();
  return counters;
}
