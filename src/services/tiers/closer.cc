#include "services/tiers/closer.h"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "services/tiers/side_by_side.h"

namespace penstock::tiers {
namespace {

std::size_t most_open() {
  constexpr std::size_t most = 512;
  struct rlimit limit = {};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::min<std::size_t>(most, limit.rlim_cur / 8) : 0;
}

}  // namespace

Closer::~Closer() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  taken_more_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Closer::take(std::vector<UniqueFd> files) {
  if (files.empty()) return;
  std::unique_lock lock(mutex_);
  // More than fit at all are taken once the others are closed.
  closed_more_.wait(lock,
                    [&, most = most_open()] { return taken_ == closed_ || taken_ - closed_ + files.size() <= most; });
  try {
    waiting_.reserve(waiting_.size() + files.size());
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  } catch (const std::bad_alloc&) {
    return;  // they are closed here
  } catch (const std::system_error&) {
    return;  // no thread is left
  }
  taken_ += files.size();
  std::ranges::move(files, std::back_inserter(waiting_));
  taken_more_.notify_one();
}

bool Closer::finish() {
  std::unique_lock lock(mutex_);
  if (closed_ == taken_) return false;
  closed_more_.wait(lock, [this, until = taken_] { return closed_ >= until; });
  return true;
}

void Closer::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    taken_more_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::vector<UniqueFd> files = std::exchange(waiting_, {});
    lock.unlock();
    try {
      side_by_side(files.size(), [&](std::size_t i) { files[i] = UniqueFd(); });
    } catch (const std::bad_alloc&) {
      for (UniqueFd& file : files) file = UniqueFd();
    }
    lock.lock();
    closed_ += files.size();
    closed_more_.notify_all();
  }
}

}  // namespace penstock::tiers
