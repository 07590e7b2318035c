// penstock doctor: what this machine offers, what it lacks and what would help; for a path, how it is served and how
// fast. The verdict comes first.
#include "doctor.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "apart.h"
#include "engine_list.h"
#include "model_names.h"
#include "report_file.h"

namespace penstock::cli {

namespace {

struct DoctorFlags {
  std::string path;
  std::string given;  // the path, before "tier:" was looked up
  std::string to = "host";
  std::string sysfs = "/sys";
  std::string bundle;
  bool all = false;
  ContextFlags context;
  OutputFlags output;
};

// What an engine is made for has to be here, or nobody misses it: a GPU and a disk that can reach it, or a controller
// that Penstock could drive itself. Where they are, less than the best costs speed.
Findings engine_findings(const Diagnosis& diagnosis) {
  Findings findings;
  const bool has_gpu = could_go_straight(diagnosis);
  for (const EngineInfo& engine : diagnosis.engines) {
    if (engine.name == "uring") continue;  // stands among the limits
    const bool drives_nvme = std::ranges::find(engine.schemes, "nvme") != engine.schemes.end();
    if (drives_nvme && !diagnosis.has_nvme) continue;
    const auto of_store = has_gpu && engine.reason.empty() && engine.device_route
                              ? obstacle_of_store(diagnosis, *engine.device_route)
                              : std::nullopt;
    if (of_store) {
      findings.push_back({"engine " + engine.name + " can't reach the file: " + of_store->detail, of_store->remedy,
                          gain_without_staging(diagnosis)});
    }
    const bool lacks = engine.reaches_device ? has_gpu && !engine.reason.empty() : !engine.available;
    if (!lacks) continue;
    Gain gain;
    if (engine.reaches_device) gain = gain_without_staging(diagnosis);
    if (drives_nvme) gain = {"none for files: only stores named nvme:ADDRESS/NAMESPACE need it", 1.0};
    findings.push_back({"engine " + engine.name + ": " + engine.reason, engine.remedy, std::move(gain)});
  }
  return findings;
}

// An override from the environment that can't be honoured is a finding, not the end of the examination.
Result<Context> create_context(const Options& options, Findings& findings) {
  Result<Context> context = make_context(options);
  const char* engine = ::secure_getenv("PENSTOCK_ENGINE");
  if (context.ok() || engine == nullptr) return context;
  findings.push_back({"PENSTOCK_ENGINE=" + std::string(engine) + ": " + context.error().message,
                      "unset PENSTOCK_ENGINE; doctor ignores it",
                      {}});
  unsetenv("PENSTOCK_ENGINE");
  return make_context(options);
}

// A model may be a folder: then its largest file stands for it. Everything else is what it is.
std::string largest_file(const std::string& path) {
  std::string largest = path;
  std::uintmax_t most = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(local_path(path), failed)) {
    std::error_code unknown;
    const std::uintmax_t size = entry.is_regular_file(unknown) ? entry.file_size(unknown) : 0;
    if (unknown || size <= most) continue;
    most = size;
    largest = std::filesystem::absolute(entry.path(), unknown).string();
  }
  return largest;
}

std::string speeds_text(const Speeds& speeds) {
  if (speeds.cold && speeds.cached) {
    return format_rate(rate_of(*speeds.cold)) + " cold and " + format_rate(rate_of(*speeds.cached)) + " cached";
  }
  return speeds.cold ? format_rate(rate_of(*speeds.cold)) + " cold" : format_rate(rate_of(*speeds.cached)) + " cached";
}

// Why there are none.
std::string reasons_of(const Speeds& speeds) {
  const std::string &cold = speeds.no_cold_because, &cached = speeds.no_cached_because;
  if (cold.empty() || cold == cached) return cached;
  return cached.empty() ? cold : "cold, " + cold + "; cached, " + cached;
}

std::string verdict_on(const Diagnosis& diagnosis) {
  const auto costly =
      std::ranges::count_if(diagnosis.findings, [](const Finding& finding) { return finding.gain.factor != 1.0; });
  std::string costs;
  if (costly == 1) costs = "one thing costs speed";
  if (costly > 1) costs = std::to_string(costly) + " things cost speed";
  if (!diagnosis.patient) return costs.empty() ? "everything works here" : "it works, but " + costs;

  const Patient& patient = *diagnosis.patient;
  const Report* report = measured(patient);
  if (report == nullptr) {
    if (patient.info.size_bytes == 0) return patient.info.name + " is empty";
    return patient.info.name + " could not be measured: " + reasons_of(patient.speeds);
  }
  const std::string into = patient.to.host_accessible() ? "" : " into " + patient.to.name();
  const std::string& limit = diagnosis.bottleneck.what;
  return patient.info.name + ": expect about " + speeds_text(patient.speeds) + into +
         (limit.empty() ? "" : "; " + limit + " is the limit") + (costs.empty() ? "" : "; ") + costs;
}

// What packing would gain, if it is a model that gets smaller.
Findings packing_findings(const Context& context, const std::string& path, Domain to) {
  constexpr double least_gain = 1.03;
  if (!names_model(path)) return {};
  const Result<Model> model = Model::open(context, path);
  if (!model.ok() || model->stored_bytes() != model->size_bytes()) return {};
  const bool can_be = std::ranges::all_of(
      model->files(), [](const ModelFile& file) { return file.format == ModelFormat::safetensors; });
  if (!can_be) return {};
  const Result<PackEstimate> estimate = estimate_packing(context, *model);
  if (!estimate.ok() || estimate->packed_tensors == 0) return {};
  const std::string size = ratio_text(estimate->stored_bytes, estimate->bytes) + " of its bytes";
  // A GPU unpacks faster than any bus or disk delivers.
  const double by_size = 1 / stored_ratio(estimate->stored_bytes, estimate->bytes);
  const double on_host = estimate->packed_load_seconds > 0 ? estimate->load_seconds / estimate->packed_load_seconds : 1;
  const double factor = to.host_accessible() ? on_host : by_size;
  char times[32];
  std::snprintf(times, sizeof times, "%.2f", factor);
  if (factor < least_gain) {
    return {{"packed, the model would take " + size,
             "nothing: it would not load faster to " + to.name() + " from where it is now",
             {"", 1.0}}};
  }
  return {{"packed, the model would take " + size,
           "penstock pack MODEL --out DIR",
           {"at most " + std::string(times) + " times as fast to " + to.name(), factor}}};
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
  diagnosis.has_nvme = has_nvme_controller(flags.sysfs);
  diagnosis.limits = find_limits(diagnosis);
  if (!flags.path.empty()) {
    const std::string path = largest_file(flags.path);
    std::error_code unknown;
    if (std::filesystem::is_directory(local_path(path), unknown)) {
      return Error{.code = Code::is_directory,
                   .message = path + " has no file to measure",
                   .hint = "name a file; `penstock sample FILE` makes one"};
    }
    // Before the measurement: if the store hangs in that, nothing more is to be learnt from it.
    diagnosis.place = find_place(local_path(path), flags.sysfs);
    Result<Patient> patient = examine(*context, path, *to);
    if (!patient.ok()) return patient.error();
    diagnosis.patient = std::move(*patient);
    diagnosis.bottleneck = judge_limit(*diagnosis.patient);
    choose_routes(diagnosis);
  }
  const auto add = [&](Findings more) { std::ranges::move(more, std::back_inserter(diagnosis.findings)); };
  add(limit_findings(diagnosis));
  add(engine_findings(diagnosis));
  add(gpu_findings(diagnosis.gpus));
  if (diagnosis.patient) {
    add(patient_findings(*diagnosis.patient));
    add(packing_findings(*context, flags.path, *to));
  }
  add(place_findings(diagnosis.place));
  diagnosis.routes = judge_routes(diagnosis);
  diagnosis.way = find_way(diagnosis);
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

Json limit_json(const Bottleneck& bottleneck) {
  if (bottleneck.what.empty()) return {};
  return {{"limit", limit_name(bottleneck.limit)}, {"what", bottleneck.what}, {"why", bottleneck.why}};
}

Json diagnosis_json(const Diagnosis& diagnosis) {
  Json findings = Json::array();
  for (const Finding& finding : diagnosis.findings) {
    findings.push_back({{"what", finding.what}, {"remedy", finding.remedy}, {"gain", gain_json(finding.gain)}});
  }
  return {{"schema", "penstock.doctor/1"},
          {"verdict", diagnosis.verdict},
          {"limit", limit_json(diagnosis.bottleneck)},
          {"findings", std::move(findings)},
          {"routes", routes_json(diagnosis.routes)},
          {"way", way_json(diagnosis.way)},
          {"machine", machine_json(diagnosis.machine)},
          {"limits", conditions_json(diagnosis.limits)},
          {"gpus", gpus_json(diagnosis.gpus)},
          {"no_gpu", no_gpu_json(diagnosis.gpus)},
          {"engines", engines_json(diagnosis.engines)},
          {"options", Json::parse(diagnosis.options.to_json())},
          {"store", store_json(diagnosis)}};
}

void print_finding(const Output& output, const Finding& finding) {
  output.item(Mark::bad, finding.what);
  if (!finding.remedy.empty()) output.detail("try: " + finding.remedy);
  if (!finding.gain.text.empty()) output.detail("gain: " + finding.gain.text);
}

std::size_t lines_of(const Output& output, const Finding& finding) {
  std::size_t lines = output.lines_of(finding.what);
  if (!finding.remedy.empty()) lines += output.lines_of("try: " + finding.remedy);
  if (!finding.gain.text.empty()) lines += output.lines_of("gain: " + finding.gain.text);
  return lines;
}

// What would help most comes first; what would gain nothing is left to --all.
std::vector<const Finding*> helpful(const Findings& findings) {
  std::vector<const Finding*> list;
  for (const Finding& finding : findings) {
    if (finding.gain.factor != 1.0) list.push_back(&finding);
  }
  std::ranges::stable_sort(list, std::ranges::greater(),
                           [](const Finding* finding) { return finding->gain.factor.value_or(1.0); });
  return list;
}

// The verdict, what limits and what would help, on a screen.
void print_short(const Output& output, const Diagnosis& diagnosis, const DoctorFlags& flags) {
  constexpr std::size_t most_lines = 20;
  const auto last_line = [&](std::size_t left) {
    const std::string more = left == 0 ? "" : std::to_string(left) + (left == 1 ? " finding" : " findings") + " and ";
    return more + "the facts: --all" + (flags.path.empty() ? "; how fast a file is: name one" : "");
  };
  output.verdict(diagnosis.verdict);
  std::size_t lines = output.lines_of(diagnosis.verdict) + output.lines_of(last_line(diagnosis.findings.size()));
  if (!diagnosis.bottleneck.what.empty()) {
    const std::string limit = diagnosis.bottleneck.what + ": " + diagnosis.bottleneck.why;
    output.field("limit", limit);
    lines += output.lines_of(limit);
  }
  std::size_t shown = 0;
  for (const Finding* finding : helpful(diagnosis.findings)) {
    lines += lines_of(output, *finding);
    if (lines > most_lines) break;
    print_finding(output, *finding);
    ++shown;
  }
  output.field("more", last_line(diagnosis.findings.size() - shown));
}

void print_diagnosis(const Output& output, const Diagnosis& diagnosis) {
  output.verdict(diagnosis.verdict);
  for (const Finding& finding : diagnosis.findings) print_finding(output, finding);
  print_way(output, diagnosis.way);
  print_routes(output, diagnosis);
  if (diagnosis.patient) {
    print_patient(output, *diagnosis.patient);
    print_place(output, diagnosis.place, diagnosis.gpus);
  }
  print_machine(output, diagnosis);
  print_gpus(output, diagnosis.gpus);
  output.section("engines");
  print_engines(output, diagnosis.engines);
  print_options(output, diagnosis.options);
}

Exit run(const DoctorFlags& flags) {
  const Output output(flags.output);
  std::optional<ReportFile> bundle;
  if (!flags.bundle.empty()) {
    const Status apart = check_apart({"--bundle", flags.bundle}, {{flags.given}, {flags.context.options}});
    if (!apart.ok()) return output.fail(apart.error());
    Result<ReportFile> made = ReportFile::create(flags.bundle);
    if (!made.ok()) return output.fail(made.error());
    bundle = std::move(*made);
  }
  const Result<Diagnosis> diagnosis = diagnose(flags);
  if (!diagnosis.ok()) return output.fail(diagnosis.error());
  if (bundle) {
    const Json content = make_bundle(diagnosis_json(*diagnosis));
    const Status written = bundle->write(content.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    if (!written.ok()) return output.fail(written.error());
  }
  if (output.json()) {
    output.object(diagnosis_json(*diagnosis));
  } else {
    if (flags.all) {
      print_diagnosis(output, *diagnosis);
    } else {
      print_short(output, *diagnosis, flags);
    }
    if (!flags.bundle.empty()) output.section("written to " + flags.bundle + ": read it before you send it");
  }
  return Exit::ok;
}

}  // namespace

Command add_doctor(CLI::App& tool) {
  auto flags = std::make_shared<DoctorFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("doctor", "Check this machine and explain how fast a path is read");
  auto* path = parser->add_option("PATH", flags->path,
                                  "a store to examine; reads its first 256 MiB a few times, for a few seconds at most");
  parser->add_option("--to", flags->to, "the memory to read PATH into: host, pinned or cuda:N")
      ->type_name("DOMAIN")
      ->capture_default_str()
      ->needs(path);
  parser->add_option("--sysfs", flags->sysfs, "a copy of another machine's /sys to look at")
      ->type_name("DIR")
      ->capture_default_str();
  parser->add_flag("--all", flags->all, "print every finding and fact, not only what matters most");
  parser
      ->add_option("--bundle", flags->bundle, "write everything, without names and secrets, to a file for a bug report")
      ->type_name("FILE")
      ->check(some_name());
  add_context_flags(*parser, flags->context);
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->footer(
      "Examples:\n"
      "  penstock doctor\n"
      "  penstock doctor weights.bin --all\n"
      "  penstock doctor weights.bin --json\n"
      "  penstock doctor weights.bin --to cuda:0\n"
      "  penstock doctor weights.bin --bundle report.json");
  return {parser, [flags] {
            flags->given = flags->path;
            if (Status named = name_by_path(flags->path); !named.ok()) return Output(flags->output).fail(named.error());
            return run(*flags);
          }};
}

}  // namespace penstock::cli
