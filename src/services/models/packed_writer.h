// PackedWriter: writes one safetensors file from tensors that come in windows of bounded memory: first those that get
// smaller when they are packed, then the others as they are. Threads encode a window while the next is read and the
// last is written.
//
// Thread safety: one thread's. Lifetime: the Context and the source must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/context.h"
#include "penstock/models.h"
#include "services/packed/format.h"

namespace penstock::models {

// Where the bytes of tensors come from.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Bytes of a tensor into host memory. A null Ticket: they are there already.
  struct Bytes {
    std::uint32_t tensor = 0;
    std::uint64_t begin = 0;
    Region to;
  };
  virtual Result<Ticket> read(std::span<const Bytes> wanted) = 0;
  // Whether all that was read is of one state. Asked when everything has been read.
  virtual Status check_unchanged() const { return {}; }
};

// A tensor that is packed gets at least so much smaller.
inline constexpr double packed_ratio_most = 0.97;

// How long a tensor gets, by a few of its chunks; `is_exact` if those were all.
struct SampledSize {
  std::uint64_t stored_bytes = 0;
  bool is_exact = false;

  bool gains(std::uint64_t bytes) const {
    return static_cast<double>(stored_bytes) <= packed_ratio_most * static_cast<double>(bytes);
  }
};
// Nothing if no codec packs its type.
Result<std::optional<SampledSize>> sample_size(const Context& context, TensorSource& source, std::uint32_t number,
                                               const TensorToSave& tensor);

struct WriterOptions {
  bool pack = true;
  std::uint32_t threads = 1;
  bool durable = true;
  std::map<std::string, std::string> metadata;  // its keys of this library are replaced
  bool empty_metadata = false;
  bool checksums = true;
  int folder = -1;  // that the file is made in, open; none: where its path leads
  // Fails if a tensor has another XXH3, in hexadecimal digits, than is known of it.
  std::map<std::string, std::string, std::less<>> known_checksums;
  // Of decoded bytes that are done with. An Error ends it.
  std::function<Status(std::uint64_t done)> progress;
};

struct WrittenFile {
  std::uint32_t packed_tensors = 0;
  std::uint64_t stored_bytes = 0;
  Report report;  // of what was written
};
// Replaces the file, or leaves the old one. Of the memory of tensors only the size is used.
Result<WrittenFile> write_packed(const Context& context, const std::string& path, std::span<const TensorToSave> tensors,
                                 TensorSource& source, const WriterOptions& options);

}  // namespace penstock::models
