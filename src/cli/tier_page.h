// The page of `penstock tier status --html`: what lies on which tier, as a picture.
#pragma once

#include <string>
#include <vector>

#include "penstock/tiers.h"

namespace penstock::cli {

// One HTML page without anything from elsewhere. `largest` are units to be shown by name, in any order.
std::string tier_page(const std::vector<TierInfo>& tiers, const std::vector<UnitInfo>& largest);

}  // namespace penstock::cli
