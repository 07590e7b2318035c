// penstock inspect: what is in a model, from the headers of its files alone.
#include <algorithm>
#include <map>
#include <tuple>

#include "model_names.h"

namespace penstock::cli {

namespace {

constexpr std::size_t lines_on_terminal = 50;
constexpr std::size_t value_characters = 100;

struct InspectFlags {
  std::vector<std::string> paths;
  std::optional<bool> tensors;  // listed or not; neither: as long as they fit on a screen or two
  OutputFlags output;
};

struct Total {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;

  void add(const TensorInfo& tensor) {
    ++tensors;
    bytes += tensor.size_bytes;
  }
};

std::map<std::string, Total> totals_by_type(const Model& model) {
  std::map<std::string, Total> totals;
  for (const TensorInfo& tensor : model.tensors()) totals[type_name(tensor)].add(tensor);
  return totals;
}

std::vector<Total> totals_by_file(const Model& model) {
  std::vector<Total> totals(model.files().size());
  for (const TensorInfo& tensor : model.tensors()) totals[tensor.file].add(tensor);
  return totals;
}

// The largest power of two that the offset is a multiple of.
std::uint64_t alignment_of(const TensorInfo& tensor) {
  return tensor.offset & (~tensor.offset + 1);
}

std::vector<std::string> misaligned(const Model& model, std::uint64_t alignment) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : model.tensors()) {
    if (tensor.size_bytes != 0 && tensor.offset % alignment != 0) names.push_back(tensor.name);
  }
  return names;
}

Json files_json(const Model& model) {
  const std::vector<Total> totals = totals_by_file(model);
  Json list = Json::array();
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const ModelFile& file = model.files()[i];
    list.push_back({{"path", file.path},
                    {"format", model_format_name(file.format)},
                    {"size_bytes", file.size_bytes},
                    {"data_offset", file.data_offset},
                    {"tensors", totals[i].tensors},
                    {"tensor_bytes", totals[i].bytes},
                    {"metadata", file.metadata}});
  }
  return list;
}

Json tensors_json(const Model& model) {
  Json list = Json::array();
  for (const TensorInfo& tensor : model.tensors()) {
    list.push_back({{"name", tensor.name},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"quantization", tensor.quantization.empty() ? Json() : Json(tensor.quantization)},
                    {"shape", tensor.shape},
                    {"file", tensor.file},
                    {"offset", tensor.offset},
                    {"size_bytes", tensor.size_bytes},
                    {"alignment_bytes", alignment_of(tensor)}});
  }
  return list;
}

Json model_json(const Model& model, const InspectFlags& flags) {
  Json types = Json::array();
  for (const auto& [type, total] : totals_by_type(model)) {
    types.push_back({{"type", type}, {"tensors", total.tensors}, {"bytes", total.bytes}});
  }
  return {{"schema", "penstock.inspect/1"},
          {"paths", flags.paths},
          {"formats", formats(model)},
          {"bytes", model.size_bytes()},
          {"tensor_count", model.tensors().size()},
          {"types", std::move(types)},
          {"warnings", model.warnings()},
          {"misaligned_256", misaligned(model, 256)},
          {"misaligned_4096", misaligned(model, 4096)},
          {"files", files_json(model)},
          {"tensors", flags.tensors.value_or(true) ? tensors_json(model) : Json()}};
}

std::string format_shape(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const std::uint64_t length : shape) text += (text.empty() ? "" : " x ") + std::to_string(length);
  return text.empty() ? "scalar" : text;
}

std::string cut(const std::string& value) {
  std::size_t end = std::min(value.size(), value_characters);
  while (end < value.size() && end > 0 && (static_cast<unsigned char>(value[end]) & 0xc0) == 0x80) --end;
  return end == value.size() ? value : value.substr(0, end) + "... (" + format_bytes(value.size()) + ")";
}

void print_overview(const Output& output, const Model& model, const InspectFlags& flags) {
  output.heading(list_of(flags.paths) + ": " + list_of(formats(model)) + ", " +
                 count_of(model.tensors().size(), "tensor") + " in " + count_of(model.files().size(), "file") + ", " +
                 format_bytes(model.size_bytes()));
  for (const std::string& warning : model.warnings()) output.field("warning", warning);
  for (const auto& [type, total] : totals_by_type(model)) {
    output.field(type, format_bytes(total.bytes) + " in " + count_of(total.tensors, "tensor"));
  }
  for (const std::uint64_t alignment : {256, 4096}) {
    const std::vector<std::string> names = misaligned(model, alignment);
    const std::string place = "at a multiple of " + std::to_string(alignment);
    const bool none = !names.empty() && names.size() == model.tensors().size();
    output.field(alignment == 256 ? "alignment" : "",
                 names.empty() ? "every tensor begins " + place
                 : none        ? "no tensor begins " + place
                               : std::to_string(names.size()) + " don't begin " + place + ": " + list_of(names));
  }
}

void print_files(const Output& output, const Model& model) {
  const std::vector<Total> totals = totals_by_file(model);
  output.section("files");
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const ModelFile& file = model.files()[i];
    rows.push_back({file.path, std::string(model_format_name(file.format)), format_bytes(file.size_bytes),
                    count_of(totals[i].tensors, "tensor"), "data at " + std::to_string(file.data_offset)});
  }
  output.table(rows);
}

// Shards mostly have the same; it is told once.
void print_metadata(const Output& output, const Model& model) {
  const std::map<std::string, std::string> none;
  const auto* last = &none;
  for (const ModelFile& file : model.files()) {
    if (file.metadata == *last) continue;
    last = &file.metadata;
    output.section(model.files().size() == 1 ? "metadata" : "metadata of " + file.path);
    std::vector<std::vector<std::string>> rows;
    for (const auto& [key, value] : file.metadata) rows.push_back({key, cut(value)});
    output.table(rows);
  }
}

void print_tensors(const Output& output, const Model& model) {
  output.section("tensors");
  std::vector<std::vector<std::string>> rows;
  for (const TensorInfo& tensor : model.tensors()) {
    rows.push_back({tensor.name, type_name(tensor), format_shape(tensor.shape), format_bytes(tensor.size_bytes),
                    (model.files().size() == 1 ? "at " : "file " + std::to_string(tensor.file + 1) + " at ") +
                        std::to_string(tensor.offset),
                    "aligned to " + std::to_string(alignment_of(tensor))});
  }
  output.table(rows);
}

// Numbers in the name give way to a *, so that the result fits the names of all layers, also as --select.
std::string kind_of(const std::string& name) {
  std::string kind;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) kind += c;
    if (digit && !kind.ends_with('*')) kind += '*';
  }
  return kind;
}

void print_kinds(const Output& output, const Model& model) {
  using Kind = std::tuple<std::string, std::string, std::vector<std::uint64_t>>;
  std::vector<std::pair<Kind, Total>> kinds;  // in the order of the model
  std::map<Kind, std::size_t> places;
  for (const TensorInfo& tensor : model.tensors()) {
    const Kind kind = {kind_of(tensor.name), type_name(tensor), tensor.shape};
    const auto [place, is_new] = places.try_emplace(kind, kinds.size());
    if (is_new) kinds.push_back({kind, {}});
    kinds[place->second].second.add(tensor);
  }
  output.section("tensors, by kind; --tensors lists them one by one");
  std::vector<std::vector<std::string>> rows;
  for (const auto& [kind, total] : kinds) {
    if (rows.size() == lines_on_terminal) {
      rows.push_back({"and " + count_of(kinds.size() - rows.size(), "more kind")});
      break;
    }
    const auto& [name, type, shape] = kind;
    rows.push_back({name, type, format_shape(shape), format_bytes(total.bytes), count_of(total.tensors, "tensor")});
  }
  output.table(rows);
}

Exit run(const InspectFlags& flags) {
  const Output output(flags.output);
  const Result<Model> model = open_model(flags.paths);
  if (!model.ok()) return output.fail(model.error());
  if (output.json()) {
    output.object(model_json(*model, flags));
    return Exit::ok;
  }
  print_overview(output, *model, flags);
  print_files(output, *model);
  print_metadata(output, *model);
  if (model->tensors().empty() || !flags.tensors.value_or(true)) return Exit::ok;
  if (flags.tensors || !output.on_terminal() || model->tensors().size() <= lines_on_terminal) {
    print_tensors(output, *model);
  } else {
    print_kinds(output, *model);
  }
  return Exit::ok;
}

}  // namespace

Command add_inspect(CLI::App& tool) {
  auto flags = std::make_shared<InspectFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("inspect", "Tell what is in a model: tensors, types, sizes, alignment, files");
  parser->add_option("MODEL", flags->paths, "a directory, a file or an index; or the files of one model")->required();
  parser->add_flag_function(
      "--tensors,!--no-tensors", [flags](std::int64_t count) { flags->tensors = count > 0; },
      "list every tensor, or none; default: by kind, where they are too many for a terminal");
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->footer(
      "Examples:\n"
      "  penstock inspect models/llama/\n"
      "  penstock inspect model.gguf --tensors\n"
      "  penstock inspect model.safetensors --json --no-tensors");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
