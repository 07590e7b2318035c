#include <gtest/gtest.h>

#include "penstock/options.h"
#include "penstock/request.h"
#include "penstock/route.h"
#include "penstock/store.h"

namespace penstock {
namespace {

TEST(Names, of_routes_lead_back) {
  for (std::size_t index = 0; index < route_count; ++index) {
    const auto route = static_cast<Route>(index);
    EXPECT_EQ(route_from_name(route_name(route)), route);
  }
  EXPECT_EQ(route_name(Route::direct), "direct");
  EXPECT_EQ(route_name(Route::mapped), "mapped");
  EXPECT_EQ(route_from_name("Direct"), std::nullopt);
  EXPECT_EQ(route_from_name(""), std::nullopt);
}

TEST(Names, follow_the_order_of_their_enumerations) {
  EXPECT_EQ(cache_name(Cache::automatic), "auto");
  EXPECT_EQ(cache_name(Cache::bypass), "bypass");
  EXPECT_EQ(outcome_name(Outcome::pending), "pending");
  EXPECT_EQ(outcome_name(Outcome::abandoned), "abandoned");
  EXPECT_EQ(limit_name(Limit::cpu), "cpu");
  EXPECT_EQ(store_kind_name(StoreKind::block_device), "block_device");
  EXPECT_EQ(locality_name(Locality::fuse), "fuse");
}

TEST(Names, of_impossible_values_are_safe_to_print) {
  EXPECT_EQ(route_name(static_cast<Route>(99)), "invalid");
  EXPECT_EQ(outcome_name(static_cast<Outcome>(99)), "invalid");
}

}  // namespace
}  // namespace penstock
