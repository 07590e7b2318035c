// Survey: what of a request's units was in the page cache before the request read there.
//
// The kernel reads ahead of what is read through the page cache. A unit that is asked about only when its turn comes
// would be taken for cached though the disk has just read it for this request. So units are asked about before anything
// that near in front of them is read. Lanes share the asking, and wait for each other only where they need what another
// is just asking about.
//
// Thread safety: any thread. Lifetime: within its request.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <tuple>
#include <vector>

#include "core/planner.h"

namespace penstock::core {

class Request;
class StoreEntry;
struct Unit;

// Of a request's stores.
struct Stretch {
  std::uint32_t store = 0;
  bool fills = false;  // what is done with it afterwards: it is read into the page cache, or dropped from there
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator<(const Stretch& a, const Stretch& b) {
    return std::tie(a.fills, a.store, a.offset) < std::tie(b.fills, b.store, b.offset);
  }
};

class Survey {
 public:
  Survey() = default;
  ~Survey() { delete guesses_.load(std::memory_order_relaxed); }
  Survey(const Survey&) = delete;
  Survey& operator=(const Survey&) = delete;

  // Until Unit::residency is set from unit `begin` up to `end`, and of as many behind them as the kernel may read
  // ahead; at once where no store has a page cache to be asked about. REQUIRES: the units before `begin` are claimed.
  void reach(Request& request, std::uint32_t begin, std::uint32_t end);
  // The same of a single stretch, as it is now.
  Residency ask(const Request& request, const Stretch& stretch);

  // What is in the page cache for this request though nothing of it was meant to go there: pages that were looked at,
  // and what the kernel read ahead of cached units. REQUIRES: every part has left.
  void add_leftovers(const Request& request, std::vector<Stretch>& leftovers) const;
  // False: there are none. REQUIRES: the same.
  bool may_have_leftovers(const Request& request) const;

 private:
  bool is_needed(const Request& request);
  Residency ask_about(const Request& request, const Unit& unit);
  void guess_far(Request& request, std::uint32_t end);
  void tell(Unit& unit, Residency residency);
  // Where the kernel does not tell.
  struct Guesses {
    std::mutex mutex;  // guards what follows: guesses are made one by one
    // Where only the time of a read tells: what that was, and of which store.
    Residency timed = Residency::unknown;
    const StoreEntry* timed_entry = nullptr;
    std::vector<Stretch> brought;  // the pages that were looked at and were not there
  };
  Guesses* guesses();  // null: there is no memory for them
  Residency guess(const Request& request, const Stretch& stretch);

  enum class Need : std::uint8_t { unknown, none, some };
  std::atomic<Need> need_{Need::unknown};     // to ask, of some store
  std::atomic<std::uint32_t> next_{0};        // unit to ask about
  std::atomic<bool> is_some_missing_{false};  // for certain
  std::atomic<Guesses*> guesses_{nullptr};    // from the first guess on; owned
};

}  // namespace penstock::core
