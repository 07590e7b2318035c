// What `penstock load` says at its end besides the report: what the hardware could have carried, which engine might
// have been faster and why it was not used, and what it cost. JSON has all of it; people are told what concerns them.
#include <algorithm>

#include "load.h"

namespace penstock::cli {

namespace {

struct Ceiling {
  std::string what;  // "the link of nvme0n1"
  double bytes_per_second = 0;
};

std::uint64_t bytes_by(const Report& report, std::initializer_list<Route> routes) {
  std::uint64_t bytes = 0;
  for (const Route route : routes) bytes += report.routes[static_cast<std::size_t>(route)];
  return bytes;
}

// Of all disks that the paths are on; nothing if one of them is made up or its link is unknown.
std::optional<Ceiling> disk_ceiling(const std::vector<Loaded>& loaded) {
  std::vector<Disk> disks;
  for (const Loaded& piece : loaded) {
    const bool again = &piece != &loaded.front() && piece.path == (&piece - 1)->path;
    if (again) continue;
    const Result<StoragePlace> place = describe_path(std::string(piece.path));
    if (!place.ok()) return std::nullopt;
    for (const Disk& disk : place->disks) {
      if (std::ranges::find(disks, disk.name, &Disk::name) == disks.end()) disks.push_back(disk);
    }
  }
  if (disks.empty()) return std::nullopt;
  Ceiling ceiling;
  for (const Disk& disk : disks) {
    const double link = disk.pci && !disk.is_virtual ? disk.pci->link.bytes_per_second() : 0;
    if (link <= 0) return std::nullopt;
    ceiling.bytes_per_second += link;
  }
  ceiling.what = disks.size() == 1 ? "the link of " + disks.front().name : "the links of its disks";
  return ceiling;
}

std::optional<Ceiling> gpu_ceiling(Domain domain) {
  const Result<Gpu> gpu = find_gpu(domain);
  if (!gpu.ok()) return std::nullopt;
  const Result<PciDevice> bus = describe_pci(gpu->pci_address);
  const double link = bus.ok() ? bus->link.bytes_per_second() : 0;
  if (link <= 0) return std::nullopt;
  return Ceiling{"the link of " + domain.name(), link};
}

// The narrowest of what the bytes had to pass.
std::optional<Ceiling> ceiling_of(const Report& report, const std::vector<Loaded>& loaded, Domain domain) {
  std::optional<Ceiling> lowest;
  const auto consider = [&](std::optional<Ceiling> ceiling) {
    if (ceiling && (!lowest || ceiling->bytes_per_second < lowest->bytes_per_second)) lowest = std::move(ceiling);
  };
  const std::uint64_t cold = bytes_by(report, {Route::direct, Route::direct_staged, Route::gds, Route::p2pdma});
  if (cold != 0 && cold == report.bytes) consider(disk_ceiling(loaded));
  if (!domain.host_accessible()) consider(gpu_ceiling(domain));
  return lowest;
}

std::string why_unused(const EngineInfo& engine, Domain domain, const std::string& used) {
  if (!engine.available) return engine.reason;
  if (engine.reaches_device && domain.host_accessible()) return "only for GPU memory";
  if (engine.reaches_device) return engine.reason.empty() ? "its route is not allowed" : engine.reason;
  return used.empty() ? "no engine was needed" : used + " reads these paths";
}

struct Unused {
  std::string engine, reason;
  bool might_be_faster = false;  // to that memory
};
std::vector<Unused> unused_engines(const Report& report, Domain domain, const Context& context) {
  std::vector<Unused> unused;
  for (const EngineInfo& engine : context.engines()) {
    if (report.engine.find(engine.name) != std::string::npos) continue;
    unused.push_back(
        {engine.name, why_unused(engine, domain, report.engine), engine.reaches_device && !domain.host_accessible()});
  }
  return unused;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", share * 100);
  return text;
}

}  // namespace

void add_block(const LoadFlags& flags, const std::vector<Loaded>& loaded, const Context& context, const LoadCost& cost,
               Transfer& transfer) {
  const Report& report = transfer.report;
  const Domain domain = Domain::parse(flags.domain).value();
  const double speed = rate(report.bytes, report.seconds);

  const std::optional<Ceiling> ceiling = loaded.empty() ? std::nullopt : ceiling_of(report, loaded, domain);
  transfer.head["ceiling"] = Json();
  if (ceiling) {
    const double share = speed / ceiling->bytes_per_second;
    transfer.head["ceiling"] = {
        {"what", ceiling->what}, {"gb_per_s", ceiling->bytes_per_second / 1e9}, {"share", share}};
    const std::string reached = tells_speed(report) ? percent(share) + " of the " : "";
    transfer.own.push_back({"ceiling", reached + format_rate(ceiling->bytes_per_second) + " of " + ceiling->what});
  }

  Json unused = Json::array();
  for (const auto& [engine, reason, might_be_faster] : unused_engines(report, domain, context)) {
    unused.push_back({{"engine", engine}, {"reason", reason}});
    if (might_be_faster) transfer.own.push_back({"not used", engine + ": " + reason});
  }
  transfer.head["not_used"] = std::move(unused);

  std::uint64_t destination = 0;
  for (const Loaded& piece : loaded) destination += piece.memory.size_bytes;
  const bool on_gpu = !domain.host_accessible();
  const std::uint64_t pinned = context.statistics().pinned_bytes;
  transfer.head["pinned_bytes"] = pinned;
  transfer.head["device_bytes"] = on_gpu ? destination : 0;
  transfer.head["process_cpu_seconds"] = cost.cpu_seconds;
  if (on_gpu || pinned != 0) {
    transfer.own.push_back({"memory", format_bytes(pinned) + " pinned" +
                                          (on_gpu ? ", " + format_bytes(destination) + " of " + domain.name() : "")});
  }
  transfer.own.push_back(
      {"CPU", format_seconds(cost.cpu_seconds) + " of the process" +
                  (tells_speed(report)
                       ? ", " + format_seconds(cost.cpu_seconds / static_cast<double>(report.bytes) * 1e9) + " a GB"
                       : "")});
}

}  // namespace penstock::cli
