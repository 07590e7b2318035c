// A model of layers whose bytes can be checked, for tests of Layers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/penstock.h"
#include "support/support.h"

namespace penstock::test {

struct LayerShape {
  std::size_t layers = 8;
  std::uint64_t rows = 64;
  std::uint64_t columns = 1000;
  std::size_t files = 1;
  bool whole_layers = false;  // each layer lies in one file; otherwise tensors are dealt out to the files in turn
};

// Each layer has a matrix and a bias; "head.weight" is of no layer. A tensor's seed is where it stands in `names`.
class LayeredModel {
 public:
  LayeredModel(const Context& context, const TemporaryFolder& folder, const LayerShape& shape = {}) {
    for (std::size_t i = 0; i < shape.layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i);
      add(layer + ".matrix", {shape.rows, shape.columns + i % 2});
      add(layer + ".bias", {13});
    }
    add("head.weight", {shape.rows / 2, shape.columns});
    std::vector<std::vector<TensorToSave>> files(shape.files);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      files[(shape.whole_layers ? i / 2 : i) % files.size()].push_back(
          {names_[i], DType::u8, shapes_[i], Region::host(bytes_[i].data(), bytes_[i].size())});
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
      paths_.push_back(folder.path("model" + std::to_string(i) + ".safetensors"));
      const auto saved = save_safetensors(context, paths_.back(), files[i], {.durable = false});
      EXPECT_TRUE(saved.ok()) << saved.error().message;
    }
    auto model = Model::open(context, paths_);
    EXPECT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
  }

  const Model& model() const { return model_; }
  const std::vector<std::string>& paths() const { return paths_; }

  // Whether the bytes are those of a tensor of a group, or of its rows.
  testing::AssertionResult holds(std::span<const std::byte> bytes, const GroupTensor& wanted) const {
    const TensorInfo& tensor = model_.tensors()[wanted.tensor];
    const auto place = std::ranges::find(names_, tensor.name) - names_.begin();
    const auto row_bytes = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    const Interval rows = wanted.rows.value_or(Interval{0, tensor.shape[0]});
    if (bytes.size() != (rows.end - rows.begin) * row_bytes) return testing::AssertionFailure() << "another size";
    return holds_content(bytes, static_cast<std::uint64_t>(place), rows.begin * row_bytes);
  }

 private:
  void add(const std::string& name, std::vector<std::uint64_t> shape) {
    std::uint64_t size = 1;
    for (const std::uint64_t each : shape) size *= each;
    bytes_.push_back(content(names_.size(), 0, size));
    names_.push_back(name);
    shapes_.push_back(std::move(shape));
  }

  std::vector<std::string> names_;
  std::vector<std::vector<std::uint64_t>> shapes_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::string> paths_;
  Model model_;
};

}  // namespace penstock::test
