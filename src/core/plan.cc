#include "core/plan.h"

#include "core/flow.h"
#include "cuda/driver.h"

namespace penstock::core {

namespace {

std::string engine_name(const Environment& environment, std::size_t engine) {
  return std::string((*environment.engines)[engine]->description().name);
}

PlannedRoute planned(std::string bytes, const WindowFacts& facts) {
  const auto plan = plan_window(facts);
  if (!plan) return {std::move(bytes), std::nullopt, "no allowed route can carry them"};
  if (plan->path == engine::Path::device)
    return {std::move(bytes), facts.device_route, std::string(reason_text(plan->reason))};
  const Route route = engine::route_of(plan->path);
  return {std::move(bytes), facts.out_of_reach ? staged(route) : route, std::string(reason_text(plan->reason))};
}

}  // namespace

Result<Plan> plan_of(const Environment& environment, StoreEntry& entry, Direction direction, Domain domain) {
  const Options& options = environment.options;
  const bool to_gpu = !domain.host_accessible();
  Plan plan{.direction = direction,
            .domain = domain,
            .engine = engine_name(environment, entry.engine()),
            .engine_reason = entry.engine_reason(),
            .device_engine = {},
            .device_reason = {},
            .routes = {},
            .lanes = options.lanes,
            .staging_bytes_of_a_lane = options.staging_slot_bytes * options.staging_slots_per_lane};
  WindowFacts facts{.direction = direction,
                    .locality = entry.info().locality,
                    .direct = entry.from_host() && entry.direct(),
                    .page_cache = entry.from_host() && entry.info().page_cache,
                    .cache = options.cache,
                    .allowed = route_set(options.allowed_routes),
                    .kind = entry.info().kind,
                    .out_of_reach = to_gpu || entry.host_reach() == engine::HostReach::own};
  if (to_gpu) {
    const auto driver = cuda::Driver::get();
    if (!driver) return driver.error();
    const auto gpu = (*driver)->device(domain.device());
    if (!gpu) return gpu.error();
    if (const StoreEntry* const direct = entry.for_device(environment)) {
      plan.device_engine = engine_name(environment, direct->engine());
      facts.device_route = direct->store().device_route_to((*gpu)->info());
    }
    plan.device_reason = entry.facts()->device_reason;
  }
  if (entry.info().kind == StoreKind::made) {
    const Route route = facts.out_of_reach ? Route::made_staged : Route::made;
    plan.routes.push_back({"all", route, std::string(reason_text(Reason::made))});
    return plan;
  }
  const bool stays = options.cache == Cache::automatic && entry.fits_page_cache(environment, Clock::now());
  if (stays) facts.stays = Stays::file;
  if (wants_residency(facts)) {
    facts.residency = Residency::all;
    plan.routes.push_back(planned("in the page cache", facts));
    facts.residency = Residency::none;
    plan.routes.push_back(planned("not in the page cache", facts));
  } else {
    plan.routes.push_back(planned("all", facts));
  }
  const Flow& flow = entry.flow(direction);
  plan.alignment_bytes = entry.alignment(direction);
  plan.operation_bytes = to_gpu ? flow.staged_piece_bytes() : flow.plain_piece_bytes();
  plan.in_flight_bytes = flow.window_bytes();
  return plan;
}

}  // namespace penstock::core

namespace penstock {

std::string Plan::text() const {
  const auto line = [](std::string_view what, const std::string& value) {
    return value.empty() ? std::string() : std::string(what) + ": " + value + "\n";
  };
  std::string text =
      line("engine", engine) + line("because", engine_reason) + line("engine for GPU memory", device_engine);
  if (!domain.host_accessible())
    text += line(device_engine.empty() ? "no engine for GPU memory" : "because", device_reason);
  for (const PlannedRoute& one : routes) {
    text += "bytes " + one.bytes + ": " + (one.route ? std::string(route_name(*one.route)) : "none") + ", " +
            one.reason + "\n";
  }
  text += line("lanes", std::to_string(lanes));
  if (operation_bytes != 0) {
    text += "past the page cache: operations of up to " + std::to_string(operation_bytes) + " bytes, aligned to " +
            std::to_string(alignment_bytes) + ", " + std::to_string(in_flight_bytes) + " bytes in flight\n";
  }
  text += "staging memory of a lane: " + std::to_string(staging_bytes_of_a_lane) + " bytes\n";
  return text;
}

}  // namespace penstock
