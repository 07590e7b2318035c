#include "services/packed/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "services/packed/test_values.h"

namespace penstock::packed {
namespace {

using Bytes = std::vector<std::byte>;

std::uint32_t count_of(Kind kind, const Bytes& values) {
  return static_cast<std::uint32_t>(values.size() / division_of(kind).value_bytes);
}

Bytes encode(const Kernels& kernels, Kind kind, std::span<const std::byte> values, std::uint32_t number = 0) {
  Bytes chunk;
  encode_chunk(kernels, kind, number, values, chunk);
  return chunk;
}

// Quick where tests are not optimized.
bool is_same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// Memory with guards on both sides.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : all_(bytes + 2 * guard, fill), bytes_(bytes) {}
  std::span<std::byte> memory() { return std::span(all_).subspan(guard, bytes_); }
  bool is_whole() const {
    static const Bytes untouched(guard, fill);
    return std::memcmp(all_.data(), untouched.data(), guard) == 0 &&
           std::memcmp(all_.data() + guard + bytes_, untouched.data(), guard) == 0;
  }

 private:
  static constexpr std::size_t guard = 1024;
  static constexpr std::byte fill{0xa5};
  Bytes all_;
  std::size_t bytes_;
};

void expect_round_trip(Kind kind, const Bytes& values, std::uint32_t number) {
  const Bytes chunk = encode(portable_kernels, kind, values, number);
  ASSERT_EQ(chunk.size() % chunk_alignment, 0U);
  ASSERT_LE(chunk.size(), round_up(header_bytes + values.size(), chunk_alignment)) << "longer than raw";
  for (const Kernels* kernels : kernels_here()) {
    ASSERT_EQ(encode(*kernels, kind, values, number), chunk) << kernels->name << " packs otherwise";
    Guarded out(values.size());
    const Fault fault = decode_chunk(*kernels, kind, chunk, {number, count_of(kind, values)}, {0, out.memory()});
    ASSERT_EQ(fault, Fault::none) << kernels->name << ": " << fault_text(fault);
    ASSERT_TRUE(is_same(out.memory(), values)) << kernels->name << " " << kind_name(kind);
    ASSERT_TRUE(out.is_whole());
    Guarded past_caches(values.size());
    ASSERT_EQ(decode_chunk(*kernels, kind, chunk, {number, count_of(kind, values)}, {0, past_caches.memory(), true}),
              Fault::none);
    ASSERT_TRUE(is_same(past_caches.memory(), values)) << kernels->name << " " << kind_name(kind);
    ASSERT_TRUE(past_caches.is_whole());
  }
}

TEST(PackedCodec, every_pattern_of_every_type_comes_back) {
  for (const Kind kind : kinds) {
    for (const Pattern pattern : patterns) {
      for (const std::uint32_t count : {1U, 31U, 1023U, 1024U, 1025U, 5000U, 65535U, 65536U}) {
        expect_round_trip(kind, make_values(kind, pattern, count, count), count % 5);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// PENSTOCK_CHUNKS=N sets how many.
TEST(PackedCodec, random_chunks_come_back) {
  const char* wanted = std::getenv("PENSTOCK_CHUNKS");
  const int count = wanted != nullptr ? std::atoi(wanted) : 3000;
  std::mt19937_64 random(21);
  for (int i = 0; i < count; ++i) {
    const Kind kind = kinds[random() % kinds.size()];
    const Pattern pattern = patterns[random() % patterns.size()];
    expect_round_trip(kind, make_values(kind, pattern, 1 + random() % 1500, random()), static_cast<std::uint32_t>(i));
    if (testing::Test::HasFatalFailure()) FAIL() << "chunk " << i;
  }
}

TEST(PackedCodec, a_sample_that_misleads_costs_no_byte) {
  // The tiles that are looked at have one exponent, all others have another.
  for (const Kind kind : kinds) {
    Bytes values = make_values(kind, Pattern::equal, chunk_values, 1);
    const Bytes others = make_values(kind, Pattern::random, chunk_values, 2);
    const std::size_t tile_bytes = std::size_t{tile_values} * division_of(kind).value_bytes;
    for (std::size_t tile = 1; tile < chunk_tiles; ++tile) {
      if (tile % 8 == 0) continue;
      std::copy_n(others.begin() + static_cast<std::ptrdiff_t>(tile * tile_bytes), tile_bytes,
                  values.begin() + static_cast<std::ptrdiff_t>(tile * tile_bytes));
    }
    expect_round_trip(kind, values, 0);
  }
}

TEST(PackedCodec, normal_weights_get_as_small_as_promised) {
  const auto ratio_of = [](Kind kind) {
    const Bytes values = make_values(kind, Pattern::normal, chunk_values, 3);
    return static_cast<double>(encode(best_kernels(), kind, values).size()) / static_cast<double>(values.size());
  };
  EXPECT_LT(ratio_of(Kind::bf16), 0.705);
  EXPECT_LT(ratio_of(Kind::f16), 0.89);
  EXPECT_LT(ratio_of(Kind::f32), 0.853);
  EXPECT_LT(ratio_of(Kind::f8_e5m2), 0.78);
}

TEST(PackedCodec, constant_exponents_take_no_planes) {
  const Bytes values = make_values(Kind::bf16, Pattern::equal, chunk_values, 120);
  EXPECT_EQ(encode(best_kernels(), Kind::bf16, values).size(), header_bytes + chunk_values);
}

TEST(PackedCodec, parts_are_written_and_nothing_else) {
  for (const Kind kind : kinds) {
    const std::size_t value_bytes = division_of(kind).value_bytes;
    const Bytes values = make_values(kind, Pattern::normal, 5000, 4);
    const Bytes chunk = encode(best_kernels(), kind, values);
    for (const Kernels* kernels : kernels_here()) {
      for (const std::size_t begin : {0U, 1U, 1000U, 1024U, 4999U}) {
        for (const std::size_t end : {begin, begin + 1, std::size_t{2048}, std::size_t{5000}}) {
          if (end < begin || end > 5000) continue;
          Guarded out((end - begin) * value_bytes);
          ASSERT_EQ(decode_chunk(*kernels, kind, chunk, {0, 5000}, {begin * value_bytes, out.memory()}), Fault::none);
          ASSERT_TRUE(std::ranges::equal(out.memory(),
                                         std::span(values).subspan(begin * value_bytes, (end - begin) * value_bytes)));
          ASSERT_TRUE(out.is_whole());
        }
      }
    }
  }
}

TEST(PackedCodec, a_bit_that_flips_is_found) {
  for (const Kind kind : kinds) {
    const Bytes values = make_values(kind, Pattern::normal, 3000, 5);
    const Bytes chunk = encode(best_kernels(), kind, values);
    std::mt19937_64 random(6);
    for (const Kernels* kernels : kernels_here()) {
      for (int i = 0; i < 600; ++i) {
        Bytes changed = chunk;
        const std::size_t at = i < 64 ? static_cast<std::size_t>(i) : random() % changed.size();
        changed[at] ^= std::byte{1} << (random() % 8);
        Guarded out(values.size());
        const Fault fault = decode_chunk(*kernels, kind, changed, {0, 3000}, {0, out.memory()});
        // In padding, and in entries of the dictionary that no value uses, a bit tells nothing.
        const bool is_right = is_same(out.memory(), values);
        ASSERT_TRUE(fault != Fault::none || is_right) << kind_name(kind) << " byte " << at;
        ASSERT_TRUE(out.is_whole());
      }
    }
  }
}

TEST(PackedCodec, chunks_that_lie_write_nothing_outside) {
  std::mt19937_64 random(7);
  for (const Kind kind : kinds) {
    const Bytes values = make_values(kind, Pattern::different, 4000, 8);
    const Bytes normal = encode(best_kernels(), kind, make_values(kind, Pattern::normal, 4000, 8));
    for (const Kernels* kernels : kernels_here()) {
      for (int i = 0; i < 800; ++i) {
        Bytes changed = normal;
        for (std::size_t n = random() % 30; n < 30; ++n) {
          // Half of the changes in the header, whose fields say how long everything is.
          const std::size_t at = random() % (random() % 2 == 0 ? header_bytes : changed.size());
          changed[at] = static_cast<std::byte>(random());
        }
        if (i % 3 == 0) changed.resize(random() % changed.size());
        Guarded out(values.size());
        (void)decode_chunk(*kernels, kind, changed, {0, 4000}, {0, out.memory()});
        ASSERT_TRUE(out.is_whole());
      }
    }
  }
}

TEST(PackedCodec, too_few_exceptions_are_told) {
  const Bytes values = make_values(Kind::bf16, Pattern::normal, 2048, 9);
  Bytes chunk = encode(best_kernels(), Kind::bf16, values);
  const auto header = read_chunk_header(Kind::bf16, chunk, {0, 2048});
  ASSERT_TRUE(header);
  ASSERT_GT(header->exceptions, 0U);
  // The second tile claims that its exceptions begin at the end of all of them, or behind it.
  const ChunkSections at = sections_of(Kind::bf16, *header);
  for (const std::uint32_t behind : {0U, 1U}) {
    const auto base = static_cast<std::uint16_t>(header->exceptions + behind);
    std::memcpy(chunk.data() + at.bases + 2, &base, sizeof base);
    for (const Kernels* kernels : kernels_here()) {
      Bytes out(values.size());
      EXPECT_EQ(decode_chunk(*kernels, Kind::bf16, chunk, {0, 2048}, {0, out}), Fault::exceptions) << behind;
    }
  }
}

TEST(PackedCodec, another_chunk_in_its_place_is_told) {
  const Bytes values = make_values(Kind::bf16, Pattern::normal, 2048, 9);
  const Bytes chunk = encode(best_kernels(), Kind::bf16, values, 3);
  Bytes out(values.size());
  EXPECT_EQ(decode_chunk(best_kernels(), Kind::bf16, chunk, {3, 2048}, {0, out}), Fault::none);
  EXPECT_EQ(decode_chunk(best_kernels(), Kind::bf16, chunk, {4, 2048}, {0, out}), Fault::header);
}

TEST(PackedIndex, comes_back) {
  for (const std::uint64_t values : {1ULL, 65536ULL, 65537ULL, 10'000'000ULL}) {
    TensorIndex index{.kind = Kind::f16, .values = values, .bytes = 0, .starts = {}};
    std::uint64_t at = index_bytes(values) / chunk_alignment;
    for (std::uint64_t i = 0; i <= chunks_of(values); ++i) index.starts.push_back(static_cast<std::uint32_t>(at + i));
    index.bytes = round_up(index.offset(index.chunks()), tensor_alignment);
    const Bytes bytes = write_index(index);
    const auto again = read_index(bytes, {Kind::f16, values, index.bytes});
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->starts, index.starts);
    EXPECT_FALSE(read_index(bytes, {Kind::bf16, values, index.bytes}));
    EXPECT_FALSE(read_index(bytes, {Kind::f16, values, index.bytes + 4096}));
    EXPECT_FALSE(read_index(std::span(bytes).first(bytes.size() - 1), {Kind::f16, values, index.bytes}));
    for (std::size_t i = 0; i < 48; ++i) {
      Bytes changed = bytes;
      changed[i] ^= std::byte{1};
      EXPECT_FALSE(read_index(changed, {Kind::f16, values, index.bytes})) << "byte " << i;
    }
  }
}

// Lies that agree with each other, under a checksum that is right.
TEST(PackedIndex, chunks_lie_within_their_tensor_and_are_no_longer_than_raw_ones) {
  constexpr std::uint64_t values = 2 * chunk_values;
  constexpr auto first = 2U;  // after the header and three starts
  constexpr auto raw = static_cast<std::uint32_t>(raw_chunk_bytes(2) / chunk_alignment);
  ASSERT_EQ(index_bytes(values), std::uint64_t{first} * chunk_alignment);
  const auto read = [](std::vector<std::uint32_t> starts, std::uint64_t bytes) {
    return read_index(write_index({Kind::bf16, values, bytes, std::move(starts)}), {Kind::bf16, values, bytes});
  };
  const auto refused = [&](std::vector<std::uint32_t> starts, std::uint64_t bytes) {
    const auto index = read(std::move(starts), bytes);
    return index.ok() ? "nothing" : index.error().message;
  };
  const auto bytes_to = [](std::uint32_t end) { return std::uint64_t{end} * chunk_alignment; };
  EXPECT_TRUE(read({first, first + raw, first + 2 * raw}, bytes_to(first + 2 * raw)).ok());
  EXPECT_TRUE(read({first, first + 1, first + 2}, bytes_to(first + 2)).ok());
  const std::string impossible = "of its index has an impossible length";
  for (const auto& [starts, chunk] : {std::pair<std::vector<std::uint32_t>, int>{{first, first + raw + 1, 5000}, 0},
                                      {{first, first + 1, first + raw + 2}, 1},
                                      {{first, first, first + 1}, 0},
                                      {{first, first + 1, first + 1}, 1},
                                      {{first, first + 2, first + 1}, 1}}) {
    EXPECT_NE(refused(starts, 1 << 20).find("chunk " + std::to_string(chunk) + " " + impossible), std::string::npos)
        << refused(starts, 1 << 20);
  }
  const std::string outside = "the chunks of its index don't lie within it";
  EXPECT_NE(refused({first, first + 1, first + 2}, bytes_to(first + 2) - 1).find(outside), std::string::npos);
  EXPECT_NE(refused({first + 1, first + 2, first + 3}, 1 << 20).find(outside), std::string::npos) << "a gap";
  EXPECT_NE(refused({first - 1, first, first + 1}, 1 << 20).find(outside), std::string::npos) << "in the index";
}

TEST(PackedIndex, a_newer_version_is_refused_by_name) {
  TensorIndex index{.kind = Kind::bf16, .values = 1, .bytes = 4096, .starts = {2, 3}};
  Bytes bytes = write_index(index);
  bytes[8] = std::byte{2};
  const auto read = read_index(bytes, {Kind::bf16, 1, 4096});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::unsupported);
  EXPECT_NE(read.error().message.find("version 2"), std::string::npos) << read.error().message;
}

TEST(PackedIndex, the_checksum_is_crc32c) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xE3069283U);
}

}  // namespace
}  // namespace penstock::packed
