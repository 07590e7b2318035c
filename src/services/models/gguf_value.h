// Values of GGUF's metadata, as the file has them.
#pragma once

#include <array>
#include <cstdint>

namespace penstock::models {

enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr std::uint32_t value_types = 13;
// The least that a value of each type takes; but for strings and arrays, all that it takes.
inline constexpr std::array<std::uint64_t, value_types> least_value_bytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

}  // namespace penstock::models
