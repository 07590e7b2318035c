// Copies out of memory that may vanish: a mapping whose file is truncated answers a load with SIGBUS, but a system call
// that reads it with EFAULT. No signal handler is needed.
//
// Thread safety: from any thread.
#pragma once

#include <cstddef>

namespace penstock::files {

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// Each returns 0 or an error number: EFAULT if the memory is gone.
int copy_by_process_vm(Copy copy);
int copy_by_pipe(Copy copy);

// The first; the second where the system refuses the first.
int guarded_copy(Copy copy);

}  // namespace penstock::files
