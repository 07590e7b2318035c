// penstock inspect: what is in a model, from the headers of its files alone.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "json_writer.h"
#include "model_names.h"

namespace penstock::cli {

namespace {

constexpr std::size_t lines_on_terminal = 50;
constexpr std::size_t value_characters = 100;

struct InspectFlags {
  std::vector<std::string> paths;
  std::optional<bool> tensors;  // listed or not; neither: as long as they fit on a screen or two
  ContextFlags context;
  OutputFlags output;
};

struct TensorTotal {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;

  void add(const TensorInfo& tensor) {
    ++tensors;
    bytes += tensor.size_bytes;
  }
};

std::map<std::string_view, TensorTotal> totals_by_type(const Model& model) {
  std::map<std::string_view, TensorTotal> totals;
  for (const TensorInfo& tensor : model.tensors()) totals[type_name(tensor)].add(tensor);
  return totals;
}

std::vector<TensorTotal> totals_by_file(const Model& model) {
  std::vector<TensorTotal> totals(model.files().size());
  for (const TensorInfo& tensor : model.tensors()) totals[tensor.file].add(tensor);
  return totals;
}

// The largest power of two that the offset is a multiple of.
std::uint64_t alignment_of(const TensorInfo& tensor) {
  return tensor.offset & (~tensor.offset + 1);
}

bool is_misaligned(const TensorInfo& tensor, std::uint64_t alignment) {
  return tensor.size_bytes != 0 && tensor.offset % alignment != 0;
}

// What takes memory. It is made before anything is written: were there none left in the middle, the error would follow
// half an object.
struct Front {
  Front(const Model& model, const InspectFlags& flags)
      : paths(json_text(flags.paths)),
        formats(json_text(cli::formats(model))),
        warnings(json_text(model.warnings())),
        totals(totals_by_file(model)) {
    Json list = Json::array();
    for (const auto& [type, total] : totals_by_type(model)) {
      list.push_back({{"type", type}, {"tensors", total.tensors}, {"bytes", total.bytes}});
    }
    types = json_text(list);
    for (const ModelFile& file : model.files()) file_paths.push_back(json_text(file.path));
  }

  // As JSON.
  std::string paths, formats, warnings, types;
  std::vector<std::string> file_paths;
  std::vector<TensorTotal> totals;  // by file
};

// Writes what `each` writes of every tensor, and the commas between.
template <typename Each>
void write_list(JsonWriter& json, const Model& model, Each each) {
  json.raw("[");
  bool is_first = true;
  for (const TensorInfo& tensor : model.tensors()) {
    each(tensor, [&] { json.raw(std::exchange(is_first, false) ? "" : ","); });
  }
  json.raw("]");
}

void write_misaligned(JsonWriter& json, const Model& model, std::uint64_t alignment) {
  write_list(json, model, [&](const TensorInfo& tensor, auto begin) {
    if (!is_misaligned(tensor, alignment)) return;
    begin();
    json.text(tensor.name);
  });
}

void write_metadata(JsonWriter& json, const ModelFile& file) {
  json.raw("{");
  bool is_first = true;
  for (const auto& [key, value] : file.metadata) {
    json.raw(std::exchange(is_first, false) ? "" : ",").text(key).raw(":\"");
    value.write([&](std::string_view piece) { json.piece(piece); });
    json.raw("\"");
  }
  json.raw("}");
}

void write_files(JsonWriter& json, const Model& model, const Front& front) {
  json.raw("[");
  for (std::size_t i = 0; i < model.files().size(); ++i) {
    const ModelFile& file = model.files()[i];
    const TensorTotal& total = front.totals[i];
    json.raw(i == 0 ? "{\"path\":" : ",{\"path\":").raw(front.file_paths[i]);
    json.raw(",\"format\":").text(model_format_name(file.format)).raw(",\"size_bytes\":").number(file.size_bytes);
    json.raw(",\"data_offset\":").number(file.data_offset).raw(",\"tensors\":").number(total.tensors);
    json.raw(",\"tensor_bytes\":").number(total.bytes).raw(",\"metadata\":");
    write_metadata(json, file);
    json.raw("}");
  }
  json.raw("]");
}

void write_shape(JsonWriter& json, const TensorInfo& tensor) {
  json.raw("[");
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) json.raw(i == 0 ? "" : ",").number(tensor.shape[i]);
  json.raw("]");
}

void write_tensors(JsonWriter& json, const Model& model) {
  write_list(json, model, [&](const TensorInfo& tensor, auto begin) {
    begin();
    json.raw("{\"name\":").text(tensor.name).raw(",\"dtype\":").text(dtype_name(tensor.dtype));
    json.raw(",\"quantization\":");
    tensor.quantization.empty() ? json.raw("null") : json.text(tensor.quantization);
    json.raw(",\"shape\":");
    write_shape(json, tensor);
    json.raw(",\"file\":").number(tensor.file).raw(",\"offset\":").number(tensor.offset);
    json.raw(",\"size_bytes\":").number(tensor.size_bytes);
    json.raw(",\"stored_bytes\":").number(tensor.stored_bytes).raw(",\"packing\":");
    tensor.packing.empty() ? json.raw("null") : json.text(tensor.packing);
    json.raw(",\"alignment_bytes\":").number(alignment_of(tensor)).raw("}");
  });
}

// Headers may have a hundred megabytes, so what follows them is not made before it is written.
void write_model(const Model& model, const InspectFlags& flags) {
  const Front front(model, flags);
  JsonWriter json;
  json.raw("{\"schema\":\"penstock.inspect/1\",\"paths\":").raw(front.paths);
  json.raw(",\"formats\":").raw(front.formats).raw(",\"bytes\":").number(model.size_bytes());
  json.raw(",\"stored_bytes\":").number(model.stored_bytes());
  json.raw(",\"tensor_count\":").number(model.tensors().size());
  json.raw(",\"types\":").raw(front.types).raw(",\"warnings\":").raw(front.warnings);
  json.raw(",\"misaligned_256\":");
  write_misaligned(json, model, 256);
  json.raw(",\"misaligned_4096\":");
  write_misaligned(json, model, 4096);
  json.raw(",\"files\":");
  write_files(json, model, front);
  json.raw(",\"tensors\":");
  if (flags.tensors.value_or(true)) {
    write_tensors(json, model);
  } else {
    json.raw("null");
  }
  json.raw("}\n").finish();
}

std::string format_shape(const std::vector<std::uint64_t>& shape) {
  if (shape.empty()) return "scalar";
  std::string text = std::to_string(shape[0]);
  for (const std::uint64_t length : std::span(shape).subspan(1)) (text += " x ") += std::to_string(length);
  return text;
}

// The beginning of a value, and how long it is.
std::string cut(const MetadataValue& value) {
  std::string text;
  std::size_t size = 0;
  value.write([&](std::string_view piece) {
    size += piece.size();
    if (text.size() <= value_characters) text += piece.substr(0, value_characters + 1);
  });
  if (size <= value_characters) return text;
  std::size_t end = value_characters;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "... (" + format_bytes(size) + ")";
}

// The names of those that don't begin at multiples: the first few, and how many there are.
std::string list_misaligned(const Model& model, std::uint64_t alignment) {
  constexpr std::size_t names_shown = 8;
  const std::string place = "at a multiple of " + std::to_string(alignment);
  std::vector<std::string> names;
  std::size_t count = 0;
  for (const TensorInfo& tensor : model.tensors()) {
    if (!is_misaligned(tensor, alignment)) continue;
    if (++count <= names_shown) names.push_back(tensor.name);
  }
  if (count == 0) return "every tensor begins " + place;
  if (count == model.tensors().size()) return "no tensor begins " + place;
  return std::to_string(count) + " don't begin " + place + ": " + list_of(names) +
         (count > names_shown ? " and " + std::to_string(count - names_shown) + " more" : "");
}

void print_overview(const Output& output, const Model& model, const InspectFlags& flags) {
  output.heading(list_of(flags.paths) + ": " + list_of(formats(model)) + ", " +
                 count_of(model.tensors().size(), "tensor") + " in " + count_of(model.files().size(), "file") + ", " +
                 format_bytes(model.size_bytes()));
  for (const std::string& warning : model.warnings()) output.field("warning", warning);
  for (const auto& [type, total] : totals_by_type(model)) {
    output.field(type, format_bytes(total.bytes) + " in " + count_of(total.tensors, "tensor"));
  }
  if (model.stored_bytes() != model.size_bytes()) {
    const auto packed =
        std::ranges::count_if(model.tensors(), [](const auto& tensor) { return !tensor.packing.empty(); });
    output.field("packed", count_of(static_cast<std::size_t>(packed), "tensor") + "; all take " +
                               format_bytes(model.stored_bytes()) + ", " +
                               ratio_text(model.stored_bytes(), model.size_bytes()) + " of their bytes");
  }
  output.field("alignment", list_misaligned(model, 256));
  output.field("", list_misaligned(model, 4096));
}

void print_files(const Output& output, const Model& model) {
  const std::vector<TensorTotal> totals = totals_by_file(model);
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
  const std::map<std::string, MetadataValue> none;
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
  const bool has_files = model.files().size() != 1;
  output.table(model.tensors().size(), [&](std::size_t i, std::vector<std::string>& row) {
    const TensorInfo& tensor = model.tensors()[i];
    row.resize(6);
    row[0] = tensor.name;
    row[1] = type_name(tensor);
    row[2] = format_shape(tensor.shape);
    row[3] = format_bytes(tensor.size_bytes);
    if (!tensor.packing.empty()) row[3] += " packed in " + format_bytes(tensor.stored_bytes);
    row[4] = has_files ? "file " + std::to_string(tensor.file + 1) + " at " : "at ";
    row[4] += std::to_string(tensor.offset);
    row[5] = "aligned to ";
    row[5] += std::to_string(alignment_of(tensor));
  });
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

// As many as are shown; of the others only the hashes of what would be.
void print_kinds(const Output& output, const Model& model) {
  struct Kind {
    std::string name, type, shape;
    TensorTotal total;
  };
  std::vector<Kind> kinds;  // in the order of the model
  std::unordered_map<std::size_t, std::size_t> places;
  for (const TensorInfo& tensor : model.tensors()) {
    const Kind kind{kind_of(tensor.name), std::string(type_name(tensor)), format_shape(tensor.shape), {}};
    const std::size_t hash = std::hash<std::string>()(kind.name + '\n' + kind.type + '\n' + kind.shape);
    const auto [place, is_new] = places.try_emplace(hash, places.size());
    if (is_new && kinds.size() < lines_on_terminal) kinds.push_back(kind);
    if (place->second < kinds.size()) kinds[place->second].total.add(tensor);
  }
  output.section("tensors, by kind; --tensors lists them one by one");
  std::vector<std::vector<std::string>> rows;
  for (const Kind& kind : kinds) {
    rows.push_back(
        {kind.name, kind.type, kind.shape, format_bytes(kind.total.bytes), count_of(kind.total.tensors, "tensor")});
  }
  if (places.size() > kinds.size()) rows.push_back({"and " + count_of(places.size() - kinds.size(), "more kind")});
  output.table(rows);
}

Exit run(const InspectFlags& flags) {
  const Output output(flags.output);
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return output.fail(context.error());
  const Result<Model> model = open_model(*context, flags.paths);
  if (!model.ok()) return output.fail(model.error());
  if (output.json()) {
    write_model(*model, flags);
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
  CLI::App* parser = tool.add_subcommand("inspect", "Show what is in a model: tensors, types, sizes, alignment, files");
  parser
      ->add_option("MODEL", flags->paths, "a directory, a file or an index, by path or URI; or the files of one model")
      ->required();
  parser->add_flag_function(
      "--tensors,!--no-tensors", [flags](std::int64_t count) { flags->tensors = count > 0; },
      "list every tensor, or none; default: grouped by kind if there are too many for a terminal");
  parser->add_option("--options", flags->context.options, "options for opening it: a JSON object, or @FILE")
      ->type_name("JSON");
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->footer(
      "Examples:\n"
      "  penstock inspect models/llama/\n"
      "  penstock inspect model.gguf --tensors\n"
      "  penstock inspect model.safetensors --json --no-tensors");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli
