// The types of ggml that files of GGUF hold, and how many bytes a block of each has.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/models.h"

namespace penstock::models {

struct GgmlType {
  std::uint32_t id = 0;
  std::string_view name;
  std::uint32_t block_elements = 1;
  std::uint32_t block_bytes = 1;
  std::optional<DType> plain;  // nothing: quantized
};

inline constexpr std::array ggml_types = {
    GgmlType{0, "F32", 1, 4, DType::f32},    GgmlType{1, "F16", 1, 2, DType::f16},
    GgmlType{2, "Q4_0", 32, 18, {}},         GgmlType{3, "Q4_1", 32, 20, {}},
    GgmlType{6, "Q5_0", 32, 22, {}},         GgmlType{7, "Q5_1", 32, 24, {}},
    GgmlType{8, "Q8_0", 32, 34, {}},         GgmlType{9, "Q8_1", 32, 36, {}},
    GgmlType{10, "Q2_K", 256, 84, {}},       GgmlType{11, "Q3_K", 256, 110, {}},
    GgmlType{12, "Q4_K", 256, 144, {}},      GgmlType{13, "Q5_K", 256, 176, {}},
    GgmlType{14, "Q6_K", 256, 210, {}},      GgmlType{15, "Q8_K", 256, 292, {}},
    GgmlType{16, "IQ2_XXS", 256, 66, {}},    GgmlType{17, "IQ2_XS", 256, 74, {}},
    GgmlType{18, "IQ3_XXS", 256, 98, {}},    GgmlType{19, "IQ1_S", 256, 50, {}},
    GgmlType{20, "IQ4_NL", 32, 18, {}},      GgmlType{21, "IQ3_S", 256, 110, {}},
    GgmlType{22, "IQ2_S", 256, 82, {}},      GgmlType{23, "IQ4_XS", 256, 136, {}},
    GgmlType{24, "I8", 1, 1, DType::i8},     GgmlType{25, "I16", 1, 2, DType::i16},
    GgmlType{26, "I32", 1, 4, DType::i32},   GgmlType{27, "I64", 1, 8, DType::i64},
    GgmlType{28, "F64", 1, 8, DType::f64},   GgmlType{29, "IQ1_M", 256, 56, {}},
    GgmlType{30, "BF16", 1, 2, DType::bf16}, GgmlType{34, "TQ1_0", 256, 54, {}},
    GgmlType{35, "TQ2_0", 256, 66, {}},      GgmlType{39, "MXFP4", 32, 17, {}},
    GgmlType{40, "NVFP4", 64, 36, {}},       GgmlType{41, "Q1_0", 128, 18, {}},
    GgmlType{42, "Q2_0", 64, 18, {}},
};

// Those that ggml had once, and took out of its files again.
struct RemovedType {
  std::uint32_t id = 0;
  std::string_view name;
};
inline constexpr std::array removed_ggml_types = {
    RemovedType{4, "Q4_2"},        RemovedType{5, "Q4_3"},        RemovedType{31, "Q4_0_4_4"},
    RemovedType{32, "Q4_0_4_8"},   RemovedType{33, "Q4_0_8_8"},   RemovedType{36, "IQ4_NL_4_4"},
    RemovedType{37, "IQ4_NL_4_8"}, RemovedType{38, "IQ4_NL_8_8"},
};

constexpr const GgmlType* find_ggml_type(std::uint32_t id) {
  for (const GgmlType& type : ggml_types) {
    if (type.id == id) return &type;
  }
  return nullptr;
}
constexpr const GgmlType* find_ggml_type(std::string_view name) {
  for (const GgmlType& type : ggml_types) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

}  // namespace penstock::models
