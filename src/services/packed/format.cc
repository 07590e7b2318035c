#include "services/packed/format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace penstock::packed {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

constexpr std::array<char, 8> tensor_magic = {'P', 'E', 'N', 'S', 'P', 'A', 'C', 'K'};
constexpr std::uint32_t chunk_magic = 0x314B4350;  // "PCK1"
constexpr std::size_t crc_at = 44;

// In the file.
struct StoredTensorHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t codec;
  std::uint32_t kind;
  std::uint32_t chunk_values;
  std::uint64_t values;
  std::uint64_t bytes;
  std::uint32_t chunks;
  std::uint32_t crc;
  std::array<std::uint8_t, 16> zero;
};
static_assert(sizeof(StoredTensorHeader) == header_bytes && offsetof(StoredTensorHeader, crc) == crc_at);

struct StoredChunkHeader {
  std::uint32_t magic;
  std::uint32_t bytes;
  std::uint32_t values;
  std::uint8_t form;
  std::uint8_t code_bits;
  std::uint16_t zero;
  std::uint32_t exceptions;
  std::uint32_t number;
  std::uint64_t checksum;
  std::array<std::uint8_t, dictionary_size> dictionary;
  std::array<std::uint8_t, 16> zeros;
};
static_assert(sizeof(StoredChunkHeader) == header_bytes);

constexpr std::array<std::pair<std::string_view, Kind>, 5> names = {{{"BF16", Kind::bf16},
                                                                     {"F16", Kind::f16},
                                                                     {"F32", Kind::f32},
                                                                     {"F8_E4M3", Kind::f8_e4m3},
                                                                     {"F8_E5M2", Kind::f8_e5m2}}};

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78U : 0);
    table[i] = value;
  }
  return table;
}();

Error wrong(std::string problem) {
  return {Code::invalid_argument, 0, std::move(problem), "the file is damaged: pack the model again"};
}

std::uint32_t crc_of(std::span<const std::byte> bytes, std::uint64_t values) {
  const std::size_t index = (chunks_of(values) + 1) * sizeof(std::uint32_t);
  return crc32c(bytes.subspan(header_bytes, index), crc32c(bytes.first(crc_at)));
}

}  // namespace

std::optional<Kind> kind_from_name(std::string_view dtype) {
  const auto* const found = std::ranges::find(names, dtype, &std::pair<std::string_view, Kind>::first);
  if (found == names.end()) return std::nullopt;
  return found->second;
}

std::string_view kind_name(Kind kind) {
  return std::ranges::find(names, kind, &std::pair<std::string_view, Kind>::second)->first;
}

ChunkSections sections_of(Kind kind, const ChunkHeader& header) {
  const Division division = division_of(kind);
  ChunkSections at;
  if (header.form == Form::raw) {
    at.end = round_up(header_bytes + std::uint64_t{header.values} * division.value_bytes, chunk_alignment);
    return at;
  }
  const std::uint64_t tiles = tiles_of(header.values);
  at.bytes = at.planes + tiles * (header.code_bits + division.raw_planes) * plane_bytes;
  at.low = at.bytes + tiles * tile_values * division.byte_bytes;
  at.bases = at.low + tiles * tile_values * division.low_bytes;
  at.exceptions = at.bases + (header.code_bits == 0 ? 0 : round_up(tiles * sizeof(std::uint16_t), 16));
  at.end = round_up(at.exceptions + header.exceptions, chunk_alignment);
  return at;
}

void write_chunk_header(const ChunkHeader& header, std::span<std::byte, header_bytes> out) {
  const StoredChunkHeader stored{.magic = chunk_magic,
                                 .bytes = header.bytes,
                                 .values = header.values,
                                 .form = static_cast<std::uint8_t>(header.form),
                                 .code_bits = header.code_bits,
                                 .zero = 0,
                                 .exceptions = header.exceptions,
                                 .number = header.number,
                                 .checksum = header.checksum,
                                 .dictionary = header.dictionary,
                                 .zeros = {}};
  std::memcpy(out.data(), &stored, sizeof stored);
}

std::optional<ChunkHeader> read_chunk_header(Kind kind, std::span<const std::byte> chunk,
                                             const ExpectedChunk& expected) {
  StoredChunkHeader stored;
  if (chunk.size() < sizeof stored) return std::nullopt;
  std::memcpy(&stored, chunk.data(), sizeof stored);
  const bool is_known = stored.magic == chunk_magic && stored.bytes == chunk.size() &&
                        stored.values == expected.values && stored.number == expected.number && stored.zero == 0 &&
                        stored.zeros == decltype(stored.zeros){};
  if (!is_known || stored.form > 1 || stored.code_bits > code_bits_most || stored.exceptions > stored.values) {
    return std::nullopt;
  }
  const bool has_codes = stored.form == 1 && stored.code_bits != 0;
  if (!has_codes && (stored.exceptions != 0 || stored.code_bits != 0)) return std::nullopt;
  const ChunkHeader header{.bytes = stored.bytes,
                           .values = stored.values,
                           .form = static_cast<Form>(stored.form),
                           .code_bits = stored.code_bits,
                           .exceptions = stored.exceptions,
                           .number = stored.number,
                           .checksum = stored.checksum,
                           .dictionary = stored.dictionary};
  if (sections_of(kind, header).end != chunk.size()) return std::nullopt;
  return header;
}

std::uint64_t chunks_of(std::uint64_t values) {
  return values / chunk_values + (values % chunk_values != 0 ? 1 : 0);
}

std::uint64_t index_bytes(std::uint64_t values) {
  return round_up(header_bytes + (chunks_of(values) + 1) * sizeof(std::uint32_t), chunk_alignment);
}

std::vector<std::byte> write_index(const TensorIndex& index) {
  std::vector<std::byte> bytes(index_bytes(index.values));
  StoredTensorHeader stored{.magic = tensor_magic,
                            .version = format_version,
                            .codec = planes_codec,
                            .kind = static_cast<std::uint32_t>(index.kind),
                            .chunk_values = chunk_values,
                            .values = index.values,
                            .bytes = index.bytes,
                            .chunks = index.chunks(),
                            .crc = 0,
                            .zero = {}};
  std::memcpy(bytes.data(), &stored, sizeof stored);
  std::memcpy(bytes.data() + header_bytes, index.starts.data(), index.starts.size() * sizeof(std::uint32_t));
  stored.crc = crc_of(bytes, index.values);
  std::memcpy(bytes.data() + crc_at, &stored.crc, sizeof stored.crc);
  return bytes;
}

Result<TensorIndex> read_index(std::span<const std::byte> bytes, const ExpectedTensor& expected) {
  StoredTensorHeader stored;
  const std::uint64_t first = index_bytes(expected.values);
  if (expected.values == 0 || bytes.size() < first) return wrong("its index is cut off");
  std::memcpy(&stored, bytes.data(), sizeof stored);
  if (stored.magic != tensor_magic) return wrong("it does not begin as packed tensors do");
  if (stored.version != format_version || stored.codec != planes_codec) {
    return Error{Code::unsupported, 0,
                 "it is packed in version " + std::to_string(stored.version) + " with codec " +
                     std::to_string(stored.codec) + ", and this library knows version 1 with codec 1",
                 "use a newer Penstock, or pack the model again with this one"};
  }
  if (stored.crc != crc_of(bytes, expected.values)) return wrong("the checksum of its index is wrong");
  const bool agrees = stored.kind == static_cast<std::uint32_t>(expected.kind) && stored.chunk_values == chunk_values &&
                      stored.values == expected.values && stored.bytes == expected.bytes &&
                      stored.chunks == chunks_of(expected.values);
  if (!agrees) return wrong("its header disagrees with the metadata of the file");
  TensorIndex index{.kind = expected.kind, .values = stored.values, .bytes = stored.bytes, .starts = {}};
  index.starts.resize(std::size_t{stored.chunks} + 1);
  std::memcpy(index.starts.data(), bytes.data() + header_bytes, index.starts.size() * sizeof(std::uint32_t));
  const std::uint64_t longest = raw_chunk_bytes(division_of(expected.kind).value_bytes);
  for (std::uint32_t chunk = 0; chunk < stored.chunks; ++chunk) {
    if (index.starts[chunk] >= index.starts[chunk + 1] || index.offset(chunk + 1) - index.offset(chunk) > longest) {
      return wrong("chunk " + std::to_string(chunk) + " of its index has an impossible length");
    }
  }
  if (index.offset(0) != first || index.offset(stored.chunks) > stored.bytes) {
    return wrong("the chunks of its index don't lie within it");
  }
  return index;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

}  // namespace penstock::packed
