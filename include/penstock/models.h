// Models: named tensors in files, read into the places where they belong in one request, and written back.
//
//   auto model = penstock::Model::open(context, "models/llama/").value();
//   std::vector<penstock::TensorPart> parts;
//   for (std::uint32_t i = 0; i < model.tensors().size(); ++i) parts.push_back({.tensor = i, .memory = place_for(i)});
//   auto loading = penstock::load(context, model, parts).value();
//   loading.wait();
//
// Formats: safetensors (a file, several, a directory, an index, a snapshot in the Hugging Face cache) and GGUF (also
// split). Headers are checked completely before any tensor is read: an open Model is valid. A file may lie in any store
// that a Context opens, also at the front of a longer one, such as a device.
//
// Thread safety: a Model is immutable; a Loading may be used from any thread. Lifetime: a Model needs no Context, and
// keeps its files open. A Loading must have ended before its Context is moved or destroyed and before the memory is
// freed; memory of a Buffer is held. In a forked child, a Loading of the parent counts as cancelled, as its requests
// do. Moved from, it has ended as failed.
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
class PackedIndexes;
}  // namespace models

// The types of safetensors, in its sort order. They include GGUF's plain types; its quantized types are rows of
// u8.
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
  std::string_view quantization;     // GGUF's name of a quantized type, such as "Q4_K", a constant; else empty
  std::uint64_t offset = 0;          // in the file
  std::uint64_t size_bytes = 0;      // as it is loaded
  std::uint64_t stored_bytes = 0;    // in the file: other than size_bytes if it is packed
  std::string_view packing;          // the codec of a packed tensor (docs/packed.md), a constant; else empty
};

enum class ModelFormat : std::uint8_t { safetensors, gguf };
PENSTOCK_EXPORT std::string_view model_format_name(ModelFormat format);

// A metadata value: a text, or one of GGUF's numbers, booleans and arrays. Those are kept as they are in the file: as
// text, an array of millions would take several times as much memory.
class MetadataValue {
 public:
  MetadataValue(std::string text) : bytes_(std::move(text)) {}
  MetadataValue(const char* text) : bytes_(text) {}
  // A GGUF value, with the number of its type. REQUIRES: the bytes hold one value.
  MetadataValue(std::uint32_t gguf_type, std::string bytes) : bytes_(std::move(bytes)), type_(gguf_type) {}

  // A text as it is; any other value as JSON.
  PENSTOCK_EXPORT std::string text() const;
  // The same in short pieces.
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
  // Absolute, so it stays right if the process changes its directory. For a store that is not a file of the kernel: the
  // URI.
  std::string path;
  ModelFormat format = ModelFormat::safetensors;
  std::uint64_t size_bytes = 0;   // on a device: to the end of the last tensor
  std::uint64_t data_offset = 0;  // where tensors begin
  Identity identity;              // when it was opened
  // Shared by copies of the Model: the old file is read even if its name is given to another or removed. Null if the
  // process has few descriptors left, and for other stores: then the file is opened by name, and refused if it is not
  // the same.
  std::shared_ptr<const models::FileReader> kept_open;
  std::map<std::string, MetadataValue> metadata;
};

class PENSTOCK_EXPORT Model {
 public:
  // A file, a directory or an index, by any name that the Context opens: a path or a URI. An index names files beside
  // it, with its own scheme. Only directories in the file system can be listed.
  static Result<Model> open(const Context& context, const std::string& name);
  // Several files that form one model: no tensor may be in two of them.
  static Result<Model> open(const Context& context, std::span<const std::string> files);
  // The same with names taken as paths, whatever they look like.
  static Result<Model> open(const std::string& path);
  static Result<Model> open(std::span<const std::string> files);

  const std::vector<ModelFile>& files() const { return files_; }
  // In the order of files, and of offsets within each.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::optional<std::uint32_t> find(std::string_view name) const;
  std::uint64_t size_bytes() const;    // of all tensors
  std::uint64_t stored_bytes() const;  // that they take in the files
  // Mistakes that don't matter for loading: an index whose total_size is not the size of its tensors.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class ModelBuilder;
  friend class models::PackedIndexes;
  std::vector<ModelFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> warnings_;
  // Where a name is in `by_name_`, or belongs. REQUIRES: that is not empty.
  std::size_t place_of(std::string_view name) const;
  // A hash table of tensors by name, at most half full; a power of two. Empty if nothing was opened.
  std::vector<std::uint32_t> by_name_;
  // Of packed tensors that were read; shared by copies. Null if there are none.
  std::shared_ptr<models::PackedIndexes> packed_;
};

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // past the last
};

// A tensor, or intervals of it along one dimension, one after the other in memory: rows of a fused matrix for one rank,
// for example. The memory has exactly that size, and is contiguous.
struct TensorPart {
  std::uint32_t tensor = 0;  // its index in Model::tensors()
  std::uint32_t dimension = 0;
  std::vector<Interval> intervals = {};  // none: the whole tensor
  Region memory;
};
// The shape of a part. Fails for intervals that run backwards or past the end, and for those that cut through a byte or
// a quantized block.
PENSTOCK_EXPORT Result<std::vector<std::uint64_t>> part_shape(const TensorInfo& tensor, std::uint32_t dimension,
                                                              std::span<const Interval> intervals);
PENSTOCK_EXPORT Result<std::uint64_t> part_bytes(const TensorInfo& tensor, std::uint32_t dimension,
                                                 std::span<const Interval> intervals);

// How to read intervals of an inner dimension: each piece by itself, or whole rows, from which the pieces are copied.
enum class Columns : std::uint8_t { automatic, pieces, whole };

struct LoadOptions {
  Columns columns = Columns::automatic;
  // `stream` works only if nothing is read as whole rows; `on_end` must not destroy the Loading.
  RequestOptions request = {};
};

struct LoadReport {
  Report transfer;
  std::uint64_t wanted_bytes = 0;  // of all parts
  std::uint64_t read_bytes = 0;    // from storage, including what was read beside them
  std::uint64_t packed_bytes = 0;  // that were unpacked, of all that were read
  std::uint64_t stored_bytes = 0;  // from which those were unpacked
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
// One request for everything, in file order. Files that were modified since the model was opened are
// refused.
PENSTOCK_EXPORT Result<Loading> load(const Context& context, const Model& model, std::span<const TensorPart> parts,
                                     const LoadOptions& options = {});

// A file of a model as memory, without a copy. Its pages are those of the page cache until you write to them; what you
// write stays in this process. Touching it after the file was truncated raises SIGBUS.
class PENSTOCK_EXPORT MappedFile {
 public:
  enum class Which : std::uint8_t { cached, any };  // files that are almost entirely in the page cache, or any
  // Nothing if the file is not one of those, or if the Context's options avoid the page cache.
  static Result<std::optional<MappedFile>> map(const Context& context, const ModelFile& file,
                                               Which which = Which::cached);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::byte* data() const { return data_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  bool was_cached() const { return was_cached_; }  // almost all of it, when it was mapped
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
  };
  // Maps the pages of pieces, in ascending order, with as many threads as the Context has lanes; otherwise the first
  // access to each page does. They count in the statistics.
  void populate(const Context& context, std::span<const Piece> pieces) const;
  // Starts to bring the first `most_bytes` of the pieces into the page cache, and returns: later accesses wait for
  // less. They count in the statistics as mapped. It ends with the mapping.
  void read_ahead(const Context& context, std::span<const Piece> pieces, std::uint64_t most_bytes) const;

 private:
  class Ahead;
  MappedFile(std::byte* data, std::uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  static Result<std::optional<MappedFile>> map_or_throw(const Context& context, const ModelFile& file, Which which);
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  std::uint32_t threads_ = 1;
  bool was_cached_ = true;
  std::shared_ptr<Ahead> ahead_;  // shared with threads that nobody waits for: a disk may hold them up
};

// Where tensors go in one piece of memory, at multiples of 256 bytes.
struct Placement {
  std::vector<std::uint64_t> offsets;  // of each tensor
  std::uint64_t size_bytes = 0;
};
PENSTOCK_EXPORT Placement place(const Model& model);
// For these tensors only, given by index, in this order.
PENSTOCK_EXPORT Placement place(const Model& model, std::span<const std::uint32_t> tensors);

struct TensorToSave {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
  Region memory;  // contiguous, of any domain
};
struct SaveOptions {
  std::map<std::string, std::string> metadata = {};
  bool empty_metadata = false;     // write {} if there is no metadata, as safetensors does for {}
  std::uint64_t alignment = 4096;  // of the first tensor: a power of two, at least 8; with 8 the file is byte for
                                   // byte what safetensors writes, which orders several metadata entries randomly
  bool durable = true;
  bool checksums = false;  // recorded in the metadata, for check_model
  // Tensors that get at least 3 % smaller are packed (docs/packed.md); `alignment` is then 4096, and `checksums` are
  // recorded.
  bool packed = false;
  // Called at most twenty times a second; false cancels and leaves the old file. It must not throw.
  std::function<bool(std::uint64_t done, std::uint64_t all)> progress = {};
};
// The beginning of a safetensors file, if you write the rest yourself: the bytes of the tensors follow in this order,
// without gaps.
struct SafetensorsHead {
  std::string bytes;
  std::vector<std::uint32_t> order;
};
// Uses `metadata`, `empty_metadata` and `alignment` of the options. Fails for tensors that could not be loaded again.
PENSTOCK_EXPORT Result<SafetensorsHead> safetensors_head(std::span<const TensorToSave> tensors,
                                                         const SaveOptions& options);
// Replaces the file with a safetensors file, or leaves the old one.
PENSTOCK_EXPORT Result<Report> save_safetensors(const Context& context, const std::string& path,
                                                std::span<const TensorToSave> tensors, const SaveOptions& options = {});

// The result of comparing a file with known checksums.
struct CheckedFile {
  std::string path;
  enum class Verdict : std::uint8_t { right, wrong, unknown } verdict = Verdict::unknown;
  std::string how;  // "xxh3 of 291 tensors", "sha256 of the blob", or why none is known
  std::vector<std::string> wrong_tensors;
};
PENSTOCK_EXPORT std::string_view verdict_name(CheckedFile::Verdict verdict);  // "right"
// Compares with checksums recorded by save_safetensors, or the digest in the name of a Hugging Face blob.
PENSTOCK_EXPORT Result<std::vector<CheckedFile>> check_model(
    const Context& context, const Model& model,
    const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress = {});

}  // namespace penstock
