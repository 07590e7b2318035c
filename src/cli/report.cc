// penstock report hardware: what this machine is and does with Penstock, in one file for those who have no such
// machine.
//
// Each step is a run of this tool in a process of its own: one that hangs or crashes is ended, and told as that.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "child.h"
#include "common.h"
#include "interrupt.h"
#include "output.h"
#include "redaction.h"
#include "report_file.h"
#include "scratch.h"

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t default_test_bytes = 256 << 20;
constexpr std::size_t error_limit_bytes = 4096;

struct HardwareFlags {
  std::string folder;
  std::string out = "penstock-hardware.json";
  std::string sysfs = "/sys";
  std::optional<std::uint64_t> size;
  double step_seconds = 60;
  bool with_names = false;
  bool dry_run = false;
  OutputFlags output;
};

// Facts: what /proc and /sys tell that no other command prints. Only files are read.

std::string line_of(const fs::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

Json files_in(const fs::path& folder, std::initializer_list<const char*> names) {
  Json found = Json::object();
  for (const char* name : names) {
    std::error_code ignored;
    if (fs::exists(folder / name, ignored)) found[fs::path(name).filename().string()] = line_of(folder / name);
  }
  return found;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

Json disks_json(const fs::path& sysfs, bool with_names) {
  Json disks = Json::array();
  for (const fs::path& disk : entries_of(sysfs / "block")) {
    const std::string name = disk.filename();
    if (name.starts_with("loop") || name.starts_with("ram")) continue;
    Json one = {{"name", name}, {"sectors", line_of(disk / "size")}};
    one["queue"] = files_in(disk / "queue", {"scheduler", "nr_requests", "read_ahead_kb", "max_sectors_kb",
                                             "max_hw_sectors_kb", "logical_block_size", "physical_block_size",
                                             "rotational", "write_cache", "dma_alignment", "max_segments"});
    one["device"] =
        files_in(disk / "device", {"model", "firmware_rev", "transport", "queue_count", "sqsize", "vendor"});
    if (with_names) one["serial"] = line_of(disk / "device" / "serial");
    disks.push_back(std::move(one));
  }
  return disks;
}

Json nodes_json(const fs::path& sysfs) {
  Json nodes = Json::array();
  for (const fs::path& node : entries_of(sysfs / "devices" / "system" / "node")) {
    const std::string name = node.filename();
    if (!name.starts_with("node") || name.size() < 5 || std::isdigit(static_cast<unsigned char>(name[4])) == 0)
      continue;
    nodes.push_back({{"name", name},
                     {"cpus", line_of(node / "cpulist")},
                     {"distance", line_of(node / "distance")},
                     {"memory", line_of(node / "meminfo")}});
  }
  return nodes;
}

// Storage, displays and accelerators: what bytes come from and go to.
Json devices_json(const fs::path& sysfs) {
  Json devices = Json::array();
  for (const fs::path& device : entries_of(sysfs / "bus" / "pci" / "devices")) {
    const std::string kind = line_of(device / "class");
    const bool matters = kind.starts_with("0x01") || kind.starts_with("0x03") || kind.starts_with("0x12");
    if (!matters) continue;
    std::error_code ignored;
    Json one = files_in(device, {"class", "vendor", "device", "numa_node", "current_link_speed", "current_link_width",
                                 "max_link_speed", "max_link_width"});
    one["address"] = device.filename().string();
    one["driver"] = fs::read_symlink(device / "driver", ignored).filename().string();
    one["iommu_group"] = fs::read_symlink(device / "iommu_group", ignored).filename().string();
    one["p2pmem"] = fs::exists(device / "p2pmem", ignored);
    devices.push_back(std::move(one));
  }
  return devices;
}

Json facts_json(const fs::path& sysfs, bool with_names) {
  std::error_code ignored;
  Json memory = Json::object();
  std::ifstream lines("/proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos) memory[line.substr(0, colon)] = line.substr(line.find_first_not_of(' ', colon + 1));
  }
  return {{"schema", "penstock.facts/1"},
          {"kernel", files_in("/proc/sys/kernel", {"osrelease", "io_uring_disabled", "io_uring_group"})},
          {"huge_pages", files_in(sysfs / "kernel" / "mm" / "transparent_hugepage", {"enabled", "defrag"})},
          {"nvidia", files_in("/proc/driver/nvidia", {"version"})},
          {"modules",
           {{"nvidia_fs", fs::exists(sysfs / "module" / "nvidia_fs", ignored)},
            {"nvidia_fs_version", line_of(sysfs / "module" / "nvidia_fs" / "version")},
            {"nvidia_peermem", fs::exists(sysfs / "module" / "nvidia_peermem", ignored)},
            {"vfio_pci", fs::exists(sysfs / "module" / "vfio_pci", ignored)},
            {"nvme_multipath", line_of(sysfs / "module" / "nvme_core" / "parameters" / "multipath")}}},
          {"iommu",
           {{"groups", entries_of(sysfs / "kernel" / "iommu_groups").size()},
            {"units", entries_of(sysfs / "class" / "iommu").size()},
            {"vfio", fs::exists("/dev/vfio/vfio", ignored)},
            {"iommufd", fs::exists("/dev/iommu", ignored)}}},
          {"memory", std::move(memory)},
          {"nodes", nodes_json(sysfs)},
          {"devices", devices_json(sysfs)},
          {"disks", disks_json(sysfs, with_names)}};
}

// Steps.

struct Step {
  std::string name, what;
  std::vector<std::string> arguments;  // of this tool
  std::string skipped_because;         // not run
};

struct TestFile {
  std::string path;  // empty: there is none
  std::string why_not;
};

std::vector<Step> make_steps(const HardwareFlags& flags, const TestFile& file, bool has_gpu) {
  std::vector<std::string> facts = {"report", "facts", "--sysfs", flags.sysfs};
  if (flags.with_names) facts.push_back("--with-names");
  std::vector<Step> steps = {
      {"facts", "disks, PCI devices, NUMA nodes, IOMMU and kernel settings, from /proc and /sys", std::move(facts), ""},
      {"engines", "which engines work: io_uring, cuFile with GDS and P2PDMA, VFIO", {"engines"}, ""},
      {"doctor", "the machine, its GPUs, and what costs speed", {"doctor", "--sysfs", flags.sysfs}, ""},
      {"nvme list", "NVMe controllers on the bus; nothing is sent to them", {"nvme", "list"}, ""},
      {"nvme soft 512",
       "our NVMe driver against a controller in memory that misbehaves",
       {"nvme", "soft", "--operations", "5000"},
       ""},
      {"nvme soft 4096",
       "the same with large blocks",
       {"nvme", "soft", "--operations", "5000", "--block", "4096"},
       ""}};
  const auto add = [&](const char* name, const char* what, std::vector<std::string> arguments, bool for_gpu) {
    std::string why = file.why_not;
    if (for_gpu && !has_gpu) why = "there is no GPU";
    steps.push_back({name, what, std::move(arguments), std::move(why)});
  };
  add("selftest", "our NVMe driver against a controller in software over the test file; reads only",
      {"nvme", "selftest", "soft-nvme:" + file.path}, false);
  add("doctor of a file", "what is in the page cache, and how fast the test file is read, cold and cached",
      {"doctor", file.path, "--sysfs", flags.sysfs}, false);
  add("read cold", "load the test file past the page cache, three times, and compare it",
      {"load", file.path, "--raw", "--cache", "bypass", "--repeat", "3", "--verify"}, false);
  add("read", "load it as usual, three times, and compare it",
      {"load", file.path, "--raw", "--repeat", "3", "--verify"}, false);
  add("doctor of a file, to a GPU", "how fast it comes into the first GPU, and by which route",
      {"doctor", file.path, "--to", "cuda:0", "--sysfs", flags.sysfs}, true);
  add("read to a GPU", "load it into the first GPU, three times, and compare it",
      {"load", file.path, "--raw", "--to", "cuda:0", "--repeat", "3", "--verify"}, true);
  return steps;
}

std::string tail_of(const std::string& text) {
  return text.size() > error_limit_bytes ? text.substr(text.size() - error_limit_bytes) : text;
}

Json run_step(const Step& step, const HardwareFlags& flags) {
  Json record = {{"name", step.name},
                 {"what", step.what},
                 {"command", step.arguments},
                 {"status", "skipped"},
                 {"reason", step.skipped_because},
                 {"seconds", 0.0},
                 {"exit_code", nullptr},
                 {"result", nullptr}};
  if (!step.skipped_because.empty()) return record;
  std::vector<std::string> arguments = {own_path()};
  arguments.insert(arguments.end(), step.arguments.begin(), step.arguments.end());
  arguments.emplace_back("--json");
  const Result<ChildRun> run = run_child(std::move(arguments), flags.step_seconds, [] {});
  if (!run.ok()) {
    record["status"] = "failed";
    record["reason"] = run.error().message;
    return record;
  }
  record["seconds"] = run->seconds;
  Json result = Json::parse(run->output, nullptr, false);
  const bool whole = result.is_object();
  if (whole) record["result"] = std::move(result);
  record["reason"] = tail_of(run->error);
  if (run->end.late) {
    record["status"] = "timed out";
    if (!run->end.status) record["reason"] = "it can't be ended: it hangs in the kernel";
    return record;
  }
  const int status = run->end.status.value_or(0);
  const bool exited = WIFEXITED(status);
  if (exited) record["exit_code"] = WEXITSTATUS(status);
  record["status"] = whole && exited && WEXITSTATUS(status) == 0 ? "done" : "failed";
  if (!exited)
    record["reason"] = "it was ended by signal " + std::to_string(WTERMSIG(status)) + "\n" + tail_of(run->error);
  return record;
}

// Before all else is redacted as a whole: only there it is known what is the name of a store and what is a text.
void redact_steps(Json& steps, const std::string& folder) {
  std::vector<Secret> secrets = personal_names();
  std::error_code ignored;
  if (!folder.empty()) {
    secrets.push_back({folder, "<folder>"});
    secrets.push_back({fs::absolute(folder, ignored).string(), "<folder>"});
  }
  for (Json& step : steps) {
    Json& result = step["result"];
    if (result.is_object() && result.value("schema", "") == "penstock.doctor/1") redact(result);
  }
  scrub(steps, std::move(secrets));
}

std::string intro_text(const HardwareFlags& flags) {
  return flags.with_names
             ? "it contains names of this machine and its users, paths and serial numbers, because of --with-names"
             : "without names of this machine and its users, serial numbers, UUIDs, network addresses and "
               "paths of your own";
}

void print_plan(const Output& output, const HardwareFlags& flags, const std::vector<Step>& steps) {
  output.heading("This looks at the machine and writes one file, " + flags.out + ".");
  output.field("does", "the steps below, each for " + format_seconds(flags.step_seconds) +
                           " at most; nothing is sent anywhere, no driver is changed");
  output.field("writes", flags.folder.empty() ? "nothing but that file: without a folder no speed is measured"
                                              : "that file, and a test file without a name in " + flags.folder +
                                                    ", which vanishes however this ends");
  output.field("contains", "what the steps print, " + intro_text(flags));
  for (const Step& step : steps) {
    output.field("step", step.name + ": " + step.what +
                             (step.skipped_because.empty() ? "" : " (skipped: " + step.skipped_because + ")"));
  }
}

bool has_any_gpu() {
  const Result<std::vector<Gpu>> gpus = list_gpus();
  return gpus.ok() && !gpus->empty();
}

Result<Json> run_steps(const HardwareFlags& flags, const std::vector<Step>& steps) {
  Json records = Json::array();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!flags.output.quiet) {
      std::fprintf(stderr, "[%zu/%zu] %s … ", i + 1, steps.size(), steps[i].name.c_str());
      std::fflush(stderr);
    }
    records.push_back(run_step(steps[i], flags));
    if (interrupted()) return interrupted_error();
    const Json& record = records.back();
    if (!flags.output.quiet) {
      std::fprintf(stderr, "%s, %s\n", record["status"].get_ref<const std::string&>().c_str(),
                   format_seconds(record["seconds"]).c_str());
    }
  }
  return records;
}

Json summary_of(const Json& records) {
  Json list = Json::array();
  for (const Json& record : records) {
    list.push_back({{"name", record["name"]}, {"status", record["status"]}, {"seconds", record["seconds"]}});
  }
  return list;
}

// A GPU is asked for by a child too: its driver may hang, and this process must not.
bool gpu_answers(const HardwareFlags& flags) {
  const Result<ChildRun> run = run_child({own_path(), "report", "gpu"}, flags.step_seconds, [] {});
  return run.ok() && run->end.status && WIFEXITED(*run->end.status) && WEXITSTATUS(*run->end.status) == 0;
}

Exit run_hardware(const HardwareFlags& flags) {
  const Output output(flags.output);
  TestFile file{"", "no folder was given for a test file"};
  std::optional<Scratch> scratch;
  if (flags.dry_run) {
    if (!flags.folder.empty()) file = {"TEST-FILE", ""};
    print_plan(output, flags, make_steps(flags, file, gpu_answers(flags)));
    if (output.json()) output.object({{"schema", "penstock.report/1"}, {"file", nullptr}, {"steps", Json::array()}});
    return Exit::ok;
  }
  Result<ReportFile> report = ReportFile::create(flags.out);
  if (!report.ok()) return output.fail(report.error());
  if (!flags.folder.empty()) {
    struct stat status {};
    if (stat(flags.folder.c_str(), &status) != 0) return output.fail(system_error(errno, "look at " + flags.folder));
    if (!S_ISDIR(status.st_mode)) {
      return output.fail({.code = Code::invalid_argument,
                          .message = flags.folder + " is not a folder",
                          .hint = "name a folder on the disk to measure"});
    }
    Result<Scratch> made = Scratch::create(flags.folder, flags.size.value_or(default_test_bytes));
    if (!made.ok()) return output.fail(interrupted() ? interrupted_error() : made.error());
    scratch.emplace(std::move(*made));
    file = {scratch->path_for_children(), ""};
  }
  const std::vector<Step> steps = make_steps(flags, file, gpu_answers(flags));
  print_plan(output, flags, steps);
  std::fflush(stdout);
  Result<Json> records = run_steps(flags, steps);
  if (!records.ok()) return output.fail(records.error());
  const Json summary = summary_of(*records);
  if (!flags.with_names) redact_steps(*records, flags.folder);
  const Json whole = {{"schema", "penstock.hardware/1"},
                      {"version", version()},
                      {"when", utc_now()},
                      {"with_names", flags.with_names},
                      {"steps", std::move(*records)}};
  const Status written = report->write(whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  if (!written.ok()) return output.fail(written.error());
  if (output.json()) {
    output.object({{"schema", "penstock.report/1"}, {"file", flags.out}, {"steps", summary}});
  } else {
    output.section("written to " + flags.out + ": read it before you send it, for example with less " + flags.out);
  }
  return Exit::ok;
}

}  // namespace

Command add_report(CLI::App& tool) {
  auto flags = std::make_shared<HardwareFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("report", "Describe this machine in a file for Penstock's developers");
  parser->require_subcommand(1);
  parser->footer(
      "Examples:\n"
      "  penstock report hardware --dry-run\n"
      "  penstock report hardware /mnt/fast\n"
      "  penstock report hardware /mnt/fast --out hardware.json");
  CLI::App* hardware = parser->add_subcommand("hardware", "Run every safe test and write one file to send");
  hardware->add_option("DIR", flags->folder, "a folder for a test file; without it no speed is measured");
  hardware->add_option("--out", flags->out, "the file to write")
      ->type_name("FILE")
      ->check(some_name())
      ->capture_default_str();
  add_size(*hardware, "--size", flags->size, "the size of the test file; default: 256 MiB");
  hardware->add_option("--step-seconds", flags->step_seconds, "how long a step may take")
      ->type_name("N")
      ->capture_default_str()
      ->check(number(0.001, 3600));
  hardware->add_flag("--with-names", flags->with_names, "keep names, paths and serial numbers");
  hardware->add_flag("--dry-run", flags->dry_run, "only print what would be done");
  hardware->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
  CLI::App* facts = parser->add_subcommand("facts", "Print what /proc and /sys say, the first step of hardware");
  facts->add_flag("--with-names", flags->with_names, "include serial numbers");
  for (CLI::App* verb : {hardware, facts}) {
    verb->add_option("--sysfs", flags->sysfs, "a copy of another machine's /sys to look at")
        ->type_name("DIR")
        ->capture_default_str();
    verb->add_flag("--json", flags->output.json, "print one JSON object");
  }
  CLI::App* gpu = parser->add_subcommand("gpu", "Exit with 0 if a GPU answers");
  return {parser, [flags, hardware, gpu] {
            if (gpu->parsed()) return has_any_gpu() ? Exit::ok : Exit::failed;
            if (hardware->parsed()) return run_hardware(*flags);
            const Json facts_of_machine = facts_json(flags->sysfs, flags->with_names);
            if (flags->output.json) {
              Output(flags->output).object(facts_of_machine);
            } else {
              Output(flags->output).heading(facts_of_machine.dump(2, ' ', false, Json::error_handler_t::replace));
            }
            return Exit::ok;
          }};
}

}  // namespace penstock::cli
