#include <algorithm>

#include "doctor.h"

namespace penstock::cli {

namespace {

constexpr std::size_t named_disks = 3;
constexpr auto from_storage = Edge::Stretch::storage;

std::string disks_label(const std::vector<Disk>& disks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(disks.size(), named_disks); ++i) text += (i == 0 ? "" : ", ") + disks[i].name;
  if (disks.size() > named_disks) text += " and " + std::to_string(disks.size() - named_disks) + " more";
  const bool made_up = std::ranges::any_of(disks, &Disk::is_virtual);
  return text + (made_up ? ", virtual" : "");
}

std::string controller_label(const std::vector<Disk>& disks) {
  if (disks.size() > 1) return std::to_string(disks.size()) + " controllers";
  const PciDevice& pci = *disks.front().pci;
  return (pci.driver.empty() ? "controller" : pci.driver) + " at " + pci.address;
}

std::string node_label(int node) {
  return node >= 0 ? "memory, node " + std::to_string(node) : "memory";
}

// Where the bytes come from, and how fast: measured where it was.
void add_source(const Diagnosis& diagnosis, const std::string& next, std::vector<Edge>& way) {
  const Patient& patient = *diagnosis.patient;
  std::optional<double> cold;
  if (patient.speeds.cold) cold = rate_of(*patient.speeds.cold);
  const std::string how = cold ? "measured cold" : "not measured";
  if (!diagnosis.place.storage || diagnosis.place.storage->disks.empty()) {
    const bool named = patient.mount && patient.info.locality == Locality::network;
    way.push_back({from_storage, named ? patient.mount->source : patient.info.file_system, next, cold, how});
    return;
  }
  const std::vector<Disk>& disks = diagnosis.place.storage->disks;
  if (std::ranges::any_of(disks, [](const Disk& disk) { return disk.is_virtual || !disk.pci; })) {
    way.push_back({from_storage, disks_label(disks), next, cold, how});
    return;
  }
  double links = 0;
  for (const Disk& disk : disks) links += disk.pci->link.bytes_per_second();
  way.push_back({from_storage, disks_label(disks), controller_label(disks), cold, how});
  const std::string link = disks.size() == 1 ? format_link(disks.front().pci->link) : "all links together";
  way.push_back({from_storage, way.back().to, next, links > 0 ? std::optional(links) : std::nullopt,
                 links > 0 ? link.substr(0, link.find(':')) : "link of unknown speed"});
}

const SeenGpu* target_gpu(const Diagnosis& diagnosis) {
  const auto& seen = diagnosis.gpus.seen;
  if (seen.empty()) return nullptr;
  const auto named =
      std::ranges::find_if(seen, [&](const SeenGpu& one) { return one.gpu.domain == diagnosis.patient->to; });
  return named != seen.end() ? &*named : &seen.front();
}

void add_gpu(const SeenGpu& gpu, const Patient& patient, const std::string& from, std::vector<Edge>& way) {
  const double link = gpu.bus ? awake_link(*gpu.bus).bytes_per_second() : 0;
  std::string how = gpu.bus ? format_link(awake_link(*gpu.bus)) : "not shown by /sys";
  how = how.substr(0, how.find(':'));
  const bool arrives = patient.to == gpu.gpu.domain;
  Edge edge{arrives ? Edge::Stretch::memory : Edge::Stretch::beyond, from, gpu.gpu.domain.name() + ", " + gpu.gpu.name,
            std::nullopt, how};
  if (link > 0) edge.bytes_per_second = link;
  if (patient.speeds.cached && arrives) {
    edge.bytes_per_second = rate_of(*patient.speeds.cached);
    edge.how = "measured cached" + (link > 0 ? " (" + how + " carries " + format_rate(link) + ")" : "");
  }
  way.push_back(std::move(edge));
}

int memory_node(const Diagnosis& diagnosis, const SeenGpu* gpu) {
  if (gpu != nullptr && gpu->gpu.numa_node >= 0) return gpu->gpu.numa_node;
  if (!diagnosis.place.storage) return -1;
  for (const Disk& disk : diagnosis.place.storage->disks) {
    if (disk.pci && disk.pci->numa_node >= 0) return disk.pci->numa_node;
  }
  return -1;
}

// The edge that the limit is about: of those on its stretch, the narrowest.
void mark_limit(Limit limit, std::vector<Edge>& way) {
  if (limit == Limit::unknown) return;
  const Edge::Stretch stretch = limit == Limit::storage ? Edge::Stretch::storage : Edge::Stretch::memory;
  Edge* narrowest = nullptr;
  for (Edge& edge : way) {
    if (edge.stretch != stretch || !edge.bytes_per_second) continue;
    if (narrowest == nullptr || *edge.bytes_per_second < *narrowest->bytes_per_second) narrowest = &edge;
  }
  if (narrowest != nullptr) narrowest->is_limit = true;
}

}  // namespace

std::vector<Edge> find_way(const Diagnosis& diagnosis) {
  std::vector<Edge> way;
  if (!diagnosis.patient || diagnosis.patient->info.size_bytes == 0) return way;
  const Patient& patient = *diagnosis.patient;
  const SeenGpu* gpu = target_gpu(diagnosis);
  const std::string memory = node_label(memory_node(diagnosis, gpu));
  if (gpu != nullptr && is_straight(patient)) {
    add_source(diagnosis, gpu->gpu.domain.name() + ", " + gpu->gpu.name, way);
    mark_limit(diagnosis.bottleneck.limit, way);
    return way;
  }
  if (patient.info.locality != Locality::memory) add_source(diagnosis, memory, way);
  if (patient.to.host_accessible()) {
    std::optional<double> cached;
    if (patient.speeds.cached) cached = rate_of(*patient.speeds.cached);
    way.push_back({Edge::Stretch::memory, memory, patient.to.name() + " buffer", cached,
                   cached ? "measured cached" : "not measured"});
  }
  if (gpu != nullptr) add_gpu(*gpu, patient, way.empty() ? memory : way.back().to, way);
  mark_limit(diagnosis.bottleneck.limit, way);
  return way;
}

Json way_json(const std::vector<Edge>& way) {
  Json list = Json::array();
  for (const Edge& edge : way) {
    list.push_back({{"from", edge.from},
                    {"to", edge.to},
                    {"gb_per_s", edge.bytes_per_second ? Json(*edge.bytes_per_second / 1e9) : Json()},
                    {"how", edge.how},
                    {"limit", edge.is_limit}});
  }
  return list;
}

void print_way(const Output& output, const std::vector<Edge>& way) {
  if (way.empty()) return;
  output.section("data path");
  const std::string pipe(output.pipe());
  output.heading("  " + way.front().from);
  for (const Edge& edge : way) {
    const std::string speed = edge.bytes_per_second ? format_rate(*edge.bytes_per_second) : "? GB/s";
    output.heading("   " + pipe + "  " + speed +
                   (edge.is_limit ? "  " + std::string(output.pointer()) + " the limit" : ""));
    output.heading("   " + pipe + "  " + edge.how);
    output.heading("  " + edge.to);
  }
}

}  // namespace penstock::cli
