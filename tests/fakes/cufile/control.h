// How a test steers the fake libcufile: plain C functions that the fake exports beside cuFile's own, and FakeCufile,
// which finds them. The fake moves bytes between real files and the memory of the fake CUDA driver.
//
// Thread safety: every function may be called from any thread at any time, except that nobody may be inside a call of
// cuFile's when reset() is called, unless it hangs there.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <optional>
#include <string>

// What the machine can do, whatever the settings allow.
enum FakeCufileMode : int {
  fake_cufile_compat,       // no nvidia-fs, no P2PDMA
  fake_cufile_gds,          // nvidia-fs
  fake_cufile_p2pdma,       // once cuFile is told to use it
  fake_cufile_other_files,  // nvidia-fs, but not for the files of this test
};
enum FakeCufileStall : int {
  fake_cufile_no_stall,
  fake_cufile_stall_until_cancelled,
  fake_cufile_stall_for_good,
};

extern "C" {
struct FakeCufileCounters {
  long use_count;
  std::uint64_t driver_opens;
  std::uint64_t driver_closes;
  std::uint64_t handles;  // alive now, like the two that follow
  std::uint64_t buffers;
  std::uint64_t batches;
  std::uint64_t transfers;
  std::uint64_t batched_transfers;
  std::uint64_t interior_pointers;  // transfers that named memory inside a registration by its own address
  std::uint64_t without_context;    // calls that came without a CUDA context; they fail
  std::uint64_t in_transfers;       // calls that have not returned
  std::uint64_t hanging;            // calls that hang() holds
};
}

// X(member, result, arguments) for every function fake_cufile_<member>.
//
// reset               as in a new process; calls that hang end with an error first
// set_mode            see above
// set_version         what cuFileGetVersion says, and the layout of statistics
// set_part            the most bytes that one transfer moves; 0: all of them
// set_delay           of each transfer, in microseconds
// set_hang            transfers begin and do not end, until set_hang(0)
// hang                calls of the function of that name do not end, until hang(function, 0): cuFileDriverOpen,
//                     cuFileHandleRegister, cuFileHandleDeregister, cuFileBufRegister or cuFileBufDeregister
// set_secretly_posix  transfers go through host memory although the machine could do better, as far as that is allowed
// set_stall           of batches, see above
// open_by_others      as if another library had opened the driver before, allowing compatibility mode or not
// fail                the nth call from now of the function of that name (1: the next) fails with `number`; always: all
//                     after. For cuFileRead and cuFileWrite, a number below 5000 is an errno. "entry": of a batch
#define FAKE_CUFILE_CONTROL(X)                                                \
  X(reset, void, ())                                                          \
  X(set_mode, void, (int mode))                                               \
  X(set_version, void, (int version))                                         \
  X(set_part, void, (std::uint64_t bytes))                                    \
  X(set_delay, void, (unsigned us))                                           \
  X(set_hang, void, (int hang))                                               \
  X(hang, void, (const char* function, int hang))                             \
  X(set_secretly_posix, void, (int posix))                                    \
  X(set_stall, void, (int stall))                                             \
  X(open_by_others, void, (int compat))                                       \
  X(fail, void, (const char* function, unsigned nth, int number, int always)) \
  X(counters, FakeCufileCounters, ())

struct FakeCufile {
#define FAKE_CUFILE_MEMBER(member, result, arguments) result(*member) arguments = nullptr;
  FAKE_CUFILE_CONTROL(FAKE_CUFILE_MEMBER)
#undef FAKE_CUFILE_MEMBER

  // Loads the fake from its file. Whoever asks for libcufile.so.0 by name later gets this one.
  static std::optional<FakeCufile> load(const std::string& path) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return std::nullopt;
    FakeCufile fake;
#define FAKE_CUFILE_FIND(member, result, arguments)                                              \
  fake.member = reinterpret_cast<result(*) arguments>(::dlsym(library, "fake_cufile_" #member)); \
  if (fake.member == nullptr) return std::nullopt;
    FAKE_CUFILE_CONTROL(FAKE_CUFILE_FIND)
#undef FAKE_CUFILE_FIND
    return fake;
  }
};
