#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>
#include <numeric>
#include <set>

#include "base/keyed_hash.h"
#include "base/out_of_memory.h"
#include "services/models/contents.h"
#include "services/models/gguf.h"
#include "services/models/pack_folder.h"
#include "services/models/packed_indexes.h"
#include "services/models/resolve.h"
#include "services/models/safetensors.h"
#include "services/models/source.h"

namespace penstock {

using models::broken;
using models::Contents;
using models::in_file;
using models::in_quotes;
using models::Source;

namespace {

constexpr std::uint32_t no_tensor = UINT32_MAX;

Result<Contents> read_safetensors(const Source& source, std::string_view first_bytes) {
  const std::uint64_t file_bytes = source.size_bytes();
  const Result<std::uint64_t> length = models::safetensors_header_bytes(first_bytes, file_bytes);
  if (!length) return length.error();
  const Result<std::string> json = source.read(models::safetensors_length_bytes, *length);
  if (!json) return json.error();
  const models::Rest rest = source.ends_with_its_file() ? models::Rest::refused : models::Rest::ignored;
  return models::parse_safetensors(*json, file_bytes, rest);
}

Result<Contents> read_gguf(const Source& source) {
  const auto read = [&](std::uint64_t offset, std::span<char> bytes) { return source.read(offset, bytes); };
  return models::parse_gguf(read, source.size_bytes());
}

// Of a file at the front of a device nobody knows the end but its last tensor.
std::uint64_t file_bytes_of(const Source& source, const Contents& contents) {
  if (source.ends_with_its_file()) return source.size_bytes();
  if (contents.tensors.empty()) return contents.data_offset;
  return contents.tensors.back().offset + contents.tensors.back().stored_bytes;
}

}  // namespace

class ModelBuilder {
 public:
  // Without a Context, names are paths.
  static Result<Model> open(const Context* context, const std::string& name);
  static Result<Model> open(const Context* context, std::span<const std::string> files);

  Status add_file(const Context* context, const std::string& name) {
    const Result<Source> source = Source::open(context, name);
    if (!source) return source.error();
    const Result<std::string> first_bytes =
        source->read(0, std::min<std::uint64_t>(source->size_bytes(), models::safetensors_length_bytes));
    if (!first_bytes) return first_bytes.error();
    const bool is_gguf = first_bytes->starts_with(models::gguf_magic);
    Result<Contents> contents = is_gguf ? read_gguf(*source) : read_safetensors(*source, *first_bytes);
    if (!contents) return in_file(name, std::move(contents).error());
    model_.files_.push_back({.path = source->name(),
                             .format = is_gguf ? ModelFormat::gguf : ModelFormat::safetensors,
                             .size_bytes = file_bytes_of(*source, *contents),
                             .data_offset = contents->data_offset,
                             .identity = source->identity(),
                             .kept_open = source->to_keep_open(),
                             .metadata = std::move(contents->metadata)});
    add_tensors(std::move(contents->tensors));
    return {};
  }

  // Once all files are there: no name may be in two of them.
  Status index_names() {
    const std::vector<TensorInfo>& tensors = model_.tensors_;
    auto& by_name = model_.by_name_;
    by_name.assign(std::bit_ceil(2 * tensors.size() + 1), no_tensor);
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      std::uint32_t& place = by_name[model_.place_of(tensors[i].name)];
      if (place != no_tensor) return twice(tensors[place], tensors[i]);
      place = i;
    }
    return {};
  }

  // The index and the shards say the same. A wrong total is no reason to refuse: many are, and nobody needs it.
  Status check_index(const std::string& path, const models::Index& index) {
    const std::uint64_t bytes = model_.size_bytes();
    if (index.total_bytes.value_or(bytes) != bytes) {
      model_.warnings_.push_back(path + ": its total_size is " + std::to_string(*index.total_bytes) +
                                 ", and its tensors have " + std::to_string(bytes) + " bytes");
    }
    return check_weights(path, index);
  }

  // A split GGUF model has all its files, each once, and as many tensors as they say.
  Status check_splits() const {
    std::set<std::uint64_t> numbers;
    for (const ModelFile& file : model_.files_) {
      const std::uint64_t count = number_in(file, "split.count").value_or(1);
      if (file.format != ModelFormat::gguf || count <= 1) continue;
      const std::uint64_t number = number_in(file, "split.no").value_or(UINT64_MAX);
      if (count != model_.files_.size()) {
        return in_file(file.path, {Code::invalid_argument, 0,
                                   "it is one of " + std::to_string(count) + " files of a split GGUF model, and " +
                                       std::to_string(model_.files_.size()) + " are given",
                                   "name one of them, as llama-gguf-split has named it, with the others beside it"});
      }
      if (number >= count || !numbers.insert(number).second) {
        return in_file(file.path, broken("its split.no is that of another file, or of none"));
      }
      const std::uint64_t tensors = number_in(file, "split.tensors.count").value_or(model_.tensors_.size());
      if (tensors != model_.tensors_.size()) {
        return in_file(file.path, broken("the model has " + std::to_string(tensors) + " tensors, and its files have " +
                                         std::to_string(model_.tensors_.size())));
      }
    }
    return {};
  }

  Model build() {
    const bool is_packed =
        std::ranges::any_of(model_.tensors_, [](const TensorInfo& tensor) { return !tensor.packing.empty(); });
    if (is_packed) model_.packed_ = std::make_shared<models::PackedIndexes>(model_.tensors_.size());
    return std::move(model_);
  }

 private:
  static std::optional<std::uint64_t> number_in(const ModelFile& file, const std::string& key) {
    const auto found = file.metadata.find(key);
    if (found == file.metadata.end()) return std::nullopt;
    const std::string text = found->second.text();
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return number;
  }

  // Nothing is wrong with the files: variants of a model lie side by side, say.
  Error twice(const TensorInfo& first, const TensorInfo& second) const {
    const std::string& path = model_.files_[first.file].path;
    const std::string& other = model_.files_[second.file].path;
    if (path == other) return {Code::invalid_argument, 0, path + " is named twice", "name it once"};
    return {Code::invalid_argument, 0,
            "two files have a tensor " + in_quotes(first.name) + ": " + path + " and " + other,
            "name the file you want"};
  }

  // REQUIRES: the files are those of the index, in its order.
  Status check_weights(const std::string& path, const models::Index& index) const {
    const auto wrong = [&](std::string_view tensor, const std::string& problem) {
      return in_file(path, broken("tensor " + in_quotes(tensor) + " is " + problem));
    };
    const auto not_as_said = [&](std::uint32_t file) {
      return "not in " + in_quotes(index.files[file]) + " as the weight_map says";
    };
    std::vector<bool> is_named(model_.tensors_.size());
    const models::Index::Weight* unknown = nullptr;
    for (const models::Index::Weight& weight : index.weights) {
      const std::optional<std::uint32_t> found = model_.find(weight.tensor);
      if (!found) {
        unknown = unknown == nullptr ? &weight : unknown;
        continue;
      }
      is_named[*found] = true;
      const std::uint32_t file = model_.tensors_[*found].file;
      if (file != weight.file) {
        return wrong(weight.tensor, "in " + model_.files_[file].path + ", " + not_as_said(weight.file));
      }
    }
    if (const auto other = std::ranges::find(is_named, false); other != is_named.end()) {
      const TensorInfo& tensor = model_.tensors_[static_cast<std::size_t>(other - is_named.begin())];
      return wrong(tensor.name, "in " + model_.files_[tensor.file].path + ", but not in the weight_map");
    }
    if (unknown != nullptr) return wrong(unknown->tensor, not_as_said(unknown->file));
    return {};
  }

  void add_tensors(std::vector<TensorInfo> tensors) {
    const auto file = static_cast<std::uint32_t>(model_.files_.size() - 1);
    for (TensorInfo& tensor : tensors) tensor.file = file;
    if (file == 0) {
      model_.tensors_ = std::move(tensors);
    } else {
      std::ranges::move(tensors, std::back_inserter(model_.tensors_));
    }
  }

  Model model_;
};

Result<Model> Model::open(const std::string& path) {
  return or_out_of_memory([&] { return ModelBuilder::open(nullptr, path); });
}

Result<Model> Model::open(std::span<const std::string> files) {
  return or_out_of_memory([&] { return ModelBuilder::open(nullptr, files); });
}

Result<Model> Model::open(const Context& context, const std::string& name) {
  return or_out_of_memory([&] { return ModelBuilder::open(&context, name); });
}

Result<Model> Model::open(const Context& context, std::span<const std::string> files) {
  return or_out_of_memory([&] { return ModelBuilder::open(&context, files); });
}

Result<Model> ModelBuilder::open(const Context* context, const std::string& name) {
  const Result<models::Resolved> resolved = models::resolve(context, name);
  if (!resolved) return resolved.error();
  ModelBuilder builder;
  for (const std::string& file : resolved->files) {
    if (Status status = builder.add_file(context, file); !status) return std::move(status).error();
  }
  // Once more: until now files may have been replaced, one by one.
  if (!resolved->folder.empty()) {
    if (Status status = models::check_finished(resolved->folder); !status) return std::move(status).error();
  }
  if (Status status = builder.index_names(); !status) return std::move(status).error();
  if (Status status = builder.check_splits(); !status) return std::move(status).error();
  if (resolved->index) {
    if (Status status = builder.check_index(resolved->index_path, *resolved->index); !status) {
      return std::move(status).error();
    }
  }
  return builder.build();
}

Result<Model> ModelBuilder::open(const Context* context, std::span<const std::string> files) {
  if (files.empty()) return Error{Code::invalid_argument, 0, "the model has no files", "name at least one"};
  ModelBuilder builder;
  for (const std::string& file : files) {
    if (file.ends_with(models::index_ending)) {
      return Error{Code::invalid_argument, 0, file + " is an index among files", "name only the index"};
    }
    if (Status status = builder.add_file(context, file); !status) return std::move(status).error();
  }
  if (Status status = builder.index_names(); !status) return std::move(status).error();
  if (Status status = builder.check_splits(); !status) return std::move(status).error();
  return builder.build();
}

std::optional<std::uint32_t> Model::find(std::string_view name) const {
  if (by_name_.empty()) return std::nullopt;
  const std::uint32_t tensor = by_name_[place_of(name)];
  if (tensor == no_tensor) return std::nullopt;
  return tensor;
}

std::size_t Model::place_of(std::string_view name) const {
  const std::size_t last = by_name_.size() - 1;
  std::size_t place = keyed_hash(name) & last;
  while (by_name_[place] != no_tensor && tensors_[by_name_[place]].name != name) place = (place + 1) & last;
  return place;
}

std::uint64_t Model::size_bytes() const {
  // Within a few times the sizes of files, so it can't overflow.
  return std::accumulate(tensors_.begin(), tensors_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const TensorInfo& tensor) { return sum + tensor.size_bytes; });
}

std::uint64_t Model::stored_bytes() const {
  return std::accumulate(tensors_.begin(), tensors_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const TensorInfo& tensor) { return sum + tensor.stored_bytes; });
}

}  // namespace penstock
