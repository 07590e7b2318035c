// Unpack: a packed tensor as a Transform. A range of a request reads a run of whole chunks and wants any part of their
// decoded bytes; its tag is where those begin in the decoded tensor, which says which chunks they are.
//
// Thread safety: immutable. Lifetime: shared by the requests that use it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/transform.h"
#include "services/packed/codec.h"
#include "services/packed/format.h"

namespace penstock::packed {

// Neighbouring chunks, and what is wanted of their decoded bytes.
struct ChunkRun {
  std::uint32_t first = 0;  // chunk
  std::uint32_t count = 0;
  std::uint64_t skip = 0;    // decoded bytes of the first chunk that are not wanted
  std::uint64_t bytes = 0;   // wanted
  std::uint64_t offset = 0;  // of the first chunk in the packed tensor
  std::uint64_t stored_bytes = 0;
};
struct RunLimits {
  std::uint64_t stored_bytes = 1 << 20;
  std::uint64_t bytes = UINT64_MAX;  // decoded
};

class Unpack final : public Transform {
 public:
  // `place`: of the tensor in its file.
  Unpack(std::string name, TensorIndex index, std::uint64_t place)
      : name_(std::move(name)), index_(std::move(index)), place_(place) {}

  const TensorIndex& index() const { return index_; }
  std::uint64_t place() const { return place_; }
  std::uint64_t chunk_bytes() const { return std::uint64_t{chunk_values} * division_of(index_.kind).value_bytes; }

  // Cuts [begin, begin + bytes) of the decoded tensor into runs, each of at least one chunk, even if that exceeds the
  // limits. REQUIRES: it lies within the tensor.
  std::vector<ChunkRun> runs(std::uint64_t begin, std::uint64_t bytes, const RunLimits& limits) const;
  // The run of a piece. Fails where the stored bytes are not those of its chunks.
  Result<ChunkRun> run_of(const Piece& piece) const;
  Status by_cpu(const Piece& piece) const override;
  bool is_for(const Gpu& gpu) const override;
  Status by_gpu(const Piece& piece, const OnGpu& gpu) const override;
  Error failure_of(std::uint64_t tag, std::uint32_t status) const override;

 private:
  Error damaged(std::uint32_t chunk, Fault fault) const;

  std::string name_;
  TensorIndex index_;
  std::uint64_t place_;
};

}  // namespace penstock::packed
