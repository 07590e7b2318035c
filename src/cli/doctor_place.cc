#include <algorithm>
#include <filesystem>
#include <fstream>

#include "doctor.h"

namespace penstock::cli {

namespace {

// A tree of names, drawn with a line for each.
struct Tree {
  std::string label;
  std::vector<Tree> branches;

  Tree& branch(const std::string& name) {
    const auto same = std::ranges::find(branches, name, &Tree::label);
    if (same != branches.end()) return *same;
    return branches.emplace_back(Tree{.label = name, .branches = {}});
  }
};

void draw(const Output& output, const Tree& tree, const std::string& indent) {
  for (const Tree& branch : tree.branches) {
    const bool is_last = &branch == &tree.branches.back();
    output.heading(indent + std::string(output.branch(is_last)) + branch.label);
    draw(output, branch, indent + std::string(output.branch_gap(is_last)));
  }
}

void add_leaf(Tree& tree, const PciDevice& device, const std::string& label) {
  const std::string node = device.numa_node >= 0 ? ", node " + std::to_string(device.numa_node) : "";
  Tree* at = &tree.branch(device.root + node);
  for (const std::string& bridge : device.bridges) at = &at->branch(bridge);
  at->branch(label);
}

std::string disk_label(const Disk& disk) {
  if (disk.is_virtual) return disk.name + ", a virtual disk" + (disk.pci ? " at " + disk.pci->address : "");
  return disk.name + " at " + disk.pci->address + ", " + format_link(disk.pci->link);
}

// What sums up several disks is the one that is farthest away.
Relation farthest(const std::vector<Disk>& disks, const PciDevice& gpu) {
  Relation worst = disks.empty() ? Relation::unknown : Relation::same_switch;
  for (const Disk& disk : disks) worst = std::max(worst, relate(disk, gpu));
  return worst;
}

bool goes_straight(const EngineInfo& engine) {
  return engine.available && (engine.device_route == Route::gds || engine.device_route == Route::p2pdma);
}

// Why an engine that is made for it does not carry the patient's bytes to this GPU without staging; empty if it does.
std::string why_not_straight(const Diagnosis& diagnosis, const EngineInfo& engine, const Gpu& gpu) {
  if (!goes_straight(engine)) return engine.reason.empty() ? "it does not work here" : engine.reason;
  if (gpu.name.find("GeForce") != std::string::npos) return gpu.name + " has no GPUDirect Storage";
  if (const auto obstacle = obstacle_of_store(diagnosis, *engine.device_route)) {
    return obstacle->name + ": " + obstacle->detail;
  }
  const StoreInfo& info = diagnosis.patient->info;
  return info.direct && info.locality == Locality::local ? "" : "the file is not on a disk of this machine";
}

// A measurement into a GPU knows; otherwise what the engines say of themselves has to do.
void choose_route(const Diagnosis& diagnosis, const Gpu& gpu, GpuRoute& choice) {
  const Patient& patient = *diagnosis.patient;
  const Report* sample = measured(patient);
  if (sample != nullptr && !patient.to.host_accessible()) {
    choice.route = main_route(*sample);
    choice.reason = "as measured into " + patient.to.name() + ": " + sample->reason;
    return;
  }
  choice.route = staged(sample != nullptr ? main_route(*sample) : Route::buffered);
  choice.reason = "through Penstock's pinned memory";
  for (const EngineInfo& engine : diagnosis.engines) {
    if (!engine.reaches_device) continue;
    const std::string why_not = why_not_straight(diagnosis, engine, gpu);
    if (why_not.empty()) {
      choice.route = *engine.device_route;
      choice.reason =
          engine.name + " says that it reaches GPU memory here; --to " + gpu.domain.name() + " would try it";
      return;
    }
    choice.reason += "; " + engine.name + ": " + why_not;
  }
}

std::string relation_text(Relation relation) {
  switch (relation) {
    case Relation::same_switch:
      return "below one PCI switch";
    case Relation::same_root_complex:
      return "below one host bridge";
    case Relation::same_node:
      return "at one CPU";
    case Relation::across_nodes:
      return "at different CPUs";
    case Relation::virtual_disk:
      return "the disk is virtual: it has no place on the bus";
    case Relation::unknown:
      break;
  }
  return "how disk and GPU are connected is unknown";
}

}  // namespace

bool has_nvme_controller(const std::string& sysfs) {
  std::error_code ignored;
  for (const auto& device : std::filesystem::directory_iterator(sysfs + "/bus/pci/devices", ignored)) {
    std::string code;
    std::getline(std::ifstream(device.path() / "class"), code);
    if (code.starts_with("0x0108")) return true;  // PCI Code and ID: mass storage, non-volatile memory
  }
  return false;
}

Place find_place(const std::string& path, const std::string& sysfs) {
  Place place;
  Result<StoragePlace> storage = describe_path(path, sysfs);
  if (storage.ok()) {
    place.storage = std::move(*storage);
  } else {
    place.unplaced_because = storage.error().message;
  }
  return place;
}

void choose_routes(Diagnosis& diagnosis) {
  Place& place = diagnosis.place;
  for (const SeenGpu& seen : diagnosis.gpus.seen) {
    GpuRoute choice{.gpu = seen.gpu.domain};
    if (place.storage && seen.bus) choice.relation = farthest(place.storage->disks, *seen.bus);
    choose_route(diagnosis, seen.gpu, choice);
    place.routes.push_back(std::move(choice));
  }
}

Findings place_findings(const Place& place) {
  Findings findings;
  for (const Disk& disk : place.storage ? place.storage->disks : std::vector<Disk>()) {
    if (disk.is_virtual || !disk.pci) continue;
    if (auto finding = lanes_finding(disk.name, *disk.pci)) findings.push_back(std::move(*finding));
  }
  for (const GpuRoute& choice : place.routes) {
    if (choice.relation != Relation::across_nodes) continue;
    findings.push_back({place.storage->device + " and " + choice.gpu.name() + " are at different CPUs",
                        "keep the file on a disk at the GPU's CPU, or use a GPU at the disk's CPU",
                        {}});
  }
  return findings;
}

Json place_json(const Place& place) {
  if (!place.storage) return {};
  Json disks = Json::array();
  for (const Disk& disk : place.storage->disks) {
    disks.push_back(
        {{"name", disk.name}, {"virtual", disk.is_virtual}, {"bus", disk.pci ? bus_json(*disk.pci) : Json()}});
  }
  return {{"device", place.storage->device}, {"disks", std::move(disks)}};
}

Json gpu_routes_json(const Place& place) {
  Json list = Json::array();
  for (const GpuRoute& choice : place.routes) {
    list.push_back({{"gpu", choice.gpu.name()},
                    {"relation", relation_name(choice.relation)},
                    {"route", route_name(choice.route)},
                    {"reason", choice.reason}});
  }
  return list;
}

void print_place(const Output& output, const Place& place, const Gpus& gpus) {
  output.section("bus");
  Tree tree;
  if (!place.storage) output.heading(place.unplaced_because);
  for (const Disk& disk : place.storage ? place.storage->disks : std::vector<Disk>()) {
    if (disk.is_virtual) tree.branch(disk_label(disk));
    if (!disk.is_virtual) add_leaf(tree, *disk.pci, disk_label(disk));
  }
  for (const auto& [gpu, bus] : gpus.seen) {
    const std::string label = gpu.domain.name() + " at " + gpu.pci_address;
    if (bus) add_leaf(tree, *bus, label + ", " + format_link(awake_link(*bus)));
    if (!bus) tree.branch(label);
  }
  draw(output, tree, "  ");
  for (const GpuRoute& choice : place.routes) {
    output.field("to " + choice.gpu.name(), std::string(route_name(choice.route)) + ": " + choice.reason);
    output.field("", relation_text(choice.relation));
  }
}

}  // namespace penstock::cli
