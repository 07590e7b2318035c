#include "core/identity_query.h"

#include <utility>

#include "base/out_of_memory.h"

namespace penstock::core {

Result<Identity> identity_of(const StoreEntry& entry) {
  return or_out_of_memory([&]() -> Result<Identity> {
    auto state = entry.store().state();
    if (!state) return std::move(state).error();
    return std::move(state->identity);
  });
}

void IdentityQuery::run() {
  for (const auto& entry : stores_) identities_.push_back(identity_of(*entry));
  stores_.clear();
  answered_.store(true, std::memory_order_release);
  on_answer_();
}

Identities identities_of(const IdentityQuery::Stores& stores) {
  Identities identities;
  for (const auto& entry : stores) identities.push_back(identity_of(*entry));
  return identities;
}

}  // namespace penstock::core
