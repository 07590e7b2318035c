// IdentityQuery: what stores are like, as a call: where a server has to be asked, it may never answer.
//
// Thread safety: any thread. Lifetime: shared by the operation, which may outlive everybody who wants to know, and by
// who waits for it; it holds the stores that it asks about.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "core/store_entry.h"

namespace penstock::core {

using Identities = std::vector<Result<Identity>>;

class IdentityQuery : public engine::Call {
 public:
  using Stores = std::vector<std::shared_ptr<StoreEntry>>;

  // `on_answer` is called by the thread that has the answer.
  IdentityQuery(Stores stores, std::function<void()> on_answer)
      : stores_(std::move(stores)), on_answer_(std::move(on_answer)) {
    identities_.reserve(stores_.size());
  }

  TimePoint begun() const { return begun_; }
  bool answered() const { return answered_.load(std::memory_order_acquire); }
  // In the order of the stores. REQUIRES: answered().
  const Identities& identities() const { return identities_; }

 private:
  void run() override;

  const TimePoint begun_ = Clock::now();
  Stores stores_;  // until they have answered
  const std::function<void()> on_answer_;
  Identities identities_;
  std::atomic<bool> answered_{false};
};

// The same on the caller's thread.
Result<Identity> identity_of(const StoreEntry& entry);
Identities identities_of(const IdentityQuery::Stores& stores);

}  // namespace penstock::core
