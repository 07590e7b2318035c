#include <algorithm>
#include <cstdio>
#include <sstream>

#include "doctor.h"
#include "interrupt.h"

namespace penstock::cli {

namespace {

constexpr std::uint64_t fragmented_from_bytes = 64 << 20;
constexpr std::uint64_t small_extent_bytes = 1 << 20;
constexpr std::uint64_t small_rsize_bytes = 1 << 20;

std::string percent(std::uint64_t part, std::uint64_t whole) {
  const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  return std::to_string(static_cast<int>(share * 100)) + " %";
}

void add_mount_findings(const MountFacts& mount, Findings& findings) {
  const std::string on = " at " + mount.point;
  if (mount.file_system.starts_with("nfs")) {
    if (!mount_option(mount, "nconnect")) {
      findings.push_back({"NFS" + on + " uses one connection",
                          "umount it, then mount -o nconnect=8 " + mount.source,
                          {"as many times as one connection is slower than the network, up to 8", 8.0}});
    }
    const std::string size = mount_option(mount, "rsize").value_or("");
    if (!size.empty() && std::strtoull(size.c_str(), nullptr, 10) < small_rsize_bytes) {
      findings.push_back({"NFS" + on + " reads " + size + " bytes at a time", "mount it with rsize=1048576", {}});
    }
  }
  if (mount.file_system == "ext4" && mount_option(mount, "data") == "journal") {
    findings.push_back({"ext4" + on + " journals data, so nothing is read past the page cache",
                        "mount it with data=ordered, ext4's default",
                        {}});
  }
  if (mount.file_system == "btrfs" && (mount_option(mount, "compress") || mount_option(mount, "compress-force"))) {
    findings.push_back({"btrfs" + on + " compresses, so CPUs unpack files, and they can't be read past the page cache",
                        "btrfs property set FILE compression none, then copy the file",
                        {}});
  }
}

Json sample_json(const std::optional<Report>& sample, Domain to) {
  if (!sample) return {};
  return {{"to", to.name()},
          {"bytes", sample->bytes},
          {"seconds", sample->seconds},
          {"gb_per_s", rate_of(*sample) / 1e9},
          {"routes", routes_json(sample->routes)},
          {"engine", sample->engine},
          {"reason", sample->reason},
          {"storage_seconds", sample->storage_seconds},
          {"copy_seconds", sample->copy_seconds},
          {"cpu_seconds", sample->cpu_seconds}};
}

Json mount_json(const std::optional<MountFacts>& mount) {
  if (!mount) return {};
  return {{"point", mount->point},
          {"file_system", mount->file_system},
          {"source", mount->source},
          {"options", mount->options}};
}

void print_sample(const Output& output, const char* label, const std::optional<Report>& sample,
                  const std::string& why_not) {
  if (!sample) {
    output.field(label, "not measured: " + why_not);
    return;
  }
  output.field(label, format_rate(rate_of(*sample)) + ", " + format_bytes(sample->bytes) + " in " +
                          format_seconds(sample->seconds) + " by " + sample->engine + ", " +
                          format_routes(sample->routes));
  output.field("", format_lanes(*sample));
}

std::string limit_text(Limit limit, Locality locality) {
  switch (limit) {
    case Limit::storage:
      if (locality == Locality::network) return "the network or the server";
      if (locality == Locality::fuse) return "the user-space file system";
      return "the disk";
    case Limit::copy:
      return "the bus to the GPU";
    case Limit::cpu:
      return "CPU time";
    case Limit::unknown:
      break;
  }
  return "";
}

std::string times(double factor) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f times", factor);
  return text;
}

}  // namespace

std::optional<std::string> mount_option(const MountFacts& mount, const std::string& name) {
  std::istringstream words(mount.options);
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t end = std::min(word.find('='), word.size());
    if (word.compare(0, end, name) == 0) return word.substr(std::min(end + 1, word.size()));
  }
  return std::nullopt;
}

double rate_of(const Report& report) {
  return rate(report.bytes, report.seconds);
}

const Report* measured(const Patient& patient) {
  if (patient.speeds.cold) return &*patient.speeds.cold;
  return patient.speeds.cached ? &*patient.speeds.cached : nullptr;
}

bool is_straight(const Patient& patient) {
  const Report* report = measured(patient);
  if (report == nullptr) return false;
  const Route route = main_route(*report);
  return route == Route::gds || route == Route::p2pdma;
}

Bottleneck judge_limit(const Patient& patient) {
  const std::optional<Report>& cold = patient.speeds.cold;
  const std::optional<Report>& cached = patient.speeds.cached;
  // What comes straight shares nothing with what is staged out of the page cache.
  const double factor = cold && cached && !is_straight(patient) ? rate_of(*cached) / rate_of(*cold) : 1;
  const Report* report = measured(patient);
  Bottleneck found;
  if (factor > clearly) {
    found = {Limit::storage, "", "out of the page cache the same bytes come " + times(factor) + " as fast"};
  } else if (factor * clearly < 1) {
    // Nobody waits for storage there: what the lanes did with their time was copying, or waiting for a CPU.
    const Limit limit = cached->limit == Limit::copy ? Limit::copy : Limit::cpu;
    found = {limit, "", "past the page cache the same bytes come " + times(1 / factor) + " as fast as out of it"};
  } else if (report != nullptr && report->limit != Limit::unknown) {
    found = {report->limit, "", "the lanes spent their time " + format_lanes(*report)};
  }
  found.what = limit_text(found.limit, patient.info.locality);
  return found;
}

Route main_route(const Report& report) {
  return static_cast<Route>(std::max_element(report.routes.begin(), report.routes.end()) - report.routes.begin());
}

Result<Patient> examine(const Context& context, const std::string& path, Domain to) {
  Result<Store> store = context.open(path);
  if (!store.ok()) return store.error();
  const std::string file = local_path(path);
  Patient patient{
      .info = store->info(), .explanation = context.plan(*store).value().engine_reason, .to = to, .speeds = {}};
  patient.cached_bytes = store->cached_bytes(0, patient.info.size_bytes);
  if (Result<MountFacts> mount = find_mount(file); mount.ok()) patient.mount = std::move(*mount);
  if (const Result<std::uint64_t> extents = count_extents(file); extents.ok()) patient.extents = *extents;
  Result<Speeds> speeds = measure_speeds(
      {.path = file, .memory = to, .options = context.options(), .keep_going = [] { return !interrupted(); }});
  if (!speeds.ok()) return speeds.error();
  patient.speeds = std::move(*speeds);
  return patient;
}

Findings patient_findings(const Patient& patient) {
  Findings findings;
  const std::uint64_t size = patient.info.size_bytes;
  if (patient.extents == std::uint64_t{0} && size != 0) {
    findings.push_back({"no part of the file is on a disk: it is all holes, or not written yet",
                        "measure with a file that has content; penstock sample makes one",
                        {}});
  }
  if (patient.extents.value_or(0) > 1 && size >= fragmented_from_bytes &&
      size / *patient.extents < small_extent_bytes) {
    findings.push_back({"the file lies in " + std::to_string(*patient.extents) + " pieces on its disk, of " +
                            format_bytes(size / *patient.extents) + " on average",
                        "cp FILE FILE.new && mv FILE.new FILE, with plenty of free space",
                        {}});
  }
  if (patient.mount) add_mount_findings(*patient.mount, findings);
  return findings;
}

Json patient_json(const Patient& patient) {
  const StoreInfo& info = patient.info;
  return {
      {"name", info.name},
      {"kind", store_kind_name(info.kind)},
      {"locality", locality_name(info.locality)},
      {"file_system", info.file_system},
      {"mount", mount_json(patient.mount)},
      {"size_bytes", info.size_bytes},
      {"block_bytes", info.block_bytes},
      {"alignments",
       {{"offset", info.alignments.offset}, {"memory", info.alignments.memory}, {"optimal", info.alignments.optimal}}},
      {"extents", patient.extents ? Json(*patient.extents) : Json()},
      {"cached_bytes", patient.cached_bytes ? Json(*patient.cached_bytes) : Json()},
      {"direct", info.direct},
      {"page_cache", info.page_cache},
      {"mappable", info.mappable},
      {"explanation", patient.explanation},
      {"cold", sample_json(patient.speeds.cold, patient.to)},
      {"no_cold_because", patient.speeds.no_cold_because},
      {"cached", sample_json(patient.speeds.cached, patient.to)},
      {"no_cached_because", patient.speeds.no_cached_because}};
}

void print_patient(const Output& output, const Patient& patient) {
  const StoreInfo& info = patient.info;
  output.section(info.name);
  output.field("kind", std::string(store_kind_name(info.kind)) + " on " + info.file_system + " (" +
                           std::string(locality_name(info.locality)) + ")");
  if (patient.mount && !patient.mount->point.empty()) {
    output.field("mount", patient.mount->source + " at " + patient.mount->point + ", " + patient.mount->options);
  }
  output.field("size", format_bytes(info.size_bytes) + ", blocks of " + std::to_string(info.block_bytes));
  output.field("layout", !patient.extents ? "not reported by the file system"
                         : *patient.extents == 1
                             ? "in one piece"
                             : "in " + std::to_string(*patient.extents) + " pieces of " +
                                   format_bytes(info.size_bytes / std::max<std::uint64_t>(*patient.extents, 1)) +
                                   " on average");
  output.field("cached", patient.cached_bytes
                             ? format_bytes(*patient.cached_bytes) + ", " +
                                   percent(*patient.cached_bytes, info.size_bytes) + " of it before the measurement"
                             : "not reported by the kernel");
  output.field("direct", info.direct ? "yes, offsets aligned to " + std::to_string(info.alignments.offset) +
                                           ", memory to " + std::to_string(info.alignments.memory)
                                     : "no");
  output.field("served", patient.explanation);
  print_sample(output, "when cold", patient.speeds.cold, patient.speeds.no_cold_because);
  print_sample(output, "when cached", patient.speeds.cached, patient.speeds.no_cached_because);
}

}  // namespace penstock::cli
