// penstock sample: makes a model to try the other commands with. Its values mean nothing.
#include <algorithm>

#include "apart.h"
#include "interrupt.h"
#include "model_names.h"
#include "source.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

constexpr std::uint64_t row_elements = 1024;
constexpr std::uint64_t layers = 8;
constexpr std::uint64_t row_bytes = row_elements * 2;   // of BF16
constexpr std::uint64_t norm_bytes = row_elements * 4;  // of F32
constexpr std::uint64_t smallest_bytes = norm_bytes + (layers + 1) * row_bytes;

struct SampleFlags {
  std::string path;
  std::optional<std::uint64_t> size;
  std::uint64_t seed = 0;
  ContextFlags context;
  OutputFlags output;
};

// One matrix for each layer, all of one size, an embedding that takes the rest, and a vector.
std::vector<TensorToSave> tensors_in(Region memory) {
  const std::uint64_t rows = (memory.size_bytes - norm_bytes) / row_bytes;
  const std::uint64_t layer_rows = rows / (layers + 1);
  std::uint64_t used = 0;
  std::vector<TensorToSave> tensors;
  const auto add = [&](std::string name, DType dtype, std::vector<std::uint64_t> shape, std::uint64_t bytes) {
    tensors.push_back({std::move(name), dtype, std::move(shape), memory.part(used, bytes)});
    used += bytes;
  };
  add("norm.weight", DType::f32, {row_elements}, norm_bytes);
  for (std::uint64_t i = 0; i < layers; ++i) {
    add("layers." + std::to_string(i) + ".weight", DType::bf16, {layer_rows, row_elements}, layer_rows * row_bytes);
  }
  const std::uint64_t rest = rows - layers * layer_rows;
  add("embedding.weight", DType::bf16, {rest, row_elements}, rest * row_bytes);
  return tensors;
}

Result<Report> make(const SampleFlags& flags) {
  const std::uint64_t size_bytes = flags.size.value_or(64 << 20);
  if (size_bytes < smallest_bytes) {
    return Error{.code = Code::invalid_argument,
                 .message = "a sample needs at least " + std::to_string(smallest_bytes) + " bytes",
                 .hint = "choose a larger --size"};
  }
  const Status apart = check_apart({"DEST", flags.path}, {{}, {flags.context.options}});
  if (!apart.ok()) return apart.error();
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return context.error();
  const Status room = check_room(Domain::host(), size_bytes, "choose a smaller --size");
  if (!room.ok()) return room.error();
  Result<Buffer> memory = context->allocate(Domain::host(), size_bytes);
  if (!memory.ok()) return memory.error();
  const auto pattern = pattern_source({.size_bytes = size_bytes, .seed = flags.seed});
  for (std::uint64_t done = 0; done < size_bytes;) {
    if (interrupted()) return interrupted_error();
    const std::uint64_t piece = std::min<std::uint64_t>(size_bytes - done, 1 << 20);
    const Result<std::uint64_t> filled = pattern->fill(memory->region().part(done, piece));
    if (!filled.ok()) return filled.error();
    done += *filled;
  }
  Progress progress(size_bytes, flags.output);
  return save_safetensors(
      *context, local_path(flags.path), tensors_in(memory->region()),
      {.metadata = {{"format", "pt"}}, .checksums = true, .progress = [&](std::uint64_t done, std::uint64_t) {
         progress.update(done);
         return !interrupted();
       }});
}

Exit run(const SampleFlags& flags) {
  const Output output(flags.output);
  const Result<Report> report = make(flags);
  if (!report.ok()) return output.fail(interrupted() ? interrupted_error() : report.error());
  if (output.json()) {
    output.object({{"schema", "penstock.sample/1"},
                   {"path", flags.path},
                   {"seed", flags.seed},
                   {"tensors", layers + 2},
                   {"bytes", report->bytes}});
  } else {
    output.heading(flags.path + ": " + count_of(layers + 2, "tensor") + ", " + format_bytes(report->bytes) +
                   ", with checksums");
  }
  return Exit::ok;
}

}  // namespace

Command add_sample(CLI::App& tool) {
  auto flags = std::make_shared<SampleFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("sample", "Make a safetensors model to try things with");
  parser->add_option("DEST", flags->path, "the file to make; an existing one is replaced")->required();
  add_size(*parser, "--size", flags->size, "the approximate size of all tensors; default: 64MiB");
  parser->add_option("--seed", flags->seed, "another number gives other bytes")
      ->type_name("N")
      ->capture_default_str()
      ->transform(whole_number(0, UINT64_MAX));
  add_context_flags(*parser, flags->context);
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
  parser->footer(
      "Examples:\n"
      "  penstock sample sample.safetensors\n"
      "  penstock sample sample.safetensors --size 4GiB --seed 7");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
