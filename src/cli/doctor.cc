// penstock doctor: what this machine offers, what it lacks and what would help; for a path, how it is served and how
// fast. The verdict comes first.
#include "doctor.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "engine_list.h"

namespace penstock::cli {

namespace {

struct DoctorFlags {
  std::string path;
  std::string to = "host";
  std::string sysfs = "/sys";
  ContextFlags context;
  OutputFlags output;
};

struct Diagnosis {
  std::string verdict;
  Findings findings;
  Machine machine;
  Gpus gpus;
  std::vector<EngineInfo> engines;
  Options options;
  std::optional<Patient> patient;
  Place place;  // of the patient
};

// An engine made for GPUs is not missed where there are none; where there are, less than the best costs speed.
Findings engine_findings(const std::vector<EngineInfo>& engines, const Gpus& gpus) {
  Findings findings;
  for (const EngineInfo& engine : engines) {
    const bool lacks = engine.reaches_device ? !gpus.seen.empty() && !engine.reason.empty() : !engine.available;
    if (lacks) findings.push_back({"engine " + engine.name + ": " + engine.reason, engine.remedy});
  }
  return findings;
}

// An override from the environment that can't be honoured is a finding, not the end of the examination.
Result<Context> create_context(const Options& options, Findings& findings) {
  Result<Context> context = Context::create(options);
  const char* engine = std::getenv("PENSTOCK_ENGINE");
  if (context.ok() || engine == nullptr) return context;
  findings.push_back({"PENSTOCK_ENGINE=" + std::string(engine) + ": " + context.error().message,
                      "unset PENSTOCK_ENGINE; it is left out here"});
  unsetenv("PENSTOCK_ENGINE");
  return Context::create(options);
}

std::string verdict_on(const Diagnosis& diagnosis) {
  std::string limits;
  if (diagnosis.findings.size() == 1) limits = "one thing costs speed";
  if (diagnosis.findings.size() > 1) limits = std::to_string(diagnosis.findings.size()) + " things cost speed";
  if (!diagnosis.patient) return limits.empty() ? "Penstock can do all it knows here" : "it works, but " + limits;

  const Patient& patient = *diagnosis.patient;
  const std::string& name = patient.info.name;
  if (!patient.sample) return name + " is empty";
  std::string verdict = name + " is read at " + format_rate(rate(patient.sample->bytes, patient.sample->seconds)) +
                        (patient.to.host_accessible() ? "" : " into " + patient.to.name()) + " by " +
                        patient.sample->engine + ", " + std::string(route_name(main_route(*patient.sample)));
  if (patient.sample->limit != Limit::unknown) {
    verdict += "; the limit is " + std::string(limit_name(patient.sample->limit));
  }
  return limits.empty() ? verdict : verdict + "; " + limits;
}

Result<Diagnosis> diagnose(const DoctorFlags& flags) {
  const Result<Domain> to = Domain::parse(flags.to);
  if (!to.ok()) return to.error();
  const Result<Options> options = make_options(flags.context);
  if (!options.ok()) return options.error();
  Diagnosis diagnosis;
  Result<Context> context = create_context(*options, diagnosis.findings);
  if (!context.ok()) return context.error();
  diagnosis.machine = context->machine();
  diagnosis.engines = context->engines();
  diagnosis.options = context->options();
  diagnosis.gpus = look_for_gpus(flags.sysfs);
  const auto add = [&](Findings more) { std::ranges::move(more, std::back_inserter(diagnosis.findings)); };
  add(engine_findings(diagnosis.engines, diagnosis.gpus));
  add(machine_findings(diagnosis.machine, diagnosis.options));
  add(gpu_findings(diagnosis.gpus));
  if (!flags.path.empty()) {
    Result<Patient> patient = examine(*context, flags.path, *to);
    if (!patient.ok()) return patient.error();
    diagnosis.patient = std::move(*patient);
    diagnosis.place = find_place({.path = local_path(flags.path),
                                  .sysfs = flags.sysfs,
                                  .patient = *diagnosis.patient,
                                  .gpus = diagnosis.gpus,
                                  .engines = diagnosis.engines});
    add(place_findings(diagnosis.place));
  }
  diagnosis.verdict = verdict_on(diagnosis);
  return diagnosis;
}

Json store_json(const Diagnosis& diagnosis) {
  if (!diagnosis.patient) return {};
  Json store = patient_json(*diagnosis.patient);
  store["place"] = place_json(diagnosis.place);
  store["gpu_routes"] = gpu_routes_json(diagnosis.place);
  return store;
}

Json no_gpu_json(const Gpus& gpus) {
  if (!gpus.none) return {};
  return {{"reason", gpus.none->message}, {"remedy", gpus.none->hint}};
}

Json diagnosis_json(const Diagnosis& diagnosis) {
  Json findings = Json::array();
  for (const Finding& finding : diagnosis.findings) {
    findings.push_back({{"what", finding.what}, {"remedy", finding.remedy}});
  }
  return {{"schema", "penstock.doctor/1"},
          {"verdict", diagnosis.verdict},
          {"findings", std::move(findings)},
          {"machine", machine_json(diagnosis.machine)},
          {"gpus", gpus_json(diagnosis.gpus)},
          {"no_gpu", no_gpu_json(diagnosis.gpus)},
          {"engines", engines_json(diagnosis.engines)},
          {"options", Json::parse(diagnosis.options.to_json())},
          {"store", store_json(diagnosis)}};
}

void print_diagnosis(const Output& output, const Diagnosis& diagnosis) {
  output.heading(diagnosis.verdict);
  for (const Finding& finding : diagnosis.findings) {
    output.field(output.mark(false), finding.what);
    if (!finding.remedy.empty()) output.field("", finding.remedy);
  }
  if (diagnosis.patient) {
    print_patient(output, *diagnosis.patient);
    print_place(output, diagnosis.place, diagnosis.gpus);
  }
  print_machine(output, diagnosis.machine);
  print_gpus(output, diagnosis.gpus);
  output.section("engines");
  print_engines(output, diagnosis.engines);
  print_options(output, diagnosis.options);
}

Exit run(const DoctorFlags& flags) {
  const Output output(flags.output);
  const Result<Diagnosis> diagnosis = diagnose(flags);
  if (!diagnosis.ok()) return output.fail(diagnosis.error());
  if (output.json()) {
    output.object(diagnosis_json(*diagnosis));
  } else {
    print_diagnosis(output, *diagnosis);
  }
  return Exit::ok;
}

}  // namespace

Command add_doctor(CLI::App& tool) {
  auto flags = std::make_shared<DoctorFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("doctor", "Say what this machine offers, and how a path is served");
  auto* path =
      parser->add_option("PATH", flags->path, "a store to examine: up to 256 MiB of it are read, for a second at most");
  parser->add_option("--to", flags->to, "into which memory PATH is read: host, pinned or cuda:N")
      ->type_name("DOMAIN")
      ->capture_default_str()
      ->needs(path);
  parser->add_option("--sysfs", flags->sysfs, "where to look for the bus: a copy of another machine's /sys")
      ->type_name("DIR")
      ->capture_default_str();
  add_context_flags(*parser, flags->context);
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->footer(
      "Examples:\n"
      "  penstock doctor\n"
      "  penstock doctor weights.bin --json\n"
      "  penstock doctor weights.bin --to cuda:0");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
