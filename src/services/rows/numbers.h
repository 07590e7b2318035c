// The numbers of a gather, by their type.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "penstock/rows.h"

namespace penstock::rows {

// Calls use(std::span<const Number>). REQUIRES: host memory, aligned as its type needs.
template <typename Use>
decltype(auto) with_numbers(const RowNumbers& numbers, Use use) {
  const auto as = [&]<typename Number>(Number) -> decltype(auto) {
    return use(std::span(reinterpret_cast<const Number*>(numbers.memory().data), numbers.size()));
  };
  switch (numbers.type()) {
    case RowNumbers::Type::i8:
      return as(std::int8_t{});
    case RowNumbers::Type::u8:
      return as(std::uint8_t{});
    case RowNumbers::Type::i16:
      return as(std::int16_t{});
    case RowNumbers::Type::u16:
      return as(std::uint16_t{});
    case RowNumbers::Type::i32:
      return as(std::int32_t{});
    case RowNumbers::Type::u32:
      return as(std::uint32_t{});
    case RowNumbers::Type::i64:
      return as(std::int64_t{});
    case RowNumbers::Type::u64:
      break;
  }
  return as(std::uint64_t{});
}

// The number of a row, or for one below 0 a number that no table has.
template <typename Number>
constexpr std::uint64_t row_of(Number number) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(number));
}
template <>
constexpr std::uint64_t row_of(std::uint64_t number) {
  return number;
}

}  // namespace penstock::rows
