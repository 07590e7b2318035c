// penstock doctor --bundle: what somebody else needs to understand a machine, and nothing that is nobody's business.
// Names of files, people and machines are taken out of every text; only what is listed here is looked at.
#include <array>
#include <cstdlib>
#include <fstream>

#include "doctor.h"
#include "redaction.h"

namespace penstock::cli {

namespace {

constexpr std::array environment_names = {"PENSTOCK_ENGINE",      "PENSTOCK_LOG", "PENSTOCK_PUBLISH",
                                          "CUDA_VISIBLE_DEVICES", "NO_COLOR",     "TERM",
                                          "CUFILE_ENV_PATH_JSON", "LC_ALL",       "LANG"};
constexpr std::array system_files = {"/proc/driver/nvidia/version", "/sys/module/nvidia_fs/version",
                                     "/sys/module/nvme_core/parameters/multipath", "/proc/sys/kernel/io_uring_disabled",
                                     "/sys/kernel/mm/transparent_hugepage/enabled"};
constexpr std::array queue_files = {"scheduler",          "nr_requests",         "read_ahead_kb", "max_sectors_kb",
                                    "logical_block_size", "physical_block_size", "rotational",    "write_cache"};
std::string first_line(const std::string& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

Json queue_of(const Json& diagnosis) {
  Json queues = Json::object();
  const Json& store = diagnosis["store"];
  if (store.is_null() || store["place"].is_null()) return queues;
  for (const Json& disk : store["place"]["disks"]) {
    const auto name = disk["name"].get<std::string>();
    for (const char* file : queue_files) {
      queues[name][file] = first_line("/sys/block/" + name + "/queue/" + file);
    }
  }
  return queues;
}

}  // namespace

Json make_bundle(Json diagnosis) {
  Json files = Json::object(), environment = Json::object();
  for (const char* file : system_files) files[file] = first_line(file);
  for (const char* name : environment_names) {
    const char* value = ::secure_getenv(name);
    environment[name] = value != nullptr ? Json(value) : Json();
  }
  Json bundle = {{"schema", "penstock.bundle/1"},         {"version", version()},
                 {"environment", std::move(environment)}, {"files", std::move(files)},
                 {"queues", queue_of(diagnosis)},         {"doctor", std::move(diagnosis)}};
  redact(bundle["doctor"]);
  scrub(bundle, personal_names());
  return bundle;
}

}  // namespace penstock::cli
