#include "gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace penstock::python {
namespace {

// Of the process, as the interpreter is.
std::atomic<bool> is_shut_down = false;
pthread_t last_thread;  // written before the flag is

}  // namespace

void shut_down() {
  last_thread = ::pthread_self();
  is_shut_down.store(true, std::memory_order_release);
  // Threads that asked for the GIL before they could see the flag get it now.
  const WithoutGil released;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void sleep_if_shut_down() {
  while (is_shut_down.load(std::memory_order_acquire) && ::pthread_equal(last_thread, ::pthread_self()) == 0) ::pause();
}

}  // namespace penstock::python
