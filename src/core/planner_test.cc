#include "core/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace penstock::core {
namespace {

using engine::Path;

constexpr std::array directions = {Direction::read, Direction::write};
constexpr std::array localities = {Locality::local, Locality::memory, Locality::network, Locality::fuse};
constexpr std::array caches = {Cache::automatic, Cache::keep, Cache::bypass};
constexpr std::array residencies = {Residency::all,     Residency::none,       Residency::some,
                                    Residency::unknown, Residency::likely_all, Residency::likely_none};

// Every combination of facts, with every set of allowed routes; a store is reached one way at least.
constexpr RouteSet host_routes =
    route_bit(Route::cached) | route_bit(Route::direct) | route_bit(Route::buffered) | route_bit(Route::mapped);

std::vector<WindowFacts> all_facts() {
  std::vector<WindowFacts> all;
  for (const Direction direction : directions) {
    for (const Locality locality : localities) {
      for (const auto& [direct, page_cache] : {std::pair(true, true), {true, false}, {false, true}}) {
        for (const Cache cache : caches) {
          for (const Residency residency : residencies) {
            for (RouteSet allowed = 0; allowed <= host_routes; ++allowed) {
              all.push_back({direction, locality, direct, page_cache, cache, allowed, residency});
              if (cache != Cache::automatic) continue;
              for (const Stays stays : {Stays::file, Stays::again, Stays::later, Stays::too_slow}) {
                all.push_back({direction, locality, direct, page_cache, cache, allowed, residency, stays});
              }
            }
          }
        }
      }
    }
  }
  return all;
}

std::string describe(const WindowFacts& facts) {
  return std::string(facts.direction == Direction::read ? "read" : "write") + " " +
         std::string(locality_name(facts.locality)) + (facts.direct ? " direct" : "") +
         (facts.page_cache ? " page-cache" : "") + " cache=" + std::string(cache_name(facts.cache)) + " allowed " +
         std::to_string(facts.allowed) + " residency " + std::to_string(static_cast<int>(facts.residency));
}

TEST(PlanWindow, never_takes_a_route_that_is_not_allowed) {
  for (const WindowFacts& facts : all_facts()) {
    const auto plan = plan_window(facts);
    if (!plan) continue;
    EXPECT_TRUE(facts.allowed & route_bit(route_of(plan->path))) << describe(facts);
  }
}

TEST(PlanWindow, never_reaches_a_store_in_a_way_that_it_has_not) {
  for (const WindowFacts& facts : all_facts()) {
    const auto plan = plan_window(facts);
    if (!plan) continue;
    if (plan->path == Path::direct) {
      EXPECT_TRUE(facts.direct) << describe(facts);
    } else {
      EXPECT_TRUE(facts.page_cache) << describe(facts);
    }
  }
}

TEST(PlanWindow, gives_up_only_when_no_allowed_route_is_left) {
  for (const WindowFacts& facts : all_facts()) {
    if (plan_window(facts)) continue;
    EXPECT_FALSE(facts.direct && (facts.allowed & route_bit(Route::direct))) << describe(facts);
    EXPECT_FALSE(facts.page_cache && (facts.allowed & route_bit(Route::buffered))) << describe(facts);
  }
}

TEST(PlanWindow, takes_the_bytes_for_cached_only_when_they_are_thought_to_be) {
  for (const WindowFacts& facts : all_facts()) {
    const auto plan = plan_window(facts);
    if (!plan || plan->path != Path::cached) continue;
    EXPECT_EQ(facts.direction, Direction::read) << describe(facts);
    EXPECT_TRUE(facts.locality == Locality::memory || facts.residency == Residency::all ||
                facts.residency == Residency::likely_all)
        << describe(facts);
  }
}

TEST(PlanWindow, drops_only_what_it_brought_in_itself) {
  for (const WindowFacts& facts : all_facts()) {
    const auto plan = plan_window(facts);
    if (!plan || !plan->drop_after) continue;
    EXPECT_EQ(plan->path, Path::buffered) << describe(facts);
    EXPECT_EQ(facts.residency, Residency::none) << describe(facts);
    EXPECT_EQ(facts.stays, Stays::no) << describe(facts);
    EXPECT_NE(facts.cache, Cache::keep) << describe(facts);
    EXPECT_EQ(facts.direction, Direction::read) << describe(facts);
  }
}

TEST(PlanWindow, goes_straight_to_a_gpu_where_that_is_possible_and_allowed) {
  for (WindowFacts facts : all_facts()) {
    facts.out_of_reach = true;
    facts.allowed = ~RouteSet{0};
    facts.device_route = Route::gds;
    const auto plan = plan_window(facts);
    ASSERT_TRUE(plan) << describe(facts);
    const bool in_memory = (facts.direct || facts.page_cache) && plan->path == Path::cached;
    const bool keeps = facts.cache == Cache::keep && facts.page_cache;
    EXPECT_EQ(plan->path == Path::device, !in_memory && !keeps) << describe(facts);
    facts.allowed = ~route_bit(Route::gds);
    const auto around = plan_window(facts);
    EXPECT_TRUE(!around || around->path != Path::device) << describe(facts);
  }
}

TEST(PlanWindow, to_a_gpu_asks_for_the_staged_routes) {
  WindowFacts facts{.direct = true, .page_cache = true, .residency = Residency::none, .out_of_reach = true};
  facts.allowed = route_bit(Route::direct) | route_bit(Route::cached) | route_bit(Route::buffered);
  EXPECT_FALSE(plan_window(facts)) << "routes to the host say nothing about a GPU";
  facts.allowed = route_bit(Route::buffered_staged);
  EXPECT_EQ(plan_window(facts)->path, Path::buffered);
  facts.allowed = route_bit(Route::direct_staged);
  EXPECT_EQ(plan_window(facts)->path, Path::direct);
}

TEST(PlanWindow, cufiles_compat_mode_is_taken_only_if_it_is_named) {
  EXPECT_EQ(route_set({}) & route_bit(Route::cufile_compat), 0U);
  const Route named[] = {Route::cufile_compat};
  EXPECT_NE(route_set(named) & route_bit(Route::cufile_compat), 0U);
}

TEST(PlanWindow, gives_reasons_that_are_true) {
  for (const WindowFacts& facts : all_facts()) {
    const auto plan = plan_window(facts);
    if (!plan) continue;
    const bool remote = facts.locality == Locality::network || facts.locality == Locality::fuse;
    bool fits = false;
    switch (plan->reason) {
      case Reason::in_memory:
        fits = facts.locality == Locality::memory && plan->path != Path::direct;
        break;
      case Reason::in_page_cache:
        fits = facts.residency == Residency::all && plan->path == Path::cached;
        break;
      case Reason::not_in_page_cache:
        fits = facts.residency != Residency::all && plan->path == Path::direct;
        break;
      case Reason::keep_asked:
        fits = facts.cache == Cache::keep && plan->path == Path::buffered;
        break;
      case Reason::bypass_asked:
        fits = plan->path == Path::direct && facts.cache == Cache::bypass;
        break;
      case Reason::no_page_cache:
        fits = plan->path == Path::direct && !facts.page_cache;
        break;
      case Reason::no_direct:
        fits = !facts.direct && plan->path == Path::buffered;
        break;
      case Reason::remote:
        fits = remote && plan->path == Path::buffered;
        break;
      case Reason::residency_unknown:
        fits = facts.residency == Residency::likely_all || facts.residency == Residency::likely_none;
        break;
      case Reason::write_through:
        fits = facts.direction == Direction::write && plan->path == Path::direct &&
               (!facts.page_cache || facts.kind == StoreKind::block_device);
        break;
      case Reason::write_fits:
        fits = facts.direction == Direction::write && facts.stays == Stays::file && plan->path == Path::buffered;
        break;
      case Reason::write_past:
        fits = facts.direction == Direction::write && plan->path == Path::direct && !plan->fill_after &&
               (facts.stays == Stays::no || facts.stays == Stays::again);
        break;
      case Reason::write_faster_past:
        fits = facts.direction == Direction::write && facts.stays == Stays::too_slow && plan->path == Path::direct &&
               !plan->fill_after;
        break;
      case Reason::not_allowed:
        fits = facts.allowed != host_routes;
        break;
      case Reason::straight:
        fits = facts.device_route.has_value() && plan->path == Path::device;
        break;
      case Reason::file_fits:
        fits = facts.direction == Direction::read && facts.stays == Stays::file && plan->path == Path::buffered &&
               !plan->drop_after;
        break;
      case Reason::read_again:
        fits = facts.stays == Stays::again && plan->path == Path::buffered && !plan->drop_after;
        break;
      case Reason::tried_past:
        fits = facts.stays == Stays::later && plan->path == Path::direct && plan->fill_after;
        break;
      case Reason::faster_past:
        fits = facts.stays == Stays::too_slow && plan->path == Path::direct && !plan->fill_after;
        break;
      case Reason::edge:
      case Reason::refused:
      case Reason::cufile_compat:
      case Reason::cufile_unknown:
      case Reason::out_of_reach:
      case Reason::made:
        break;  // found out later, by lanes
    }
    EXPECT_TRUE(fits) << describe(facts) << ": " << reason_text(plan->reason);
  }
}

TEST(PlanWindow, does_not_depend_on_residency_where_it_says_so) {
  for (const WindowFacts& facts : all_facts()) {
    if (wants_residency(facts)) {
      EXPECT_TRUE(facts.page_cache) << describe(facts) << ": there is nobody to ask";
      continue;
    }
    WindowFacts unknown = facts;
    unknown.residency = Residency::unknown;
    const auto plan = plan_window(facts);
    const auto without = plan_window(unknown);
    ASSERT_EQ(plan.has_value(), without.has_value()) << describe(facts);
    if (plan) {
      EXPECT_EQ(plan->path, without->path) << describe(facts);
    }
  }
}

TEST(PlanWindow, serves_the_cases_that_matter_as_the_documentation_says) {
  struct Case {
    WindowFacts facts;
    Path path;
    Reason reason;
  };
  const WindowFacts local{.locality = Locality::local, .direct = true, .page_cache = true};
  const auto with = [](WindowFacts facts, Cache cache, Residency residency) {
    facts.cache = cache;
    facts.residency = residency;
    return facts;
  };
  const auto that_stays = [&](Stays stays) {
    WindowFacts facts = with(local, Cache::automatic, Residency::none);
    facts.stays = stays;
    return facts;
  };
  WindowFacts nfs = local;
  nfs.locality = Locality::network;
  nfs.direct = false;
  WindowFacts written = local;
  written.direction = Direction::write;
  const auto written_that_stays = [&](Stays stays, Cache cache = Cache::automatic) {
    WindowFacts facts = with(written, cache, Residency::unknown);
    facts.stays = stays;
    return facts;
  };
  WindowFacts device = written;
  device.kind = StoreKind::block_device;
  WindowFacts driven = written;
  driven.page_cache = false;
  const Case cases[] = {
      {with(local, Cache::automatic, Residency::all), Path::cached, Reason::in_page_cache},
      {with(local, Cache::automatic, Residency::none), Path::direct, Reason::not_in_page_cache},
      {with(local, Cache::automatic, Residency::some), Path::direct, Reason::not_in_page_cache},
      {with(local, Cache::automatic, Residency::likely_none), Path::direct, Reason::residency_unknown},
      {with(local, Cache::keep, Residency::none), Path::buffered, Reason::keep_asked},
      {that_stays(Stays::file), Path::buffered, Reason::file_fits},
      {that_stays(Stays::again), Path::buffered, Reason::read_again},
      {that_stays(Stays::later), Path::direct, Reason::tried_past},
      {that_stays(Stays::too_slow), Path::direct, Reason::faster_past},
      {with(local, Cache::bypass, Residency::all), Path::direct, Reason::bypass_asked},
      {with(nfs, Cache::automatic, Residency::none), Path::buffered, Reason::remote},
      {with(nfs, Cache::bypass, Residency::all), Path::cached, Reason::in_page_cache},
      {written_that_stays(Stays::file), Path::buffered, Reason::write_fits},
      {written_that_stays(Stays::no), Path::direct, Reason::write_past},
      {written_that_stays(Stays::later), Path::direct, Reason::tried_past},
      {written_that_stays(Stays::too_slow), Path::direct, Reason::write_faster_past},
      {written_that_stays(Stays::file, Cache::bypass), Path::direct, Reason::bypass_asked},
      {written_that_stays(Stays::no, Cache::keep), Path::buffered, Reason::keep_asked},
      {device, Path::direct, Reason::write_through},
      {driven, Path::direct, Reason::write_through},
  };
  for (const Case& c : cases) {
    const auto plan = plan_window(c.facts);
    ASSERT_TRUE(plan) << describe(c.facts);
    EXPECT_EQ(plan->path, c.path) << describe(c.facts);
    EXPECT_EQ(plan->reason, c.reason) << describe(c.facts) << ": " << reason_text(plan->reason);
  }
}

TEST(Reasons, say_so_where_cufile_went_through_host_memory) {
  EXPECT_EQ(reason_after(Reason::straight, Route::gds), Reason::straight);
  EXPECT_EQ(reason_after(Reason::straight, Route::cufile_compat), Reason::cufile_compat);
  EXPECT_EQ(reason_after(Reason::straight, Route::cufile_unknown), Reason::cufile_unknown);
  EXPECT_EQ(reason_after(Reason::refused, Route::buffered_staged), Reason::refused);
}

TEST(Reasons, each_have_a_text_of_their_own) {
  std::set<std::string_view> texts;
  for (std::size_t i = 0; i < reason_count; ++i) texts.insert(reason_text(static_cast<Reason>(i)));
  EXPECT_EQ(texts.size(), reason_count);
  EXPECT_FALSE(texts.contains(""));
}

TEST(RouteSets, hold_what_was_put_in_and_everything_when_nothing_was) {
  EXPECT_EQ(route_set({}), ~(route_bit(Route::cufile_compat) | route_bit(Route::cufile_unknown)));
  const Route some[] = {Route::gds, Route::mapped};
  EXPECT_EQ(route_set(some), route_bit(Route::gds) | route_bit(Route::mapped));
}

TEST(RouteSets, hold_the_staged_forms_of_routes_to_the_host) {
  for (const Route route : {Route::direct, Route::buffered, Route::cached}) {
    EXPECT_EQ(route_set({{route}}), route_bit(route) | route_bit(staged(route)));
  }
  for (const Route route : {Route::direct_staged, Route::gds, Route::mapped, Route::p2pdma}) {
    EXPECT_EQ(route_set({{route}}), route_bit(route));
  }
}

constexpr EngineFacts ring{.name = "ring", .serves_scheme = true, .available = true, .sleeps_in_kernel = true};
constexpr EngineFacts threads{.name = "threads", .serves_scheme = true, .available = true};
constexpr EngineFacts refused_ring{
    .name = "ring", .serves_scheme = true, .unavailable_because = "a filter refuses it", .sleeps_in_kernel = true};
constexpr EngineFacts other_scheme{.name = "objects", .available = true};

TEST(PlanEngine, takes_the_first_that_works_and_serves) {
  const EngineFacts table[] = {other_scheme, ring, threads};
  EXPECT_EQ(plan_engine(table, "", std::nullopt)->engine, 1U);
  EXPECT_EQ(plan_engine(table, "", Locality::local)->engine, 1U);
}

TEST(PlanEngine, says_why_a_better_one_was_passed_over) {
  const EngineFacts table[] = {refused_ring, threads};
  const auto plan = plan_engine(table, "", Locality::local);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->engine, 1U);
  EXPECT_NE(plan->reason.find("ring not used: a filter refuses it"), std::string::npos) << plan->reason;
}

TEST(PlanEngine, prefers_threads_for_mounts_that_block_in_the_kernel) {
  const EngineFacts table[] = {ring, threads};
  for (const Locality locality : {Locality::network, Locality::fuse}) {
    EXPECT_EQ(plan_engine(table, "", locality)->engine, 1U);
    EXPECT_EQ(plan_engine({table, 1}, "", locality)->engine, 0U) << "a ring is better than nothing";
  }
}

TEST(PlanEngine, obeys_the_one_that_was_asked_for_or_says_why_not) {
  const EngineFacts table[] = {ring, threads, other_scheme};
  EXPECT_EQ(plan_engine(table, "threads", Locality::local)->engine, 1U);
  EXPECT_EQ(plan_engine(table, "ring", Locality::fuse)->engine, 0U);
  const auto unknown = plan_engine(table, "pigeon", std::nullopt);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, Code::unknown_engine);
  EXPECT_NE(unknown.error().hint.find("ring, threads, objects"), std::string::npos);
  EXPECT_EQ(plan_engine(table, "objects", std::nullopt).error().code, Code::engine_unavailable);
  const EngineFacts without[] = {refused_ring, threads};
  const auto unavailable = plan_engine(without, "ring", std::nullopt);
  ASSERT_FALSE(unavailable.ok());
  EXPECT_EQ(unavailable.error().code, Code::engine_unavailable);
  EXPECT_NE(unavailable.error().message.find("a filter refuses it"), std::string::npos);
}

TEST(PlanEngine, fails_with_every_reason_when_nothing_works) {
  const EngineFacts table[] = {refused_ring, other_scheme};
  const auto plan = plan_engine(table, "", std::nullopt);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Code::engine_unavailable);
  EXPECT_NE(plan.error().message.find("a filter refuses it"), std::string::npos);
}

// Every table of up to three engines, every wish, every place: what is chosen works, serves, and was asked for.
TEST(PlanEngine, never_chooses_one_that_can_not_serve) {
  constexpr std::array names = {"a", "b", "c"};
  for (unsigned bits = 0; bits < 1U << 9; ++bits) {
    std::array<EngineFacts, 3> table;
    for (unsigned i = 0; i < 3; ++i) {
      const unsigned own = bits >> (3 * i);
      table[i] = {.name = names[i],
                  .serves_scheme = (own & 1) != 0,
                  .available = (own & 2) != 0,
                  .unavailable_because = "no",
                  .sleeps_in_kernel = (own & 4) != 0};
    }
    const auto works = [](const EngineFacts& engine) { return engine.serves_scheme && engine.available; };
    for (const std::string_view wanted : {"", "a", "b", "c"}) {
      for (const Locality locality : localities) {
        const auto plan = plan_engine(table, wanted, locality);
        const bool possible = std::any_of(table.begin(), table.end(), [&](const EngineFacts& engine) {
          return works(engine) && (wanted.empty() || engine.name == wanted);
        });
        ASSERT_EQ(plan.ok(), possible);
        if (!plan) continue;
        EXPECT_TRUE(works(table[plan->engine]));
        EXPECT_TRUE(wanted.empty() || table[plan->engine].name == wanted);
        EXPECT_EQ(plan->reason.rfind(table[plan->engine].name, 0), 0U) << plan->reason;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::core
