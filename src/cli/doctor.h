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

// Something that costs speed here, and what would help.
struct Finding {
  std::string what;
  std::string remedy;
};
using Findings = std::vector<Finding>;

// The machine and the options that follow from it.
Findings machine_findings(const Machine& machine, const Options& options);
Json machine_json(const Machine& machine);
void print_machine(const Output& output, const Machine& machine);
void print_options(const Output& output, const Options& options);

// A GPU, and its place on the bus as far as /sys shows it.
struct SeenGpu {
  Gpu gpu;
  std::optional<PciDevice> bus;
};
struct Gpus {
  std::vector<SeenGpu> seen;
  std::optional<Error> none;  // why there are none
};
Gpus look_for_gpus(const std::string& sysfs);
Findings gpu_findings(const Gpus& gpus);
Json gpus_json(const Gpus& gpus);
void print_gpus(const Output& output, const Gpus& gpus);
Json bus_json(const PciDevice& device);
// "32 GT/s x 16: 63.0 GB/s"
std::string format_link(const PciLink& link);
// An idle GPU slows its link down and wakes it when needed; the lanes stay as they are.
PciLink awake_link(const PciDevice& gpu);

// A store, and how fast a part of it is read.
struct Patient {
  StoreInfo info;
  std::string explanation;
  Domain to;                     // where the sample was read to
  std::optional<Report> sample;  // none of an empty store
};
Result<Patient> examine(Context& context, const std::string& path, Domain to);
Json sample_json(const Patient& patient);
Json patient_json(const Patient& patient);
void print_patient(const Output& output, const Patient& patient);
// The route that carried most.
Route main_route(const Report& sample);

// Where a store's bytes are, and how they would come into each GPU.
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
struct PlaceFacts {
  std::string path;
  std::string sysfs;
  const Patient& patient;
  const Gpus& gpus;
  const std::vector<EngineInfo>& engines;
};
Place find_place(const PlaceFacts& facts);
Findings place_findings(const Place& place);
Json place_json(const Place& place);
Json gpu_routes_json(const Place& place);
void print_place(const Output& output, const Place& place, const Gpus& gpus);

}  // namespace penstock::cli
