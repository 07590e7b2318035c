#include "services/tiers/side_by_side.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace penstock::tiers {
namespace {

constexpr std::size_t most_threads = 16;
constexpr std::size_t least_each = 4;  // fewer are done before a thread has started
// The first pieces show what the others do: they gave the processor up, each for at least this, if they wait for a disk
// or a server. The clock alone would not tell, since it goes on while others have the processor.
constexpr std::size_t tried_alone = 4;
constexpr Duration waiting = std::chrono::microseconds(50);

// How often the thread has waited for something.
long waits() {
  struct rusage usage = {};
  return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

// More threads than processors only help those that wait. Several batches of units are worked on at once.
std::size_t threads_for(std::size_t count, bool waited) {
  const std::size_t processors = std::max(1U, std::thread::hardware_concurrency() / 2);
  return std::min({waited ? most_threads : processors, most_threads, (count + least_each - 1) / least_each});
}

}  // namespace

void side_by_side(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto take_turns = [&](std::size_t end) {
    while (next < end) {
      const std::size_t i = next++;
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!thrown) thrown = std::current_exception();
      }
    }
  };
  const TimePoint begin = Clock::now();
  const long waits_before = waits();
  take_turns(std::min(count, tried_alone));
  const bool waited = waits() - waits_before >= static_cast<long>(tried_alone) / 2 &&
                      Clock::now() - begin >= waiting * static_cast<long>(tried_alone);
  std::vector<std::jthread> others;
  if (count > tried_alone) {
    others.reserve(most_threads);
    try {
      const std::size_t threads = threads_for(count - tried_alone, waited);
      for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&] { take_turns(count); });
    } catch (const std::system_error&) {
      // Those that run do all of it.
    }
    take_turns(count);
  }
  others.clear();  // waits for them
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace penstock::tiers
