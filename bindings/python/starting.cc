#include "starting.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace penstock::python {
namespace {

// A server that does not answer may hold as many; more only help where stores are slow to open.
constexpr std::size_t threads_most = 64;
constexpr std::chrono::seconds idle_time{10};

}  // namespace

Starters& Starters::of_process() {
  static Starters* starters = nullptr;  // never destroyed: its threads may outlive everything else
  if (starters == nullptr || starters->process_ != ::getpid()) starters = new Starters(::getpid());
  return *starters;
}

bool Starters::run(std::function<void()> job) {
  const std::scoped_lock lock(mutex_);
  try {
    jobs_.push_back(std::move(job));
    if (idle_ >= jobs_.size() || threads_ == threads_most) {
      posted_.notify_one();
      return true;
    }
    // Signals are for the threads of the program.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    bool is_started = true;
    try {
      std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      is_started = false;
    } catch (const std::bad_alloc&) {
      is_started = false;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (is_started) {
      ++threads_;
    } else if (threads_ == 0) {
      jobs_.pop_back();
      return false;
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Starters::wait_for(const Ticket& ticket) {
  if (one_waits_.exchange(true)) return;
  const bool is_started = run([this, ticket] {
    (void)ticket.wait();
    one_waits_ = false;
  });
  if (!is_started) one_waits_ = false;
}

void Starters::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    const bool has_job = posted_.wait_for(lock, idle_time, [this] { return !jobs_.empty(); });
    --idle_;
    if (!has_job) break;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds may take time to go
    lock.lock();
  }
  --threads_;
}

}  // namespace penstock::python
