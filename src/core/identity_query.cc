#include "core/identity_query.h"

#include <utility>

namespace penstock::core {

void IdentityQuery::run() {
  identities_ = identities_of(stores_);
  answered_.store(true, std::memory_order_release);
  on_answer_();
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
