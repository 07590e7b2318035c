#include "core/piece.h"

#include <gtest/gtest.h>

#include <set>

namespace penstock::core {
namespace {

TEST(Pieces, gives_each_place_to_one_at_a_time) {
  Pieces pieces(3);
  std::set<std::uint32_t> taken;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces.in_use(), i);
    ASSERT_TRUE(pieces.has_free());
    taken.insert(pieces.take());
  }
  EXPECT_EQ(taken, (std::set<std::uint32_t>{0, 1, 2}));
  EXPECT_FALSE(pieces.has_free());
  pieces.give_back(1);
  EXPECT_EQ(pieces.in_use(), 2U);
  EXPECT_EQ(pieces.take(), 1U);
  EXPECT_FALSE(pieces.has_free());
}

TEST(Pieces, finds_who_has_a_cookie) {
  Pieces pieces(2);
  const std::uint32_t first = pieces.take();
  const std::uint32_t second = pieces.take();
  EXPECT_NE(pieces.cookie_of(first), pieces.cookie_of(second));
  EXPECT_EQ(pieces.find(pieces.cookie_of(first)), first);
  EXPECT_EQ(pieces.find(pieces.cookie_of(second)), second);
  EXPECT_EQ(Pieces::index_of(pieces.cookie_of(second)), second);
}

TEST(Pieces, finds_nobody_by_the_cookie_of_a_piece_that_was_given_back) {
  Pieces pieces(1);
  std::set<std::uint64_t> cookies;
  for (int life = 0; life < 5; ++life) {
    const std::uint32_t index = pieces.take();
    for (const std::uint64_t before : cookies) EXPECT_FALSE(pieces.find(before)) << "another has its place";
    const std::uint64_t cookie = pieces.cookie_of(index);
    EXPECT_TRUE(cookies.insert(cookie).second);
    EXPECT_EQ(pieces.find(cookie), index);
    pieces.give_back(index);
    EXPECT_FALSE(pieces.find(cookie)) << "nobody has its place";
  }
}

TEST(Pieces, finds_nobody_by_a_cookie_that_names_no_place) {
  const Pieces pieces(2);
  EXPECT_FALSE(pieces.find(2));
  EXPECT_FALSE(pieces.find(UINT64_MAX));
}

TEST(Pieces, gives_a_place_as_if_nobody_had_had_it) {
  Pieces pieces(1);
  const std::uint32_t index = pieces.take();
  pieces[index].length = 7;
  pieces[index].orphan = true;
  pieces[index].holds_block = true;
  pieces.give_back(index);
  const Piece& piece = pieces[pieces.take()];
  EXPECT_EQ(piece.length, 0U);
  EXPECT_FALSE(piece.orphan);
  EXPECT_FALSE(piece.holds_block);
}

TEST(Piece, touches_the_memory_of_its_operation_and_while_it_is_copied_the_callers) {
  std::byte callers{};
  std::byte staged{};
  Piece piece;
  EXPECT_EQ(piece.touched(), nullptr);
  piece.user = &callers;
  piece.op.memory = &staged;
  for (const Piece::Where where : {Piece::Where::here, Piece::Where::queue}) {
    piece.where = where;
    EXPECT_EQ(piece.touched(), &staged);
  }
  piece.where = Piece::Where::copying;
  EXPECT_EQ(piece.touched(), &callers);
}

TEST(Piece, is_staged_when_it_has_a_block_of_staging_memory) {
  std::byte block{};
  Piece piece;
  EXPECT_FALSE(piece.is_staged());
  piece.staging = {.data = &block, .count = 1};
  EXPECT_TRUE(piece.is_staged());
}

}  // namespace
}  // namespace penstock::core
