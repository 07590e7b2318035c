// IdentityQuery: what stores are like, asked by a thread of its own: where a server has to be asked, it may never
// answer.
//
// Thread safety: any thread. Lifetime: shared with its thread, which may outlive everybody who wants to know and holds
// the stores that it asks about.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "core/store_entry.h"

namespace penstock::core {

using Identities = std::vector<Result<Identity>>;

class IdentityQuery {
 public:
  using Stores = std::vector<std::shared_ptr<StoreEntry>>;

  // `on_answer` is called by the thread. Null where none can be started.
  static std::shared_ptr<const IdentityQuery> begin(Stores stores, std::function<void()> on_answer);

  TimePoint begun() const { return begun_; }
  bool answered() const { return answered_.load(std::memory_order_acquire); }
  // In the order of the stores. REQUIRES: answered().
  const Identities& identities() const { return identities_; }

 private:
  const TimePoint begun_ = Clock::now();
  Identities identities_;
  std::atomic<bool> answered_{false};
};

// The same on the caller's thread.
Identities identities_of(const IdentityQuery::Stores& stores);

}  // namespace penstock::core
