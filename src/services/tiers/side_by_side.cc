#include "services/tiers/side_by_side.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock::tiers {
namespace {

constexpr std::size_t most_threads = 16;
constexpr std::size_t least_each = 4;  // fewer are done before a thread has started

}  // namespace

void side_by_side(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto take_turns = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!thrown) thrown = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> others;
  others.reserve(most_threads);
  try {
    const std::size_t threads = std::min(most_threads, (count + least_each - 1) / least_each);
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back(take_turns);
  } catch (const std::system_error&) {
    // Those that run do all of it.
  }
  take_turns();
  others.clear();  // waits for them
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace penstock::tiers
