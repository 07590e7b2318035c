#include "cuda/quiet.h"

#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"

namespace penstock::cuda {

namespace {

constexpr auto between_looks = std::chrono::milliseconds(1);

}  // namespace

Quiet& Quiet::of_process() {
  static auto* quiet = new Quiet;
  return *quiet;
}

bool Quiet::begin_wait() {
  const std::unique_lock lock(mutex_, longest_call_);
  if (lock) waits_.fetch_add(1);
  return lock.owns_lock();
}

bool Quiet::run(const std::function<void()>& call) {
  const std::shared_lock lock(mutex_);
  if (streams_wait()) return false;
  call();
  return true;
}

void Quiet::run_later(std::function<void()> call) {
  // A forked child has neither the threads nor a driver.
  if (fork_guard_.in_child() || run(call)) return;
  const std::scoped_lock lock(deferred_mutex_);
  deferred_.push_back(std::move(call));
  if (has_thread_) return;
  try {
    std::thread([this] { run_deferred(); }).detach();
    has_thread_ = true;
  } catch (const std::system_error& error) {
    log(LogLevel::warning,
        std::string("no thread to free memory later: ") + error.what());  // the next call tries again
  }
}

void Quiet::run_deferred() {
  std::unique_lock lock(deferred_mutex_);
  while (!deferred_.empty()) {
    auto calls = std::exchange(deferred_, {});
    lock.unlock();
    for (const auto& call : calls) {
      while (!run(call)) std::this_thread::sleep_for(between_looks);
    }
    calls.clear();  // what they own may come here again
    lock.lock();
  }
  has_thread_ = false;
}

Error streams_wait_error(const std::string& what) {
  return {Code::would_deadlock, 0, what + ": streams wait for requests, and the driver might wait for them first",
          "prepare the GPU before the first request in stream order, or try again when those have ended"};
}

}  // namespace penstock::cuda
