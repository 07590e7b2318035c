// What the tests of models share: files that say what a test wants, and a folder for them that vanishes.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace penstock::models {

class ModelTest : public testing::Test {
 protected:
  ModelTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "penstock-models-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ModelTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return path(name);
  }

  std::filesystem::path folder_;
};

inline std::string little_endian(std::uint64_t value, int bytes = 8) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

inline std::string safetensors_file(std::string_view json, std::string_view data) {
  return little_endian(json.size()) + std::string(json) + std::string(data);
}

// One tensor of `size` bytes, of the type U8.
inline std::string one_tensor(const std::string& name, std::size_t size, char fill = 'x') {
  const std::string length = std::to_string(size);
  return safetensors_file(
      "{\"" + name + R"(":{"dtype":"U8","shape":[)" + length + R"(],"data_offsets":[0,)" + length + "]}}",
      std::string(size, fill));
}

}  // namespace penstock::models
