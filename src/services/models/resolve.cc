#include "services/models/resolve.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "base/open_hint.h"
#include "services/models/contents.h"
#include "services/models/json_reader.h"
#include "services/models/pack_folder.h"
#include "services/models/source.h"

namespace penstock::models {
namespace {

namespace fs = std::filesystem;
using Kind = JsonReader::Kind;

constexpr std::string_view usual_index = "model.safetensors.index.json";
constexpr std::string_view consolidated = "consolidated.safetensors";

Error unclear(std::string message, std::string hint) {
  return {.code = Code::invalid_argument, .message = std::move(message), .hint = std::move(hint)};
}

// A name in the same directory, and nothing else.
std::string check_file_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.front() == '/') return "is absolute";
  if (name == "." || name == "..") return "leaves the directory";
  if (name.find('/') != std::string_view::npos) return "leaves the directory: it has a / in it";
  if (name.find('\0') != std::string_view::npos) return "has a zero byte in it";
  return "";
}

// What an index says, as far as anyone needs it.
class IndexReader {
 public:
  explicit IndexReader(std::string_view json) : json_(json) {}

  Result<Index> read() {
    const bool taken = json_.may_be(Kind::object) ? take_index() : json_.fail("the index is not a JSON object");
    if (const Status status = json_.end(taken); !status) return status.error();
    if (!has_map_) return broken("the index has no weight_map");
    if (index_.weights.empty()) return broken("the weight_map of the index is empty");
    sort_files();
    return std::move(index_);
  }

 private:
  bool take_index() {
    return json_.object([&](std::string_view key) {
      if (key == "weight_map") return take_map();
      return key == "metadata" && json_.next() == Kind::object ? take_metadata() : json_.skip();
    });
  }

  bool take_metadata() {
    return json_.object([&](std::string_view key) {
      return key == "total_size" && json_.next() == Kind::number ? json_.number(index_.total_bytes) : json_.skip();
    });
  }

  bool take_map() {
    has_map_ = true;
    if (!json_.may_be(Kind::object)) return json_.fail("its weight_map is not a JSON object");
    return json_.object([&](std::string_view key) {
      const auto fail = [&](const std::string& problem) {
        return json_.fail("tensor " + in_quotes(key) + ": " + problem);
      };
      if (!json_.may_be(Kind::string)) return fail("its file in the weight_map is not a string");
      std::string_view file;
      if (!json_.string(file)) return false;
      if (const std::string problem = check_file_name(file); !problem.empty()) {
        return fail("the name of its file, " + in_quotes(file) + ", " + problem);
      }
      index_.weights.push_back({std::string(key), number_of(file)});
      return true;
    });
  }

  // Models have few files, and most tensors lie in that of the one before.
  std::uint32_t number_of(std::string_view file) {
    if (!index_.files.empty() && index_.files[last_file_] == file) return last_file_;
    const auto [known, is_new] = numbers_.try_emplace(std::string(file), static_cast<std::uint32_t>(numbers_.size()));
    if (is_new) index_.files.emplace_back(file);
    return last_file_ = known->second;
  }

  void sort_files() {
    std::vector<std::uint32_t> places(index_.files.size());
    index_.files.clear();
    for (const auto& [file, number] : numbers_) {
      places[number] = static_cast<std::uint32_t>(index_.files.size());
      index_.files.push_back(file);
    }
    for (Index::Weight& weight : index_.weights) weight.file = places[weight.file];
  }

  JsonReader json_;
  Index index_;
  std::map<std::string, std::uint32_t> numbers_;  // of files
  std::uint32_t last_file_ = 0;
  bool has_map_ = false;
};

// The text of an index. On a device zeros follow it.
Result<std::string> read_text(const Source& source) {
  if (!source.ends_with_its_file()) {
    Result<std::string> text = source.read(0, std::min(source.size_bytes(), header_limit_bytes));
    if (text) text->resize(std::min(text->find('\0'), text->size()));
    return text;
  }
  if (source.size_bytes() <= header_limit_bytes) return source.read(0, source.size_bytes());
  return in_file(source.name(), broken("it has more than " + std::to_string(header_limit_bytes) + " bytes"));
}

Result<Index> read_index(const Context* context, const std::string& name) {
  const Result<Source> source = Source::open(context, name);
  if (!source) return source.error();
  const Result<std::string> text = read_text(*source);
  if (!text) return text.error();
  Result<Index> index = parse_index(*text);
  if (!index) return in_file(name, std::move(index).error());
  return index;
}

Result<Resolved> resolve_index(const Context* context, const std::string& path) {
  Result<Index> index = read_index(context, path);
  if (!index) return std::move(index).error();
  Resolved resolved{.files = {}, .index_path = path, .index = std::move(*index)};
  std::vector<std::string> missing;
  std::error_code failed;
  for (const std::string& name : resolved.index->files) {
    const fs::path file = fs::path(path).parent_path() / name;
    if (!fs::exists(file, failed)) missing.push_back(name);
    resolved.files.push_back(file.string());
  }
  if (missing.empty()) return resolved;
  return Error{.code = Code::not_found,
               .message = path + ": " + std::to_string(missing.size()) + " of the " +
                          std::to_string(resolved.index->files.size()) +
                          " files that it names are missing: " + list_of(missing),
               .hint = "download the rest of the model"};
}

constexpr std::size_t split_digits = 5;

struct Split {
  std::string stem;
  std::uint32_t number = 0;
  std::uint32_t count = 0;
};

// "model-00002-of-00005.safetensors"
std::optional<Split> split_of(std::string_view name, std::string_view ending) {
  constexpr std::size_t digits = split_digits;
  constexpr std::string_view middle = "-of-";
  constexpr std::size_t tail = 1 + digits + middle.size() + digits;
  if (!name.ends_with(ending) || name.size() < ending.size() + tail) return std::nullopt;
  name.remove_suffix(ending.size());
  const std::string_view end = name.substr(name.size() - tail);
  if (end[0] != '-' || end.substr(1 + digits, middle.size()) != middle) return std::nullopt;
  Split split{.stem = std::string(name.substr(0, name.size() - tail))};
  const auto read = [&](std::size_t at, std::uint32_t& value) {
    const char* const begin = end.data() + at;
    const auto [stopped, error] = std::from_chars(begin, begin + digits, value);
    return error == std::errc() && stopped == begin + digits;
  };
  if (!read(1, split.number) || !read(1 + digits + middle.size(), split.count)) return std::nullopt;
  return split;
}

// Without an index, the names of the files are all that tells how many there should be.
Status check_complete(const std::string& directory, const std::vector<std::string>& names) {
  std::map<std::pair<std::string, std::uint32_t>, std::set<std::uint32_t>> found;
  for (const std::string& name : names) {
    if (const auto split = split_of(name, ".safetensors")) found[{split->stem, split->count}].insert(split->number);
  }
  for (const auto& [set, numbers] : found) {
    std::vector<std::string> missing;
    for (std::uint32_t number = 1; number <= set.second; ++number) {
      if (!numbers.contains(number)) missing.push_back("number " + std::to_string(number));
    }
    if (missing.empty()) continue;
    return Error{.code = Code::not_found,
                 .message = directory + ": of the " + std::to_string(set.second) + " files " + set.first +
                            "-*.safetensors, " + list_of(missing) + " are missing",
                 .hint = "download the rest of the model, or name the files you want"};
  }
  return {};
}

std::vector<std::string> ending_in(const std::vector<std::string>& names, std::string_view ending) {
  std::vector<std::string> found;
  std::ranges::copy_if(names, std::back_inserter(found),
                       [&](const std::string& name) { return name.ends_with(ending) && !name.starts_with("."); });
  return found;
}

Result<std::vector<std::string>> names_in(const std::string& directory) {
  std::error_code failed;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end; entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  if (failed)
    return system_error(failed.value(), "list " + directory, open_hint(failed.value(), directory, Access::read));
  std::ranges::sort(names);
  return names;
}

Result<Resolved> in_directory(const std::string& directory, const std::vector<std::string>& names) {
  Resolved resolved;
  for (const std::string& name : names) resolved.files.push_back((fs::path(directory) / name).string());
  return resolved;
}

// The names of all files of a split GGUF model, by that of one of them; none: it is not split.
std::vector<std::string> gguf_parts(const std::string& name) {
  constexpr std::string_view ending = ".gguf";
  const auto split = split_of(name, ending);
  std::vector<std::string> names;
  if (!split || split->count <= 1 || split->number == 0 || split->number > split->count) return names;
  const std::string count = name.substr(name.size() - ending.size() - split_digits, split_digits);
  for (std::uint32_t number = 1; number <= split->count; ++number) {
    const std::string text = std::to_string(number);
    names.push_back(split->stem + "-" + std::string(split_digits - text.size(), '0') + text + "-of-" + count +
                    std::string(ending));
  }
  return names;
}

Result<Resolved> resolve_gguf_parts(const std::string& directory, const std::vector<std::string>& names) {
  std::vector<std::string> missing;
  std::error_code failed;
  std::ranges::copy_if(names, std::back_inserter(missing),
                       [&](const std::string& name) { return !fs::exists(fs::path(directory) / name, failed); });
  if (missing.empty()) return in_directory(directory, names);
  return Error{.code = Code::not_found,
               .message = directory + ": of the " + std::to_string(names.size()) +
                          " files of a split GGUF model, some are missing: " + list_of(missing),
               .hint = "download the rest of the model"};
}

Result<Resolved> resolve_directory(const Context* context, const std::string& directory) {
  const Result<std::vector<std::string>> names = names_in(directory);
  if (!names) return names.error();
  const std::vector<std::string> indices = ending_in(*names, index_ending);
  const bool has_usual = std::ranges::find(indices, usual_index) != indices.end();
  if (has_usual || indices.size() == 1) {
    return resolve_index(context, (fs::path(directory) / (has_usual ? std::string(usual_index) : indices[0])).string());
  }
  if (indices.size() > 1) {
    return unclear(directory + " has several indices: " + list_of(indices), "name the one you want");
  }
  const std::vector<std::string> tensors = ending_in(*names, ".safetensors");
  if (tensors.size() > 1 && std::ranges::find(tensors, consolidated) != tensors.end()) {
    const auto other = std::ranges::find_if(tensors, [](const std::string& name) { return name != consolidated; });
    return unclear(directory + " has both " + std::string(consolidated) + " and " + *other +
                       ", and no index: they are the same model twice",
                   "name the files you want");
  }
  if (!tensors.empty()) {
    if (Status status = check_complete(directory, tensors); !status) return std::move(status).error();
    return in_directory(directory, tensors);
  }
  const std::vector<std::string> ggufs = ending_in(*names, ".gguf");
  if (const auto parts = ggufs.empty() ? ggufs : gguf_parts(ggufs[0]); !parts.empty()) {
    const auto is_part = [&](const std::string& name) { return std::ranges::find(parts, name) != parts.end(); };
    if (std::ranges::all_of(ggufs, is_part)) return resolve_gguf_parts(directory, parts);
  }
  if (ggufs.size() == 1) return in_directory(directory, ggufs);
  if (!ggufs.empty()) return unclear(directory + " has several models: " + list_of(ggufs), "name the one you want");
  return Error{.code = Code::not_found,
               .message = directory + " has no *.safetensors, no *.gguf and no index in it",
               .hint = "name the directory that contains the files of the model"};
}

// What lies in a folder, unless it is being written.
template <typename Resolve>
Result<Resolved> resolve_finished(const fs::path& folder, const Resolve& resolve) {
  const std::string name = folder.empty() ? "." : folder.string();
  if (Status status = check_finished(name); !status) return std::move(status).error();
  Result<Resolved> resolved = resolve();
  if (resolved) resolved->folder = name;
  return resolved;
}

Result<Resolved> resolve_path(const Context* context, const std::string& path) {
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (!fs::exists(status)) {
    return system_error(failed ? failed.value() : ENOENT, "open the model " + path,
                        path.starts_with("tier:") ? "open it with a Context that Tiers serve" : "check the name");
  }
  if (fs::is_directory(status)) return resolve_finished(path, [&] { return resolve_directory(context, path); });
  const std::string name = fs::path(path).filename().string();
  if (name.ends_with(".json")) {
    return resolve_finished(fs::path(path).parent_path(), [&] { return resolve_index(context, path); });
  }
  if (const auto parts = gguf_parts(name); !parts.empty()) {
    return resolve_gguf_parts(fs::path(path).parent_path().string(), parts);
  }
  return Resolved{.files = {path}, .index_path = {}, .index = {}};
}

// "scheme:rest", as the Context tells schemes from paths.
bool looks_like_uri(std::string_view name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto may_stand = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-'; };
  const std::size_t colon = name.find(':');
  return colon != std::string_view::npos && colon > 1 && is_letter(name[0]) &&
         std::ranges::all_of(name.substr(0, colon), may_stand);
}

// What looks like a URI is a path all the same where nothing serves the scheme, which the Context knows.
Result<bool> is_path(const Context* context, const std::string& name) {
  if (context == nullptr || !looks_like_uri(name)) return true;
  const Result<Store> store = context->open(name);
  if (store) return store->info().mappable && store->info().name == name;
  std::error_code failed;
  if (store.error().code == Code::is_directory && fs::is_directory(name, failed)) return true;
  return store.error();
}

Result<Resolved> resolve_uri(const Context& context, const std::string& uri) {
  if (const auto parts = gguf_parts(uri.substr(uri.rfind('/') + 1)); !parts.empty()) {
    Resolved resolved;
    for (const std::string& part : parts) resolved.files.push_back(beside(uri, part));
    return resolved;
  }
  if (!uri.ends_with(".json")) return Resolved{.files = {uri}, .index_path = {}, .index = {}};
  Result<Index> index = read_index(&context, uri);
  if (!index) return std::move(index).error();
  Resolved resolved{.files = {}, .index_path = uri, .index = {}};
  for (const std::string& file : index->files) resolved.files.push_back(beside(uri, file));
  resolved.index = std::move(*index);
  return resolved;
}

}  // namespace

Result<Index> parse_index(std::string_view json) {
  return IndexReader(json).read();
}

std::string beside(std::string_view uri, std::string_view file) {
  const std::size_t slash = uri.rfind('/');
  std::string name(uri.substr(0, (slash != std::string_view::npos ? slash : uri.find(':')) + 1));
  for (const char letter : file) name += letter == '%' ? "%25" : std::string(1, letter);
  return name;
}

Result<Resolved> resolve(const Context* context, const std::string& name) {
  if (context != nullptr && looks_like_uri(name)) {
    const Result<std::string> path = context->path_of(name);
    std::error_code failed;
    if (path && *path != name && fs::is_directory(*path, failed)) {
      return resolve_finished(*path, [&] { return resolve_directory(context, *path); });
    }
    if (path && *path != name && name.ends_with(".json")) {
      return resolve_finished(fs::path(*path).parent_path(), [&] { return resolve_uri(*context, name); });
    }
  }
  const Result<bool> path = is_path(context, name);
  if (!path) return path.error();
  return *path ? resolve_path(context, name) : resolve_uri(*context, name);
}

}  // namespace penstock::models
