#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "doctor.h"

namespace penstock::cli {

namespace {

// What the links of all its disks carry together; nothing where one of them is unknown.
std::optional<double> disk_link(const Diagnosis& diagnosis) {
  double sum = 0;
  if (!diagnosis.place.storage || diagnosis.place.storage->disks.empty()) return std::nullopt;
  for (const Disk& disk : diagnosis.place.storage->disks) {
    const double link = disk.pci && !disk.is_virtual ? disk.pci->link.bytes_per_second() : 0;
    if (link <= 0) return std::nullopt;
    sum += link;
  }
  return sum;
}

std::optional<double> gpu_link(const Diagnosis& diagnosis) {
  const auto& seen = diagnosis.gpus.seen;
  if (seen.empty()) return std::nullopt;
  const auto chosen = std::ranges::find_if(
      seen, [&](const SeenGpu& one) { return diagnosis.patient && one.gpu.domain == diagnosis.patient->to; });
  const SeenGpu& gpu = chosen != seen.end() ? *chosen : seen.front();
  const double link = gpu.bus ? awake_link(*gpu.bus).bytes_per_second() : 0;
  return link > 0 ? std::optional(link) : std::nullopt;
}

const EngineInfo* cufile_of(const Diagnosis& diagnosis) {
  const auto found = std::ranges::find(diagnosis.engines, "cufile", &EngineInfo::name);
  return found != diagnosis.engines.end() ? &*found : nullptr;
}

// What stands in the way of one of cuFile's own routes: the conditions that are missing, or those that nobody knows.
std::vector<Condition> obstacles(const EngineInfo& cufile, Route route) {
  std::vector<Condition> found;
  for (const Condition::State state : {Condition::State::missing, Condition::State::unknown}) {
    std::ranges::copy_if(cufile.conditions, std::back_inserter(found), [&](const Condition& condition) {
      const std::string_view of_other = route == Route::gds ? "P2PDMA" : "nvidia-fs";
      return condition.state == state && !condition.name.starts_with(of_other);
    });
    if (!found.empty()) break;
  }
  return found;
}

RouteVerdict judge_straight(const Diagnosis& diagnosis, Route route) {
  RouteVerdict verdict{.route = route, .gain = gain_without_staging(diagnosis)};
  const EngineInfo* cufile = cufile_of(diagnosis);
  if (cufile == nullptr) {
    verdict.cause = "the cufile engine is not built in";
    return verdict;
  }
  const std::optional<Condition> of_store = obstacle_of_store(diagnosis, route);
  verdict.works = cufile->available && cufile->device_route == route && !of_store;
  if (verdict.works) {
    verdict.gain = {};
    verdict.cause = "cuFile says that it works here; --to cuda:N tries it";
    return verdict;
  }
  const auto add = [&](const Condition& missing) {
    verdict.cause += (verdict.cause.empty() ? "" : "; ") + missing.name + ": " + missing.detail;
    verdict.remedy += (verdict.remedy.empty() ? "" : "; ") + missing.remedy;
  };
  std::ranges::for_each(obstacles(*cufile, route), add);
  if (of_store) add(*of_store);
  if (!verdict.cause.empty()) return verdict;
  verdict.cause = cufile->reason;
  verdict.remedy = cufile->remedy;
  return verdict;
}

RouteVerdict judge_compat(const Diagnosis& diagnosis) {
  const EngineInfo* cufile = cufile_of(diagnosis);
  RouteVerdict verdict{.route = Route::cufile_compat, .cause = "used only on request: staging is faster"};
  verdict.works = cufile != nullptr && cufile->available && cufile->device_route == Route::cufile_compat;
  if (!verdict.works) {
    verdict.cause = cufile == nullptr   ? "the cufile engine is not built in"
                    : cufile->available ? "cuFile has a better route here"
                                        : cufile->reason;
  }
  return verdict;
}

RouteVerdict judge_past_cache(const Diagnosis& diagnosis) {
  RouteVerdict verdict{.route = Route::direct, .works = true};
  if (!diagnosis.patient || diagnosis.patient->info.direct) return verdict;
  const StoreInfo& info = diagnosis.patient->info;
  verdict.works = false;
  verdict.cause = info.file_system + " can't be read past the page cache";
  if (info.locality == Locality::memory) {
    verdict.cause = info.file_system + " is memory: there is no device below";
    verdict.gain = {"none", 1.0};
  } else {
    verdict.remedy = "keep the file on ext4 or xfs on a local disk: cp FILE /mnt/fast/";
  }
  return verdict;
}

RouteVerdict judge_cached(const Diagnosis& diagnosis) {
  RouteVerdict verdict{.route = Route::cached, .works = true};
  if (!diagnosis.patient || diagnosis.patient->info.page_cache) return verdict;
  verdict.works = diagnosis.patient->info.locality == Locality::memory;
  if (!verdict.works) verdict.cause = "the store has no page cache";
  return verdict;
}

// What was measured belongs to the route that the bytes really took.
void add_measurements(const Patient& patient, std::vector<RouteVerdict>& routes) {
  for (const auto* sample : {&patient.speeds.cold, &patient.speeds.cached}) {
    if (!*sample) continue;
    const auto taken = std::ranges::find(routes, main_route(**sample), &RouteVerdict::route);
    if (taken == routes.end()) continue;
    taken->works = true;
    taken->bytes_per_second = rate_of(**sample);
    taken->remedy.clear();
    taken->gain = {};
    if (taken->route == Route::gds || taken->route == Route::p2pdma) taken->cause.clear();
  }
}

bool is_for_gpus(Route route) {
  return route >= Route::cached_staged;
}

void print_route(const Output& output, const RouteVerdict& verdict) {
  std::string text(route_name(verdict.route));
  if (verdict.bytes_per_second) text += ", " + format_rate(*verdict.bytes_per_second) + " measured";
  if (!verdict.cause.empty()) text += ": " + verdict.cause;
  output.item(verdict.works ? Mark::good : Mark::bad, text);
  if (!verdict.remedy.empty()) output.detail("try: " + verdict.remedy);
  if (!verdict.works && !verdict.gain.text.empty()) output.detail("gain: " + verdict.gain.text);
}

}  // namespace

std::optional<Condition> obstacle_of_store(const Diagnosis& diagnosis, Route route) {
  if (!diagnosis.patient || diagnosis.patient->info.kind != StoreKind::file) return std::nullopt;
  const std::string& type = diagnosis.patient->info.file_system;
  if (diagnosis.patient->info.locality == Locality::local && type != "ext4" && type != "xfs") {
    return Condition{"file system", Condition::State::missing, type, "keep the file on ext4 or xfs on a local disk"};
  }
  const auto& mount = diagnosis.patient->mount;
  const std::string data = mount && type == "ext4" ? mount_option(*mount, "data").value_or("") : "";
  if (!data.empty() && data != "ordered") {
    return Condition{"mount options", Condition::State::missing, "ext4 at " + mount->point + " with data=" + data,
                     "mount it with data=ordered, ext4's default"};
  }
  if (route != Route::p2pdma || !diagnosis.place.storage) return std::nullopt;
  for (const Disk& disk : diagnosis.place.storage->disks) {
    if (disk.is_virtual || !disk.name.starts_with("nvme") || diagnosis.place.storage->disks.size() > 1) {
      return Condition{"disk", Condition::State::missing, disk.name + " is not a single NVMe disk of this machine",
                       "keep the file on one NVMe disk, without RAID"};
    }
  }
  return std::nullopt;
}

Gain gain_without_staging(const Diagnosis& diagnosis) {
  if (!diagnosis.patient || !diagnosis.patient->speeds.cold) return {"penstock doctor FILE estimates it", {}};
  const Report& cold = *diagnosis.patient->speeds.cold;
  const bool to_gpu = !diagnosis.patient->to.host_accessible();
  const std::optional<double> disk = disk_link(diagnosis), gpu = gpu_link(diagnosis);
  const bool disk_is_slower =
      to_gpu ? diagnosis.bottleneck.limit == Limit::storage : gpu && rate_of(cold) * clearly < *gpu;
  if (disk_is_slower) {
    return {"none for this store, which is slower than the bus to the GPU; saves CPU time: " +
                format_seconds(cold.cpu_seconds / static_cast<double>(cold.bytes) * 1e9) + " a GB",
            1.0};
  }
  if (!disk || !gpu) return {};
  const double most = std::min(*disk, *gpu);
  return {"at most to " + format_rate(most) + ", the speed of the bus", std::max(1.0, most / rate_of(cold))};
}

bool could_go_straight(const Diagnosis& diagnosis) {
  if (diagnosis.gpus.seen.empty()) return false;
  return diagnosis.has_nvme || (diagnosis.patient && diagnosis.patient->info.locality == Locality::network);
}

std::vector<RouteVerdict> judge_routes(const Diagnosis& diagnosis) {
  std::vector<RouteVerdict> routes{judge_cached(diagnosis), judge_past_cache(diagnosis)};
  routes.push_back({.route = Route::buffered, .works = true, .cause = "if no other route works"});
  for (std::size_t i = 0; i < 3; ++i) {
    RouteVerdict to_gpu = routes[i];
    to_gpu.route = staged(routes[i].route);
    routes.push_back(std::move(to_gpu));
  }
  for (const Route route : {Route::gds, Route::p2pdma}) routes.push_back(judge_straight(diagnosis, route));
  routes.push_back(judge_compat(diagnosis));
  if (diagnosis.gpus.none) {
    for (RouteVerdict& verdict : routes) {
      if (!is_for_gpus(verdict.route)) continue;
      verdict = {.route = verdict.route, .cause = diagnosis.gpus.none->message, .remedy = diagnosis.gpus.none->hint};
    }
  }
  if (diagnosis.patient) add_measurements(*diagnosis.patient, routes);
  return routes;
}

Json gain_json(const Gain& gain) {
  return {{"text", gain.text}, {"factor", gain.factor ? Json(*gain.factor) : Json()}};
}

Json routes_json(const std::vector<RouteVerdict>& routes) {
  Json list = Json::array();
  for (const RouteVerdict& verdict : routes) {
    list.push_back({{"route", route_name(verdict.route)},
                    {"works", verdict.works},
                    {"gb_per_s", verdict.bytes_per_second ? Json(*verdict.bytes_per_second / 1e9) : Json()},
                    {"cause", verdict.cause},
                    {"remedy", verdict.remedy},
                    {"gain", gain_json(verdict.gain)}});
  }
  return list;
}

void print_routes(const Output& output, const Diagnosis& diagnosis) {
  output.section("routes");
  const bool none = diagnosis.gpus.none.has_value();
  for (const RouteVerdict& verdict : diagnosis.routes) {
    if (!none || !is_for_gpus(verdict.route)) print_route(output, verdict);
  }
  if (!none) return;
  output.item(Mark::bad, "every route to a GPU: " + diagnosis.gpus.none->message);
  if (!diagnosis.gpus.none->hint.empty()) output.detail("try: " + diagnosis.gpus.none->hint);
}

}  // namespace penstock::cli
