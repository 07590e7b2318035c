// The sections of `penstock doctor`. Each finds something out, and tells it to a person and to a program. Nothing here
// makes a CUDA context or opens cuFile, unless a measurement into GPU memory was asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common.h"
#include "output.h"
#include "penstock/penstock.h"

namespace penstock::cli {

// What a change would gain, as far as that can be told.
struct Gain {
  std::string text;              // empty: nothing is known
  std::optional<double> factor;  // how many times as fast, at most
};

// Something that costs speed here, and what would help.
struct Finding {
  std::string what;
  std::string remedy;
  Gain gain;
};
using Findings = std::vector<Finding>;

// A GPU, and its place on the bus as far as /sys shows it.
struct SeenGpu {
  Gpu gpu;
  std::optional<PciDevice> bus;
};
struct Gpus {
  std::vector<SeenGpu> seen;
  std::optional<Error> none;  // why there are none
};

// A store, and how fast it is read.
struct Patient {
  StoreInfo info;
  std::string explanation;
  Domain to;  // where it was read to
  Speeds speeds;
  std::optional<std::uint64_t> cached_bytes;  // nothing: the kernel does not tell
  std::optional<MountFacts> mount;
  std::optional<std::uint64_t> extents;
};

// How a store's bytes would come into a GPU.
struct GpuRoute {
  Domain gpu;
  Relation relation = Relation::unknown;  // of the store's disks, that of the farthest
  Route route = Route::buffered_staged;
  std::string reason;
};
struct Place {
  std::optional<StoragePlace> storage;
  std::string unplaced_because;  // if there is no storage
  std::vector<GpuRoute> routes;  // one for each GPU
};

struct RouteVerdict {
  Route route = Route::buffered;
  bool works = false;
  std::optional<double> bytes_per_second;  // measured
  std::string cause;                       // why not, or what is worth knowing
  std::string remedy;
  Gain gain;
};

// From one thing to the next on the way of the bytes.
struct Edge {
  // Where it lies: before memory, from there to where the bytes were measured to arrive, or further on.
  enum class Stretch : std::uint8_t { storage, memory, beyond };
  Stretch stretch = Stretch::storage;
  std::string from, to;
  std::optional<double> bytes_per_second;
  std::string how;  // it is known
  bool is_limit = false;
};

// What limits the loads of a store. It is judged once: the verdict, the way of the bytes and the JSON all show it.
struct Bottleneck {
  Limit limit = Limit::unknown;
  std::string what;  // "the disk"; empty if it is unknown
  std::string why;   // that is known
};

struct Diagnosis {
  std::string verdict;
  Findings findings;
  Machine machine;
  std::vector<Condition> limits;  // that a container or the system sets
  Gpus gpus;
  std::vector<EngineInfo> engines;
  Options options;
  bool has_nvme = false;  // a controller on the bus, whoever drives it
  std::optional<Patient> patient;
  Bottleneck bottleneck;             // of the patient
  Place place;                       // of the patient
  std::vector<RouteVerdict> routes;  // to the host, then to GPUs
  std::vector<Edge> way;             // of the patient's bytes
};

// The machine, and what limits this process (doctor_machine.cc).
std::vector<Condition> find_limits(const Diagnosis& diagnosis);
Findings limit_findings(const Diagnosis& diagnosis);
Json machine_json(const Machine& machine);
void print_machine(const Output& output, const Diagnosis& diagnosis);
void print_options(const Output& output, const Options& options);

// GPUs (doctor_gpu.cc).
Gpus look_for_gpus(const std::string& sysfs);
Findings gpu_findings(const Gpus& gpus);
Json gpus_json(const Gpus& gpus);
void print_gpus(const Output& output, const Gpus& gpus);
Json bus_json(const PciDevice& device);
// "32 GT/s x 16: 63.0 GB/s"
std::string format_link(const PciLink& link);
// An idle GPU slows its link down and wakes it when needed; the lanes stay as they are.
PciLink awake_link(const PciDevice& gpu);
// "cuda:0 runs on 8 of its 16 PCIe lanes"; nothing if it has them all.
std::optional<Finding> lanes_finding(const std::string& name, const PciDevice& device);

// The store (doctor_store.cc).
Result<Patient> examine(const Context& context, const std::string& path, Domain to);
Findings patient_findings(const Patient& patient);
Json patient_json(const Patient& patient);
void print_patient(const Output& output, const Patient& patient);
// The value of a mount option; empty: it has none, nothing: it is not there.
std::optional<std::string> mount_option(const MountFacts& mount, const std::string& name);
// The route that carried most.
Route main_route(const Report& report);
// Cold, or else cached, where one of them was measured.
const Report* measured(const Patient& patient);
double rate_of(const Report& report);
// Whether it came straight into GPU memory.
bool is_straight(const Patient& patient);
// So many times as much is no noise any more.
inline constexpr double clearly = 1.2;
// Of the slower of the two, if one is: a disk can't be the limit of a file that comes faster cold than cached.
Bottleneck judge_limit(const Patient& patient);

// Its place on the bus (doctor_place.cc).
bool has_nvme_controller(const std::string& sysfs);
Place find_place(const std::string& path, const std::string& sysfs);
// How bytes come from there to each GPU. REQUIRES: there is a patient.
void choose_routes(Diagnosis& diagnosis);
Findings place_findings(const Place& place);
Json place_json(const Place& place);
Json gpu_routes_json(const Place& place);
void print_place(const Output& output, const Place& place, const Gpus& gpus);

// Every route, and what it would take (doctor_routes.cc).
std::vector<RouteVerdict> judge_routes(const Diagnosis& diagnosis);
// Whether GPUDirect Storage could ever carry bytes here: there is a GPU, and an NVMe disk or a store on a network.
bool could_go_straight(const Diagnosis& diagnosis);
// What of the store stands in the way of a route straight to a GPU: the machine may be fine and the store not.
std::optional<Condition> obstacle_of_store(const Diagnosis& diagnosis, Route route);
Json routes_json(const std::vector<RouteVerdict>& routes);
Json gain_json(const Gain& gain);
// Straight from disk to GPU saves copying, which is worth as much as copying was in the way.
Gain gain_without_staging(const Diagnosis& diagnosis);
void print_routes(const Output& output, const Diagnosis& diagnosis);

// The way of the bytes, with the rate of each edge (doctor_way.cc).
std::vector<Edge> find_way(const Diagnosis& diagnosis);
Json way_json(const std::vector<Edge>& way);
void print_way(const Output& output, const std::vector<Edge>& way);

// What a bug report needs, without names of files, people and machines (doctor_bundle.cc).
Json make_bundle(Json diagnosis);

}  // namespace penstock::cli
