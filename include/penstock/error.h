// Errors: a code from a closed list, the system's own number, and two sentences for a person.
//
// Thread safety: values. Lifetime: owns its strings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "penstock/export.h"

namespace penstock {

// The closed list of error codes; docs/errors.md explains each one.
enum class Code : std::uint8_t {
  ok,
  invalid_argument,    // a value can never be right: malformed options, overflow, misused call
  not_found,           // no such file, device or object
  permission_denied,   // the system refuses this user
  is_directory,        // a directory was given instead of a file
  out_of_range,        // a range reaches past the end of a store or of memory
  read_only,           // the store was opened or mounted read-only
  in_use,              // a device is mounted, used as swap or held
  no_space,            // the disk or quota is full
  changed,             // the store was modified or replaced during a read
  truncated,           // the store ended before the requested bytes
  io_error,            // the device or the kernel reports a failed transfer
  corrupted,           // the bytes are not what their format, or a checksum, says they must be
  not_durable,         // the file is complete under its name, but may not survive a power cut
  unsupported,         // the store or the machine can't do this at all
  unknown_scheme,      // no engine serves this URI scheme
  unknown_engine,      // there is no engine of this name
  engine_unavailable,  // the engine does not work on this machine
  no_route,            // the options allow no route that works here
  out_of_memory,       // the system has no memory, refuses to lock it, or can't start a thread
  over_budget,         // a memory budget of this Context is used up
  too_many_files,      // the process or the system has no file descriptors left
  timed_out,           // a deadline passed; nothing is in flight any longer
  cancelled,           // the caller cancelled; nothing is in flight any longer
  abandoned,           // ended while a device may still touch the memory: keep it
  no_device,           // no GPU of that number, or no working driver
  device_error,        // the GPU or its driver refused something or failed; the Context goes on
  device_lost,         // after this CUDA error the process can no longer use the GPU: start a new one
  would_deadlock,      // a wait inside a completion callback, or for a stream that itself waits for us
  would_block,         // a queue is full: collect completions, then try again
  closed,              // the Context is closing, or belongs to the parent of a fork
  internal,            // a bug in Penstock
};

PENSTOCK_EXPORT std::string_view code_name(Code code);
// The inverse of code_name; Code::internal for unknown names.
PENSTOCK_EXPORT Code code_from_name(std::string_view name);
// The code for a system error number.
PENSTOCK_EXPORT Code code_from_errno(int error_number);

struct Error {
  Code code = Code::internal;
  int system_error = 0;  // errno, or a vendor's number; 0 if there is none
  std::string message;   // what happened, to what
  std::string hint;      // what to do about it; may be empty
};

// Names in a message: "a, b, c and 7 more".
PENSTOCK_EXPORT std::string list_of(std::span<const std::string> names);

// An error from errno: "open /x: No such file or directory".
PENSTOCK_EXPORT Error system_error(int error_number, std::string what, std::string hint = {});

}  // namespace penstock
