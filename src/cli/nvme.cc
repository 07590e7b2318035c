// penstock nvme: controllers that this process can drive itself.
#include <array>
#include <cstdio>

#include "common.h"
#include "interrupt.h"
#include "output.h"

namespace penstock::cli {

namespace {

struct NvmeFlags {
  OutputFlags output;
  std::string name;
  NvmeTrial trial;
  std::uint64_t seeds = 1;
  bool no_faults = false;
  bool dry_run = false;
  std::uint16_t gpu = 0;
};

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", 0ULL + value);
  return text.data();
}

Json head() {
  return {{"schema", "penstock.nvme/1"}};
}

Exit list_controllers(const NvmeFlags& flags) {
  const Output output(flags.output);
  const auto devices = list_nvme();
  if (!devices) return output.fail(devices.error());
  if (output.json()) {
    Json listed = Json::array();
    for (const NvmeDevice& device : *devices) {
      listed.push_back({{"address", device.address},
                        {"driver", device.driver},
                        {"iommu_group", device.iommu_group},
                        {"disks", device.disks},
                        {"used_by", device.used_by}});
    }
    Json result = head();
    result["devices"] = std::move(listed);
    output.object(result);
    return Exit::ok;
  }
  if (devices->empty()) output.heading("this machine has no NVMe controller on the PCI bus");
  for (const NvmeDevice& device : *devices) {
    output.heading(device.address);
    std::string disks;
    for (const std::string& disk : device.disks) disks += (disks.empty() ? "" : ", ") + disk;
    output.field("driver", device.driver.empty() ? "none" : device.driver);
    output.field("IOMMU group", device.iommu_group.empty() ? "none" : device.iommu_group);
    if (!disks.empty()) output.field("disks", disks);
    if (!device.used_by.empty()) output.field("in use", device.used_by);
  }
  return Exit::ok;
}

using ChangeDriver = Result<NvmeBinding> (*)(const std::string& address, NvmeBindingMode mode);

// Says what it will do before it does it: a device that is half-way between drivers should come as no surprise.
Exit change_driver(const NvmeFlags& flags, ChangeDriver change) {
  const Output output(flags.output);
  auto binding = change(flags.name, NvmeBindingMode::dry_run);
  if (!binding) return output.fail(binding.error());
  if (!output.json()) {
    const std::string before = binding->driver_before.empty() ? "no driver" : binding->driver_before;
    output.heading(binding->address + ": " +
                   (binding->steps.empty() ? binding->driver_after + " has it already"
                                           : "from " + before + " to " + binding->driver_after));
    for (const std::string& step : binding->steps) output.field(flags.dry_run ? "would" : "step", step);
  }
  if (!flags.dry_run) {
    // A device without a driver is worse than a process that ends later: the steps take no longer than the kernel does.
    const std::unique_lock<std::mutex> undisturbed = hold_off_interrupts();
    if (!undisturbed) return output.fail(interrupted_error());
    binding = change(flags.name, NvmeBindingMode::run);
    if (!binding) return output.fail(binding.error());
  }
  if (!output.json() && !flags.dry_run && binding->driver_after == "vfio-pci") {
    output.field("next", "penstock nvme selftest nvme:" + binding->address);
    output.field("users", "need /dev/vfio/" + binding->iommu_group + " (chown) and memory to lock (ulimit -l)");
  }
  if (output.json()) {
    Json result = head();
    result["binding"] = {{"address", binding->address},
                         {"driver_before", binding->driver_before},
                         {"driver_after", binding->driver_after},
                         {"iommu_group", binding->iommu_group},
                         {"steps", binding->steps},
                         {"dry_run", flags.dry_run}};
    output.object(result);
  }
  return Exit::ok;
}

Exit bind(const NvmeFlags& flags) {
  return change_driver(flags, bind_nvme);
}

Exit unbind(const NvmeFlags& flags) {
  return change_driver(flags, unbind_nvme);
}

Json controller_json(const NvmeController& controller) {
  Json namespaces = Json::array();
  for (const NvmeNamespace& space : controller.namespaces) {
    namespaces.push_back({{"id", space.id},
                          {"block_bytes", space.block_bytes},
                          {"size_bytes", space.size_bytes},
                          {"refusal", space.refusal}});
  }
  return {{"serial", controller.serial},
          {"model", controller.model},
          {"firmware", controller.firmware},
          {"version", controller.version},
          {"max_queue_entries", controller.max_queue_entries},
          {"io_queues", controller.io_queues},
          {"max_transfer_bytes", controller.max_transfer_bytes},
          {"write_zeroes", controller.write_zeroes},
          {"deallocate", controller.deallocate},
          {"volatile_write_cache", controller.volatile_write_cache},
          {"namespaces", namespaces}};
}

Exit identify(const NvmeFlags& flags) {
  const Output output(flags.output);
  const auto controller = inspect_nvme(flags.name);
  if (!controller) return output.fail(controller.error());
  if (output.json()) {
    Json result = head();
    result["controller"] = controller_json(*controller);
    output.object(result);
    return Exit::ok;
  }
  const auto yes = [](bool value) { return value ? "yes" : "no"; };
  output.heading(controller->model + ", serial " + controller->serial);
  output.field("firmware", controller->firmware + ", NVMe " + controller->version);
  output.field("queues", std::to_string(controller->io_queues) + " of up to " +
                             std::to_string(controller->max_queue_entries) + " entries");
  output.field("a command", "moves up to " + format_bytes(controller->max_transfer_bytes));
  output.field("zeroes", yes(controller->write_zeroes));
  output.field("deallocate", yes(controller->deallocate));
  output.field("write cache", yes(controller->volatile_write_cache));
  for (const NvmeNamespace& space : controller->namespaces) {
    output.field("namespace " + std::to_string(space.id),
                 space.refusal.empty()
                     ? format_bytes(space.size_bytes) + " in blocks of " + std::to_string(space.block_bytes) + " bytes"
                     : "can't be used: " + space.refusal);
  }
  return Exit::ok;
}

Exit registers(const NvmeFlags& flags) {
  const Output output(flags.output);
  const auto read = read_nvme_registers(flags.name);
  if (!read) return output.fail(read.error());
  Json listed = Json::array();
  for (const NvmeRegister& one : read->registers) {
    listed.push_back(
        {{"name", one.name}, {"offset", one.offset}, {"value", hexadecimal(one.value)}, {"meaning", one.meaning}});
    output.field(one.name, hexadecimal(one.value) + ": " + one.meaning);
  }
  if (output.json()) {
    Json result = head();
    result["registers"] = std::move(listed);
    if (read->problem) result["error"] = error_json(*read->problem);
    output.object(result);
    return read->problem ? exit_for(read->problem->code) : Exit::ok;
  }
  return read->problem ? output.fail(*read->problem) : Exit::ok;
}

Exit show_checks(const Output& output, const Result<std::vector<NvmeCheck>>& checks) {
  if (!checks) return output.fail(checks.error());
  if (interrupted()) return output.fail(interrupted_error());
  Json listed = Json::array();
  bool good = true;
  for (const NvmeCheck& check : *checks) {
    good = good && check.ok;
    listed.push_back({{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}});
    output.field(output.mark(check.ok ? Mark::good : Mark::bad),
                 check.name + (check.detail.empty() ? "" : ": " + check.detail));
  }
  if (output.json()) {
    Json result = head();
    result["checks"] = std::move(listed);
    output.object(result);
  }
  return good ? Exit::ok : Exit::failed;
}

Exit selftest(const NvmeFlags& flags) {
  const Output output(flags.output);
  return show_checks(output, test_nvme(flags.name, [] { return !interrupted(); }));
}

Exit gpu_selftest(const NvmeFlags& flags) {
  const Output output(flags.output);
  auto context = Context::create();
  if (!context) return output.fail(context.error());
  const auto store = context->open(flags.name);
  if (!store) return output.fail(store.error());
  return show_checks(output, test_gpu_io(*context, *store, Domain::cuda(flags.gpu)));
}

// What went wrong is told with the seed to do it again.
void add_trial(NvmeTrialReport& sum, const NvmeTrial& trial, const NvmeTrialReport& report) {
  sum.operations += report.operations;
  sum.retries += report.retries;
  sum.commands += report.commands;
  sum.doorbells += report.doorbells;
  sum.aborts += report.aborts;
  sum.resets += report.resets;
  sum.strange_completions += report.strange_completions;
  sum.seconds += report.seconds;
  const std::string seed = "seed " + std::to_string(trial.seed) + ": ";
  for (const std::string& what : report.wrong) sum.wrong.push_back(seed + what);
  for (const std::string& what : report.breaches) sum.breaches.push_back(seed + what);
  if (report.wrong.empty() && report.operations != trial.operations) {
    sum.wrong.push_back(seed + "only " + std::to_string(report.operations) + " operations");
  }
}

Exit soft(const NvmeFlags& flags) {
  const Output output(flags.output);
  NvmeTrial trial = flags.trial;
  trial.faults = !flags.no_faults;
  trial.keep_going = [] { return !interrupted(); };
  NvmeTrialReport sum;
  for (std::uint64_t i = 0; i < flags.seeds; ++i) {
    trial.seed = flags.trial.seed + i;
    const auto report = try_soft_nvme(trial);
    if (interrupted()) return output.fail(interrupted_error());
    if (report) {
      add_trial(sum, trial, *report);
    } else {
      sum.wrong.push_back("seed " + std::to_string(trial.seed) + ": " + report.error().message);
    }
  }
  const bool good = sum.wrong.empty() && sum.breaches.empty();
  if (output.json()) {
    Json result = head();
    result["trial"] = {
        {"seed", flags.trial.seed}, {"seeds", flags.seeds},     {"operations", sum.operations},
        {"retries", sum.retries},   {"commands", sum.commands}, {"doorbells", sum.doorbells},
        {"aborts", sum.aborts},     {"resets", sum.resets},     {"strange_completions", sum.strange_completions},
        {"seconds", sum.seconds},   {"wrong", sum.wrong},       {"breaches", sum.breaches}};
    output.object(result);
    return good ? Exit::ok : Exit::failed;
  }
  output.heading(std::string(output.mark(good ? Mark::good : Mark::bad)) + " " + std::to_string(sum.operations) +
                 " operations in " + format_seconds(sum.seconds) + ", every byte compared");
  if (flags.seeds > 1) output.field("seeds", std::to_string(flags.seeds));
  output.field("commands", std::to_string(sum.commands) + ", with " + std::to_string(sum.doorbells) + " doorbells");
  output.field("survived", std::to_string(sum.retries) + " retries, " + std::to_string(sum.aborts) + " aborts, " +
                               std::to_string(sum.resets) + " resets, " + std::to_string(sum.strange_completions) +
                               " completions that fit no command");
  for (const std::string& what : sum.wrong) output.field("wrong", what);
  for (const std::string& what : sum.breaches) output.field("breach", what);
  return good ? Exit::ok : Exit::failed;
}

}  // namespace

Command add_nvme(CLI::App& tool) {
  auto flags = std::make_shared<NvmeFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("nvme", "Inspect and test NVMe controllers that Penstock can drive itself");
  parser->require_subcommand(1);
  parser->footer(
      "Examples:\n"
      "  penstock nvme list\n"
      "  penstock nvme bind 0000:01:00.0 --dry-run\n"
      "  penstock nvme identify nvme:0000:01:00.0\n"
      "  penstock nvme identify soft-nvme:disk.img\n"
      "  penstock nvme selftest soft-nvme:disk.img\n"
      "  penstock nvme gpu-selftest model.safetensors\n"
      "  penstock nvme soft --seed 7 --operations 100000");
  struct Verb {
    CLI::App* parser;
    Exit (*run)(const NvmeFlags&);
  };
  auto verbs = std::make_shared<std::vector<Verb>>();
  const auto add = [&](const char* name, const char* help, Exit (*run)(const NvmeFlags&), bool named) {
    CLI::App* verb = parser->add_subcommand(name, help);
    verb->add_flag("--json", flags->output.json, "print one JSON object");
    if (named) verb->add_option("NAME", flags->name, "a controller: nvme:ADDRESS or soft-nvme:FILE")->required();
    verbs->push_back({verb, run});
    return verb;
  };
  add("list", "List the controllers on the PCI bus", list_controllers, false);
  add("identify", "Print the identify data of a controller", identify, true);
  add("registers", "Show the registers of a controller", registers, true);
  add("selftest", "Test a controller with everything but writes", selftest, true);
  CLI::App* by_gpu =
      add("gpu-selftest", "Test whether kernels of a GPU read a store by themselves", gpu_selftest, false);
  by_gpu->add_option("NAME", flags->name, "any store: a file, a device, nvme:ADDRESS or soft-nvme:FILE")->required();
  by_gpu->add_option("--gpu", flags->gpu, "the number of the GPU")->transform(whole_number(0, 1023));
  struct Change {
    const char* name;
    const char* help;
    Exit (*run)(const NvmeFlags&);
  };
  for (const Change& change : {Change{"bind", "Take an unused controller from the kernel, for VFIO", bind},
                               Change{"unbind", "Give a controller back to the kernel", unbind}}) {
    CLI::App* verb = add(change.name, change.help, change.run, false);
    verb->add_option("ADDRESS", flags->name, "the PCI address, such as 0000:01:00.0")->required();
    verb->add_flag("--dry-run", flags->dry_run, "only print what would be done");
  }
  CLI::App* trial =
      add("soft", "Test the driver against a misbehaving controller in software, and compare every byte", soft, false);
  trial->add_option("--seed", flags->trial.seed, "the seed of the misbehaviour")
      ->transform(whole_number(0, UINT64_MAX));
  trial->add_option("--seeds", flags->seeds, "run N seeds, one after the other")
      ->transform(whole_number(1, UINT64_MAX));
  trial->add_option("--operations", flags->trial.operations, "how many operations per seed")
      ->transform(whole_number(1, UINT64_MAX));
  trial->add_option("--block", flags->trial.block_bytes, "the block size")->check(CLI::IsMember({"512", "4096"}));
  trial->add_flag("--no-faults", flags->no_faults, "make the controller behave");
  return {parser, [flags, verbs] {
            for (const Verb& verb : *verbs) {
              if (verb.parser->parsed()) return verb.run(*flags);
            }
            return Exit::usage;
          }};
}

}  // namespace penstock::cli
