// How a test steers the fake CUDA driver: plain C functions that the fake exports beside the driver's own, and
// FakeCuda, which finds them in the libcuda.so.1 that this process has loaded.
//
// Thread safety: every function may be called from any thread at any time, except that nobody may be inside a call of
// the driver that is to use what reset() takes away.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "support/built.h"

extern "C" {
struct FakeCudaCounters {
  std::uint64_t bytes_to_device;
  std::uint64_t bytes_from_device;
  std::uint64_t bytes_within_devices;
  std::uint64_t copies;    // single ones; each of a batch counts
  std::uint64_t contexts;  // alive now, like the five that follow
  std::uint64_t streams;   // without the default ones
  std::uint64_t events;
  std::uint64_t allocations;
  std::uint64_t registrations;
  std::uint64_t modules;
  std::uint64_t left_behind;  // objects still alive when the last reference to their context went
  std::uint64_t breaches;     // things that no program should do; fake_cuda_last_breach() names the latest
};
}

// X(member, result, arguments) for every function fake_cuda_<member>. Devices are counted as the caller sees them.
//
// clang-format off
// reset              the driver as in a new process: nothing initialized, settings from the environment, handles dead
// clear_injections   takes back all that set_*, fail_*, delay_call and hang did, heals broken devices, ends captures,
//                    zeroes the counts of calls, bytes and breaches; handles stay alive
// set_devices        takes effect at the next cuInit
// set_connections    how many channels each unit has for all streams that have nothing to do now; 0: one a stream
// set_attribute      of a device, from now on
// set_delays         every operation of a stream waits a random time before it runs; 0 for none
// set_bandwidth      of a device's copies, in each direction; 0 for no limit
// set_pieces         memory allocated from now on is virtual memory, mapped in pieces of so many bytes; 0: ordinary
// set_synchronizing_calls_block   what freeing, unregistering and loading of modules do while a wait-value is pending,
//                    and making a stream while many are: 0: they go on; 1: they wait, which is a breach, and give up
//                    with cu_unknown after so long
// fail_call          the nth call from now of the function of that name (1: the next) returns `result`; always: and
//                    all after it
// delay_call         every call of the function of that name takes so long before it does anything
// fail_copy          the nth copy from now on the device breaks it
// hang               the device's streams stop until hang(device, 0)
// calls              how often the function of that name was called
// is_inside          whether this thread is in a call of the driver, or one of its own
// last_breach        its text, cut to `size`; returns the whole length
// peek, poke         device memory, from the CPU; return cu_success or cu_invalid_value
// clang-format on
#define FAKE_CUDA_CONTROL(X)                                                       \
  X(reset, void, ())                                                               \
  X(clear_injections, void, ())                                                    \
  X(set_devices, void, (int count, std::uint64_t memory_bytes))                    \
  X(set_connections, void, (unsigned count))                                       \
  X(set_attribute, void, (int device, int attribute, int value))                   \
  X(set_delays, void, (std::uint64_t seed, unsigned max_us))                       \
  X(set_bandwidth, void, (int device, std::uint64_t bytes_per_s))                  \
  X(set_pieces, void, (std::size_t bytes))                                         \
  X(set_synchronizing_calls_block, void, (int block, unsigned limit_ms))           \
  X(fail_call, void, (const char* function, unsigned nth, int result, int always)) \
  X(delay_call, void, (const char* function, unsigned ms))                         \
  X(fail_copy, void, (int device, unsigned nth, int result))                       \
  X(hang, void, (int device, int hung))                                            \
  X(calls, std::uint64_t, (const char* function))                                  \
  X(is_inside, int, ())                                                            \
  X(counters, FakeCudaCounters, ())                                                \
  X(last_breach, std::size_t, (char* text, std::size_t size))                      \
  X(peek, int, (std::uint64_t address, void* to, std::size_t bytes))               \
  X(poke, int, (std::uint64_t address, const void* from, std::size_t bytes))

// A table of the functions above, valid for as long as the process: the fake is never unloaded.
struct FakeCuda {
#define FAKE_CUDA_MEMBER(member, result, arguments) result(*member) arguments = nullptr;
  FAKE_CUDA_CONTROL(FAKE_CUDA_MEMBER)
#undef FAKE_CUDA_MEMBER

  // Nothing when no libcuda.so.1 is loaded, or the loaded one is a real driver.
  static std::optional<FakeCuda> loaded() { return find(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)); }

  // Loads the fake from its file, cuda or cuda_older. Whoever asks for libcuda.so.1 by name later gets this one,
  // whatever the search path.
  static std::optional<FakeCuda> load(const std::string& folder = "cuda") {
    return find(::dlopen(penstock::test::built("fakes/" + folder + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL));
  }

 private:
  static std::optional<FakeCuda> find(void* library) {
    FakeCuda fake;
    if (library == nullptr) return std::nullopt;
#define FAKE_CUDA_FIND(member, result, arguments)                                              \
  fake.member = reinterpret_cast<result(*) arguments>(::dlsym(library, "fake_cuda_" #member)); \
  if (fake.member == nullptr) return std::nullopt;
    FAKE_CUDA_CONTROL(FAKE_CUDA_FIND)
#undef FAKE_CUDA_FIND
    return fake;
  }
};
