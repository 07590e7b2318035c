// The guard of gathers: a mapping whose file is truncated answers a load with SIGBUS, which ends the process. Inside a
// guard it ends the work instead.
//
// There is one handler in the process, and it stays. It acts only on a fault of a thread that is inside a guard, at an
// address of the mappings of that guard; every other SIGBUS goes to the handler that was there before. Each guard looks
// whether somebody has installed another since, and puts ours in front of it again. Such a handler may pass signals on
// to ours, as one that was there before: then those before it get them, each once.
//
// Thread safety: functions, from any thread.
#pragma once

#include <cstddef>
#include <span>

namespace penstock::rows {

using Mapped = std::span<const std::byte>;

// Puts the handler in front, if it is not there; false where the system refuses.
bool install_guard();

// Calls work(argument). False where that touched a page of the mappings that is gone: the work was left in the middle,
// without the destructors of its variables. REQUIRES: install_guard, and work that has none to call, and takes no lock.
bool run_guarded(std::span<const Mapped> mappings, void (*work)(void*), void* argument);

}  // namespace penstock::rows
