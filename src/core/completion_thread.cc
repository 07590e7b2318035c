#include "core/completion_thread.h"

#include <future>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/runs_callback.h"
#include "penstock/result.h"

namespace penstock::core {

bool CompletionThread::inside_callback() {
  return runs_callback;
}

void CompletionThread::post(std::unique_ptr<Action> action) {
  {
    const std::scoped_lock lock(state_->mutex);
    if (!state_->closed && ensure_thread()) {
      Action* const added = action.get();
      (state_->first ? state_->last->next_ : state_->first) = std::move(action);
      state_->last = added;
      state_->changed.notify_one();
      return;
    }
  }
  const bool before = std::exchange(runs_callback, true);
  action->run();
  runs_callback = before;
}

void CompletionThread::free_there(memory::FreedLater::List memory) {
  if (memory.empty()) return;
  const std::scoped_lock lock(state_->mutex);
  if (state_->closed || !ensure_thread()) return;  // it is freed here
  state_->to_free.append(std::move(memory));
  state_->changed.notify_one();
}

bool CompletionThread::ensure_thread() {
  if (thread_.joinable()) return true;
  try {
    thread_ = std::thread([state = state_] { run(*state); });
    return true;
  } catch (const std::system_error& error) {
    if (!std::exchange(lacks_thread_, true)) {
      static_cast<void>(or_out_of_memory([&]() -> Status {
        log(LogLevel::warning, std::string("no thread for callbacks, so they run on lanes: ") + error.what());
        return {};
      }));
    }
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool CompletionThread::wait_for_posted(TimePoint deadline) {
  if (runs_callback) return false;
  auto run = std::make_shared<std::promise<void>>();
  const std::future<void> has_run = run->get_future();
  post([run] { run->set_value(); });
  return has_run.wait_until(deadline) == std::future_status::ready;
}

void CompletionThread::close() {
  std::thread thread;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->closed = true;
    thread = std::move(thread_);
    state_->changed.notify_one();
  }
  if (!thread.joinable()) return;
  // A callback may drop the last reference to its Context: a thread can't wait for itself.
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

void CompletionThread::run(State& state) {
  runs_callback = true;
  std::unique_lock lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&state] { return state.closed || state.first || !state.to_free.empty(); });
    if (!state.first && state.to_free.empty()) return;
    auto memory = std::move(state.to_free);
    auto action = std::move(state.first);
    if (action) state.first = std::move(action->next_);
    lock.unlock();
    memory.clear();
    if (action) action->run();
    action.reset();
    lock.lock();
  }
}

}  // namespace penstock::core
