// The fake driver's model: devices, memory, streams and the channels that run them. One lock guards all of it; the
// bytes of a copy move outside that lock. Everything here is used with the lock held, unless it says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "control.h"
#include "cuda/api.h"
#include "kernels.h"
#include "tsan.h"

namespace fake_cuda {

// Calls of the driver that this thread is in.
inline thread_local int calls_deep = 0;

class Inside {
 public:
  Inside() { ++calls_deep; }
  ~Inside() { --calls_deep; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

using namespace penstock::cuda;
using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

// Results that the library has no name for.
inline constexpr CuResult cu_invalid_handle = 400;
inline constexpr CuResult cu_host_memory_not_registered = 713;
inline constexpr CuResult cu_stream_capture_unsupported = 900;
inline constexpr CuResult cu_stream_capture_invalidated = 901;
inline constexpr CuResult cu_captured_event = 907;
inline constexpr CuResult cu_stream_capture_wrong_thread = 908;

struct Device;
struct Stream;

// A range of the one address space: device memory, whose address no CPU can use, or registered host memory.
struct Memory {
  Device* device;
  CuDevicePtr start;
  std::size_t bytes;
  std::byte* data;  // where the fake itself reaches the bytes
  bool on_device;
  bool is_portable;
  std::uint64_t buffer_id;
  std::size_t piece_bytes = 0;  // not 0: virtual memory, mapped in pieces of this size
  int in_use = 0;               // copies that are moving its bytes now

  bool holds(CuDevicePtr address, std::size_t count) const {
    return address >= start && address - start <= bytes && count <= bytes - (address - start);
  }
};

// A place in a stream's work: all that was queued there up to it.
struct Point {
  std::shared_ptr<Stream> stream;
  std::uint64_t number;
};

// Where the hardware does it.
enum class Unit { compute, copy_to_device, copy_from_device };

struct Operation {
  std::shared_ptr<Stream> stream;
  std::optional<Unit> unit;  // none: where the stream's last one went
  std::vector<Point> after;
  std::size_t bytes_to_device = 0;  // what the bandwidth limit counts
  std::size_t bytes_from_device = 0;
  bool waits_for_value = false;
  CuDevicePtr word = 0;        // that it waits for, or writes
  bool is_of_library = false;  // captured by a thread whose calls are relaxed, as the library's are
  std::uint64_t healings = 0;  // of the device when it was queued
  std::function<bool()> ready = [] { return true; };
  std::function<CuResult(Lock&)> run = [](Lock&) { return cu_success; };
};

// A hardware connection: runs the operations of its streams strictly in the order of their queueing, so that one that
// waits holds up all behind it, of whatever stream.
struct Channel {
  std::deque<std::unique_ptr<Operation>> operations;
  std::condition_variable wake;
  bool is_shared = false;   // by streams; else a stream's own
  bool is_closing = false;  // ends when it has run what it holds
};

// What a program ties to a graph: told when the last graph that has it goes.
struct UserObject {
  void* pointer;
  CuHostFunction destroy;

  UserObject(void* given, CuHostFunction function) : pointer(given), destroy(function) {}
  UserObject(const UserObject&) = delete;
  UserObject& operator=(const UserObject&) = delete;
  ~UserObject() { destroy(pointer); }
};

// A graph in the making, of what one stream is given meanwhile.
struct Capture {
  std::uint64_t thread;
  int mode;
  CuGraph graph;
  bool is_spoilt = false;
  std::vector<Operation> operations;  // without their stream
  std::vector<std::shared_ptr<UserObject>> objects;
};

struct Stream {
  Device* device;
  CuStream handle;
  bool is_legacy;
  bool is_blocking;
  std::map<Unit, std::shared_ptr<Channel>> channels;  // those used so far; without a limit one for all units
  Unit last_unit = Unit::compute;
  std::uint64_t queued = 0;
  std::uint64_t completed = 0;
  std::shared_ptr<Capture> capture;  // null: what it is given is done
};

struct Event {
  Device* device;
  std::optional<Point> recorded;
  std::shared_ptr<Capture> captured;  // where it was recorded last, if that was no place in a stream's work
};

struct Module {
  Device* device;
};

// All in one row: branches are run one after the other.
struct Graph {
  Device* device;
  std::vector<Operation> operations;
  std::vector<std::shared_ptr<UserObject>> objects;
};

struct Function {
  CuModule module;
  Device* device;
  Kernel kernel;
};

struct Device {
  int ordinal = 0;
  int board = 0;  // which of the machine's: CUDA_VISIBLE_DEVICES chooses and orders them
  std::map<int, int> attributes;

  CuContext context = nullptr;
  unsigned references = 0;
  CuResult error = cu_success;  // sticky: what every later call returns
  std::uint64_t healings = 0;   // how often it was broken and is no more: what was queued before is never run

  std::size_t used_bytes = 0;
  std::shared_ptr<Stream> legacy;
  std::map<std::uint64_t, std::shared_ptr<Stream>> per_thread;
  std::vector<std::weak_ptr<Stream>> streams;                      // all, with those destroyed that still have work
  std::map<Unit, std::vector<std::shared_ptr<Channel>>> channels;  // where connections are limited
  std::map<Unit, std::size_t> next_channel;

  std::vector<const Operation*> waits_for_values;  // queued and not yet over
  bool is_hung = false;
  std::uint64_t bytes_per_s = 0;
  Clock::time_point to_device_free_at;
  Clock::time_point from_device_free_at;
  unsigned copies_until_failure = 0;
  CuResult copy_failure = cu_success;
};

struct Injection {
  unsigned calls_left;
  CuResult result;
  bool always;
};

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;  // something ended, broke, or was released
  std::atomic<int> owner{0};        // the process that initialized; a forked child gets nothing
  bool is_stopping = false;
  unsigned waiters = 0;

  // What a test asked for; else the environment says, when the driver is initialized.
  std::optional<int> wanted_devices;
  std::optional<std::uint64_t> wanted_device_bytes;
  std::optional<unsigned> wanted_connections;
  std::uint64_t device_bytes = 0;
  bool takes_kernels = true;
  int version = 13000;  // of CUDA, from cuInit on as FAKE_CUDA_VERSION says
  unsigned connections = 0;
  int synchronizing_calls_block = 1;
  std::chrono::milliseconds synchronizing_limit{0};
  std::mt19937_64 random;
  unsigned max_delay_us = 0;
  std::size_t piece_bytes = 0;
  std::map<std::string, Injection, std::less<>> injections;
  std::map<std::string, std::chrono::milliseconds, std::less<>> call_delays;
  std::map<std::string, std::uint64_t, std::less<>> calls;
  FakeCudaCounters counters{};
  std::string last_breach;

  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::shared_ptr<Channel>> working;  // the channels with a worker
  std::map<CuDevicePtr, std::shared_ptr<Memory>> memory;
  std::map<CuStream, std::shared_ptr<Stream>> streams;
  std::map<CuEvent, Event> events;
  std::map<CuModule, Module> modules;
  std::map<CuFunction, Function> functions;
  std::vector<std::shared_ptr<Capture>> captures;
  std::map<CuGraph, Graph> graphs;
  std::map<CuGraphExecutable, Graph> executables;
  std::map<CuUserObject, std::shared_ptr<UserObject>> user_objects;  // that no graph has yet
  // Neither handles nor buffer ids are ever used again, so a stale one is always noticed.
  std::uint64_t last_handle = 0x1000;
  std::uint64_t last_buffer_id = 0;

  Driver() { clear_injections(); }

  template <typename Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(last_handle += 16);
  }
  template <typename Map>
  static typename Map::mapped_type* find(Map& map, typename Map::key_type handle) {
    const auto found = map.find(handle);
    return found == map.end() ? nullptr : &found->second;
  }

  CuResult initialize();
  void reset(Lock& lock);
  void clear_injections();
  Device* device(int ordinal);
  Device* device_of(CuContext context);
  void end_context(Lock& lock, Device& device);
  void breach(std::string text);

  // Memory.
  CuResult allocate(Device& device, std::size_t bytes, CuDevicePtr& address);
  CuResult free(Lock& lock, CuDevicePtr address);
  CuResult register_host(Device& device, void* address, std::size_t bytes, unsigned flags);
  CuResult unregister_host(Lock& lock, void* address);
  std::shared_ptr<Memory> memory_at(CuDevicePtr address);
  // Whether any part of the range is device or registered memory.
  bool overlaps(CuDevicePtr address, std::size_t bytes);
  // For checks from the CPU: where the fake keeps these bytes of device memory; null where there are none such.
  std::byte* device_bytes_at(CuDevicePtr address, std::size_t bytes);
  void remove(Lock& lock, const std::shared_ptr<Memory>& range);

  // Streams.
  std::shared_ptr<Stream> new_stream(Device& device, unsigned flags);
  // The stream behind a handle, also the default ones of `current`; null where there is none.
  std::shared_ptr<Stream> stream_of(CuStream handle, Device* current);
  CuResult enqueue(std::unique_ptr<Operation> operation);
  bool reached(const Point& point) const { return point.stream->completed >= point.number; }
  // Until all points are reached, the device breaks, or the limit has passed (cu_not_ready).
  CuResult wait(Lock& lock, Device& device, const std::vector<Point>& points,
                std::optional<std::chrono::milliseconds> limit = std::nullopt);
  // What the driver does before it takes mappings away or loads code: it waits for all earlier work of the device. A
  // breach where part of that waits for a value that nobody has written yet: whoever is to write it may be the caller,
  // or held up by it. Making memory known does not wait.
  CuResult synchronizing_call(Lock& lock, Device& device, const char* function);
  // All that the device's streams were given so far; of the blocking ones alone, where only those matter.
  std::vector<Point> all_work(const Device& device, bool blocking_alone = false) const;
  void destroy_stream(CuStream handle);
  void close(Channel& channel);
  void close_own_channels(const Stream& stream);
  void announce();

  // Captures. Whether the call is one that this thread may not make now; captures that forbid it are spoilt by it.
  bool spoils_captures(const char* function);
  void spoil(Capture& capture, const std::string& how);
  CuResult begin_capture(Stream& stream, int mode);
  CuResult end_capture(Stream& stream, CuGraph& graph);
  // By the handle that its graph will have; null where there is none.
  Capture* capture_of(CuGraph graph) const;
  void forget_captures();
  // A capture of a stream that the legacy one waits for; null where there is none.
  std::shared_ptr<Capture> capture_beside(const Stream& legacy) const;

 private:
  void work(std::shared_ptr<Channel> channel);
  CuResult execute(Lock& lock, Channel& channel, Operation& operation);
  static bool is_dropped(const Device& device, const Operation& operation) {
    return device.error != cu_success || operation.healings != device.healings;
  }
  bool pause(Lock& lock, Channel& channel, const Operation& operation, Clock::time_point until);
  Clock::time_point start_of_run(Device& device, const Operation& operation);
  std::shared_ptr<Channel> channel_for(Stream& stream, Unit unit);
  std::vector<Point> implied_order(const Stream& stream);
};

// Names the thread that asks, once and for all: an id of the system's could come back.
std::uint64_t this_thread();

// The calling thread's capture mode.
int& capture_mode();

// The one driver of the process. Never destroyed: workers may outlive main().
Driver& driver();

// Whether the process has memory there at all.
bool is_mapped(void* address, std::size_t bytes);

// A copy, as the channel's worker does it. Addresses are looked up when the copy runs, as a device does, except for the
// caller's pageable memory.
struct Copy {
  CuDevicePtr to;
  CuDevicePtr from;
  std::size_t bytes;
  std::byte* pageable_to = nullptr;
  std::shared_ptr<std::vector<std::byte>> staged_from;
};

// Moves the bytes of all copies; the lock is open meanwhile. `only` keeps kernels from other devices' memory.
CuResult run_copies(Lock& lock, Device& device, const std::vector<Copy>& copies, const Device* only);

// A range of memory that a kernel uses, kept in place meanwhile.
struct Side {
  std::byte* data = nullptr;
  std::shared_ptr<Memory> range;
};
// False where there is no such memory, or the device can't reach it. `only`: as above.
bool hold(Side& side, CuDevicePtr address, std::size_t bytes, const Device& device, const Device* only);
void let_go(const Side& side);

// The kernels penstock_rows_find and penstock_rows_place. The lock stays closed.
enum class RowKernel { find, place };
CuResult run_row_kernel(RowKernel kernel, const Device& device, CuDevicePtr entries, unsigned count);

}  // namespace fake_cuda
