#include "core/identity_query.h"

#include <utility>

#include "base/bounded.h"

namespace penstock::core {

std::shared_ptr<const IdentityQuery> IdentityQuery::begin(Stores stores, std::function<void()> on_answer) {
  const auto query = std::make_shared<IdentityQuery>();
  const bool started = leave_to_thread([query, stores = std::move(stores), on_answer = std::move(on_answer)] {
    query->identities_ = identities_of(stores);
    query->answered_.store(true, std::memory_order_release);
    on_answer();
  });
  return started ? query : nullptr;
}

Identities identities_of(const IdentityQuery::Stores& stores) {
  Identities identities;
  for (const auto& entry : stores) {
    auto state = entry->store().state();
    identities.push_back(state ? Result<Identity>(std::move(state->identity)) : std::move(state).error());
  }
  return identities;
}

}  // namespace penstock::core
