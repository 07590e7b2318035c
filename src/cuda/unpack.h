// Decoding of packed chunks by warps: docs/packed.md has the format.
//
// One source for the GPU and for the CPU of tests: what differs is the Warp (gpu_warp.cuh, and one in the fake driver
// that holds 32 lanes in arrays). A Word is 32 bits of each lane, a Long 64, a Flag one; numbers of plain types are the
// same in all lanes, and so is every branch.
//
// A warp takes tiles of 1024 values. In each plane a lane's word has, at bit 4 t + k, the value 256 k + 8 lane + t. So
// one shift and one mask per plane give the codes of eight neighbouring values as nibbles, which are selectors of a
// byte permutation; rows of 256 values are stored 16 bytes a lane, side by side.
//
// Nothing in a chunk is trusted: its header must fit what the run says of it, which fixes where every section lies;
// exceptions are looked up within their list only; and what is written depends on the run alone.
#pragma once

#include <cstdint>

#include "penstock/unpack.h"

#if defined(__CUDACC__)
#define PENSTOCK_ANYWHERE __host__ __device__
#define PENSTOCK_UNROLL _Pragma("unroll")
#else
#define PENSTOCK_ANYWHERE
#define PENSTOCK_UNROLL
#endif

namespace penstock::cuda {

inline constexpr std::uint32_t lane_count = 32;
inline constexpr std::uint32_t tile_values = 1024;
inline constexpr std::uint32_t plane_bytes = tile_values / 8;
inline constexpr std::uint32_t row_count = 4;  // of a tile
inline constexpr std::uint32_t row_values = tile_values / row_count;
inline constexpr std::uint32_t nibbles = 0x11111111;  // the lowest bit of each

struct alignas(16) ChunkHeader {
  static constexpr std::uint32_t right_magic = 0x314b4350;
  static constexpr std::uint8_t raw = 0;
  static constexpr std::uint8_t planes = 1;
  static constexpr std::uint8_t code_bits_most = 4;

  std::uint32_t magic;
  std::uint32_t bytes;
  std::uint32_t values;
  std::uint8_t form;
  std::uint8_t code_bits;
  std::uint16_t zero;
  std::uint32_t exceptions;
  std::uint32_t number;
  std::uint64_t checksum;
  std::uint32_t dictionary[4];
  std::uint32_t zeros[4];
};
static_assert(sizeof(ChunkHeader) == 64);

// How the values of a type are taken apart: a symbol, raw bit planes, and sections of whole bytes.
struct OfBf16 {
  static constexpr std::uint32_t value_bytes = 2;
  static constexpr int raw_planes = 0;
  static constexpr bool has_bytes = true;
  static constexpr std::uint32_t low_bytes = 0;
};
struct OfF32 {
  static constexpr std::uint32_t value_bytes = 4;
  static constexpr int raw_planes = 0;
  static constexpr bool has_bytes = true;
  static constexpr std::uint32_t low_bytes = 2;
};
struct OfF16 {
  static constexpr std::uint32_t value_bytes = 2;
  static constexpr int raw_planes = 3;
  static constexpr bool has_bytes = false;
  static constexpr std::uint32_t low_bytes = 1;
};
struct OfE4m3 {
  static constexpr std::uint32_t value_bytes = 1;
  static constexpr int raw_planes = 4;
  static constexpr bool has_bytes = false;
  static constexpr std::uint32_t low_bytes = 0;
};
struct OfE5m2 {
  static constexpr std::uint32_t value_bytes = 1;
  static constexpr int raw_planes = 3;
  static constexpr bool has_bytes = false;
  static constexpr std::uint32_t low_bytes = 0;
};

// The checksum's keys, for the words of a tile of the longest values.
struct ChecksumKeys {
  static constexpr std::uint32_t count = tile_values;
  alignas(16) std::uint32_t word[count];

  static constexpr std::uint32_t key(std::uint32_t place) {
    std::uint32_t z = (place + 1) * 0x9e3779b9U;
    z = (z ^ z >> 16) * 0x85ebca6bU;
    z = (z ^ z >> 13) * 0xc2b2ae35U;
    return z ^ z >> 16;
  }
  static constexpr ChecksumKeys make() {
    ChecksumKeys keys{};
    for (std::uint32_t i = 0; i < count; ++i) keys.word[i] = key(i);
    return keys;
  }
};

PENSTOCK_ANYWHERE inline std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

// What one warp found of its tiles of a chunk.
struct TilesFound {
  std::uint64_t checksum = 0;  // to be added up
  std::uint32_t reason = 0;    // of UnpackReason
};

// Where a run's chunk is, and what its header has to say.
struct ChunkPlace {
  const std::uint8_t* start;
  std::uint32_t bytes;
  std::uint32_t values;
  std::uint32_t number;
  std::uint64_t position;  // of its first value, in the run's decoded bytes
};

PENSTOCK_ANYWHERE inline ChunkPlace place_of(const UnpackRun& run, std::uint32_t chunk, std::uint32_t value_bytes) {
  const auto* const stored = reinterpret_cast<const std::uint8_t*>(run.stored);
  return {stored + std::uint64_t{run.starts[chunk]} * UnpackRun::chunk_unit_bytes,
          (run.starts[chunk + 1] - run.starts[chunk]) * UnpackRun::chunk_unit_bytes,
          chunk + 1 == run.count ? run.last_values : UnpackRun::chunk_values, run.first_chunk + chunk,
          std::uint64_t{chunk} * UnpackRun::chunk_values * value_bytes};
}

template <typename Warp, typename Kind>
class ChunkUnpacker {
 public:
  using Word = typename Warp::Word;
  using Long = typename Warp::Long;
  using Flag = typename Warp::Flag;
  static constexpr std::uint32_t tile_bytes = tile_values * Kind::value_bytes;
  static constexpr std::uint32_t row_bytes = row_values * Kind::value_bytes;
  static constexpr std::uint32_t lane_bytes = 8 * Kind::value_bytes;  // of a row
  static constexpr int lane_words = lane_bytes / 4;
  struct Row {
    Word word[lane_words];
  };

  PENSTOCK_ANYWHERE ChunkUnpacker(const UnpackRun& run, std::uint32_t chunk)
      : run_(run), place_(place_of(run, chunk, Kind::value_bytes)), header_(Warp::header(place_.start)) {}

  // The tiles first, first + step, … of the chunk.
  PENSTOCK_ANYWHERE TilesFound unpack(std::uint32_t first, std::uint32_t step) {
    TilesFound found;
    if (!header_fits()) {
      found.reason = static_cast<std::uint32_t>(UnpackReason::lying_header);
      return found;
    }
    for (std::uint32_t tile = first; tile < tiles_; tile += step) {
      const std::uint64_t sum = header_.form == ChunkHeader::raw ? raw_tile(tile) : planes_tile(tile);
      found.checksum += mixed(sum + (tile + 1) * 0x9e3779b97f4a7c15U);
    }
    if (Warp::any(past_the_list_)) found.reason = static_cast<std::uint32_t>(UnpackReason::too_few_exceptions);
    return found;
  }

 private:
  PENSTOCK_ANYWHERE bool header_fits() {
    tiles_ = (place_.values + tile_values - 1) / tile_values;
    planes_ = header_.code_bits + Kind::raw_planes;
    // Each section ends where the next begins. Only the exceptions could make that overflow: they are limited below.
    std::uint32_t end = sizeof(ChunkHeader);
    if (header_.form == ChunkHeader::raw) {
      end += place_.values * Kind::value_bytes;
    } else {
      end += tiles_ * planes_ * plane_bytes;
      bytes_at_ = end;
      if (Kind::has_bytes) end += tiles_ * tile_values;
      low_at_ = end;
      end += tiles_ * tile_values * Kind::low_bytes;
      bases_at_ = end;
      if (header_.code_bits != 0) end += rounded(2 * tiles_, 16);
      exceptions_at_ = end;
      end += header_.exceptions;
    }
    const bool has_codes = header_.form == ChunkHeader::planes && header_.code_bits != 0;
    return header_.magic == ChunkHeader::right_magic && header_.values == place_.values &&
           header_.number == place_.number && header_.zero == 0 &&
           (header_.zeros[0] | header_.zeros[1] | header_.zeros[2] | header_.zeros[3]) == 0 &&
           header_.form <= ChunkHeader::planes &&
           header_.code_bits <= (header_.form == ChunkHeader::raw ? 0 : ChunkHeader::code_bits_most) &&
           header_.exceptions <= (has_codes ? place_.values : 0) && header_.bytes == place_.bytes &&
           rounded(end, UnpackRun::chunk_unit_bytes) == place_.bytes;
  }
  PENSTOCK_ANYWHERE static std::uint32_t rounded(std::uint32_t bytes, std::uint32_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }

  PENSTOCK_ANYWHERE static Word place_in_tile(std::uint32_t row) { return Warp::lane() * lane_bytes + row * row_bytes; }

  PENSTOCK_ANYWHERE std::uint64_t raw_tile(std::uint32_t tile) {
    const std::uint8_t* const from = place_.start + sizeof(ChunkHeader) + tile * tile_bytes;
    const Window window = window_of(tile);
    Long sum{};
    PENSTOCK_UNROLL
    for (std::uint32_t k = 0; k < row_count; ++k) {
      Row row;
      // Sections end at multiples of 64, so a lane's bytes are there if the first of them is.
      Warp::template load_if<lane_words>(place_in_tile(k) < Word(window.bytes), from, place_in_tile(k), row.word);
      finish(window, k, row, sum);
    }
    return Warp::sum(sum);
  }

  PENSTOCK_ANYWHERE std::uint64_t planes_tile(std::uint32_t tile) {
    const std::uint8_t* const planes = place_.start + sizeof(ChunkHeader) + tile * planes_ * plane_bytes;
    Word code[ChunkHeader::code_bits_most];
    Word raw[Kind::raw_planes + 1];
    PENSTOCK_UNROLL
    for (std::uint32_t i = 0; i < ChunkHeader::code_bits_most; ++i) {
      code[i] = Word(0);
      if (i < header_.code_bits) code[i] = Warp::load(planes + i * plane_bytes, Warp::lane() * 4);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < Kind::raw_planes; ++i) {
      raw[i] = Warp::load(planes + (header_.code_bits + i) * plane_bytes, Warp::lane() * 4);
    }
    Word bytes[row_count][2];
    PENSTOCK_UNROLL
    for (std::uint32_t k = 0; k < row_count; ++k) {
      if (!Kind::has_bytes) break;
      Warp::template load<2>(place_.start + bytes_at_ + tile * tile_values + k * row_values, Warp::lane() * 8,
                             bytes[k]);
    }
    const Exceptions exceptions = exceptions_of(tile, code);
    const Window window = window_of(tile);
    Long sum{};
    PENSTOCK_UNROLL
    for (std::uint32_t k = 0; k < row_count; ++k) {
      Word symbols[2];
      decode(code, k, symbols);
      if (exceptions.are_any) insert(exceptions, k, symbols);
      Row row;
      join(tile, k, symbols, raw, bytes[k], row);
      finish(window, k, row, sum);
    }
    return Warp::sum(sum);
  }

  // Which values of a tile are exceptions, and how many there are before each lane's in each row.
  struct Exceptions {
    bool are_any = false;
    Word which{};                       // at the bits of the planes
    Word before{};                      // in lanes before this one: a byte a row
    std::uint32_t row[row_count] = {};  // of the chunk, before each row
  };
  PENSTOCK_ANYWHERE Exceptions exceptions_of(std::uint32_t tile, const Word* code) {
    Exceptions found;
    if (header_.code_bits == 0) return found;
    std::uint32_t count = Warp::load_16(place_.start + bases_at_ + 2 * tile);
    if (count > header_.exceptions) past_the_list_ = Flag(true);
    found.which = ~Word(0);
    PENSTOCK_UNROLL
    for (std::uint32_t i = 0; i < ChunkHeader::code_bits_most; ++i) {
      if (i < header_.code_bits) found.which = found.which & code[i];
    }
    found.are_any = Warp::any(found.which != Word(0));
    if (!found.are_any) return found;
    Word own{};
    PENSTOCK_UNROLL
    for (std::uint32_t k = 0; k < row_count; ++k) {
      own = own | Warp::ones(found.which >> k & Word(nibbles)) << 8 * k;
    }
    // Before a lane there are at most 31 times 8 of a row, which a byte holds.
    found.before = Warp::sum_before(own);
    const std::uint32_t last_own = Warp::of_lane(own, lane_count - 1);
    const std::uint32_t last_before = Warp::of_lane(found.before, lane_count - 1);
    PENSTOCK_UNROLL
    for (std::uint32_t k = 0; k < row_count; ++k) {
      found.row[k] = count;
      count += (last_own >> 8 * k & 0xff) + (last_before >> 8 * k & 0xff);
    }
    return found;
  }

  // The symbols of eight values: four bytes, and four.
  PENSTOCK_ANYWHERE void decode(const Word* code, std::uint32_t k, Word* symbols) const {
    const Word codes =
        (code[0] >> k & Word(nibbles)) | (code[1] >> k & Word(nibbles)) << 1 | (code[2] >> k & Word(nibbles)) << 2;
    const std::uint32_t* const dictionary = header_.dictionary;
    symbols[0] = Warp::bytes_by(Word(dictionary[0]), Word(dictionary[1]), codes);
    symbols[1] = Warp::bytes_by(Word(dictionary[0]), Word(dictionary[1]), codes >> 16);
    if (header_.code_bits != ChunkHeader::code_bits_most) return;
    const Word upper = code[3] >> k & Word(nibbles);
    const Word others[2] = {Warp::bytes_by(Word(dictionary[2]), Word(dictionary[3]), codes),
                            Warp::bytes_by(Word(dictionary[2]), Word(dictionary[3]), codes >> 16)};
    PENSTOCK_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Word is_upper = Warp::bytes_by(Word(0xff00), Word(0), upper >> 16 * half);
      symbols[half] = (symbols[half] & ~is_upper) | (others[half] & is_upper);
    }
  }

  // The symbols that their list has, in place of those that the escape stands for.
  PENSTOCK_ANYWHERE void insert(const Exceptions& exceptions, std::uint32_t k, Word* symbols) {
    Word left = exceptions.which >> k & Word(nibbles);
    Word place = (exceptions.before >> 8 * k & Word(0xff)) + Word(exceptions.row[k]);
    const std::uint8_t* const list = place_.start + exceptions_at_;
    while (Warp::any(left != Word(0))) {
      const Flag is_one = left != Word(0);
      const Flag is_listed = place < Word(header_.exceptions);
      past_the_list_ = past_the_list_ | (is_one & !is_listed);
      const Word symbol = Warp::load_8_if(is_one & is_listed, list, place);
      const Word at = Warp::lowest(left);  // four times the value's number
      const Word shift = (at << 1) & Word(24);
      const Word mask = Word(0xff) << shift;
      const Flag is_first = at < Word(16);
      symbols[0] = Warp::choose(is_one & is_first, (symbols[0] & ~mask) | symbol << shift, symbols[0]);
      symbols[1] = Warp::choose(is_one & !is_first, (symbols[1] & ~mask) | symbol << shift, symbols[1]);
      left = left & (left - Word(1));
      place = place + Word(1);
    }
  }

  // Raw planes of a row as nibbles.
  PENSTOCK_ANYWHERE static Word raw_nibbles(const Word* raw, std::uint32_t k) {
    return (raw[0] >> k & Word(nibbles)) | (raw[1] >> k & Word(nibbles)) << 1 | (raw[2] >> k & Word(nibbles)) << 2;
  }
  PENSTOCK_ANYWHERE static Word chosen(std::uint32_t mask, Word set, Word unset) {
    return (set & Word(mask)) | (unset & Word(~mask));
  }

  PENSTOCK_ANYWHERE void join(std::uint32_t tile, std::uint32_t k, const Word* symbols, const Word* raw,
                              const Word* bytes, Row& row) const {
    if constexpr (Kind::has_bytes) {
      PENSTOCK_UNROLL
      for (int half = 0; half < 2; ++half) {
        // Sign and exponent without its last bit; that and the mantissa.
        const Word upper = chosen(0x80808080, bytes[half], symbols[half] >> 1);
        const Word lower = chosen(0x80808080, symbols[half] << 7, bytes[half]);
        const Word pairs[2] = {Warp::bytes_by(lower, upper, Word(0x5140)), Warp::bytes_by(lower, upper, Word(0x7362))};
        if constexpr (Kind::low_bytes == 0) {
          row.word[2 * half] = pairs[0];
          row.word[2 * half + 1] = pairs[1];
        } else {
          Word low[2];
          Warp::template load<2>(low_section(tile, k), Warp::lane() * 16 + Word(8 * half), low);
          PENSTOCK_UNROLL
          for (int i = 0; i < 2; ++i) {
            row.word[4 * half + 2 * i] = Warp::bytes_by(low[i], pairs[i], Word(0x5410));
            row.word[4 * half + 2 * i + 1] = Warp::bytes_by(low[i], pairs[i], Word(0x7632));
          }
        }
      }
    } else {
      Word upper[2];
      const Word three = raw_nibbles(raw, k);
      PENSTOCK_UNROLL
      for (int half = 0; half < 2; ++half) {
        if constexpr (Kind::raw_planes == 4) {  // E4M3: the sign, four bits of the symbol, three of the mantissa
          const Word mantissa = Warp::bytes_by(Word(0x03020100), Word(0x07060504), three >> 16 * half);
          const Word sign = Warp::bytes_by(Word(0x8000), Word(0), (raw[3] >> k & Word(nibbles)) >> 16 * half);
          upper[half] = (symbols[half] << 3 & Word(0x78787878)) | mantissa | sign;
        } else {  // E5M2: the sign, five bits, two
          const Word others = Warp::bytes_by(Word(0x03020100), Word(0x83828180), three >> 16 * half);
          upper[half] = (symbols[half] << 2 & Word(0x7c7c7c7c)) | others;
        }
      }
      if constexpr (Kind::low_bytes == 1) {
        Word low[2];
        Warp::template load<2>(low_section(tile, k), Warp::lane() * 8, low);
        PENSTOCK_UNROLL
        for (int half = 0; half < 2; ++half) {
          row.word[2 * half] = Warp::bytes_by(low[half], upper[half], Word(0x5140));
          row.word[2 * half + 1] = Warp::bytes_by(low[half], upper[half], Word(0x7362));
        }
      } else {
        row.word[0] = upper[0];
        row.word[1] = upper[1];
      }
    }
  }
  PENSTOCK_ANYWHERE const std::uint8_t* low_section(std::uint32_t tile, std::uint32_t k) const {
    return place_.start + low_at_ + (tile * tile_values + k * row_values) * Kind::low_bytes;
  }

  // What there is of a tile, and what is wanted of that, from its own start on.
  struct Window {
    std::uint32_t bytes = 0;
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    bool is_plain = false;     // all of a full tile is wanted, at an aligned place
    std::uint64_t target = 0;  // of the tile's first byte: it may lie before the memory, by `first`
  };
  PENSTOCK_ANYWHERE Window window_of(std::uint32_t tile) const {
    Window window;
    const std::uint32_t values = place_.values - tile * tile_values;
    window.bytes = (values < tile_values ? values : tile_values) * Kind::value_bytes;
    const std::uint64_t position = place_.position + std::uint64_t{tile} * tile_bytes;
    const std::uint64_t end = run_.skip_bytes + run_.memory_bytes;
    if (end <= position || run_.skip_bytes >= position + window.bytes) return window;
    window.first = static_cast<std::uint32_t>(run_.skip_bytes > position ? run_.skip_bytes - position : 0);
    window.last = static_cast<std::uint32_t>(end - position < window.bytes ? end - position : window.bytes);
    window.target = run_.memory + position - run_.skip_bytes;
    window.is_plain = window.first == 0 && window.last == tile_bytes && window.target % 16 == 0;
    return window;
  }

  // A row that is decoded: what is past the last value is cut off, the rest counted in and written where it is wanted.
  PENSTOCK_ANYWHERE static void finish(const Window& window, std::uint32_t k, Row& row, Long& sum) {
    if (window.bytes != tile_bytes) cut_off(window, k, row);
    Word keys[lane_words];
    Warp::template load_keys<lane_words>(place_in_tile(k), keys);
    PENSTOCK_UNROLL
    for (int i = 0; i < lane_words; i += 2) {
      sum = Warp::multiply_add(row.word[i] + keys[i], row.word[i + 1] + keys[i + 1], sum);
    }
    if (window.is_plain) {
      Warp::template store<lane_words>(window.target, place_in_tile(k), row.word);
    } else if (window.last != 0) {
      write_values(window, k, row);
    }
  }
  PENSTOCK_ANYWHERE static void cut_off(const Window& window, std::uint32_t k, Row& row) {
    PENSTOCK_UNROLL
    for (int i = 0; i < lane_words; ++i) {
      PENSTOCK_UNROLL
      for (std::uint32_t byte = 0; byte < 4; byte += Kind::value_bytes) {
        const std::uint32_t value = (Kind::value_bytes == 4 ? ~0U : (1U << 8 * (Kind::value_bytes % 4)) - 1)
                                    << 8 * byte;
        const Flag is_there = place_in_tile(k) + Word(4 * i + byte) < Word(window.bytes);
        row.word[i] = Warp::choose(is_there, row.word[i], row.word[i] & Word(~value));
      }
    }
  }
  PENSTOCK_ANYWHERE static void write_values(const Window& window, std::uint32_t k, const Row& row) {
    PENSTOCK_UNROLL
    for (int i = 0; i < lane_words; ++i) {
      PENSTOCK_UNROLL
      for (std::uint32_t byte = 0; byte < 4; byte += Kind::value_bytes) {
        const Word at = place_in_tile(k) + Word(4 * i + byte);
        const Flag is_wanted = (at < Word(window.last)) & !(at < Word(window.first));
        Warp::template store_value_if<Kind::value_bytes>(is_wanted, window.target, at, row.word[i] >> 8 * byte);
      }
    }
  }

  const UnpackRun& run_;
  const ChunkPlace place_;
  const ChunkHeader header_;
  std::uint32_t tiles_ = 0;
  std::uint32_t planes_ = 0;
  std::uint32_t bytes_at_ = 0;
  std::uint32_t low_at_ = 0;
  std::uint32_t bases_at_ = 0;
  std::uint32_t exceptions_at_ = 0;
  Flag past_the_list_{};
};

// A chunk of the run, as far as one warp of several does it.
template <typename Warp, typename Kind>
PENSTOCK_ANYWHERE TilesFound unpack_tiles(const UnpackRun& run, std::uint32_t chunk, std::uint32_t warp,
                                          std::uint32_t warps) {
  return ChunkUnpacker<Warp, Kind>(run, chunk).unpack(warp, warps);
}

// Of what all warps found: the status of the chunk; 0: all is well.
PENSTOCK_ANYWHERE inline std::uint32_t judge(const UnpackRun& run, std::uint32_t chunk, const TilesFound& found) {
  if (found.reason != 0) return unpack_status(static_cast<UnpackReason>(found.reason), chunk);
  const auto* const header =
      reinterpret_cast<const ChunkHeader*>(run.stored + std::uint64_t{run.starts[chunk]} * UnpackRun::chunk_unit_bytes);
  return found.checksum == header->checksum ? 0 : unpack_status(UnpackReason::checksum, chunk);
}

}  // namespace penstock::cuda
