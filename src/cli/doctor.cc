// penstock doctor: what this machine offers, what it lacks and what would help; for a path, how it is served and how
// fast. The verdict comes first.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "common.h"
#include "engine_list.h"
#include "interrupt.h"
#include "output.h"

namespace penstock::cli {

namespace {

constexpr std::uint64_t sample_bytes = 256 << 20;
constexpr double sample_seconds = 1;

struct DoctorFlags {
  std::string path;
  ContextFlags context;
  OutputFlags output;
};

// Something that costs speed here, and what would help.
struct Finding {
  std::string what;
  std::string remedy;
};

struct Patient {
  StoreInfo info;
  std::string explanation;
  std::optional<Report> sample;  // none of an empty store
};

struct Diagnosis {
  std::string verdict;
  std::vector<Finding> findings;
  Machine machine;
  std::vector<EngineInfo> engines;
  Options options;
  std::optional<Patient> patient;
};

std::vector<Finding> findings_of(const Machine& machine, const Options& options,
                                 const std::vector<EngineInfo>& engines) {
  std::vector<Finding> findings;
  for (const EngineInfo& engine : engines) {
    if (!engine.available) findings.push_back({"engine " + engine.name + ": " + engine.reason, engine.remedy});
  }
  if (machine.lockable_bytes < options.pinned_budget_bytes) {
    findings.push_back({"only " + format_bytes(machine.lockable_bytes) + " of memory may be locked, less than the " +
                            format_bytes(options.pinned_budget_bytes) + " of pinned_budget_bytes",
                        "raise the limit: ulimit -l, or --ulimit memlock=-1 for a container"});
  }
  if (!machine.cachestat) {
    findings.push_back({"the kernel does not tell what is in the page cache of files of others",
                        "a kernel from 6.5 on has cachestat; containers may have to allow it"});
  }
  if (!machine.transparent_huge_pages) {
    findings.push_back({"transparent huge pages are off, so large buffers cost more to set up",
                        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  return findings;
}

// An override from the environment that can't be honoured is a finding, not the end of the examination.
Result<Context> make_context(const Options& options, std::vector<Finding>& findings) {
  Result<Context> context = Context::create(options);
  const char* engine = std::getenv("PENSTOCK_ENGINE");
  if (context.ok() || engine == nullptr) return context;
  findings.push_back({"PENSTOCK_ENGINE=" + std::string(engine) + ": " + context.error().message,
                      "unset PENSTOCK_ENGINE; it is left out here"});
  unsetenv("PENSTOCK_ENGINE");
  return Context::create(options);
}

Result<Report> measure(Context& context, const Store& store) {
  const std::uint64_t size =
      std::min({sample_bytes, store.info().size_bytes, std::max<std::uint64_t>(context.machine().memory_bytes / 4, 1)});
  Result<Buffer> buffer = context.allocate(Domain::host(), size);
  if (!buffer.ok()) return buffer.error();
  // The first touch of fresh memory is the kernel's cost, not the store's.
  std::memset(buffer->data(), 0, buffer->size_bytes());

  const Range range{.store = &store, .offset = 0, .memory = buffer->region()};
  Result<Ticket> ticket = context.submit(Direction::read, {&range, 1});
  if (!ticket.ok()) return ticket.error();
  const Stopwatch stopwatch;
  while (!ticket->wait_for(std::chrono::milliseconds(50))) {
    if (interrupted() || stopwatch.seconds() > sample_seconds) ticket->cancel();
  }
  Report report = ticket->report();
  if (interrupted()) return interrupted_error();
  if (report.outcome == Outcome::failed) return *report.error;
  return report;
}

Result<Patient> examine(Context& context, const std::string& path) {
  Result<Store> store = context.open(path);
  if (!store.ok()) return store.error();
  Patient patient{.info = store->info(), .explanation = context.explain(*store)};
  if (patient.info.size_bytes == 0) return patient;
  Result<Report> sample = measure(context, *store);
  if (!sample.ok()) return sample.error();
  patient.sample = std::move(*sample);
  return patient;
}

std::string main_route(const Report& sample) {
  const auto most = std::max_element(sample.routes.begin(), sample.routes.end()) - sample.routes.begin();
  return std::string(route_name(static_cast<Route>(most)));
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
                        " by " + patient.sample->engine + ", " + main_route(*patient.sample);
  if (patient.sample->limit != Limit::unknown) {
    verdict += "; the limit is " + std::string(limit_name(patient.sample->limit));
  }
  return limits.empty() ? verdict : verdict + "; " + limits;
}

Result<Diagnosis> diagnose(const DoctorFlags& flags) {
  const Result<Options> options = make_options(flags.context);
  if (!options.ok()) return options.error();
  Diagnosis diagnosis;
  Result<Context> context = make_context(*options, diagnosis.findings);
  if (!context.ok()) return context.error();
  diagnosis.machine = context->machine();
  diagnosis.engines = context->engines();
  diagnosis.options = context->options();
  std::ranges::move(findings_of(diagnosis.machine, diagnosis.options, diagnosis.engines),
                    std::back_inserter(diagnosis.findings));
  if (!flags.path.empty()) {
    Result<Patient> patient = examine(*context, flags.path);
    if (!patient.ok()) return patient.error();
    diagnosis.patient = std::move(*patient);
  }
  diagnosis.verdict = verdict_on(diagnosis);
  return diagnosis;
}

Json machine_json(const Machine& machine) {
  const bool limited = machine.lockable_bytes != UINT64_MAX;
  return {{"kernel", machine.kernel},
          {"architecture", machine.architecture},
          {"usable_cpus", machine.usable_cpus},
          {"page_bytes", machine.page_bytes},
          {"memory_bytes", machine.memory_bytes},
          {"lockable_bytes", limited ? Json(machine.lockable_bytes) : Json()},
          {"transparent_huge_pages", machine.transparent_huge_pages},
          {"cachestat", machine.cachestat}};
}

Json sample_json(const Report& sample) {
  return {{"bytes", sample.bytes},
          {"seconds", sample.seconds},
          {"gb_per_s", rate(sample.bytes, sample.seconds) / 1e9},
          {"routes", routes_json(sample.routes)},
          {"engine", sample.engine},
          {"reason", sample.reason},
          {"limit", limit_name(sample.limit)}};
}

Json store_json(const Patient& patient) {
  const StoreInfo& info = patient.info;
  return {
      {"name", info.name},
      {"kind", store_kind_name(info.kind)},
      {"locality", locality_name(info.locality)},
      {"file_system", info.file_system},
      {"size_bytes", info.size_bytes},
      {"block_bytes", info.block_bytes},
      {"alignments",
       {{"offset", info.alignments.offset}, {"memory", info.alignments.memory}, {"optimal", info.alignments.optimal}}},
      {"direct", info.direct},
      {"page_cache", info.page_cache},
      {"mappable", info.mappable},
      {"explanation", patient.explanation},
      {"sample", patient.sample ? sample_json(*patient.sample) : Json()}};
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
          {"engines", engines_json(diagnosis.engines)},
          {"options", Json::parse(diagnosis.options.to_json())},
          {"store", diagnosis.patient ? store_json(*diagnosis.patient) : Json()}};
}

void print_machine(const Output& output, const Machine& machine) {
  const bool limited = machine.lockable_bytes != UINT64_MAX;
  output.section("machine");
  output.field("kernel", machine.kernel + ", " + machine.architecture);
  output.field("usable CPUs", std::to_string(machine.usable_cpus));
  output.field("memory", format_bytes(machine.memory_bytes) + ", pages of " + std::to_string(machine.page_bytes));
  output.field("lockable", limited ? format_bytes(machine.lockable_bytes) : "no limit");
  output.field("huge pages", machine.transparent_huge_pages ? "yes" : "no");
  output.field("cachestat", machine.cachestat ? "yes" : "no");
}

// As JSON, so that it can be changed and handed to --options.
void print_options(const Output& output, const Options& options) {
  output.section("options");
  std::istringstream text(options.to_json(2));
  for (std::string line; std::getline(text, line);) output.heading(line);
}

void print_store(const Output& output, const Patient& patient) {
  const StoreInfo& info = patient.info;
  output.section(info.name);
  output.field("kind", std::string(store_kind_name(info.kind)) + " on " + info.file_system + " (" +
                           std::string(locality_name(info.locality)) + ")");
  output.field("size", format_bytes(info.size_bytes) + ", blocks of " + std::to_string(info.block_bytes));
  output.field("direct", info.direct ? "yes, offsets aligned to " + std::to_string(info.alignments.offset) +
                                           ", memory to " + std::to_string(info.alignments.memory)
                                     : "no");
  output.field("page cache", info.page_cache ? "yes" : "no");
  output.field("mappable", info.mappable ? "yes" : "no");
  output.field("served", patient.explanation);
  if (!patient.sample) return;
  output.field("sample", format_bytes(patient.sample->bytes) + " in " + format_seconds(patient.sample->seconds) + ": " +
                             format_routes(patient.sample->routes));
  output.field("reason", patient.sample->reason);
}

void print_diagnosis(const Output& output, const Diagnosis& diagnosis) {
  output.heading(diagnosis.verdict);
  for (const Finding& finding : diagnosis.findings) {
    output.field(output.mark(false), finding.what);
    if (!finding.remedy.empty()) output.field("", finding.remedy);
  }
  if (diagnosis.patient) print_store(output, *diagnosis.patient);
  print_machine(output, diagnosis.machine);
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
  parser->add_option("PATH", flags->path, "a store to examine: up to 256 MiB of it are read, for a second at most");
  add_context_flags(*parser, flags->context);
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->footer(
      "Examples:\n"
      "  penstock doctor\n"
      "  penstock doctor weights.bin --json");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
