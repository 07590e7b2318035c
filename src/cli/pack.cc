// penstock pack, penstock unpack: models in fewer bytes, and back.
#include "interrupt.h"
#include "model_names.h"
#include "penstock/packing.h"

namespace penstock::cli {

namespace {

struct PackFlags {
  std::string model;
  std::string folder;
  std::uint32_t threads = 0;
  bool dry_run = false;
  ContextFlags context;
  OutputFlags output;
};

Json packed_json(const PackFlags& flags, const PackReport& report, const char* schema) {
  Json files = Json::array();
  for (const PackReport::File& file : report.files) {
    files.push_back({{"path", file.path},
                     {"tensors", file.tensors},
                     {"packed_tensors", file.packed_tensors},
                     {"bytes", file.bytes},
                     {"stored_bytes", file.stored_bytes}});
  }
  return {{"schema", schema},
          {"model", flags.model},
          {"folder", flags.folder},
          {"bytes", report.bytes()},
          {"stored_bytes", report.stored_bytes()},
          {"ratio", stored_ratio(report.stored_bytes(), report.bytes())},
          {"seconds", report.seconds},
          {"files", std::move(files)},
          {"copied", report.copied}};
}

Exit run_estimate(const PackFlags& flags, const Output& output, const Context& context) {
  const Result<Model> model = Model::open(context, flags.model);
  if (!model.ok()) return output.fail(model.error());
  for (const ModelFile& file : model->files()) {
    if (file.format == ModelFormat::safetensors) continue;
    return output.fail({Code::unsupported, 0, file.path + " is not a safetensors file", "only those are packed"});
  }
  const Result<PackEstimate> estimate = estimate_packing(context, *model);
  if (!estimate.ok()) return output.fail(estimate.error());
  if (output.json()) {
    output.object({{"schema", "penstock.pack/1"},
                   {"model", flags.model},
                   {"dry_run", true},
                   {"bytes", estimate->bytes},
                   {"stored_bytes", estimate->stored_bytes},
                   {"ratio", stored_ratio(estimate->stored_bytes, estimate->bytes)},
                   {"tensors", estimate->tensors},
                   {"packed_tensors", estimate->packed_tensors},
                   {"read_bytes_per_second", estimate->read_bytes_per_second},
                   {"unpack_bytes_per_second", estimate->unpack_bytes_per_second},
                   {"load_seconds", estimate->load_seconds},
                   {"packed_load_seconds", estimate->packed_load_seconds}});
    return Exit::ok;
  }
  output.heading(flags.model + ", by samples");
  output.field("size", format_bytes(estimate->stored_bytes) + " instead of " + format_bytes(estimate->bytes) + ", " +
                           ratio_text(estimate->stored_bytes, estimate->bytes) + " of it");
  output.field("packed", std::to_string(estimate->packed_tensors) + " of " + count_of(estimate->tensors, "tensor"));
  output.field("load to host", format_seconds(estimate->packed_load_seconds) + " instead of " +
                                   format_seconds(estimate->load_seconds) + ", reading " +
                                   format_rate(estimate->read_bytes_per_second) + ", unpacking at most " +
                                   format_rate(estimate->unpack_bytes_per_second));
  return Exit::ok;
}

Exit run(const PackFlags& flags, bool pack) {
  const Output output(flags.output);
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return output.fail(context.error());
  if (flags.dry_run) return run_estimate(flags, output, *context);
  if (flags.folder.empty()) {
    return output.fail({Code::invalid_argument, 0, "--out is missing", "name a folder for the result"});
  }
  const Result<PackReport> report = [&] {
    const Result<Model> model = Model::open(*context, flags.model);
    Progress progress(model.ok() ? std::optional(model->size_bytes()) : std::nullopt, flags.output);
    const PackOptions options{.threads = flags.threads, .progress = [&](std::uint64_t done, std::uint64_t) {
                                progress.update(done);
                                return !interrupted();
                              }};
    return pack ? pack_model(*context, flags.model, flags.folder, options)
                : unpack_model(*context, flags.model, flags.folder, options);
  }();
  if (!report.ok()) return output.fail(interrupted() ? interrupted_error() : report.error());
  if (output.json()) {
    output.object(packed_json(flags, *report, pack ? "penstock.pack/1" : "penstock.unpack/1"));
    return Exit::ok;
  }
  output.heading(flags.folder);
  const std::uint64_t bytes = report->bytes(), stored = report->stored_bytes();
  output.field("size",
               format_bytes(stored) + (pack ? ", " + ratio_text(stored, bytes) + " of " + format_bytes(bytes) : ""));
  std::uint64_t tensors = 0, packed = 0;
  for (const PackReport::File& file : report->files) {
    tensors += file.tensors;
    packed += file.packed_tensors;
  }
  output.field("tensors", pack ? std::to_string(packed) + " of " + std::to_string(tensors) + " are packed, in " +
                                     count_of(report->files.size(), "file")
                               : std::to_string(tensors) + " in " + count_of(report->files.size(), "file"));
  if (!report->copied.empty()) output.field("copied", list_of(report->copied));
  output.field("took", format_seconds(report->seconds) + ", " + format_rate(rate(bytes, report->seconds)));
  return Exit::ok;
}

std::shared_ptr<PackFlags> add_flags(CLI::App& parser) {
  auto flags = std::make_shared<PackFlags>();  // shared by the parser's options and by run
  parser.add_option("MODEL", flags->model, "a directory, a file or an index, by path or URI")->required();
  parser.add_option("--out", flags->folder, "the folder for the result; made if it is not there")->check(some_name());
  parser.add_option("--threads", flags->threads, "that encode; by default one for each CPU")
      ->transform(whole_number(1, 1024));
  add_context_flags(parser, flags->context);
  parser.add_flag("--json", flags->output.json, "print one JSON object");
  parser.add_flag("--quiet", flags->output.quiet, "print nothing but errors");
  return flags;
}

}  // namespace

Command add_pack(CLI::App& tool) {
  CLI::App* parser = tool.add_subcommand("pack", "Store a model without loss in fewer bytes");
  auto flags = add_flags(*parser);
  parser->add_flag("--dry-run", flags->dry_run, "write nothing: estimate size and load time from samples");
  parser->footer(
      "BF16 weights get about 30 % smaller, others less. Everything that loads models reads the result. Each tensor "
      "is\n"
      "decoded and compared before the file gets its name. The index and small files beside the model are copied.\n\n"
      "Examples:\n"
      "  penstock pack models/llama/ --out models/llama-packed/\n"
      "  penstock pack models/llama/ --dry-run");
  return {parser, [flags] { return run(*flags, true); }};
}

Command add_unpack(CLI::App& tool) {
  CLI::App* parser = tool.add_subcommand("unpack", "Store a packed model as plain safetensors again");
  auto flags = add_flags(*parser);
  parser->footer(
      "Examples:\n"
      "  penstock unpack models/llama-packed/ --out models/llama/");
  return {parser, [flags] { return run(*flags, false); }};
}

}  // namespace penstock::cli
