// penstock doctor --bundle: what somebody else needs to understand a machine, and nothing that is nobody's business.
// Names of files, people and machines are taken out of every text; only what is listed here is looked at.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include "doctor.h"

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
// Paths that are the same on every machine.
constexpr std::array<std::string_view, 9> known_folders = {"/dev/",           "/sys/", "/proc/", "/run/udev",  "/boot/",
                                                           "/etc/modprobe.d", "/usr/", "/lib",   "/opt/nvidia"};
// Options of mounts whose values name nobody.
constexpr std::array<std::string_view, 34> harmless_options = {
    "rw",    "ro",      "noatime", "relatime", "nodiratime", "nodev",   "nosuid",        "noexec",  "discard",
    "data",  "errors",  "rsize",   "wsize",    "nconnect",   "vers",    "proto",         "hard",    "soft",
    "timeo", "retrans", "sec",     "compress", "max_read",   "stripe",  "nobarrier",     "barrier", "commit",
    "size",  "mode",    "inode64", "logbufs",  "logbsize",   "noquota", "compress-force"};

std::string first_line(const std::string& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

bool is_known(std::string_view path) {
  return path == "/" ||
         std::ranges::any_of(known_folders, [&](std::string_view folder) { return path.starts_with(folder); });
}

std::string without_paths(std::string_view text) {
  constexpr std::string_view ends = " \t\n\"'(),;<>=|`";
  std::string clean;
  for (std::size_t at = 0; at < text.size();) {
    // A slash within a word is a fraction or a rate, but "server:/export" is a place.
    const bool begins =
        text[at] == '/' && (at == 0 || ends.find(text[at - 1]) != std::string_view::npos || text[at - 1] == ':');
    const std::size_t end = begins ? std::min(text.find_first_of(ends, at), text.size()) : at + 1;
    const std::string_view word = text.substr(at, end - at);
    clean += begins && !is_known(word) ? "<path>" : std::string(word);
    at = end;
  }
  return clean;
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; !what.empty() && (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
}

struct Secret {
  std::string text, instead;
};

void scrub(Json& value, const std::vector<Secret>& secrets) {
  if (value.is_string()) {
    auto text = value.get<std::string>();
    for (const Secret& secret : secrets) replace_all(text, secret.text, secret.instead);
    value = without_paths(text);
  }
  if (value.is_structured()) {
    for (Json& item : value) scrub(item, secrets);
  }
}

std::string harmless(const std::string& options) {
  std::string kept;
  for (std::size_t at = 0; at < options.size();) {
    const std::size_t end = std::min(options.find(',', at), options.size());
    const std::string word = options.substr(at, end - at);
    const bool known = std::ranges::find(harmless_options, word.substr(0, word.find('='))) != harmless_options.end();
    kept += (kept.empty() ? "" : ",") + (known ? word : word.substr(0, word.find('=')) + "=<left out>");
    at = end + 1;
  }
  return kept;
}

// What names the user, the machine and the place of the store.
std::vector<Secret> secrets_in(const Json& diagnosis) {
  std::vector<Secret> secrets;
  const auto add = [&](const std::string& text, const char* instead) {
    if (text.size() > 1) secrets.push_back({text, instead});
  };
  const Json& store = diagnosis["store"];
  if (!store.is_null()) {
    add(store["name"].get<std::string>(), "<store>");
    if (!store["mount"].is_null()) {
      const auto source = store["mount"]["source"].get<std::string>();
      if (!is_known(source)) add(source, "<source>");
      add(store["mount"]["point"].get<std::string>(), "<mount>");
    }
  }
  for (const char* name : {"HOME", "USER", "LOGNAME", "HOSTNAME"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::string_view(value).size() > 2) add(value, "<private>");
  }
  // The longest first: one may be a part of another.
  std::ranges::sort(secrets, std::ranges::greater(), [](const Secret& secret) { return secret.text.size(); });
  return secrets;
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
  const std::vector<Secret> secrets = secrets_in(diagnosis);
  Json files = Json::object(), environment = Json::object();
  for (const char* file : system_files) files[file] = first_line(file);
  for (const char* name : environment_names) {
    const char* value = std::getenv(name);
    environment[name] = value != nullptr ? Json(value) : Json();
  }
  if (!diagnosis["store"].is_null() && !diagnosis["store"]["mount"].is_null()) {
    Json& options = diagnosis["store"]["mount"]["options"];
    options = harmless(options.get<std::string>());
  }
  Json bundle = {{"schema", "penstock.bundle/1"},         {"version", version()},
                 {"environment", std::move(environment)}, {"files", std::move(files)},
                 {"queues", queue_of(diagnosis)},         {"doctor", std::move(diagnosis)}};
  scrub(bundle, secrets);
  return bundle;
}

}  // namespace penstock::cli
