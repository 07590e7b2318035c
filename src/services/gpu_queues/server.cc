#include "services/gpu_queues/server.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

namespace penstock::gpu_queues {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;  // tests turn the other

constexpr auto eager = 50us;  // after a command, in which nobody else gets the processor
constexpr auto awake = 1ms;   // in which others may
constexpr auto longest_nap = 1ms;
constexpr auto batch_nap = 50us;  // while requests are under way
constexpr auto dead_after = 1s;
constexpr std::uint32_t most_threads = 256;
constexpr std::uint32_t usual_threads = 8;
constexpr unsigned looks_a_clock = 32;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Result<std::shared_ptr<Server>> Server::start(const Context& context, const GpuServerOptions& options,
                                              FaultPlan faults) {
  GpuServerOptions chosen = options;
  if (chosen.threads == 0) {
    chosen.threads = std::clamp(std::thread::hardware_concurrency() / 2, 1U, usual_threads);
  }
  if (chosen.threads > most_threads) {
    return Error{Code::invalid_argument, 0, "a server with " + std::to_string(chosen.threads) + " threads",
                 "choose at most 256"};
  }
  auto server = std::make_shared<Server>(context, chosen, std::move(faults));
  const std::scoped_lock lock(server->mutex_);
  if (Status status = server->start_threads(); !status) return std::move(status).error();
  return server;
}

Server::Server(const Context& context, const GpuServerOptions& options, FaultPlan faults)
    : context_(context), options_(options), faults_(std::move(faults)), lives_(options.threads) {}

Server::~Server() {
  if (in_child()) {
    // The threads stayed with the parent.
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  close();
}

// Starts those that don't run. REQUIRES: the lock.
Status Server::start_threads() {
  threads_.resize(options_.threads);
  for (std::uint32_t i = 0; i < options_.threads; ++i) {
    if (!lives_[i].ended.load(std::memory_order_acquire)) continue;
    if (threads_[i].joinable()) threads_[i].join();
    lives_[i].beat();
    lives_[i].ended.store(false, std::memory_order_relaxed);
    try {
      threads_[i] = std::thread([this, i] { work(i); });
    } catch (const std::system_error& error) {
      lives_[i].ended.store(true, std::memory_order_relaxed);
      return Error{Code::out_of_memory, error.code().value(), "start a thread that serves queues of GPUs",
                   "ask for fewer threads, or raise the limit of processes (ulimit -u)"};
    }
  }
  return {};
}

Result<std::shared_ptr<Set>> Server::open(const GpuQueuesOptions& options) {
  GpuQueuesOptions chosen = options;
  if (Status status = Set::check_options(chosen, options_.threads); !status) return std::move(status).error();
  auto set = Set::open(context_, chosen, options_.threads, spare_);
  if (!set) return set;
  {
    const std::scoped_lock lock(mutex_);
    if (ending_.load(std::memory_order_relaxed)) {
      return Error{Code::closed, 0, "the server is closed", "start another"};
    }
    sets_.push_back(*set);
    version_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
  return set;
}

Status Server::reset(Set& set) {
  if (Status status = set.stop(); !status) return status;
  const auto deadline = SteadyClock::now() + duration_from_seconds(set.options().timeout_seconds) + dead_after;
  {
    // Those that died serve again.
    const std::scoped_lock lock(mutex_);
    if (ending_.load(std::memory_order_relaxed) || set.closed.load(std::memory_order_relaxed)) {
      return Error{Code::closed, 0, "the set of queues is closed, or its server is", "open another"};
    }
    if (Status status = start_threads(); !status) return status;
  }
  const std::scoped_lock one_at_a_time(reset_mutex_);
  set.pausing.store(true, std::memory_order_release);
  const auto is_parked = [](const std::atomic<bool>& parked) { return parked.load(std::memory_order_acquire); };
  while (!std::ranges::all_of(set.parked, is_parked)) {
    if (SteadyClock::now() > deadline) {
      return Error{Code::timed_out, 0, "the server of the set still works on commands of the last kernel",
                   "the store does not answer: close the set, and open another"};
    }
    std::this_thread::sleep_for(50us);
  }
  Status status = set.reset();
  for (std::atomic<bool>& parked : set.parked) parked.store(false, std::memory_order_relaxed);
  set.pausing.store(false, std::memory_order_release);
  return status;
}

void Server::close(const std::shared_ptr<Set>& set) {
  (void)set->stop();  // a GPU that is lost has no kernels to stop
  set->closed.store(true, std::memory_order_release);
  {
    const std::scoped_lock lock(mutex_);
    std::erase(sets_, set);
    version_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

void Server::close() {
  std::vector<std::shared_ptr<Set>> sets;
  std::vector<std::thread> threads;
  {
    const std::scoped_lock lock(mutex_);
    sets = sets_;
  }
  for (const auto& set : sets) close(set);
  {
    const std::scoped_lock lock(mutex_);
    ending_.store(true, std::memory_order_release);
    threads = std::move(threads_);
    threads_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

bool Server::is_dead() const {
  const Duration now = SteadyClock::now().time_since_epoch();
  return std::ranges::any_of(lives_, [&](const Life& life) {
    const Duration::rep looked = life.looked.load(std::memory_order_relaxed);
    return life.ended.load(std::memory_order_acquire) || (looked != asleep && now - Duration(looked) > dead_after);
  });
}

bool Server::look(Worker& worker, std::uint32_t thread, const View& view) {
  bool found = worker.collect();
  for (const auto& set : view.sets) {
    if (set->pausing.load(std::memory_order_acquire)) {
      if (!set->parked[thread].load(std::memory_order_relaxed) && !worker.has_batches_of(*set)) {
        set->parked[thread].store(true, std::memory_order_release);
      }
      continue;
    }
    found |= worker.serve(set);
  }
  return found;
}

void Server::rest(Life& life, TimePoint since, const View& view, const Worker& worker) {
  const auto idle = SteadyClock::now() - since;
  const bool has_sets = !view.sets.empty();
  if (has_sets && (options_.hot || idle < eager)) return relax();
  if (has_sets && idle < awake) {
    ::sched_yield();
    return;
  }
  // Longer and longer.
  auto nap = std::min<SteadyClock::duration>(idle / 8, longest_nap);
  if (worker.has_batches()) nap = std::min<SteadyClock::duration>(nap, batch_nap);
  std::unique_lock lock(mutex_);
  const auto is_changed = [&] {
    return version_.load(std::memory_order_relaxed) != view.version || ending_.load(std::memory_order_relaxed);
  };
  if (has_sets || worker.has_batches()) {
    changed_.wait_for(lock, nap, is_changed);
  } else {
    life.looked.store(asleep, std::memory_order_relaxed);
    changed_.wait(lock, is_changed);
    life.beat();
  }
}

// Without memory the old one stays, and the next look tries again.
void Server::look_again(View& view) {
  try {
    const std::scoped_lock lock(mutex_);
    view = {version_.load(std::memory_order_relaxed), sets_};
  } catch (const std::bad_alloc&) {
  }
}

void Server::work(std::uint32_t thread) {
  ::pthread_setname_np(::pthread_self(), "penstock-queues");
  Life& life = lives_[thread];
  Worker worker(context_, {thread, options_.threads}, faults_);
  View view;
  TimePoint last = SteadyClock::now();
  unsigned looks = 0;
  unsigned idle_looks = 0;
  while (!worker.is_over() && (!ending_.load(std::memory_order_acquire) || worker.has_batches())) {
    if (version_.load(std::memory_order_acquire) != view.version) {
      look_again(view);
      last = SteadyClock::now();
    }
    const bool found = look(worker, thread, view);
    if (++looks % looks_a_clock == 0) life.beat();
    if (found) {
      idle_looks = 0;
    } else if (++idle_looks % looks_a_clock != 1) {
      relax();
    } else {
      if (idle_looks == 1) last = SteadyClock::now();
      rest(life, last, view, worker);
    }
  }
  life.ended.store(true, std::memory_order_release);
}

}  // namespace penstock::gpu_queues
