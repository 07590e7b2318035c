// penstock verify: whether the bytes of a model are those that were recorded for it.
#include "interrupt.h"
#include "model_names.h"

namespace penstock::cli {

namespace {

using Verdict = CheckedFile::Verdict;

struct VerifyFlags {
  std::vector<std::string> paths;
  ContextFlags context;
  OutputFlags output;
};

std::vector<std::string> paths_of(const std::vector<CheckedFile>& files, Verdict verdict) {
  std::vector<std::string> paths;
  for (const CheckedFile& file : files) {
    if (file.verdict == verdict) paths.push_back(file.path);
  }
  return paths;
}

// Why the model as a whole is not right, if it is not.
std::optional<Error> problem_of(const std::vector<CheckedFile>& files) {
  const std::vector<std::string> wrong = paths_of(files, Verdict::wrong);
  const std::vector<std::string> unknown = paths_of(files, Verdict::unknown);
  if (!wrong.empty()) {
    return Error{.code = Code::io_error,
                 .message = "the bytes differ from the recorded checksums: " + list_of(wrong),
                 .hint = "download or save it again; if it is wrong again, check the device"};
  }
  if (!unknown.empty()) {
    return Error{.code = Code::unsupported,
                 .message = "no checksum is known for " + list_of(unknown),
                 .hint =
                     "save the model with checksums=True (SaveOptions::checksums in C++), or verify files of the "
                     "Hugging Face cache"};
  }
  return std::nullopt;
}

Json checked_json(const Model& model, const VerifyFlags& flags, const std::vector<CheckedFile>& files,
                  const std::optional<Error>& problem) {
  const Verdict whole = !problem ? Verdict::right : problem->code == Code::io_error ? Verdict::wrong : Verdict::unknown;
  Json list = Json::array();
  for (const CheckedFile& file : files) {
    list.push_back({{"path", file.path},
                    {"verdict", verdict_name(file.verdict)},
                    {"how", file.how},
                    {"wrong_tensors", file.wrong_tensors}});
  }
  Json object = {{"schema", "penstock.verify/1"},
                 {"paths", flags.paths},
                 {"verdict", verdict_name(whole)},
                 {"warnings", model.warnings()},
                 {"files", std::move(list)}};
  if (problem) object["error"] = error_json(*problem);
  return object;
}

void print_files(const Output& output, const std::vector<CheckedFile>& files) {
  for (const CheckedFile& file : files) {
    const bool unknown = file.verdict == Verdict::unknown;
    output.heading(std::string(output.mark(unknown                          ? Mark::unknown
                                           : file.verdict == Verdict::right ? Mark::good
                                                                            : Mark::bad)) +
                   " " + file.path);
    output.field(verdict_name(file.verdict), file.how);
    if (!file.wrong_tensors.empty()) output.field("", "wrong tensors: " + list_of(file.wrong_tensors));
  }
}

Exit run(const VerifyFlags& flags) {
  const Output output(flags.output);
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return output.fail(context.error());
  const Result<Model> model = open_model(*context, flags.paths);
  if (!model.ok()) return output.fail(model.error());

  const Result<std::vector<CheckedFile>> files = [&] {
    std::uint64_t all_bytes = 0;
    for (const ModelFile& file : model->files()) all_bytes += file.size_bytes;
    Progress progress(all_bytes, flags.output);
    return check_model(*context, *model, [&](std::uint64_t done, std::uint64_t) {
      progress.update(done);
      return !interrupted();
    });
  }();
  if (!files.ok()) return output.fail(interrupted() ? interrupted_error() : files.error());

  const std::optional<Error> problem = problem_of(*files);
  if (output.json()) {
    output.object(checked_json(*model, flags, *files, problem));
    return problem ? exit_for(problem->code) : Exit::ok;
  }
  for (const std::string& warning : model->warnings()) output.field("warning", warning);
  print_files(output, *files);
  return problem ? output.fail(*problem) : Exit::ok;
}

}  // namespace

Command add_verify(CLI::App& tool) {
  auto flags = std::make_shared<VerifyFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("verify", "Compare a model with its recorded checksums");
  parser
      ->add_option("MODEL", flags->paths, "a directory, a file or an index, by path or URI; or the files of one model")
      ->required();
  add_context_flags(*parser, flags->context);
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
  parser->footer(
      "Compares with the checksums that Penstock records on request (save_file(..., checksums=True) in Python) and "
      "with\n"
      "the digests in the names of Hugging Face blobs. A file without either is an error.\n\n"
      "Examples:\n"
      "  penstock verify ~/.cache/huggingface/hub/models--org--name/snapshots/main\n"
      "  penstock verify model.safetensors --json");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
