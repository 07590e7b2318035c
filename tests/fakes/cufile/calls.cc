// What every release of cuFile has.
#include <fcntl.h>

#include <algorithm>
#include <string>

#include "model.h"

using namespace fake_cufile;

FAKE_CUFILE_EXPORT CfError cuFileDriverOpen() {
  Lock lock(model().mutex);
  Model& m = model();
  if (const int number = m.injected_late(lock, "cuFileDriverOpen")) return {number, 0};
  if (!m.is_open() && m.mode == fake_cufile_compat && !m.allow_compat) return {5001, 0};
  ++m.counters.use_count;
  ++m.counters.driver_opens;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileDriverClose() {
  const Lock lock(model().mutex);
  if (!Model::calls_cuda()) return cuda_failed;
  if (!model().is_open()) return {5001, 0};
  --model().counters.use_count;
  ++model().counters.driver_closes;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileDriverGetProperties(CfProperties* properties) {
  const Lock lock(model().mutex);
  Model& m = model();
  if (const int number = m.injected("cuFileDriverGetProperties")) return {number, 0};
  *properties = {};
  if (m.mode == fake_cufile_gds || m.mode == fake_cufile_other_files) {
    properties->kernel_module.major = 2;
    properties->kernel_module.minor = 26;
    properties->kernel_module.status_flags = 1U << cf_status_nvme;
  }
  properties->kernel_module.control_flags = m.allow_compat ? 1U << cf_control_allow_compat : 0;
  properties->feature_flags = 1U << cf_feature_batch;
  if (m.mode == fake_cufile_p2pdma && m.use_p2pdma) properties->feature_flags |= 1U << cf_feature_p2p;
  properties->max_batch_size = 128;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileHandleRegister(CfHandle* handle, CfDescription* description) {
  Lock lock(model().mutex);
  Model& m = model();
  if (const int number = m.injected_late(lock, "cuFileHandleRegister")) return {number, 0};
  if (!m.is_open()) return {5001, 0};
  if (description->type != cf_handle_opaque_fd) return {5018, 0};
  const int fd = description->handle.fd;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return {5022, 0};
  if ((flags & O_DIRECT) == 0) return {5020, 0};
  if ((flags & (O_NONBLOCK | O_APPEND)) != 0) return {5019, 0};
  const bool direct = m.mode != fake_cufile_other_files && m.mode != fake_cufile_compat;
  if (!direct && !m.allow_compat) return {5008, 0};
  if (std::ranges::any_of(m.files, [fd](const auto& file) { return file.second.fd == fd; })) return {5028, 0};
  const std::string name = "/proc/self/fd/" + std::to_string(fd);
  penstock::UniqueFd plain(::open(name.c_str(), (flags & O_ACCMODE) | O_CLOEXEC));
  if (!plain) return {5025, 0};
  ::posix_fadvise(plain.get(), 0, 0, POSIX_FADV_RANDOM);  // what is not asked for stays out of the page cache
  *handle = reinterpret_cast<CfHandle>(m.next_handle++);
  m.files.emplace(*handle, File{fd, std::move(plain)});
  return success;
}

FAKE_CUFILE_EXPORT void cuFileHandleDeregister(CfHandle handle) {
  Lock lock(model().mutex);
  if (model().injected_late(lock, "cuFileHandleDeregister") != 0) return;
  model().files.erase(handle);
}

FAKE_CUFILE_EXPORT CfError cuFileBufRegister(const void* base, std::size_t size, int flags) {
  Lock lock(model().mutex);
  Model& m = model();
  if (const int number = m.injected_late(lock, "cuFileBufRegister")) return {number, 0};
  if (!m.is_open()) return {5001, 0};
  if (flags != 0) return {5022, 0};
  if (!m.has_context()) return {5047, 0};
  std::byte last{};
  const auto address = reinterpret_cast<std::uint64_t>(base);
  if (cuda_driver().fake.peek(address + size - 1, &last, 1) != cuda::cu_success) return {5012, 0};
  if (!m.buffers.emplace(static_cast<const std::byte*>(base), size).second) return {5023, 0};
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileBufDeregister(const void* base) {
  Lock lock(model().mutex);
  if (const int number = model().injected_late(lock, "cuFileBufDeregister")) return {number, 0};
  return {model().buffers.erase(static_cast<const std::byte*>(base)) == 1 ? 0 : 5024, 0};
}

FAKE_CUFILE_EXPORT ssize_t cuFileRead(CfHandle handle, void* base, std::size_t size, off_t file_offset,
                                      off_t memory_offset) {
  Lock lock(model().mutex);
  return model().transfer(lock, {handle, static_cast<std::byte*>(base), size, file_offset, memory_offset, true},
                          "cuFileRead");
}

FAKE_CUFILE_EXPORT ssize_t cuFileWrite(CfHandle handle, const void* base, std::size_t size, off_t file_offset,
                                       off_t memory_offset) {
  Lock lock(model().mutex);
  auto* const memory = static_cast<std::byte*>(const_cast<void*>(base));
  return model().transfer(lock, {handle, memory, size, file_offset, memory_offset, false}, "cuFileWrite");
}
