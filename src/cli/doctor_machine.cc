#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "doctor.h"
#include "engine_list.h"

namespace penstock::cli {

namespace {

using State = Condition::State;

// A line of /proc/meminfo; 0 if it is not there.
std::uint64_t memory_info(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == wanted) return value;
    std::getline(file, unit);
  }
  return 0;
}

Condition io_uring_limit(const std::vector<EngineInfo>& engines) {
  const auto uring = std::ranges::find(engines, "uring", &EngineInfo::name);
  if (uring == engines.end()) return {"io_uring", State::missing, "not built in", "build Penstock with liburing"};
  if (uring->available) return {"io_uring", State::met, "allowed", {}};
  return {"io_uring", State::missing, uring->reason, uring->remedy};
}

Condition memlock_limit(const Machine& machine, const Options& options) {
  if (machine.lockable_bytes == UINT64_MAX) return {"lockable memory", State::met, "no limit", {}};
  const std::string detail = format_bytes(machine.lockable_bytes);
  if (machine.lockable_bytes >= options.pinned_budget_bytes) return {"lockable memory", State::met, detail, {}};
  return {"lockable memory", State::missing,
          detail + ", less than the " + format_bytes(options.pinned_budget_bytes) + " of pinned_budget_bytes",
          "ulimit -l unlimited; for a container docker run --ulimit memlock=-1"};
}

Condition memory_limit(const Machine& machine) {
  const std::uint64_t physical = memory_info("MemTotal:") * 1024;
  const bool limited = machine.memory_bytes < physical;
  const std::string detail =
      format_bytes(machine.memory_bytes) + (limited ? " of " + format_bytes(physical) + ", by its cgroup" : ", all");
  if (machine.memory_bytes / 4 >= Options().pinned_budget_bytes) return {"memory", State::met, detail, {}};
  const std::string quarter = detail + "; pinned memory is limited to a quarter of it";
  if (!limited) return {"memory", State::met, quarter, {}};
  return {"memory", State::missing, quarter, "docker run --memory=4g, or a larger memory limit for the pod"};
}

Condition cpu_limit(const Machine& machine) {
  const auto online = static_cast<std::uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const std::string detail = std::to_string(machine.usable_cpus) + " of " + std::to_string(online);
  if (machine.usable_cpus >= std::min<std::uint32_t>(online, 4)) return {"CPUs", State::met, detail, {}};
  return {"CPUs", State::missing, detail + ", by affinity or its cgroup",
          "docker run --cpus=" + std::to_string(std::min<std::uint32_t>(online, 8)) +
              ", or a larger CPU limit for the pod"};
}

Condition huge_page_limit(const Machine& machine) {
  const std::uint64_t reserved = memory_info("HugePages_Total:");
  const std::string also = reserved == 0 ? "" : "; " + std::to_string(reserved) + " reserved";
  if (machine.transparent_huge_pages) return {"huge pages", State::met, "transparent" + also, {}};
  return {"huge pages", State::missing, "transparent huge pages are off, so large buffers take longer to set up" + also,
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

Condition page_cache_limit(const Machine& machine) {
  if (machine.cachestat) return {"cachestat", State::met, "the kernel reports what is in the page cache", {}};
  return {"cachestat", State::missing, "the kernel does not report what is cached of other users' files",
          "use Linux 6.5 or newer; a container's seccomp profile must allow cachestat"};
}

// Only cuFile looks into it, for the disks of files.
Condition udev_limit(const Diagnosis& diagnosis) {
  if (access("/run/udev/data", R_OK) == 0) return {"udev", State::met, "its database is present", {}};
  if (diagnosis.gpus.seen.empty()) return {"udev", State::met, "not running (only needed with a GPU)", {}};
  if (!diagnosis.has_nvme) return {"udev", State::met, "not running (only needed with a GPU and an NVMe disk)", {}};
  return {"udev", State::missing, "no /run/udev/data: cuFile refuses files on disks that are not in it",
          "docker run -v /run/udev:/run/udev:ro"};
}

// Measured by bench/run.sh, or by what the code does; no more is promised than that.
Gain gain_of(const std::string& limit, const Diagnosis& diagnosis) {
  if (limit == "io_uring") return {"next to none for large files; many small reads gain most", {}};
  if (limit == "lockable memory") return {"matters for GPUs and unaligned reads: staging slots are smaller", {}};
  if (limit == "memory") return {"matters for GPUs and unaligned reads: there is less staging memory", {}};
  if (limit == "huge pages") return {"set-up is shorter; steady speed stays", 1.0};
  if (limit == "cachestat") return {"none for your own files", {}};
  if (limit == "CPUs" && diagnosis.patient && diagnosis.patient->speeds.cached) {
    return {"cached files are copied by CPUs: about twice as fast with twice as many", 2.0};
  }
  return {};
}

std::string container_name() {
  if (::secure_getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "Kubernetes";
  if (access("/.dockerenv", F_OK) == 0) return "Docker";
  if (access("/run/.containerenv", F_OK) == 0) return "Podman";
  const char* named = ::secure_getenv("container");
  return named != nullptr ? named : "";
}

}  // namespace

std::vector<Condition> find_limits(const Diagnosis& diagnosis) {
  const Machine& machine = diagnosis.machine;
  return {io_uring_limit(diagnosis.engines),
          memlock_limit(machine, diagnosis.options),
          memory_limit(machine),
          cpu_limit(machine),
          huge_page_limit(machine),
          page_cache_limit(machine),
          udev_limit(diagnosis)};
}

Findings limit_findings(const Diagnosis& diagnosis) {
  Findings findings;
  for (const Condition& limit : diagnosis.limits) {
    if (limit.state != State::missing) continue;
    // The kernel told it of this file all the same: mincore does, for files of one's own.
    if (limit.name == "cachestat" && diagnosis.patient && diagnosis.patient->cached_bytes) continue;
    findings.push_back({limit.name + ": " + limit.detail, limit.remedy, gain_of(limit.name, diagnosis)});
  }
  return findings;
}

Json machine_json(const Machine& machine) {
  const bool limited = machine.lockable_bytes != UINT64_MAX;
  const std::string container = container_name();
  return {{"kernel", machine.kernel},
          {"architecture", machine.architecture},
          {"container", container.empty() ? Json() : Json(container)},
          {"usable_cpus", machine.usable_cpus},
          {"page_bytes", machine.page_bytes},
          {"memory_bytes", machine.memory_bytes},
          {"lockable_bytes", limited ? Json(machine.lockable_bytes) : Json()},
          {"transparent_huge_pages", machine.transparent_huge_pages},
          {"cachestat", machine.cachestat}};
}

void print_machine(const Output& output, const Diagnosis& diagnosis) {
  const std::string container = container_name();
  output.section("machine");
  output.field("kernel", diagnosis.machine.kernel + ", " + diagnosis.machine.architecture + ", pages of " +
                             std::to_string(diagnosis.machine.page_bytes));
  output.field("container", container.empty() ? "unknown" : container);
  for (const Condition& limit : diagnosis.limits) print_condition(output, limit);
}

// As JSON, so that it can be changed and handed to --options.
void print_options(const Output& output, const Options& options) {
  output.section("options");
  output.heading(Json::parse(options.to_json()).dump());
}

}  // namespace penstock::cli
