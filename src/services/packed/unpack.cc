#include "services/packed/unpack.h"

#include <algorithm>

namespace penstock::packed {

// The GPU's numbers are ours.
static_assert(static_cast<int>(Kind::bf16) == static_cast<int>(PackedType::bf16) &&
              static_cast<int>(Kind::f16) == static_cast<int>(PackedType::f16) &&
              static_cast<int>(Kind::f32) == static_cast<int>(PackedType::f32) &&
              static_cast<int>(Kind::f8_e4m3) == static_cast<int>(PackedType::f8_e4m3) &&
              static_cast<int>(Kind::f8_e5m2) == static_cast<int>(PackedType::f8_e5m2));
static_assert(static_cast<int>(Fault::header) == static_cast<int>(UnpackReason::lying_header) &&
              static_cast<int>(Fault::exceptions) == static_cast<int>(UnpackReason::too_few_exceptions) &&
              static_cast<int>(Fault::checksum) == static_cast<int>(UnpackReason::checksum));
static_assert(run_chunks_most == UnpackRun::chunks_most && chunk_values == UnpackRun::chunk_values &&
              chunk_alignment == UnpackRun::chunk_unit_bytes);

std::vector<ChunkRun> Unpack::runs(std::uint64_t begin, std::uint64_t bytes, const RunLimits& limits) const {
  std::vector<ChunkRun> runs;
  while (bytes != 0) {
    const auto first = static_cast<std::uint32_t>(begin / chunk_bytes());
    ChunkRun run{.first = first, .count = 0, .skip = begin % chunk_bytes(), .bytes = 0, .offset = index_.offset(first)};
    while (run.bytes < bytes && run.count < run_chunks_most) {
      const std::uint64_t stored = index_.offset(first + run.count + 1) - run.offset;
      const std::uint64_t decoded = std::min(bytes, (run.count + 1) * chunk_bytes() - run.skip);
      if (run.count != 0 && (stored > limits.stored_bytes || decoded > limits.bytes)) break;
      run.stored_bytes = stored;
      run.bytes = decoded;
      ++run.count;
    }
    runs.push_back(run);
    begin += run.bytes;
    bytes -= run.bytes;
  }
  return runs;
}

Result<ChunkRun> Unpack::run_of(const Piece& piece) const {
  const std::uint64_t all = index_.values * division_of(index_.kind).value_bytes;
  const std::uint64_t bytes = piece.memory.size();
  if (bytes == 0 || piece.tag > all || bytes > all - piece.tag) {
    return Error{Code::internal, 0, "a piece of tensor \"" + name_ + "\" lies outside of it", ""};
  }
  const auto first = static_cast<std::uint32_t>(piece.tag / chunk_bytes());
  const auto last = static_cast<std::uint32_t>((piece.tag + bytes - 1) / chunk_bytes());
  ChunkRun run{.first = first,
               .count = last - first + 1,
               .skip = piece.tag % chunk_bytes(),
               .bytes = bytes,
               .offset = index_.offset(first),
               .stored_bytes = index_.offset(last + 1) - index_.offset(first)};
  if (run.stored_bytes != piece.stored.size()) {
    return Error{Code::internal, 0, "a piece of tensor \"" + name_ + "\" has the bytes of other chunks", ""};
  }
  return run;
}

Status Unpack::by_cpu(const Piece& piece) const {
  constexpr std::size_t much_bytes = 1 << 20;
  const Result<ChunkRun> run = run_of(piece);
  if (!run) return run.error();
  const Kernels& kernels = best_kernels();
  std::uint64_t done = 0;
  for (std::uint32_t i = 0; i < run->count; ++i) {
    const std::uint32_t chunk = run->first + i;
    const std::uint64_t begin = index_.offset(chunk) - run->offset;
    const auto stored = piece.stored.subspan(begin, index_.offset(chunk + 1) - index_.offset(chunk));
    const std::uint64_t skip = i == 0 ? run->skip : 0;
    const std::uint64_t there = std::uint64_t{index_.values_of(chunk)} * division_of(index_.kind).value_bytes - skip;
    const std::uint64_t bytes = std::min<std::uint64_t>(there, run->bytes - done);
    const Fault fault = decode_chunk(kernels, index_.kind, stored, {.number = chunk, .values = index_.values_of(chunk)},
                                     {.skip = skip,
                                      .memory = piece.memory.subspan(done, bytes),
                                      .is_part_of_much = piece.memory.size() >= much_bytes});
    if (fault != Fault::none) return damaged(chunk, fault);
    done += bytes;
  }
  return {};
}

bool Unpack::is_for(const Gpu& gpu) const {
  return can_unpack(gpu.domain);
}

Status Unpack::by_gpu(const Piece& piece, const OnGpu& gpu) const {
  const Result<ChunkRun> run = run_of(piece);
  if (!run) return run.error();
  if (run->count > UnpackRun::chunks_most) {
    return Error{Code::internal, 0, "a piece of tensor \"" + name_ + "\" has too many chunks", ""};
  }
  UnpackRun on_gpu;
  on_gpu.stored = reinterpret_cast<std::uint64_t>(piece.stored.data());
  on_gpu.memory = reinterpret_cast<std::uint64_t>(piece.memory.data());
  on_gpu.memory_bytes = piece.memory.size();
  on_gpu.skip_bytes = run->skip;
  on_gpu.status = reinterpret_cast<std::uint64_t>(gpu.status);
  on_gpu.type = static_cast<PackedType>(index_.kind);
  on_gpu.first_chunk = run->first;
  on_gpu.count = run->count;
  on_gpu.last_values = index_.values_of(run->first + run->count - 1);
  for (std::uint32_t i = 0; i <= run->count; ++i) {
    on_gpu.starts[i] = index_.starts[run->first + i] - index_.starts[run->first];
  }
  return launch_unpack(gpu.gpu, gpu.stream, on_gpu);
}

Error Unpack::failure_of(std::uint64_t tag, std::uint32_t status) const {
  const std::uint64_t chunk = tag / chunk_bytes() + unpack_chunk(status);
  const UnpackReason reason = unpack_reason(status);
  if (chunk >= index_.chunks() || reason < UnpackReason::lying_header || reason > UnpackReason::checksum) {
    return Transform::failure_of(tag, status);
  }
  return damaged(static_cast<std::uint32_t>(chunk), static_cast<Fault>(reason));
}

Error Unpack::damaged(std::uint32_t chunk, Fault fault) const {
  return {Code::io_error, 0,
          "tensor \"" + name_ + "\": chunk " + std::to_string(chunk) + " of " + std::to_string(index_.chunks()) +
              ", at byte " + std::to_string(place_ + index_.offset(chunk)) +
              " of its file: " + std::string(fault_text(fault)),
          "the file is damaged: pack the model again, or fetch it again"};
}

}  // namespace penstock::packed
