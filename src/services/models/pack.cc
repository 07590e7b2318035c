#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "base/callback.h"
#include "base/clock.h"
#include "base/made_folders.h"
#include "base/out_of_memory.h"
#include "penstock/packing.h"
#include "services/models/check.h"
#include "services/models/contents.h"
#include "services/models/ending.h"
#include "services/models/file_stores.h"
#include "services/models/open_store.h"
#include "services/models/pack_folder.h"
#include "services/models/packed_indexes.h"
#include "services/models/packed_metadata.h"
#include "services/models/packed_writer.h"
#include "services/models/parts.h"
#include "services/models/range_list.h"
#include "services/models/resolve.h"
#include "services/models/source.h"
#include "services/packed/codec.h"

namespace penstock {

namespace {

namespace fs = std::filesystem;

using models::TensorSource;

constexpr auto packing_interval = std::chrono::milliseconds(50);
// Files beside a model that are copied with it, unless they are longer than anything but weights.
constexpr std::uintmax_t copied_bytes_most = 256 << 20;
constexpr std::uint64_t copy_window_bytes = 4 << 20;

// The tensors of one file of a model.
class FileSource : public TensorSource {
 public:
  static Result<FileSource> open(const Context& context, const Model& model, std::uint32_t file) {
    FileSource source(context, model);
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < model.tensors().size(); ++i) {
      if (model.tensors()[i].file == file) all.push_back(i);
    }
    std::vector<bool> files(model.files().size());
    files[file] = true;
    models::FileStores stores(context, model, {.files = std::move(files)});
    if (Status status = models::PackedIndexes::read(context, model, stores, all, {}); !status) {
      return std::move(status).error();
    }
    Result<Store> store = stores.open(file);
    if (!store) return std::move(store).error();
    source.store_ = std::move(*store);
    for (const std::uint32_t i : all) {
      const TensorInfo& tensor = model.tensors()[i];
      source.places_.push_back(models::PackedIndexes::place_of(model, i));
      source.tensors_.push_back({tensor.name, tensor.dtype, tensor.shape, Region::host(nullptr, tensor.size_bytes)});
    }
    return source;
  }

  std::span<const TensorToSave> tensors() const { return tensors_; }

  Result<Ticket> read(std::span<const Bytes> wanted) override {
    models::RangeList list(context_);
    for (const Bytes& bytes : wanted) list.add(store_, models::piece_of(places_[bytes.tensor], bytes.begin, bytes.to));
    return context_.submit(Direction::read, list.ranges());
  }
  Status check_unchanged() const override {
    const auto identity = store_.identity();
    if (!identity) return identity.error();
    if (*identity == store_.info().identity) return {};
    return Error{Code::changed, 0, store_.info().name + " was modified or replaced while it was read",
                 "start again when nobody writes to it"};
  }

 private:
  FileSource(const Context& context, const Model&) : context_(context) {}

  const Context context_;
  Store store_;
  std::vector<models::TensorPlace> places_;
  std::vector<TensorToSave> tensors_;
};

Error not_there(const std::error_code& failed, const std::string& what) {
  return system_error(failed.value(), what, "check the path and its permissions");
}

bool has_weights(const fs::path& path) {
  constexpr std::string_view endings[] = {".safetensors", ".bin",     ".pt",   ".pth",  ".gguf",
                                          ".h5",          ".msgpack", ".onnx", ".ckpt", ".safetensors.index.json"};
  const std::string name = path.filename().string();
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

// What is known of a file's tensors. New checksums are recorded of those that are written, and must not vouch for
// damage.
struct Known {
  models::Checksums checksums;
  bool is_packed = false;
};
Result<Known> known_of(const Model& model, std::uint32_t number) {
  const ModelFile& file = model.files()[number];
  Known known;
  std::size_t tensors = 0;
  std::size_t found = 0;
  const auto recorded = file.metadata.find(std::string(models::checksums_key));
  const bool is_recorded = recorded != file.metadata.end();
  Result<models::Checksums> sums =
      is_recorded ? models::parse_checksums(recorded->second.text()) : Result<models::Checksums>(models::Checksums());
  if (sums) known.checksums = std::move(*sums);
  for (const TensorInfo& tensor : model.tensors()) {
    if (tensor.file != number) continue;
    ++tensors;
    found += known.checksums.contains(tensor.name) ? 1 : 0;
    known.is_packed |= !tensor.packing.empty();
  }
  if (!is_recorded || (found == tensors && known.checksums.size() == tensors)) return known;
  return Error{Code::io_error, 0,
               file.path + ": its recorded checksums are not those of its tensors, so it may be damaged",
               "take another copy of the file; penstock verify says what it can about this one"};
}

// Packs or unpacks the files of a model, one after the other.
class Packing {
 public:
  Packing(const Context& context, const PackOptions& options, bool pack)
      : context_(context), options_(options), pack_(pack) {}

  Result<PackReport> run(const std::string& name, const std::string& folder) {
    const TimePoint begun = Clock::now();
    const Result<models::Resolved> resolved = models::resolve(&context_, name);
    if (!resolved) return resolved.error();
    const Result<Model> model = Model::open(context_, name);
    if (!model) return model.error();
    if (Status status = check(*model, folder); !status) return std::move(status).error();
    if (Status held = hold_source(name, model->files().front().path); !held) return std::move(held).error();
    const Result<std::vector<std::string>> copied = files_to_copy(name, resolved->index_path);
    if (!copied) return copied.error();
    std::vector<std::string> sources = *copied;
    for (const ModelFile& file : model->files()) sources.push_back(file.path);
    if (Status status = models::check_targets(folder, sources); !status) return std::move(status).error();
    for (const ModelFile& file : model->files()) {
      if (Status allowed = check_copied(file.path, file.identity); !allowed) return std::move(allowed).error();
    }
    for (const std::string& file : *copied) {
      const Result<models::Source> source = models::Source::open(&context_, file);
      if (!source) return source.error();
      if (Status allowed = check_copied(source->name(), source->identity()); !allowed)
        return std::move(allowed).error();
    }
    const MadeFolders made(folder);
    if (made.failed()) return not_there(made.failed(), "make the folder " + folder);
    all_bytes_ = model->size_bytes();
    const auto unfinished = models::Unfinished::begin(folder, options_.durable);
    if (!unfinished) return unfinished.error();
    folder_ = (*unfinished)->folder();
    // Once more: until now another run may have written there.
    Status status = models::check_targets(folder, sources);
    for (std::uint32_t file = 0; status && file < model->files().size(); ++file) status = write(*model, file, folder);
    for (std::size_t i = 0; status && i < copied->size(); ++i) status = copy_file((*copied)[i], folder);
    if (!status) {
      const bool has_replaced =
          !report_.files.empty() || !report_.copied.empty() || status.error().code == Code::not_durable;
      if (!has_replaced) (*unfinished)->withdraw();
      return std::move(status).error();
    }
    if (Status ended = (*unfinished)->end(); !ended) return std::move(ended).error();
    if (options_.progress) (void)call_back("PackOptions::progress", options_.progress, all_bytes_, all_bytes_);
    report_.seconds = seconds_between(begun, Clock::now());
    return std::move(report_);
  }

 private:
  static Status check(const Model& model, const std::string& folder) {
    if (fs::path(folder).extension() == ".safetensors") {
      return Error{Code::invalid_argument, 0, folder + " is the name of a file, and the result is a folder",
                   "name the folder in which a file of the model's name is to be made"};
    }
    std::error_code failed;
    const fs::path to = fs::weakly_canonical(folder, failed);
    for (const ModelFile& file : model.files()) {
      if (file.format != ModelFormat::safetensors) {
        return Error{Code::unsupported, 0, file.path + " is not a safetensors file", "only those are packed"};
      }
      if (fs::path(file.path).extension() != ".safetensors") {
        return Error{Code::invalid_argument, 0,
                     file.path + " would be no file of a model in a folder: those end in .safetensors",
                     "rename it, or name a link to it that ends so"};
      }
      if (fs::weakly_canonical(fs::path(file.path).parent_path(), failed) == to) {
        return Error{Code::invalid_argument, 0, folder + " is the folder of the model itself", "name another folder"};
      }
    }
    for (std::uint32_t file = 0; file < model.files().size(); ++file) {
      if (const auto known = known_of(model, file); !known) return known.error();
    }
    return {};
  }

  Status write(const Model& model, std::uint32_t number, const std::string& folder) {
    const ModelFile& file = model.files()[number];
    if (Status allowed = check_copied(file.path, file.identity); !allowed) return allowed;
    Result<FileSource> source = FileSource::open(context_, model, number);
    if (!source) return std::move(source).error();
    models::WriterOptions options{.pack = pack_,
                                  .threads = options_.threads != 0 ? options_.threads : context_.machine().usable_cpus,
                                  .durable = options_.durable,
                                  .folder = folder_};
    for (const auto& [key, value] : file.metadata) options.metadata.emplace(key, value.text());
    Result<Known> known = known_of(model, number);
    if (!known) return std::move(known).error();
    // A packed file should have some: without them, nothing vouches for its plain tensors.
    options.checksums = !known->is_packed || !known->checksums.empty();
    options.known_checksums = std::move(known->checksums);
    options.progress = [&](std::uint64_t done) { return tell(done); };
    const std::string path = models::target_in(folder, file.path);
    Result<models::WrittenFile> written = models::write_packed(context_, path, source->tensors(), *source, options);
    if (!written) return std::move(written).error();
    PackReport::File about{.path = path,
                           .tensors = static_cast<std::uint32_t>(source->tensors().size()),
                           .packed_tensors = written->packed_tensors,
                           .bytes = 0,
                           .stored_bytes = written->stored_bytes};
    for (const TensorToSave& tensor : source->tensors()) about.bytes += tensor.memory.size_bytes;
    done_before_ += about.bytes;
    report_.files.push_back(std::move(about));
    return {};
  }

  Status tell(std::uint64_t done) {
    const TimePoint now = Clock::now();
    if (!options_.progress || now - told_ < packing_interval) return {};
    told_ = now;
    if (call_back("PackOptions::progress", options_.progress, done_before_ + done, all_bytes_)) return {};
    return Error{Code::cancelled, 0, "packing was cancelled", "files that were finished stay"};
  }

  Status copy_file(const std::string& from, const std::string& folder) {
    const Result<models::Source> source = models::Source::open(&context_, from);
    if (!source) return source.error();
    if (Status allowed = check_copied(source->name(), source->identity()); !allowed) return allowed;
    const std::string to = models::target_in(folder, from);
    Result<Store> store = models::open_to_replace(context_, to, {.size_bytes = source->size_bytes()}, folder_);
    if (!store) return std::move(store).error();
    std::vector<char> window(std::min(source->size_bytes(), copy_window_bytes));
    for (std::uint64_t at = 0; at < source->size_bytes(); at += window.size()) {
      const std::span bytes(window.data(), std::min<std::uint64_t>(window.size(), source->size_bytes() - at));
      if (Status status = source->read(at, bytes); !status) return status;
      const auto memory = Region::host(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
      if (const Report written = context_.write(*store, at, memory); !written.ok()) return *written.error;
    }
    if (Status status = store->commit(options_.durable); !status) return status;
    report_.copied.push_back(to);
    return {};
  }

  // Stores of engines have no folder.
  Status hold_source(const std::string& name, const std::string& file) {
    std::error_code failed;
    const bool is_folder = fs::is_directory(name, failed);
    if (!is_folder && !file.starts_with('/')) return {};
    Result<models::SourceFolder> folder =
        models::SourceFolder::open(is_folder ? name : fs::path(file).parent_path().string());
    if (!folder) return std::move(folder).error();
    source_ = std::move(*folder);
    return {};
  }

  Status check_copied(const std::string& path, const Identity& identity) const {
    return source_ && path.starts_with('/') ? source_->check_copied(fs::path(path).filename(), identity) : Status();
  }

  // The index, and the small files beside a model that is named by its folder.
  Result<std::vector<std::string>> files_to_copy(const std::string& name, const std::string& index) const {
    std::error_code failed;
    std::vector<std::string> files;
    if (source_ && fs::is_directory(name, failed)) {
      const auto names = source_->names();
      if (!names) return names.error();
      for (const std::string& each : *names) {
        if (each.starts_with('.') || has_weights(each)) continue;
        const auto bytes = source_->file_bytes(each);
        if (bytes && *bytes <= copied_bytes_most) files.push_back((fs::path(name) / each).string());
      }
    }
    if (!index.empty()) files.insert(files.begin(), index);
    return files;
  }

  const Context context_;
  const PackOptions& options_;
  const bool pack_;
  PackReport report_;
  std::optional<models::SourceFolder> source_;
  int folder_ = -1;  // of the result
  std::uint64_t all_bytes_ = 0;
  std::uint64_t done_before_ = 0;  // in files that are finished
  TimePoint told_ = Clock::now();
};

// How fast a part of a model comes to host memory, as it is now: cached, or from its disk.
Result<double> read_speed(const Context& context, const Model& model) {
  constexpr std::uint64_t most_bytes = 256 << 20;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> some;
  for (std::uint32_t i = 0; i < model.tensors().size(); ++i) {
    const std::uint64_t more = model.tensors()[i].size_bytes;
    if (more == 0 || bytes + more > most_bytes) continue;
    some.push_back(i);
    bytes += more;
  }
  if (some.empty()) return 0.0;
  const Placement placement = place(model, some);
  Result<Buffer> memory = context.allocate(Domain::host(), placement.size_bytes);
  if (!memory) return std::move(memory).error();
  std::fill_n(memory->data(), placement.size_bytes, std::byte{0});  // page faults are no part of it
  std::vector<TensorPart> parts;
  for (std::size_t i = 0; i < some.size(); ++i) {
    parts.push_back({.tensor = some[i],
                     .memory = memory->region().part(placement.offsets[i], model.tensors()[some[i]].size_bytes)});
  }
  Result<Loading> loading = load(context, model, parts);
  if (!loading) return std::move(loading).error();
  loading->wait();
  const LoadReport report = loading->report();
  if (!report.ok()) return *report.transfer.error;
  return report.seconds > 0 ? static_cast<double>(bytes) / report.seconds : 0.0;
}

// Of decoded bytes, on one CPU.
double unpack_speed() {
  constexpr std::size_t rounds = 32;
  std::vector<std::byte> values(std::size_t{packed::chunk_values} * 2);
  for (std::size_t i = 0; i < values.size(); i += 2) {
    values[i] = static_cast<std::byte>(i * 37 >> 1);
    values[i + 1] = static_cast<std::byte>(0x3c + (i >> 3) % 2);  // a few exponents
  }
  std::vector<std::byte> chunk, decoded(values.size());
  packed::encode_chunk(packed::best_kernels(), packed::Kind::bf16, 0, values, chunk);
  const TimePoint begun = Clock::now();
  for (std::size_t i = 0; i < rounds; ++i) {
    (void)packed::decode_chunk(packed::best_kernels(), packed::Kind::bf16, chunk, {0, packed::chunk_values},
                               {.skip = 0, .memory = decoded});
  }
  return static_cast<double>(rounds * values.size()) / std::max(1e-9, seconds_between(begun, Clock::now()));
}

Result<PackEstimate> estimate(const Context& context, const Model& model) {
  PackEstimate result{.bytes = model.size_bytes(), .tensors = static_cast<std::uint32_t>(model.tensors().size())};
  for (std::uint32_t file = 0; file < model.files().size(); ++file) {
    Result<FileSource> source = FileSource::open(context, model, file);
    if (!source) return std::move(source).error();
    for (std::uint32_t i = 0; i < source->tensors().size(); ++i) {
      const TensorToSave& tensor = source->tensors()[i];
      const auto sampled = models::sample_size(context, *source, i, tensor);
      if (!sampled) return sampled.error();
      const bool gains = *sampled && (*sampled)->gains(tensor.memory.size_bytes);
      result.stored_bytes += gains ? (*sampled)->stored_bytes : tensor.memory.size_bytes;
      result.packed_tensors += gains ? 1 : 0;
    }
  }
  const Result<double> read = read_speed(context, model);
  if (!read) return read.error();
  result.read_bytes_per_second = *read;
  result.unpack_bytes_per_second = unpack_speed() * static_cast<double>(context.machine().usable_cpus);
  if (*read > 0) {
    result.load_seconds = static_cast<double>(result.bytes) / *read;
    result.packed_load_seconds = std::max(static_cast<double>(result.stored_bytes) / *read,
                                          static_cast<double>(result.bytes) / result.unpack_bytes_per_second);
  }
  return result;
}

}  // namespace

std::uint64_t PackReport::bytes() const {
  return std::accumulate(files.begin(), files.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const File& file) { return sum + file.bytes; });
}

std::uint64_t PackReport::stored_bytes() const {
  return std::accumulate(files.begin(), files.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const File& file) { return sum + file.stored_bytes; });
}

Result<PackReport> pack_model(const Context& context, const std::string& model, const std::string& folder,
                              const PackOptions& options) {
  return or_out_of_memory([&] { return Packing(context, options, true).run(model, folder); });
}

Result<PackReport> unpack_model(const Context& context, const std::string& model, const std::string& folder,
                                const PackOptions& options) {
  return or_out_of_memory([&] { return Packing(context, options, false).run(model, folder); });
}

Result<PackEstimate> estimate_packing(const Context& context, const Model& model) {
  return or_out_of_memory([&] { return estimate(context, model); });
}

}  // namespace penstock
