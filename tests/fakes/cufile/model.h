// The fake libcufile's model: what is open and registered, what a test has set, and how bytes move.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "control.h"
#include "cuda/api.h"
#include "engines/cufile/api.h"
#include "fakes/cuda/control.h"

#define FAKE_CUFILE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_cufile {

using namespace penstock::cufile;
namespace cuda = penstock::cuda;
using Lock = std::unique_lock<std::mutex>;

inline constexpr CfError success{cf_success, 0};
inline constexpr CfError cuda_failed{5011, 0};

// The CUDA driver that this process has loaded.
struct Cuda {
  cuda::Api api;
  FakeCuda fake;
};
const Cuda& cuda_driver();

struct Injection {
  unsigned calls_left;
  int number;
  bool always;
};

struct File {
  int fd;                    // the caller's
  penstock::UniqueFd plain;  // the same file through the page cache, so that any size will do
};

struct Batch {
  std::vector<CfBatchEntry> stalled;
  std::deque<CfBatchEvent> events;
};

struct Ways {
  std::uint64_t p2pdma = 0;
  std::uint64_t nvidia_fs = 0;
  std::uint64_t posix = 0;
};

struct Transfer {
  CfHandle handle;
  std::byte* base;
  std::size_t size;
  off_t file_offset;
  off_t memory_offset;
  bool is_read;
};

struct Model {
  std::mutex mutex;
  std::condition_variable changed;

  // What a test has set.
  int mode = fake_cufile_compat;
  int version = 1150;
  std::uint64_t part_bytes = 0;
  unsigned delay_us = 0;
  bool hang = false;
  std::set<std::string> hanging_functions;
  bool ending = false;  // calls that hang must end now
  bool secretly_posix = false;
  int stall = fake_cufile_no_stall;
  std::map<std::string, Injection> injections;

  // What cuFile knows.
  bool allow_compat = true;
  bool force_compat = false;
  bool use_p2pdma = false;
  std::map<CfHandle, File> files;
  std::map<const std::byte*, std::size_t> buffers;
  std::map<CfBatch, Batch> batches;
  std::uintptr_t next_handle = 0x1000;
  int statistics_level = 0;
  bool counting = false;
  Ways reads;
  Ways writes;
  FakeCufileCounters counters{};

  // cuFile calls CUDA, from nearly everywhere. False if CUDA does not let it.
  static bool calls_cuda();
  // 0, or the number that a test wants the call to fail with.
  int injected(const std::string& function);
  // As injected, after the time that a test wants the call to hang.
  int injected_late(Lock& lock, const std::string& function);
  bool is_open() const { return counters.use_count > 0; }
  bool goes_direct() const;
  // Counts a breach if not.
  bool has_context();
  // Bytes, -1 with errno, or minus a number: cuFileRead and cuFileWrite.
  ssize_t transfer(Lock& lock, const Transfer& transfer, const std::string& function);

 private:
  int check(const Transfer& transfer);
  ssize_t move(Lock& lock, const Transfer& transfer, int fd);
};
Model& model();

}  // namespace fake_cufile
