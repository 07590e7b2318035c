// RowCache: how rows lie in GPU memory that were gathered before, and what the kernels that find and place them are
// given. Shared with kernels.cu, so there is nothing here but numbers.
//
// A cache has sets of 16 slots. A row can be in any slot of one set: that of its number, modulo the number of sets. A
// slot has a tag, which names its row and counts its changes.
//
// Kernels on any number of streams use a cache at the same time, and wait for nothing:
// - One that takes a row reads the tag, copies the row, and reads the tag again. If it has changed, the row counts as
//   missing. Changes are counted modulo 2^24.
// - One that puts a row in locks the set. If that is locked it goes on without. It takes the row's name from the tag,
//   then writes the row, then the new tag.
// Only rows that were answered without an error are put in.
#pragma once

#include <cstdint>

namespace penstock::cuda {

struct RowCacheLayout {
  static constexpr unsigned ways = 16;  // slots of a set
  // Of a tag: the number of the row, and one; 0 where there is none. The count of changes lies above.
  static constexpr unsigned number_bits = 40;
  static constexpr std::uint64_t number_mask = (std::uint64_t{1} << number_bits) - 1;
  static constexpr std::uint64_t slot_alignment = 16;
};

// Of which slots were used since it was last looked for one to give up.
struct RowCacheSet {
  std::uint32_t next;  // above the lowest bit, the slot that is next to go. The lowest bit is the lock
  std::uint32_t used;  // a bit a slot
};

// What the GPU knows of rounds that it may go on with by itself. Zeros at first.
struct RowsRound {
  std::uint64_t asked_at;  // by the GPU's clock, when the CPU was last asked; 0: never
  std::uint64_t passed;    // rounds for which it was not
  std::uint32_t missing;   // of the round that runs: rows, so far
  std::uint32_t blocks;    // that are done with it
  std::uint32_t layout;    // of the round that asked
  std::uint32_t failed;    // a gather of it did
};

// The rows of one block, of one gather. Addresses are the GPU's.
struct RowsEntry {
  std::uint64_t numbers;  // of the whole gather, like all arrays here
  std::uint64_t memory;   // where rows go
  std::uint64_t status;   // a 32-bit word beside them, or 0

  std::uint64_t tags;
  std::uint64_t sets;
  std::uint64_t slots;
  std::uint64_t set_count;
  std::uint64_t slot_bytes;
  std::uint64_t table_rows;
  std::uint64_t row_bytes;

  // What is missing, for the CPU: numbers as 64 bits, and their places in the gather. Each block begins where its rows
  // do.
  std::uint64_t asked_numbers;
  std::uint64_t asked_places;
  std::uint64_t missing_numbers;  // the same, for the GPU itself
  std::uint64_t missing_places;
  std::uint64_t answer;  // the rows that were missing, of all blocks, without gaps

  // Where the kernel that finds also asks: a RowsRound, else 0. Where nothing is missing, and the CPU was asked no
  // longer ago than `trusted_ns`, it answers by itself.
  std::uint64_t round;
  std::uint64_t trusted_ns;
  std::uint64_t ask_word;
  std::uint64_t answer_word;
  std::uint64_t passed;  // where the CPU reads how many rounds that were

  std::uint32_t type;          // of the numbers: as RowNumbers::Type
  std::uint32_t first;         // row of the block
  std::uint32_t count;         // of its rows: at most `most_rows`
  std::uint32_t missing;       // of these; written by the kernel that finds
  std::uint32_t answer_begin;  // where the first of these lies in the answer; written by the CPU, as the next
  std::uint32_t code;          // 0: the rows are there, else all rows are zeros
  std::uint32_t layout;        // another one each time that the entries are written anew
  std::uint32_t unused;

  static constexpr std::uint32_t most_rows = 256;
};
static_assert(sizeof(RowsEntry) % 16 == 0);

}  // namespace penstock::cuda
