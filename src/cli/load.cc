// penstock load: brings stores or models, or a part of them, into memory as one request, and says which way the bytes
// took.
#include "load.h"

#include <sys/resource.h>

#include <algorithm>
#include <numeric>

#include "apart.h"
#include "interrupt.h"
#include "model_names.h"
#include "report_file.h"
#include "source.h"
#include "watch.h"

namespace penstock::cli {

namespace {

constexpr unsigned repeat_limit = 1000;
constexpr std::uint32_t traced_events = 1 << 18;  // of a lane

Result<std::unique_ptr<Cargo>> prepare(const LoadFlags& flags, const std::optional<StandardOutput>& output) {
  const bool has_stream =
      std::ranges::any_of(flags.paths, [&](const std::string& path) { return names_stream(path, flags.size); });
  if (has_stream) return prepare_pipe(flags, output);
  if (output) return prepare_stream(flags, *output);
  if (flags.raw || flags.offset || flags.size || flags.lba || flags.count) return prepare_bytes(flags);
  const auto stranger = std::ranges::find_if_not(flags.paths, names_model);
  if (stranger == flags.paths.end() || !flags.select.empty()) return prepare_model(flags);
  const auto model = std::ranges::find_if(flags.paths, names_model);
  if (model == flags.paths.end()) return prepare_bytes(flags);
  return Error{.code = Code::invalid_argument,
               .message = *model + " is a model, and " + *stranger + " is not",
               .hint = "load them one by one, or both as bytes with --raw"};
}

// The median of all rounds but the first, which finds nothing warm.
double steady_rate(const std::vector<Report>& rounds) {
  std::vector<double> rates;
  for (const Report& round : std::span(rounds).subspan(1)) rates.push_back(rate(round.bytes, round.seconds));
  std::ranges::sort(rates);
  return rates.empty() ? 0 : std::midpoint(rates[(rates.size() - 1) / 2], rates[rates.size() / 2]);
}

void add_rounds(const std::vector<Report>& rounds, Transfer& transfer) {
  Json list = Json::array();
  std::string text;
  for (const Report& round : rounds) {
    list.push_back({{"seconds", round.seconds},
                    {"gb_per_s", rate(round.bytes, round.seconds) / 1e9},
                    {"routes", routes_json(round.routes)},
                    {"limit", limit_name(round.limit)}});
    text += (text.empty() ? "" : ", ") +
            (tells_speed(round) ? format_rate(rate(round.bytes, round.seconds)) : format_seconds(round.seconds));
  }
  const bool repeated = rounds.size() > 1;
  transfer.head["rounds"] = std::move(list);
  transfer.head["steady_gb_per_s"] = repeated ? Json(steady_rate(rounds) / 1e9) : Json();
  if (!repeated) return;
  transfer.own.push_back({"rounds", text});
  if (!tells_speed(rounds.front())) return;
  transfer.own.push_back({"steady", format_rate(steady_rate(rounds)) + ", the median of all rounds but the first"});
}

Report load_watched(Cargo& cargo, const LoadFlags& flags) {
  if (flags.watch) {
    Watch watch(cargo.context(), cargo.bytes());
    return cargo.load([&](std::uint64_t bytes) { watch.update(bytes); });
  }
  Progress progress(cargo.bytes(), flags.output);
  return cargo.load([&](std::uint64_t bytes) { progress.update(bytes); });
}

// What was under way when the deadline passed may have arrived all the same. It was late.
std::optional<Error> check_deadline(const Report& report, const LoadFlags& flags) {
  if (flags.deadline_seconds <= 0 || report.seconds <= flags.deadline_seconds) return std::nullopt;
  return Error{.code = Code::timed_out,
               .message = "the deadline passed; all " + std::to_string(report.bytes) + " bytes arrived, after " +
                          format_seconds(report.seconds),
               .hint = "allow more time with --deadline"};
}

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Result<StandardOutput> take_standard_output(const LoadFlags& flags) {
  if (flags.verify || flags.repeat > 1 || !flags.select.empty() || flags.watch) {
    return Error{.code = Code::invalid_argument,
                 .message = "--to - excludes --verify, --repeat, --select and --watch",
                 .hint = "leave them out"};
  }
  return StandardOutput::take();
}
Exit run(const LoadFlags& given) {
  LoadFlags flags = given;
  const Inputs inputs{flags.paths, {flags.context.options}};
  std::optional<StandardOutput> bytes_out;
  if (flags.domain == to_standard_output) {
    const Status apart = check_apart({"--to", flags.domain}, inputs);
    if (!apart.ok()) return Output(flags.output).fail(apart.error());
    const Result<StandardOutput> taken = take_standard_output(flags);
    if (!taken.ok()) return Output(flags.output).fail(taken.error());
    bytes_out = *taken;
    flags.domain = "host";
  }
  const Output output(flags.output);
  std::optional<ReportFile> timeline;
  if (!flags.timeline.empty()) {
    const Status apart = check_apart({"--timeline", flags.timeline}, inputs);
    if (!apart.ok()) return output.fail(apart.error());
    Result<ReportFile> made = ReportFile::create(flags.timeline);
    if (!made.ok()) return output.fail(made.error());
    timeline = std::move(*made);
  }
  if (timeline || flags.watch) flags.context.trace_events = traced_events;
  const Stopwatch setup;
  const Result<std::unique_ptr<Cargo>> cargo = prepare(flags, bytes_out);
  if (!cargo.ok()) return output.fail(cargo.error());
  Transfer transfer{.head = {{"schema", "penstock.load/1"}, {"paths", flags.paths}, {"to", given.domain}},
                    .setup_seconds = setup.seconds()};

  std::vector<Report> rounds;
  LoadCost cost;
  while (rounds.size() < flags.repeat) {
    if (interrupted()) return output.fail(interrupted_error());  // a short round does not look
    const double before = process_cpu_seconds();
    rounds.push_back(load_watched(**cargo, flags));
    if (!rounds.back().ok()) return output.fail(rounds.back());
    if (const std::optional<Error> late = check_deadline(rounds.back(), flags)) return output.fail(*late);
    if (rounds.size() == 1) cost.cpu_seconds = process_cpu_seconds() - before;
  }
  transfer.report = rounds.front();
  add_block(flags, (*cargo)->loaded(), (*cargo)->context(), cost, transfer);
  (*cargo)->describe(transfer);
  add_rounds(rounds, transfer);
  if (timeline) {
    const Status written = timeline->write((*cargo)->context().trace().to_chrome_json());
    if (!written.ok()) return output.fail(written.error());
    transfer.own.push_back({"timeline", flags.timeline + ", for ui.perfetto.dev or chrome://tracing"});
  }
  if (flags.verify) transfer.verified = compare_with_files((*cargo)->context(), (*cargo)->loaded());
  return output.transfer(transfer);
}

}  // namespace

Command add_load(CLI::App& tool) {
  auto flags = std::make_shared<LoadFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("load", "Load models, files or devices into host or GPU memory");
  parser
      ->add_option("PATH", flags->paths,
                   "a model (directory, *.safetensors, *.gguf, index), files, devices or URIs; - is standard input")
      ->required();
  const TransferOptions shared =
      add_transfer_flags(*parser, *flags,
                         {.domain_name = "--to",
                          .domain = "the destination: host, pinned, cuda:N, or - for standard output",
                          .offset = "where to begin in each PATH",
                          .size = "how much of each PATH to load; default: to the end",
                          .verify = "compare with an independent, plain read",
                          .deadline = "give up after this many seconds, in each round"});
  auto* lba = parser->add_option("--lba", flags->lba, "where to begin, in blocks");
  auto* count = parser->add_option("--count", flags->count, "how many blocks to load");
  for (CLI::Option* in_blocks : {lba, count}) {
    in_blocks->type_name("N")->transform(whole_number(0, UINT64_MAX))->excludes(shared.offset)->excludes(shared.size);
  }
  auto* raw = parser->add_flag("--raw", flags->raw, "load a model as bytes; so do --offset, --size, --lba and --count");
  auto* select = parser
                     ->add_option("--select", flags->select,
                                  "load only tensors whose name matches, such as \"*.q_proj.*\"; may be repeated")
                     ->type_name("GLOB")
                     ->allow_extra_args(false);
  for (CLI::Option* of_bytes : {shared.offset, shared.size, lba, count, raw}) select->excludes(of_bytes);
  parser->add_option("--repeat", flags->repeat, "load N times into the same memory and report the steady speed")
      ->type_name("N")
      ->transform(whole_number(1, repeat_limit));
  parser->add_option("--timeline", flags->timeline, "write what each lane did and when, as a Chrome trace")
      ->type_name("FILE")
      ->check(some_name());
  parser->add_flag("--watch", flags->watch, "show what each lane does, on the terminal");
  parser->footer(
      "Examples:\n"
      "  penstock load models/llama/ --to cuda:0 --verify\n"
      "  penstock load model.gguf --select 'blk.0.*' --json\n"
      "  penstock load weights.bin --to cuda:0 --repeat 5\n"
      "  penstock load weights.bin --watch --timeline trace.json\n"
      "  penstock load shard-*.bin --json\n"
      "  penstock load backup.tar --to - --cache bypass | tar t\n"
      "  zstd -dc weights.zst | penstock load - --to cuda:0\n"
      "  penstock load model.safetensors --offset 1GiB --size 64MiB --cache bypass\n"
      "  penstock load /dev/nvme0n1 --lba 2048 --count 8");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
