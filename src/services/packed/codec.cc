#include "services/packed/codec.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

namespace penstock::packed {
namespace {

// One of so many tells what a chunk is like; counting takes as long as all else together.
constexpr std::size_t sampled_tiles = 8;

using Counts = std::array<std::uint32_t, 256>;

// A tile, as it goes to the sections of a chunk. The loops are as simple as compilers need them to use vectors.
struct Divided {
  alignas(64) std::uint8_t symbols[tile_values];
  alignas(64) std::uint8_t raw[tile_values];  // the bits of raw planes, from bit 0 on
  alignas(64) std::uint8_t bytes[tile_values];
  alignas(64) std::uint8_t low[tile_values * 2];
};

template <typename Value>
void load_values(std::span<const std::byte> bytes, Value (&values)[tile_values]) {
  if (bytes.size() < sizeof values) std::memset(values, 0, sizeof values);
  std::memcpy(values, bytes.data(), bytes.size());
}

void divide(Kind kind, std::span<const std::byte> tile, Divided& out) {
  if (kind == Kind::bf16) {
    std::uint16_t v[tile_values];
    load_values(tile, v);
    for (std::size_t i = 0; i < tile_values; ++i) out.symbols[i] = static_cast<std::uint8_t>(v[i] >> 7);
    for (std::size_t i = 0; i < tile_values; ++i) {
      out.bytes[i] = static_cast<std::uint8_t>((v[i] & 0x7f) | (v[i] >> 8 & 0x80));
    }
  } else if (kind == Kind::f32) {
    std::uint32_t v[tile_values];
    load_values(tile, v);
    for (std::size_t i = 0; i < tile_values; ++i) out.symbols[i] = static_cast<std::uint8_t>(v[i] >> 23);
    for (std::size_t i = 0; i < tile_values; ++i) {
      out.bytes[i] = static_cast<std::uint8_t>((v[i] >> 16 & 0x7f) | (v[i] >> 24 & 0x80));
    }
    for (std::size_t i = 0; i < tile_values; ++i) {
      const auto half = static_cast<std::uint16_t>(v[i]);
      std::memcpy(out.low + 2 * i, &half, sizeof half);
    }
  } else if (kind == Kind::f16) {
    std::uint16_t v[tile_values];
    load_values(tile, v);
    for (std::size_t i = 0; i < tile_values; ++i) out.symbols[i] = static_cast<std::uint8_t>(v[i] >> 10 & 0x1f);
    for (std::size_t i = 0; i < tile_values; ++i) {
      out.raw[i] = static_cast<std::uint8_t>((v[i] >> 8 & 3) | (v[i] >> 13 & 4));
    }
    for (std::size_t i = 0; i < tile_values; ++i) out.low[i] = static_cast<std::uint8_t>(v[i]);
  } else {
    std::uint8_t v[tile_values];
    load_values(tile, v);
    const int mantissa = kind == Kind::f8_e4m3 ? 3 : 2;
    const int exponent_mask = kind == Kind::f8_e4m3 ? 0xf : 0x1f;
    const int mantissa_mask = (1 << mantissa) - 1;
    for (std::size_t i = 0; i < tile_values; ++i) {
      out.symbols[i] = static_cast<std::uint8_t>(v[i] >> mantissa & exponent_mask);
      out.raw[i] = static_cast<std::uint8_t>((v[i] & mantissa_mask) | v[i] >> 7 << mantissa);
    }
  }
}

std::size_t tile_length(std::size_t left, std::size_t value_bytes) {
  return std::min(left, tile_values * value_bytes);
}

// How often each symbol is in every n-th tile. Four counters each: one after the other would wait for itself.
Counts count_symbols(Kind kind, std::span<const std::byte> values, std::size_t every) {
  const std::size_t value_bytes = division_of(kind).value_bytes;
  const std::size_t step = every * tile_values * value_bytes;
  std::array<Counts, 4> counts{};
  Divided divided;
  for (std::size_t begin = 0; begin < values.size(); begin += step) {
    const std::size_t length = tile_length(values.size() - begin, value_bytes);
    divide(kind, values.subspan(begin, length), divided);
    const std::size_t count = length / value_bytes;
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) {
      for (std::size_t j = 0; j < 4; ++j) ++counts[j][divided.symbols[i + j]];
    }
    for (; i < count; ++i) ++counts[0][divided.symbols[i]];
  }
  for (std::size_t symbol = 0; symbol < 256; ++symbol) {
    for (std::size_t j = 1; j < 4; ++j) counts[0][symbol] += counts[j][symbol];
  }
  return counts[0];
}

// What makes the shortest chunk, as far as the counted values tell: the width of codes and the dictionary.
ChunkHeader choose(Kind kind, std::uint32_t values, const Counts& counts) {
  const std::uint64_t counted = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  std::array<std::uint8_t, 256> symbols;
  std::iota(symbols.begin(), symbols.end(), std::uint8_t{0});
  std::ranges::stable_sort(symbols, [&](std::uint8_t a, std::uint8_t b) { return counts[a] > counts[b]; });
  ChunkHeader best{.values = values};
  best.bytes = static_cast<std::uint32_t>(sections_of(kind, best).end);
  for (std::uint8_t code_bits = 0; code_bits <= code_bits_most; ++code_bits) {
    ChunkHeader header{.values = values, .form = Form::planes, .code_bits = code_bits};
    const std::size_t known = code_bits == 0 ? 1 : (1U << code_bits) - 1;
    std::uint64_t others = counted;
    for (std::size_t code = 0; code < known; ++code) {
      others -= counts[symbols[code]];
      if (counts[symbols[code]] != 0) header.dictionary[code] = symbols[code];
    }
    if (code_bits == 0 && others != 0) continue;
    header.exceptions = static_cast<std::uint32_t>((others * values + counted - 1) / counted);
    header.bytes = static_cast<std::uint32_t>(sections_of(kind, header).end);
    if (header.bytes < best.bytes) best = header;
  }
  return best;
}

// Sums a tile of which there are `length` bytes: what is missing counts as zeros.
std::uint64_t sum_of(const Kernels& kernels, std::span<const std::byte> tile, std::size_t tile_bytes) {
  if (tile.size() == tile_bytes) return kernels.sum(tile.data(), tile_bytes);
  std::byte whole[tile_values * sizeof(std::uint32_t)] = {};
  std::memcpy(whole, tile.data(), tile.size());
  return kernels.sum(whole, tile_bytes);
}

// How many exceptions there were; nothing if there are more than the header says, or a symbol that no code stands for.
std::optional<std::uint32_t> encode_planes(const Kernels& kernels, Kind kind, std::span<const std::byte> values,
                                           const ChunkHeader& header, std::byte* chunk) {
  const Division division = division_of(kind);
  const ChunkSections at = sections_of(kind, header);
  auto* const out = reinterpret_cast<std::uint8_t*>(chunk);
  const std::uint32_t planes = header.code_bits + division.raw_planes;
  Divided divided;
  std::uint8_t codes[tile_values] = {};
  std::uint8_t exceptions[tile_values];
  std::uint32_t count = 0;
  for (std::size_t tile = 0; !values.empty(); ++tile) {
    const std::size_t length = tile_length(values.size(), division.value_bytes);
    divide(kind, values.first(length), divided);
    values = values.subspan(length);
    const std::size_t there = length / division.value_bytes;
    // What is not there is no exception.
    std::fill(divided.symbols + there, std::end(divided.symbols), header.dictionary[0]);
    if (header.code_bits != 0) {
      const auto base = static_cast<std::uint16_t>(count);
      std::memcpy(out + at.bases + tile * sizeof base, &base, sizeof base);
      const std::uint32_t more =
          kernels.encode(divided.symbols, header.dictionary.data(), header.code_bits, codes, exceptions);
      if (more > header.exceptions - count) return std::nullopt;
      std::memcpy(out + at.exceptions + count, exceptions, more);
      count += more;
    } else if (std::ranges::any_of(divided.symbols, [&](auto symbol) { return symbol != header.dictionary[0]; })) {
      return std::nullopt;
    }
    if (division.raw_planes != 0) {
      for (std::size_t i = 0; i < tile_values; ++i) {
        const int code = header.code_bits == 0 ? 0 : codes[i];
        divided.raw[i] = static_cast<std::uint8_t>(code | divided.raw[i] << header.code_bits);
      }
    }
    kernels.to_planes(division.raw_planes != 0 ? divided.raw : codes, planes,
                      out + at.planes + tile * planes * plane_bytes);
    std::memcpy(out + at.bytes + tile * tile_values * division.byte_bytes, divided.bytes,
                std::size_t{tile_values} * division.byte_bytes);
    std::memcpy(out + at.low + tile * tile_values * division.low_bytes, divided.low,
                std::size_t{tile_values} * division.low_bytes);
  }
  return count;
}

// Appends a chunk, by what every n-th tile tells. False: that is not true of all of them.
bool encode_by_sample(const Kernels& kernels, Kind kind, std::span<const std::byte> values, std::size_t every,
                      ChunkHeader& header, std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  header = choose(kind, header.values, count_symbols(kind, values, every));
  if (header.form == Form::raw) {
    if (every != 1) return false;
    out.resize(begin + header.bytes);
    std::memcpy(out.data() + begin + header_bytes, values.data(), values.size());
    return true;
  }
  // A sample is never quite right.
  if (every != 1 && header.code_bits != 0) header.exceptions += header.exceptions / 8 + header.values / 256;
  out.resize(begin + sections_of(kind, header).end);
  const auto exceptions = encode_planes(kernels, kind, values, header, out.data() + begin);
  if (!exceptions) {
    out.resize(begin);
    return false;
  }
  header.exceptions = *exceptions;
  header.bytes = static_cast<std::uint32_t>(sections_of(kind, header).end);
  const bool is_shorter = header.bytes < sections_of(kind, {.values = header.values}).end;
  out.resize(is_shorter ? begin + header.bytes : begin);
  return is_shorter;
}

// Gives the wanted part of a chunk tile by tile.
class Output {
 public:
  explicit Output(const WantedBytes& wanted) : skip_(wanted.skip), memory_(wanted.memory) {}

  // Where a tile that is wanted as a whole may be decoded to; else null.
  std::byte* whole_tile(std::uint64_t begin, std::size_t bytes) const {
    const bool is_inside = begin >= skip_ && begin - skip_ + bytes <= memory_.size();
    return is_inside ? memory_.data() + (begin - skip_) : nullptr;
  }
  // Takes what is wanted of bytes that begin there.
  void take(std::uint64_t begin, std::span<const std::byte> bytes) const {
    const std::uint64_t from = std::max(begin, skip_);
    const std::uint64_t to = std::min(begin + bytes.size(), skip_ + memory_.size());
    if (from < to) std::memcpy(memory_.data() + (from - skip_), bytes.data() + (from - begin), to - from);
  }

 private:
  std::uint64_t skip_;
  std::span<std::byte> memory_;
};

}  // namespace

void encode_chunk(const Kernels& kernels, Kind kind, std::uint32_t number, std::span<const std::byte> values,
                  std::vector<std::byte>& out) {
  const auto count = static_cast<std::uint32_t>(values.size() / division_of(kind).value_bytes);
  const std::size_t begin = out.size();
  ChunkHeader header{.values = count};
  if (!encode_by_sample(kernels, kind, values, sampled_tiles, header, out)) {
    encode_by_sample(kernels, kind, values, 1, header, out);
  }
  header.number = number;
  header.checksum = checksum_of(kernels, kind, values);
  write_chunk_header(header, std::span<std::byte, header_bytes>(out.data() + begin, header_bytes));
}

std::string_view fault_text(Fault fault) {
  switch (fault) {
    case Fault::header:
      return "its header is wrong";
    case Fault::exceptions:
      return "it has fewer exceptions than it needs";
    case Fault::checksum:
      return "its checksum is wrong";
    case Fault::none:
      break;
  }
  return "it is right";
}

Fault decode_chunk(const Kernels& kernels, Kind kind, std::span<const std::byte> chunk, const ExpectedChunk& expected,
                   const WantedBytes& wanted) {
  const std::optional<ChunkHeader> header = read_chunk_header(kind, chunk, expected);
  if (!header) return Fault::header;
  const Division division = division_of(kind);
  const ChunkSections at = sections_of(kind, *header);
  const auto* const in = reinterpret_cast<const std::uint8_t*>(chunk.data());
  const std::size_t tile_bytes = std::size_t{tile_values} * division.value_bytes;
  const std::size_t all = std::size_t{header->values} * division.value_bytes;
  const std::uint32_t planes = header->code_bits + division.raw_planes;
  const Output output(wanted);
  alignas(64) std::byte scratch[tile_values * sizeof(std::uint32_t)];
  std::uint64_t checksum = 0;
  for (std::uint32_t tile = 0; tile < tiles_of(header->values); ++tile) {
    const std::uint64_t begin = tile * tile_bytes;
    const std::size_t length = std::min(tile_bytes, all - begin);
    if (header->form == Form::raw) {
      const auto bytes = chunk.subspan(header_bytes + begin, length);
      checksum += mixed(sum_of(kernels, bytes, tile_bytes), tile);
      output.take(begin, bytes);
      continue;
    }
    StoredTile stored{.planes = in + at.planes + std::size_t{tile} * planes * plane_bytes,
                      .bytes = in + at.bytes + std::size_t{tile} * tile_values * division.byte_bytes,
                      .low = in + at.low + std::size_t{tile} * tile_values * division.low_bytes,
                      .dictionary = header->dictionary.data(),
                      .exceptions = in + at.exceptions,
                      .code_bits = header->code_bits};
    if (header->code_bits != 0) {
      std::uint16_t base = 0;
      std::memcpy(&base, in + at.bases + tile * sizeof base, sizeof base);
      if (base > header->exceptions) return Fault::exceptions;
      stored.exceptions += base;
      stored.exceptions_left = header->exceptions - base;
    }
    std::byte* const straight = length == tile_bytes ? output.whole_tile(begin, tile_bytes) : nullptr;
    const bool past_caches =
        wanted.is_part_of_much && straight != nullptr && reinterpret_cast<std::uintptr_t>(straight) % 32 == 0;
    std::byte* const to = straight != nullptr && !past_caches ? straight : scratch;
    if (!kernels.decode(kind, stored, to)) return Fault::exceptions;
    checksum += mixed(sum_of(kernels, {to, length}, tile_bytes), tile);
    if (past_caches) kernels.copy_past_caches(straight, scratch, tile_bytes);
    if (straight == nullptr) output.take(begin, {scratch, length});
  }
  if (wanted.is_part_of_much) kernels.settle();
  return checksum == header->checksum ? Fault::none : Fault::checksum;
}

std::uint64_t checksum_of(const Kernels& kernels, Kind kind, std::span<const std::byte> values) {
  const std::size_t tile_bytes = std::size_t{tile_values} * division_of(kind).value_bytes;
  std::uint64_t checksum = 0;
  for (std::uint32_t tile = 0; !values.empty(); ++tile) {
    const std::size_t length = std::min(tile_bytes, values.size());
    checksum += mixed(sum_of(kernels, values.first(length), tile_bytes), tile);
    values = values.subspan(length);
  }
  return checksum;
}

}  // namespace penstock::packed
