#include "services/models/parts.h"

#include <gtest/gtest.h>

#include "services/models/row_reader.h"

namespace penstock::models {
namespace {

TensorInfo tensor_of(DType dtype, std::vector<std::uint64_t> shape) {
  TensorInfo tensor{.name = "a", .dtype = dtype, .shape = std::move(shape), .quantization = {}, .offset = 100};
  tensor.size_bytes = dtype_bits(dtype);
  for (const std::uint64_t length : tensor.shape) tensor.size_bytes *= length;
  tensor.size_bytes /= 8;
  return tensor;
}

using Shape = std::vector<std::uint64_t>;

TEST(Parts, without_intervals_a_part_is_the_tensor) {
  const TensorInfo tensor = tensor_of(DType::f32, {2, 3});
  EXPECT_EQ(part_shape(tensor, 0, {}).value(), (Shape{2, 3}));
  EXPECT_EQ(part_bytes(tensor, 7, {}).value(), 24U) << "the dimension does not matter then";
  EXPECT_EQ(part_bytes(tensor_of(DType::f32, {}), 0, {}).value(), 4U);
}

TEST(Parts, intervals_of_the_first_dimension_are_one_row) {
  const TensorInfo tensor = tensor_of(DType::bf16, {10, 4});
  const Interval intervals[] = {{1, 3}, {3, 4}, {8, 8}, {7, 9}};
  EXPECT_EQ(part_shape(tensor, 0, intervals).value(), (Shape{5, 4}));
  const Layout layout = lay_out(tensor, 0, intervals).value();
  EXPECT_EQ(layout.rows, 1U);
  EXPECT_EQ(layout.pieces, (std::vector<Layout::Piece>{{8, 24}, {56, 16}})) << "neighbours are one, nothing is empty";
}

TEST(Parts, intervals_of_an_inner_dimension_are_pieces_of_every_row) {
  const TensorInfo tensor = tensor_of(DType::f32, {2, 5, 6, 3});
  const Interval intervals[] = {{1, 2}, {4, 6}};
  EXPECT_EQ(part_shape(tensor, 2, intervals).value(), (Shape{2, 5, 3, 3}));
  EXPECT_EQ(part_bytes(tensor, 2, intervals).value(), 2U * 5 * 3 * 3 * 4);
  const Layout layout = lay_out(tensor, 2, intervals).value();
  EXPECT_EQ(layout.rows, 10U);
  EXPECT_EQ(layout.row_bytes, 72U);
  EXPECT_EQ(layout.pieces, (std::vector<Layout::Piece>{{12, 12}, {48, 24}}));
  EXPECT_EQ(layout.bounds(), (Layout::Piece{12, 60}));
}

TEST(Parts, intervals_that_cover_a_dimension_are_the_whole) {
  const TensorInfo tensor = tensor_of(DType::f32, {4, 6});
  const Interval intervals[] = {{0, 2}, {2, 6}};
  const Layout layout = lay_out(tensor, 1, intervals).value();
  EXPECT_EQ(layout.rows, 1U);
  EXPECT_EQ(layout.pieces, (std::vector<Layout::Piece>{{0, 96}}));
}

TEST(Parts, intervals_may_overlap_and_come_in_any_order) {
  const TensorInfo tensor = tensor_of(DType::u8, {10});
  const Interval intervals[] = {{5, 9}, {0, 6}};
  EXPECT_EQ(part_bytes(tensor, 0, intervals).value(), 10U);
  EXPECT_EQ(lay_out(tensor, 0, intervals)->pieces, (std::vector<Layout::Piece>{{5, 4}, {0, 6}}));
}

TEST(Parts, an_empty_tensor_has_empty_parts) {
  const Interval intervals[] = {{0, 3}};
  EXPECT_EQ(part_bytes(tensor_of(DType::f32, {0, 4}), 1, intervals).value(), 0U);
  EXPECT_EQ(part_shape(tensor_of(DType::f32, {0, 4}), 1, intervals).value(), (Shape{0, 3}));
}

TEST(Parts, what_can_not_be_cut_is_refused_by_name) {
  const auto refusal = [](const TensorInfo& tensor, std::uint32_t dimension, Interval interval) {
    const auto bytes = part_bytes(tensor, dimension, {&interval, 1});
    return bytes.ok() ? "was accepted" : bytes.error().message;
  };
  const auto has = [](const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; };
  const TensorInfo plain = tensor_of(DType::f32, {4, 6});
  EXPECT_TRUE(has(refusal(plain, 0, {3, 2}), "tensor \"a\": the interval from 3 to 2 ends before it begins"));
  EXPECT_TRUE(has(refusal(plain, 0, {3, 5}), "reaches past the end of dimension 0 at 4"));
  EXPECT_TRUE(has(refusal(plain, 2, {0, 1}), "it has 2 dimensions, none of them number 2"));
  EXPECT_TRUE(has(refusal(tensor_of(DType::f32, {}), 0, {0, 1}), "it has 0 dimensions"));
  const TensorInfo halves = tensor_of(DType::f4, {4, 6});
  EXPECT_TRUE(has(refusal(halves, 1, {1, 2}), "cuts through a byte of F4"));
  EXPECT_EQ(refusal(halves, 1, {2, 4}), "was accepted");
  EXPECT_TRUE(has(refusal(tensor_of(DType::f4, {2, 3}), 1, {0, 2}), "cuts through a byte"))
      << "rows begin inside bytes";
  TensorInfo quantized = tensor_of(DType::u8, {4, 288});
  quantized.quantization = "Q4_K";
  EXPECT_TRUE(has(refusal(quantized, 1, {0, 100}), "cuts through a block of Q4_K"));
  EXPECT_EQ(refusal(quantized, 1, {144, 288}), "was accepted");
  EXPECT_EQ(refusal(quantized, 0, {1, 2}), "was accepted");
}

TEST(Parts, pieces_that_are_neighbours_in_the_file_and_in_memory_are_one) {
  std::byte memory[100];
  const auto piece = [&](std::uint32_t file, std::uint64_t offset, std::size_t place, std::size_t size) {
    return FilePiece{file, offset, Region::host(memory + place, size), {}};
  };
  std::vector<FilePiece> pieces = {piece(1, 0, 60, 4), piece(0, 10, 10, 10), piece(0, 0, 0, 10), piece(0, 20, 30, 5),
                                   piece(1, 4, 64, 4)};
  sort_and_merge(pieces, nullptr);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].memory.size_bytes, 20U);
  EXPECT_EQ(pieces[1].offset, 20U) << "its memory is elsewhere";
  EXPECT_EQ(pieces[2].memory.size_bytes, 8U);
}

TEST(Parts, neighbours_in_memory_of_a_gpu_are_one_only_within_an_allocation) {
  alignas(64) static std::byte memory[64];
  // Two allocations of 32 bytes.
  const auto find = [](const void* data, std::size_t size_bytes) -> Result<Region> {
    const auto place = static_cast<std::size_t>(static_cast<const std::byte*>(data) - memory);
    if (place / 32 != (place + size_bytes - 1) / 32) return Error{Code::out_of_range, 0, "two", ""};
    return Region{memory + place / 32 * 32, 32, Domain::cuda(0)};
  };
  std::vector<FilePiece> pieces;
  for (std::size_t place = 0; place < 64; place += 8)
    pieces.push_back({0, place, {memory + place, 8, Domain::cuda(0)}});
  sort_and_merge(pieces, find);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].memory.size_bytes, 32U);
  EXPECT_EQ(pieces[1].memory.data, memory + 32);
}

TEST(Columns, small_pieces_are_read_as_rows_and_large_ones_by_themselves) {
  const auto chosen = [](std::uint64_t piece, std::uint64_t row, bool cached) {
    return choose_columns(
        {.piece_bytes = piece, .pieces = 1, .bounds_bytes = piece, .row_bytes = row, .rows = 4096, .cached = cached});
  };
  for (const bool cached : {false, true}) {
    EXPECT_EQ(chosen(64, 1024, cached), Columns::whole);
    EXPECT_EQ(chosen(1 << 20, 8 << 20, cached), Columns::pieces);
  }
  EXPECT_EQ(chosen(2 << 10, 16 << 10, true), Columns::pieces) << "bytes in memory are read exactly";
  EXPECT_EQ(chosen(2 << 10, 16 << 10, false), Columns::whole) << "from a disk come whole blocks";
  EXPECT_EQ(chosen(2 << 10, 4 << 10, true), Columns::whole);
}

TEST(Columns, one_row_is_never_read_past_what_is_wanted_of_it) {
  EXPECT_EQ(choose_columns({.piece_bytes = 100, .pieces = 2, .bounds_bytes = 250, .row_bytes = 1 << 30, .rows = 1}),
            Columns::whole);
  EXPECT_EQ(choose_columns({.piece_bytes = 100, .pieces = 2, .bounds_bytes = 1 << 29, .row_bytes = 1 << 30, .rows = 1}),
            Columns::pieces);
}

TEST(Windows, hold_whole_rows_of_several_tensors_where_they_lie_in_their_pages) {
  const Layout layout{.rows = 10, .row_bytes = 1000, .pieces = {{100, 50}, {300, 100}}};
  std::vector<RowJob> jobs(2, RowJob{.tensor = {.offset = 5000}, .layout = layout});
  jobs[1].tensor.offset = 20'000;
  RowCursor cursor;
  std::uint64_t rows = 0;
  for (;;) {
    const std::vector<Segment> segments = fill_window(jobs, {.bytes = 9000}, cursor);
    if (segments.empty()) break;
    std::uint64_t end = 0;
    for (const Segment& segment : segments) {
      const std::uint64_t offset = jobs[segment.job].tensor.offset + segment.first_row * 1000 + 100;
      EXPECT_EQ(segment.place % 4096, offset % 4096);
      EXPECT_GE(segment.place, end);
      end = segment.place + (segment.rows - 1) * 1000 + 300;
      EXPECT_LE(end, 9000U);
      rows += segment.rows;
    }
  }
  EXPECT_EQ(rows, 20U);
}

TEST(Windows, hold_rows_of_as_many_files_as_may_be_open) {
  std::vector<RowJob> jobs(7, RowJob{.layout = {.rows = 2, .row_bytes = 10, .pieces = {{0, 5}}}});
  for (std::uint32_t i = 0; i < 7; ++i) jobs[i].tensor.file = i / 2;
  RowCursor cursor;
  std::vector<std::size_t> jobs_of_windows;
  for (;;) {
    const std::vector<Segment> segments = fill_window(jobs, {.bytes = 1 << 20, .files = 2}, cursor);
    if (segments.empty()) break;
    jobs_of_windows.push_back(segments.size());
  }
  EXPECT_EQ(jobs_of_windows, (std::vector<std::size_t>{4, 3}));
}

}  // namespace
}  // namespace penstock::models
