#include "gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace penstock::python {
namespace {

// Of the process, as the interpreter is.
std::atomic<bool> is_shut_down = false;
pthread_t last_thread;                    // written before the flag is
thread_local bool is_given_back = false;  // by a WithoutGil

// Returns, unless the interpreter shuts down and this is not its last thread.
void sleep_if_shut_down() {
  while (is_shut_down.load(std::memory_order_acquire) && ::pthread_equal(last_thread, ::pthread_self()) == 0) ::pause();
}

}  // namespace

void shut_down() {
  last_thread = ::pthread_self();
  is_shut_down.store(true, std::memory_order_release);
  // Threads that asked for the GIL before they could see the flag get it now.
  const WithoutGil released;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool has_gil() {
  return !is_given_back && PyGILState_GetThisThreadState() != nullptr;
}

WithoutGil::WithoutGil() : state_(PyEval_SaveThread()) {
  is_given_back = true;
}

WithoutGil::~WithoutGil() {
  sleep_if_shut_down();
  PyEval_RestoreThread(state_);
  is_given_back = false;
}

WithGil::WithGil() {
  sleep_if_shut_down();
  state_ = PyGILState_Ensure();
  was_given_back_ = std::exchange(is_given_back, false);
}

WithGil::~WithGil() {
  is_given_back = was_given_back_;
  PyGILState_Release(state_);
}

}  // namespace penstock::python
