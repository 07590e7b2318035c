#include "services/packed/unpack.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "services/packed/test_values.h"

namespace penstock::packed {
namespace {

using Bytes = std::vector<std::byte>;

// A packed tensor of a few chunks, in memory.
struct Packed {
  Kind kind;
  Bytes values;
  Bytes bytes;  // from the first chunk on
  TensorIndex index;

  Packed(Kind of, std::size_t count) : kind(of), values(make_values(of, Pattern::normal, count, 11)) {
    index = {.kind = kind, .values = count, .bytes = 0, .starts = {}};
    const std::size_t chunk_bytes = std::size_t{chunk_values} * division_of(kind).value_bytes;
    const std::uint64_t front = index_bytes(count);
    for (std::uint32_t chunk = 0; chunk * chunk_bytes < values.size(); ++chunk) {
      index.starts.push_back(static_cast<std::uint32_t>((front + bytes.size()) / chunk_alignment));
      const std::size_t begin = chunk * chunk_bytes;
      encode_chunk(best_kernels(), kind, chunk,
                   std::span(values).subspan(begin, std::min(chunk_bytes, values.size() - begin)), bytes);
    }
    index.starts.push_back(static_cast<std::uint32_t>((front + bytes.size()) / chunk_alignment));
    index.bytes = round_up(front + bytes.size(), tensor_alignment);
  }
  std::span<const std::byte> stored(const ChunkRun& run) const {
    return std::span(bytes).subspan(run.offset - index_bytes(index.values), run.stored_bytes);
  }
};

TEST(Unpack, runs_give_any_part_of_a_tensor) {
  const Packed packed(Kind::bf16, 5 * chunk_values + 1234);
  const Unpack unpack("w", packed.index, 4096);
  const std::uint64_t all = packed.values.size();
  for (const auto& [begin, bytes] : {std::pair<std::uint64_t, std::uint64_t>{0, all},
                                     {2, all - 2},
                                     {131072, 131072},
                                     {131070, 4},
                                     {all - 2, 2},
                                     {400'000, 200'000}}) {
    for (const RunLimits& limits : {RunLimits{}, RunLimits{.stored_bytes = 1}, RunLimits{.bytes = 300'000}}) {
      Bytes out(bytes);
      std::uint64_t done = 0;
      for (const ChunkRun& run : unpack.runs(begin, bytes, limits)) {
        ASSERT_TRUE(run.count == 1 || (run.stored_bytes <= limits.stored_bytes && run.bytes <= limits.bytes));
        const Status made = unpack.by_cpu(
            {.tag = begin + done, .stored = packed.stored(run), .memory = std::span(out).subspan(done, run.bytes)});
        ASSERT_TRUE(made) << made.error().message;
        done += run.bytes;
      }
      ASSERT_EQ(done, bytes);
      ASSERT_TRUE(std::ranges::equal(out, std::span(packed.values).subspan(begin, bytes)));
    }
  }
}

TEST(Unpack, a_damaged_chunk_is_told_with_its_tensor_and_place) {
  Packed packed(Kind::bf16, 3 * chunk_values);
  const Unpack unpack("layers.7.w", packed.index, 8192);
  packed.bytes[packed.index.offset(2) - index_bytes(packed.index.values) + 5000] ^= std::byte{4};
  Bytes out(packed.values.size());
  const auto runs = unpack.runs(0, out.size(), {});
  ASSERT_EQ(runs.size(), 1U);
  const Status made = unpack.by_cpu({.tag = 0, .stored = packed.stored(runs[0]), .memory = out});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::io_error);
  const std::string place = "chunk 2 of 3, at byte " + std::to_string(8192 + packed.index.offset(2));
  EXPECT_NE(made.error().message.find("layers.7.w"), std::string::npos) << made.error().message;
  EXPECT_NE(made.error().message.find(place), std::string::npos) << made.error().message;
}

TEST(Unpack, pieces_of_other_lengths_are_refused) {
  const Packed packed(Kind::f32, 2 * chunk_values);
  const Unpack unpack("w", packed.index, 0);
  Bytes out(packed.values.size());
  const auto stored = std::span(std::as_const(packed.bytes));
  EXPECT_FALSE(unpack.by_cpu({.tag = 0, .stored = stored.first(stored.size() - 64), .memory = out}));
  EXPECT_FALSE(unpack.by_cpu({.tag = 4, .stored = stored, .memory = out}));
  EXPECT_TRUE(unpack.by_cpu({.tag = 0, .stored = stored, .memory = out}));
}

}  // namespace
}  // namespace penstock::packed
