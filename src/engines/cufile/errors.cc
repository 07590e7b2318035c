#include "engines/cufile/errors.h"

#include <algorithm>
#include <array>

namespace penstock::cufile {
namespace {

struct Known {
  int number;
  std::string_view name;
  Code code;
  std::string_view hint;
};

constexpr std::string_view see_engines = "`penstock engines` lists what this machine lacks for GPUDirect Storage";
constexpr std::string_view not_direct =
    "let Penstock choose the engine: it stages through pinned memory where cuFile can't go directly";
constexpr std::string_view wrong_memory =
    "give memory that was allocated on the GPU, is still allocated, and belongs to the context that is current";
constexpr std::string_view no_bar1 =
    "the GPU has no room left to expose this memory (BAR1): register less, or use memory without registering it";
constexpr std::string_view retry = "cuFile ran out of resources: try again with fewer transfers at a time";
constexpr std::string_view see_log = "cuFile's log says more: CUFILE_LOGFILE_PATH=/tmp/cufile.log";

constexpr std::array known_errors{
    Known{5001, "CU_FILE_DRIVER_NOT_INITIALIZED", Code::engine_unavailable, see_engines},
    Known{5002, "CU_FILE_DRIVER_INVALID_PROPS", Code::invalid_argument, "check cufile.json"},
    Known{5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT", Code::invalid_argument, "check cufile.json"},
    Known{5004, "CU_FILE_DRIVER_VERSION_MISMATCH", Code::engine_unavailable,
          "install nvidia-fs and libcufile of the same CUDA release"},
    Known{5005, "CU_FILE_DRIVER_VERSION_READ_ERROR", Code::engine_unavailable, "load the module: modprobe nvidia_fs"},
    Known{5006, "CU_FILE_DRIVER_CLOSING", Code::closed, "something in this process closes cuFile's driver"},
    Known{5007, "CU_FILE_PLATFORM_NOT_SUPPORTED", Code::engine_unavailable, see_engines},
    Known{5008, "CU_FILE_IO_NOT_SUPPORTED", Code::unsupported, not_direct},
    Known{5009, "CU_FILE_DEVICE_NOT_SUPPORTED", Code::unsupported,
          "GPUDirect Storage needs a data-centre or professional GPU; Penstock stages for the others"},
    Known{5010, "CU_FILE_NVFS_DRIVER_ERROR", Code::io_error, "look into the kernel log: dmesg | grep nvidia-fs"},
    Known{5011, "CU_FILE_CUDA_DRIVER_ERROR", Code::device_error, wrong_memory},
    Known{5012, "CU_FILE_CUDA_POINTER_INVALID", Code::device_error, wrong_memory},
    Known{5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID", Code::device_error, wrong_memory},
    Known{5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR", Code::device_error, wrong_memory},
    Known{5015, "CU_FILE_CUDA_CONTEXT_MISMATCH", Code::device_error, wrong_memory},
    Known{5016, "CU_FILE_INVALID_MAPPING_SIZE", Code::out_of_memory, no_bar1},
    Known{5017, "CU_FILE_INVALID_MAPPING_RANGE", Code::out_of_range, wrong_memory},
    Known{5018, "CU_FILE_INVALID_FILE_TYPE", Code::unsupported, not_direct},
    Known{5019, "CU_FILE_INVALID_FILE_OPEN_FLAG", Code::unsupported, not_direct},
    Known{5020, "CU_FILE_DIO_NOT_SET", Code::unsupported, not_direct},
    Known{5022, "CU_FILE_INVALID_VALUE", Code::invalid_argument, see_log},
    Known{5023, "CU_FILE_MEMORY_ALREADY_REGISTERED", Code::in_use, "this memory is already registered"},
    Known{5024, "CU_FILE_MEMORY_NOT_REGISTERED", Code::device_error, wrong_memory},
    Known{5025, "CU_FILE_PERMISSION_DENIED", Code::permission_denied,
          "check the permissions of /dev/nvidia-fs* and the file"},
    Known{5026, "CU_FILE_DRIVER_ALREADY_OPEN", Code::in_use, "cuFile's settings can't be changed once it is open"},
    Known{5027, "CU_FILE_HANDLE_NOT_REGISTERED", Code::unsupported, see_log},
    Known{5028, "CU_FILE_HANDLE_ALREADY_REGISTERED", Code::in_use, "close the other handle of this descriptor first"},
    Known{5029, "CU_FILE_DEVICE_NOT_FOUND", Code::no_device, "check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    Known{5030, "CU_FILE_INTERNAL_ERROR", Code::io_error, see_log},
    Known{5031, "CU_FILE_GETNEWFD_FAILED", Code::io_error, "too many files may be open (ulimit -n)"},
    Known{5033, "CU_FILE_NVFS_SETUP_ERROR", Code::engine_unavailable, "load the module again: modprobe nvidia_fs"},
    Known{5034, "CU_FILE_IO_DISABLED", Code::unsupported, "cufile.json switches GPUDirect Storage off for this file"},
    Known{5035, "CU_FILE_BATCH_SUBMIT_FAILED", Code::io_error, see_log},
    Known{5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED", Code::out_of_memory, no_bar1},
    Known{5037, "CU_FILE_BATCH_FULL", Code::io_error, retry},
    Known{5038, "CU_FILE_ASYNC_NOT_SUPPORTED", Code::unsupported, "use transfers that are not bound to a stream"},
    Known{5039, "CU_FILE_INTERNAL_BATCH_SETUP_ERROR", Code::io_error, retry},
    Known{5040, "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR", Code::io_error, retry},
    Known{5041, "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR", Code::io_error, retry},
    Known{5042, "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR", Code::io_error, retry},
    Known{5043, "CU_FILE_NOMEM_ERROR", Code::out_of_memory, retry},
    Known{5044, "CU_FILE_IO_ERROR", Code::io_error, "look into the kernel log; check the device"},
    Known{5045, "CU_FILE_INTERNAL_BUF_REGISTER_ERROR", Code::out_of_memory, no_bar1},
    Known{5046, "CU_FILE_HASH_OPR_ERROR", Code::io_error, see_log},
    Known{5047, "CU_FILE_INVALID_CONTEXT_ERROR", Code::device_error, wrong_memory},
    Known{5048, "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR", Code::io_error,
          "look into the kernel log: dmesg | grep nvidia-fs"},
    Known{5049, "CU_FILE_BATCH_NOCOMPAT_ERROR", Code::unsupported, not_direct},
};

const Known* find(int number) {
  const auto* found = std::ranges::find(known_errors, number, &Known::number);
  return found == known_errors.end() ? nullptr : found;
}

}  // namespace

std::string_view error_name(int number) {
  const Known* known = find(number);
  return known != nullptr ? known->name : "unknown cuFile error";
}

std::string describe(int number) {
  return std::string(error_name(number)) + " (" + std::to_string(number) + ")";
}

Code code_from_number(int number) {
  const Known* known = find(number);
  return known != nullptr ? known->code : Code::io_error;
}

std::string_view error_hint(int number) {
  const Known* known = find(number);
  return known != nullptr ? known->hint : see_log;
}

Error make_error(CfError error, const std::string& what, std::string hint) {
  std::string message = what + ": " + describe(error.number);
  if (error.number == cf_cuda_driver_error) message += ", CUDA result " + std::to_string(error.cuda_result);
  if (hint.empty()) hint = error_hint(error.number);
  return {code_from_number(error.number), error.number, std::move(message), std::move(hint)};
}

}  // namespace penstock::cufile
