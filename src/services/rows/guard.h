// The guard of gathers: a mapping whose file is truncated answers a load with SIGBUS, which ends the process. Inside a
// guard it ends the work instead.
//
// The handler is installed once in the process and stays. It acts only on a fault of a thread that is inside a guard,
// at an address of the mappings of that guard; every other SIGBUS goes to the handler that was there before. A handler
// that somebody installs later must hand on what is not his, as ours does.
//
// Thread safety: functions, from any thread.
#pragma once

#include <cstddef>
#include <span>

namespace penstock::rows {

using Mapped = std::span<const std::byte>;

// Installs the handler, if it is not there; false where the system refuses.
bool install_guard();

// Calls work(argument). False where that touched a page of the mappings that is gone: the work was left in the middle,
// without the destructors of its variables. REQUIRES: install_guard, and work that has none to call, and takes no lock.
bool run_guarded(std::span<const Mapped> mappings, void (*work)(void*), void* argument);

}  // namespace penstock::rows
