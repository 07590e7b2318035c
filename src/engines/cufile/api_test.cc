#include "engines/cufile/api.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "engines/cufile/errors.h"

#if __has_include(<cufile.h>) && __has_include(<cuda.h>)
#include <cufile.h>

#include <type_traits>
#define PENSTOCK_HAS_CUFILE_H 1
#endif

namespace penstock::cufile {
namespace {

// What every release has in common, so that a slip is found on machines without the header too.
TEST(CuFileApi, has_the_layout_of_a_64_bit_machine) {
  EXPECT_EQ(sizeof(CfError), 8U);
  EXPECT_EQ(sizeof(CfDescription), 24U);
  EXPECT_EQ(offsetof(CfDescription, handle), 8U);
  EXPECT_EQ(sizeof(CfProperties), 56U);
  EXPECT_EQ(sizeof(CfBatchEntry), 64U);
  EXPECT_EQ(offsetof(CfBatchEntry, handle), 40U);
  EXPECT_EQ(offsetof(CfBatchEntry, cookie), 56U);
  EXPECT_EQ(sizeof(CfBatchEvent), 24U);
  EXPECT_EQ(offsetof(CfBatchEvent, result), 16U);
  EXPECT_EQ(sizeof(CfGpuCounters), 248U);
}

#ifndef PENSTOCK_HAS_CUFILE_H
TEST(CuFileApi, is_that_of_the_real_header) {
  GTEST_SKIP() << "cufile.h and cuda.h are not on the include path here";
}
#else

// The same arguments by size and kind: our enums are int, our handles are typed differently.
template <typename Ours, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<Ours>) return std::is_pointer_v<Theirs>;
  if constexpr (std::is_void_v<Ours>) return std::is_void_v<Theirs>;
  if constexpr (!std::is_void_v<Ours> && !std::is_void_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
  return false;
}
template <typename Ours, typename Theirs>
struct Signatures;
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
struct Signatures<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> {
  static constexpr bool alike_ones() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return alike<OurResult, TheirResult>() && (alike<Ours, Theirs>() && ...);
    }
  }
};
// Types alone: the library is not linked.
#define PENSTOCK_CUFILE_COMPARE(member, symbol, result, arguments) \
  EXPECT_TRUE((Signatures<decltype(Api::member)::Function, decltype(&::symbol)>::alike_ones())) << #symbol;

void expect_name(int number, const char* name) {
  // The last entry of the list is its end, not an error.
  const bool is_error = number != cf_success && std::string_view(name) != "CU_FILE_IO_MAX_ERROR";
  EXPECT_TRUE(!is_error || error_name(number) == name) << number << " is " << name;
}

TEST(CuFileApi, is_that_of_the_real_header) {
  // Required functions are in every header, and so are these optional ones.
  PENSTOCK_CUFILE_REQUIRED(PENSTOCK_CUFILE_COMPARE)
  PENSTOCK_CUFILE_COMPARE(batch_set_up, cuFileBatchIOSetUp, , )
  PENSTOCK_CUFILE_COMPARE(batch_submit, cuFileBatchIOSubmit, , )
  PENSTOCK_CUFILE_COMPARE(batch_get_status, cuFileBatchIOGetStatus, , )
  PENSTOCK_CUFILE_COMPARE(batch_cancel, cuFileBatchIOCancel, , )
  PENSTOCK_CUFILE_COMPARE(batch_destroy, cuFileBatchIODestroy, , )
  PENSTOCK_CUFILE_COMPARE(get_version, cuFileGetVersion, , )
  PENSTOCK_CUFILE_COMPARE(use_count, cuFileUseCount, , )

  EXPECT_EQ(sizeof(CfError), sizeof(CUfileError_t));
  EXPECT_EQ(sizeof(CfDescription), sizeof(CUfileDescr_t));
  EXPECT_EQ(offsetof(CfDescription, file_system_operations), offsetof(CUfileDescr_t, fs_ops));
  EXPECT_EQ(sizeof(CfProperties), sizeof(CUfileDrvProps_t));
  EXPECT_EQ(offsetof(CfProperties, kernel_module.status_flags), offsetof(CUfileDrvProps_t, nvfs.dstatusflags));
  EXPECT_EQ(offsetof(CfProperties, kernel_module.control_flags), offsetof(CUfileDrvProps_t, nvfs.dcontrolflags));
  EXPECT_EQ(offsetof(CfProperties, feature_flags), offsetof(CUfileDrvProps_t, fflags));
  EXPECT_EQ(offsetof(CfProperties, max_batch_timeout_ms), offsetof(CUfileDrvProps_t, max_batch_io_timeout_msecs));
  EXPECT_EQ(sizeof(CfBatchEntry), sizeof(CUfileIOParams_t));
  EXPECT_EQ(offsetof(CfBatchEntry, transfer.base), offsetof(CUfileIOParams_t, u.batch.devPtr_base));
  EXPECT_EQ(offsetof(CfBatchEntry, transfer.file_offset), offsetof(CUfileIOParams_t, u.batch.file_offset));
  EXPECT_EQ(offsetof(CfBatchEntry, transfer.memory_offset), offsetof(CUfileIOParams_t, u.batch.devPtr_offset));
  EXPECT_EQ(offsetof(CfBatchEntry, transfer.size), offsetof(CUfileIOParams_t, u.batch.size));
  EXPECT_EQ(offsetof(CfBatchEntry, handle), offsetof(CUfileIOParams_t, fh));
  EXPECT_EQ(offsetof(CfBatchEntry, opcode), offsetof(CUfileIOParams_t, opcode));
  EXPECT_EQ(offsetof(CfBatchEntry, cookie), offsetof(CUfileIOParams_t, cookie));
  EXPECT_EQ(sizeof(CfBatchEvent), sizeof(CUfileIOEvents_t));
  EXPECT_EQ(offsetof(CfBatchEvent, status), offsetof(CUfileIOEvents_t, status));
  EXPECT_EQ(offsetof(CfBatchEvent, result), offsetof(CUfileIOEvents_t, ret));

  EXPECT_EQ(cf_handle_opaque_fd, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
  EXPECT_EQ(cf_status_nvme, static_cast<unsigned>(CU_FILE_NVME_SUPPORTED));
  EXPECT_EQ(cf_control_allow_compat, static_cast<unsigned>(CU_FILE_ALLOW_COMPAT_MODE));
  EXPECT_EQ(cf_feature_batch, static_cast<unsigned>(CU_FILE_BATCH_IO_SUPPORTED));
  EXPECT_EQ(cf_batch_mode, CUFILE_BATCH);
  EXPECT_EQ(cf_read, CUFILE_READ);
  EXPECT_EQ(cf_write, CUFILE_WRITE);
  EXPECT_EQ(cf_batch_invalid, CUFILE_INVALID);
  EXPECT_EQ(cf_batch_cancelled, CUFILE_CANCELED);
  EXPECT_EQ(cf_batch_complete, CUFILE_COMPLETE);
  EXPECT_EQ(cf_batch_timeout, CUFILE_TIMEOUT);
  EXPECT_EQ(cf_batch_failed, CUFILE_FAILED);
}

TEST(CuFileApi, names_the_errors_of_the_real_header){
#define CUFILE_OP(code, name, text) expect_name(code, #name);
    CUFILEOP_STATUS_ENTRIES
#undef CUFILE_OP
}

// Marks of newer headers: macros that came with the calls.
#ifdef CUFILE_GPU_UUID_LEN
TEST(CuFileApi, knows_where_the_statistics_stand) {
  PENSTOCK_CUFILE_COMPARE(set_parameter_bool, cuFileSetParameterBool, , )
  PENSTOCK_CUFILE_COMPARE(get_parameter_bool, cuFileGetParameterBool, , )
  PENSTOCK_CUFILE_COMPARE(set_statistics_level, cuFileSetStatsLevel, , )
  PENSTOCK_CUFILE_COMPARE(get_statistics_level, cuFileGetStatsLevel, , )
  PENSTOCK_CUFILE_COMPARE(statistics_start, cuFileStatsStart, , )
  PENSTOCK_CUFILE_COMPARE(get_statistics, cuFileGetStatsL3, , )
  EXPECT_EQ(cf_parameter_allow_compat, CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
  EXPECT_EQ(cf_parameter_force_compat, CUFILE_PARAM_FORCE_COMPAT_MODE);
  EXPECT_EQ(cf_parameter_use_p2pdma, CUFILE_PARAM_USE_PCIP2PDMA);
  EXPECT_EQ(cf_status_p2p, static_cast<unsigned>(CU_FILE_NVME_P2P_SUPPORTED));
  EXPECT_LE(sizeof(CUfileStatsLevel3_t), cf_max_statistics_bytes);
  EXPECT_EQ(sizeof(CfGpuCounters), sizeof(CUfilePerGpuStats_t));
  EXPECT_EQ(offsetof(CfGpuCounters, p2p_reads), offsetof(CUfilePerGpuStats_t, n_p2p_reads));
  EXPECT_EQ(offsetof(CfGpuCounters, nvidia_fs_reads), offsetof(CUfilePerGpuStats_t, n_nvfs_reads));
  EXPECT_EQ(offsetof(CfGpuCounters, posix_reads), offsetof(CUfilePerGpuStats_t, n_posix_reads));
  EXPECT_EQ(offsetof(CfGpuCounters, p2p_writes), offsetof(CUfilePerGpuStats_t, n_p2p_writes));
  EXPECT_EQ(offsetof(CfGpuCounters, nvidia_fs_writes), offsetof(CUfilePerGpuStats_t, n_nvfs_writes));
  EXPECT_EQ(offsetof(CfGpuCounters, posix_writes), offsetof(CUfilePerGpuStats_t, n_posix_writes));
  // The header does not tell its version; its layout must be one of the two that are known.
  const std::size_t offset = offsetof(CUfileStatsLevel3_t, num_gpus);
  EXPECT_TRUE(offset == cf_gpu_count_offset(1150) || offset == cf_gpu_count_offset(1190)) << offset;
  EXPECT_EQ(offsetof(CUfileStatsLevel3_t, per_gpu_stats), offset + 8);
}
#endif

#ifdef CU_FILE_P2P_FLAG_PCI_P2PDMA
TEST(CuFileApi, knows_the_bit_of_p2pdma) {
  EXPECT_EQ(cf_feature_p2p, static_cast<unsigned>(CU_FILE_P2P_SUPPORTED));
}
#endif

#ifdef CU_FILE_RDMA_ERR_BASE
TEST(CuFileApi, knows_the_bits_of_ways_through_host_memory) {
  EXPECT_EQ(cf_control_posix, static_cast<unsigned>(CU_FILE_POSIX_IO_MODE));
  EXPECT_EQ(cf_control_fallback, static_cast<unsigned>(CU_FILE_FALLBACK_IO_MODE));
}
#endif
#endif

}  // namespace
}  // namespace penstock::cufile
