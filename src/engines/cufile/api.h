// The part of cuFile's interface that Penstock uses, in our own declarations: building needs no CUDA. Where cufile.h
// exists, a test compares every type, constant and signature with it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>

#include "cuda/relaxed.h"

namespace penstock::cufile {

// How a call ended: 0 or a number from 5000 on, and CUDA's own result where the number says so.
struct CfError {
  int number;
  int cuda_result;
};
inline constexpr int cf_success = 0;
inline constexpr int cf_error_base = 5000;
inline constexpr int cf_error_end = 6000;  // no number of cuFile's is as high
inline constexpr int cf_cuda_driver_error = 5011;
inline constexpr int cf_memory_already_registered = 5023;
inline constexpr int cf_driver_already_open = 5026;
inline constexpr int cf_handle_not_registered = 5027;

using CfHandle = void*;
using CfBatch = void*;

inline constexpr int cf_handle_opaque_fd = 1;
struct CfDescription {
  int type;
  union {
    int fd;
    void* pointer;
  } handle;
  const void* file_system_operations;
};

// Bits of CfProperties::kernel_module.status_flags, one for each kind of storage that can be reached directly.
inline constexpr unsigned cf_status_nvme = 4;
inline constexpr unsigned cf_status_p2p = 11;  // 1.13 to 1.15 tell of P2PDMA here, newer ones in feature_flags
// Bits of control_flags. Each of them lets cuFile take the bytes through host memory.
inline constexpr unsigned cf_control_allow_compat = 1;
inline constexpr unsigned cf_control_posix = 2;
inline constexpr unsigned cf_control_fallback = 4;
// Bits of feature_flags.
inline constexpr unsigned cf_feature_batch = 1;
inline constexpr unsigned cf_feature_p2p = 4;

struct CfProperties {
  struct {
    std::uint32_t major;  // both 0 where nvidia-fs is not loaded
    std::uint32_t minor;
    std::size_t poll_threshold_kib;
    std::size_t max_direct_kib;
    std::uint32_t status_flags;
    std::uint32_t control_flags;
  } kernel_module;
  std::uint32_t feature_flags;
  std::uint32_t max_device_cache_kib;
  std::uint32_t per_buffer_cache_kib;
  std::uint32_t max_pinned_kib;
  std::uint32_t max_batch_size;
  std::uint32_t max_batch_timeout_ms;
};

inline constexpr int cf_batch_mode = 1;
inline constexpr int cf_read = 0;
inline constexpr int cf_write = 1;
struct CfBatchEntry {
  int mode;
  struct {
    void* base;
    off_t file_offset;
    off_t memory_offset;
    std::size_t size;
  } transfer;
  CfHandle handle;
  int opcode;
  void* cookie;
};

inline constexpr int cf_batch_invalid = 0x04;
inline constexpr int cf_batch_cancelled = 0x08;
inline constexpr int cf_batch_complete = 0x10;
inline constexpr int cf_batch_timeout = 0x20;
inline constexpr int cf_batch_failed = 0x40;
struct CfBatchEvent {
  void* cookie;
  int status;
  std::size_t result;  // negative, as ssize_t, on failure
};

// Parameters by number, for CfApi::set_parameter_bool.
inline constexpr int cf_parameter_allow_compat = 1;
inline constexpr int cf_parameter_force_compat = 2;
inline constexpr int cf_parameter_use_p2pdma = 7;

// Statistics of level 3: the counters of each GPU, after others whose number grew with the versions.
struct CfGpuCounters {
  char uuid[16];
  std::uint64_t read_bytes;
  std::uint64_t read_bandwidth;
  std::uint64_t read_utilization;
  std::uint64_t read_duration_us;
  std::uint64_t reads;
  std::uint64_t p2p_reads;
  std::uint64_t nvidia_fs_reads;
  std::uint64_t posix_reads;
  std::uint64_t other_read_counters[5];
  std::uint64_t write_bytes;
  std::uint64_t write_bandwidth;
  std::uint64_t write_utilization;
  std::uint64_t write_duration_us;
  std::uint64_t writes;
  std::uint64_t p2p_writes;
  std::uint64_t nvidia_fs_writes;
  std::uint64_t posix_writes;
  std::uint64_t other_write_counters[3];
  std::uint64_t registration_counters[5];
};
inline constexpr std::size_t cf_max_gpus = 16;
inline constexpr int cf_statistics_level = 3;
inline constexpr std::size_t cf_max_statistics_bytes = 8192;
// Where the number of GPUs stands in the statistics of a version; 0 for versions whose layout is not known. The
// counters of the GPUs follow 8 bytes later.
constexpr std::size_t cf_gpu_count_offset(int version) {
  if (version >= 1190 && version < 1200) return 1136;
  return version >= 1150 && version < 1190 ? 1024 : 0;
}

// Every function by the name of its symbol, in a table of pointers: X(member, symbol, result, arguments).
// Required: present since the first release.
#define PENSTOCK_CUFILE_REQUIRED(X)                                                                   \
  X(driver_open, cuFileDriverOpen, CfError, ())                                                       \
  X(driver_get_properties, cuFileDriverGetProperties, CfError, (CfProperties * properties))           \
  X(handle_register, cuFileHandleRegister, CfError, (CfHandle * handle, CfDescription * description)) \
  X(handle_deregister, cuFileHandleDeregister, void, (CfHandle handle))                               \
  X(buffer_register, cuFileBufRegister, CfError, (const void* base, std::size_t size, int flags))     \
  X(buffer_deregister, cuFileBufDeregister, CfError, (const void* base))                              \
  X(read, cuFileRead, ssize_t,                                                                        \
    (CfHandle handle, void* base, std::size_t size, off_t file_offset, off_t memory_offset))          \
  X(write, cuFileWrite, ssize_t,                                                                      \
    (CfHandle handle, const void* base, std::size_t size, off_t file_offset, off_t memory_offset))

// Optional: null where the library has none.
#define PENSTOCK_CUFILE_OPTIONAL(X)                                                                   \
  X(driver_close, cuFileDriverClose_v2, CfError, ())                                                  \
  X(use_count, cuFileUseCount, long, ())                                                              \
  X(get_version, cuFileGetVersion, CfError, (int* version))                                           \
  X(set_parameter_bool, cuFileSetParameterBool, CfError, (int parameter, bool value))                 \
  X(get_parameter_bool, cuFileGetParameterBool, CfError, (int parameter, bool* value))                \
  X(batch_set_up, cuFileBatchIOSetUp, CfError, (CfBatch * batch, unsigned capacity))                  \
  X(batch_submit, cuFileBatchIOSubmit, CfError,                                                       \
    (CfBatch batch, unsigned count, CfBatchEntry* entries, unsigned flags))                           \
  X(batch_get_status, cuFileBatchIOGetStatus, CfError,                                                \
    (CfBatch batch, unsigned least, unsigned* count, CfBatchEvent* events, struct timespec* timeout)) \
  X(batch_cancel, cuFileBatchIOCancel, CfError, (CfBatch batch))                                      \
  X(batch_destroy, cuFileBatchIODestroy, void, (CfBatch batch))                                       \
  X(set_statistics_level, cuFileSetStatsLevel, CfError, (int level))                                  \
  X(get_statistics_level, cuFileGetStatsLevel, CfError, (int* level))                                 \
  X(statistics_start, cuFileStatsStart, CfError, ())                                                  \
  X(get_statistics, cuFileGetStatsL3, CfError, (void* statistics))

// cuFile calls CUDA, on the thread that calls it.
struct Api {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define PENSTOCK_CUFILE_MEMBER(member, symbol, result, arguments) cuda::Relaxed<result arguments> member;
  PENSTOCK_CUFILE_REQUIRED(PENSTOCK_CUFILE_MEMBER)
  PENSTOCK_CUFILE_OPTIONAL(PENSTOCK_CUFILE_MEMBER)
#undef PENSTOCK_CUFILE_MEMBER

  bool has_batches() const { return batch_set_up && batch_submit && batch_get_status && batch_cancel && batch_destroy; }
};

}  // namespace penstock::cufile
