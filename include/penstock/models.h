// Models: named tensors in files, read into the places where they belong by one request, and written back.
//
//   auto model = penstock::Model::open(context, "models/llama/").value();
//   std::vector<penstock::TensorPart> parts;
//   for (std::uint32_t i = 0; i < model.tensors().size(); ++i) parts.push_back({.tensor = i, .memory = place_for(i)});
//   auto loading = penstock::load(context, model, parts).value();
//   loading.wait();
//
// Formats: safetensors (a file, several, a directory, an index, a snapshot of the Hugging Face cache) and GGUF (one
// file). Headers are checked completely before any tensor is read: what is open is valid. A file may lie in any store
// that a Context opens, also at the front of one that is longer, as a device is.
//
// Thread safety: a Model is a value that nobody changes; a Loading may be used from any thread. Lifetime: a Model needs
// no Context, and keeps its files open; a Loading must have ended before its Context is moved or gone, and before the
// memory is, unless that is a Buffer's, which is held. In a forked child a Loading of the parent counts as cancelled,
// as its requests do. Moved from, it has ended as failed.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/context.h"

namespace penstock {

namespace models {
class FileReader;
}

// The types of safetensors, in the order in which it sorts them. GGUF's plain types are among them; its quantized ones
// are rows of u8.
enum class DType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};
PENSTOCK_EXPORT std::string_view dtype_name(DType dtype);  // as safetensors writes it: "BF16"
PENSTOCK_EXPORT std::optional<DType> dtype_from_name(std::string_view name);
PENSTOCK_EXPORT std::uint32_t dtype_bits(DType dtype);

struct TensorInfo {
  std::string name;
  DType dtype = DType::u8;
  std::uint32_t file = 0;            // its index in Model::files()
  std::vector<std::uint64_t> shape;  // slowest dimension first; none: a scalar
  std::string_view quantization;     // GGUF's name of a quantized type, as "Q4_K", a constant; empty otherwise
  std::uint64_t offset = 0;          // in the file
  std::uint64_t size_bytes = 0;
};

enum class ModelFormat : std::uint8_t { safetensors, gguf };
PENSTOCK_EXPORT std::string_view model_format_name(ModelFormat format);

// A value of the metadata: a text, or what GGUF has besides, numbers, truth values and arrays. Those are kept as they
// are in the file: an array of millions would take several times as much as text.
class MetadataValue {
 public:
  MetadataValue(std::string text) : bytes_(std::move(text)) {}
  MetadataValue(const char* text) : bytes_(text) {}
  // A value of GGUF's, of a type by its number there. REQUIRES: the bytes are one.
  MetadataValue(std::uint32_t gguf_type, std::string bytes) : bytes_(std::move(bytes)), type_(gguf_type) {}

  // A text as it is; other values as JSON.
  PENSTOCK_EXPORT std::string text() const;
  // The same piece by piece, none of them long.
  PENSTOCK_EXPORT void write(const std::function<void(std::string_view piece)>& take) const;

  friend bool operator==(const MetadataValue&, const MetadataValue&) = default;
  template <std::convertible_to<std::string_view> Text>
  friend bool operator==(const MetadataValue& value, const Text& text) {
    return value.text() == std::string_view(text);
  }

 private:
  static constexpr std::uint32_t gguf_string = 8;
  std::string bytes_;
  std::uint32_t type_ = gguf_string;
};

struct ModelFile {
  // Absolute: it stays right when the process changes its directory. Of a store that is no file of the kernel's: the
  // URI.
  std::string path;
  ModelFormat format = ModelFormat::safetensors;
  std::uint64_t size_bytes = 0;   // on a device: up to the end of the last tensor
  std::uint64_t data_offset = 0;  // where tensors begin
  Identity identity;              // when it was opened
  // Shared by copies of the Model: the file is read as it was even if its name is given to another, or to none. Null
  // where the process has few descriptors left, and for other stores; then it is opened by its name, and refused if it
  // is not the same.
  std::shared_ptr<const models::FileReader> kept_open;
  std::map<std::string, MetadataValue> metadata;
};

class PENSTOCK_EXPORT Model {
 public:
  // A file, a directory or an index, by any name that the Context opens: a path, a URI. An index names files beside it,
  // by its own scheme. Only directories of paths are listed.
  static Result<Model> open(Context& context, const std::string& name);
  // Several files that are one model: no tensor may be in two of them.
  static Result<Model> open(Context& context, std::span<const std::string> files);
  // The same by paths alone, whatever they look like.
  static Result<Model> open(const std::string& path);
  static Result<Model> open(std::span<const std::string> files);

  const std::vector<ModelFile>& files() const { return files_; }
  // In the order of files, and of offsets within each.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::optional<std::uint32_t> find(std::string_view name) const;
  std::uint64_t size_bytes() const;  // of all tensors
  // What is wrong in a way that does not matter for loading: an index whose total_size is not that of its tensors.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class ModelBuilder;
  std::vector<ModelFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> warnings_;
  // Where a name is in `by_name_`, or belongs. REQUIRES: that is not empty.
  std::size_t place_of(std::string_view name) const;
  // A table of tensors by the hashes of their names, at most half full; a power of two. Empty where nothing was opened.
  std::vector<std::uint32_t> by_name_;
};

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // past the last
};

// A tensor, or intervals of it along one dimension, one after the other in the result: rows of a fused matrix for one
// rank, say. Memory is as large as that, and contiguous.
struct TensorPart {
  std::uint32_t tensor = 0;  // its index in Model::tensors()
  std::uint32_t dimension = 0;
  std::vector<Interval> intervals;  // none: the whole tensor
  Region memory;
};
// The shape of a part. Fails for intervals that are empty backwards or past the end, and for those that would cut
// through a byte or a quantized block.
PENSTOCK_EXPORT Result<std::vector<std::uint64_t>> part_shape(const TensorInfo& tensor, std::uint32_t dimension,
                                                              std::span<const Interval> intervals);
PENSTOCK_EXPORT Result<std::uint64_t> part_bytes(const TensorInfo& tensor, std::uint32_t dimension,
                                                 std::span<const Interval> intervals);

// How intervals of an inner dimension are read: each piece by itself, or whole rows, of which the pieces are copied.
enum class Columns : std::uint8_t { automatic, pieces, whole };

struct LoadOptions {
  Columns columns = Columns::automatic;
  // `stream` only where nothing is read as whole rows; `on_end` must not destroy the Loading.
  RequestOptions request;
};

struct LoadReport {
  Report transfer;
  std::uint64_t wanted_bytes = 0;  // of all parts
  std::uint64_t read_bytes = 0;    // from storage: with what was read beside them
  double seconds = 0;              // from the call to the end

  bool ok() const { return transfer.ok(); }
};

class PENSTOCK_EXPORT Loading {
 public:
  Loading(Loading&&) noexcept;
  Loading& operator=(Loading&&) noexcept;
  ~Loading();  // cancels what has not ended

  bool ended() const;
  std::uint64_t bytes_done() const;
  std::uint64_t bytes_wanted() const;
  bool wait_for(std::chrono::nanoseconds time) const;
  void wait() const;
  // Within 200 ms, also in the middle of a tensor.
  void cancel();
  LoadReport report() const;

 private:
  class Impl;
  friend class LoadingBuilder;
  explicit Loading(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};
// One request for everything, in the order of the files. Files that were modified since the model was opened are
// refused.
PENSTOCK_EXPORT Result<Loading> load(Context& context, const Model& model, std::span<const TensorPart> parts,
                                     const LoadOptions& options = {});

// A file of a model as memory, without a copy: its pages are those of the page cache until somebody writes to them, and
// what is written there stays in this process. Touching it after the file was truncated raises SIGBUS.
class PENSTOCK_EXPORT MappedFile {
 public:
  enum class Which : std::uint8_t { cached, any };  // files that are all but in the page cache, or all that can be
  // Nothing where the file is not one of those, or the options of the Context keep away from the page cache.
  static Result<std::optional<MappedFile>> map(Context& context, const ModelFile& file, Which which = Which::cached);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::byte* data() const { return data_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  bool was_cached() const { return was_cached_; }  // all but little of it, when it was mapped
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
  };
  // Maps the pages of pieces, in ascending order, by as many threads as the Context has lanes: otherwise whoever
  // touches a page first has to. They count in its statistics.
  void populate(Context& context, std::span<const Piece> pieces) const;
  // Begins to bring pieces into the page cache, the first `most_bytes` of them, and returns: whoever touches them soon
  // waits for less. They count in the statistics as mapped. It ends when the mapping does.
  void read_ahead(Context& context, std::span<const Piece> pieces, std::uint64_t most_bytes) const;

 private:
  class Ahead;
  MappedFile(std::byte* data, std::uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  static Result<std::optional<MappedFile>> map_or_throw(Context& context, const ModelFile& file, Which which);
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  std::uint32_t threads_ = 1;
  bool was_cached_ = true;
  std::shared_ptr<Ahead> ahead_;  // shared with threads that nobody waits for: a disk may hold them up
};

// Where tensors go in one piece of memory: at multiples of 256 bytes.
struct Placement {
  std::vector<std::uint64_t> offsets;  // of each tensor
  std::uint64_t size_bytes = 0;
};
PENSTOCK_EXPORT Placement place(const Model& model);
// Of those alone, named by their indices, in that order.
PENSTOCK_EXPORT Placement place(const Model& model, std::span<const std::uint32_t> tensors);

struct TensorToSave {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
  Region memory;  // contiguous, of any domain
};
struct SaveOptions {
  std::map<std::string, std::string> metadata;
  bool empty_metadata = false;     // written as an empty object where there is none, as safetensors does it for {}
  std::uint64_t alignment = 4096;  // of the first tensor: a power of two, 8 at least; with 8 the file is byte for byte
                                   // as safetensors writes it, whose order of several metadata is by chance
  bool durable = true;
  bool checksums = false;  // recorded in the metadata, for check_model
  // At most twenty times a second; false cancels, and leaves what was there before. It must not throw.
  std::function<bool(std::uint64_t done, std::uint64_t all)> progress;
};
// What a safetensors file begins with, for who writes it himself: behind it come the bytes of the tensors in this
// order, with nothing between them.
struct SafetensorsHead {
  std::string bytes;
  std::vector<std::uint32_t> order;
};
// By `metadata`, `empty_metadata` and `alignment` of the options. Fails for tensors that could not be loaded again.
PENSTOCK_EXPORT Result<SafetensorsHead> safetensors_head(std::span<const TensorToSave> tensors,
                                                         const SaveOptions& options);
// A safetensors file in place of what was there, or not at all.
PENSTOCK_EXPORT Result<Report> save_safetensors(Context& context, const std::string& path,
                                                std::span<const TensorToSave> tensors, const SaveOptions& options = {});

// What is known about the bytes of a model, compared with what is there.
struct CheckedFile {
  std::string path;
  enum class Verdict : std::uint8_t { right, wrong, unknown } verdict = Verdict::unknown;
  std::string how;  // "xxh3 of 291 tensors", "sha256 of the blob", or why nothing is known
  std::vector<std::string> wrong_tensors;
};
PENSTOCK_EXPORT std::string_view verdict_name(CheckedFile::Verdict verdict);  // "right"
// Against checksums recorded by save_safetensors, and the digest in the name of a blob of the Hugging Face cache.
PENSTOCK_EXPORT Result<std::vector<CheckedFile>> check_model(
    Context& context, const Model& model,
    const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress = {});

}  // namespace penstock
